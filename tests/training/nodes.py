"""Two nodes on one machine: an agent of torchrun for each, with processes that train and may be killed at a step."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

from isomargin.training.checkpoint import load_checkpoint
from training.runs import environment

SECONDS = 300  # for agents to end; one that waits for ever fails the test


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(options, arguments, killed=None):
    """Start an agent of torchrun; `killed` is the rank of a process, or "all" with their agent, and a step."""
    # Restarted processes must not find the addresses of those that have ended: docs/training.md tells users as well.
    settings = environment() | {"PYTHONPATH": os.pathsep.join(sys.path), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if killed is not None:
        settings |= dict(zip(("KILLED_RANK", "KILLED_STEP"), map(str, killed), strict=True))
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, options)]
    script = Path(__file__).with_name("killed_command.py")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, str(script), *map(str, arguments)], env=settings, **pipes)


def train_on_nodes(arguments, processes=(2, 2), killed=None):
    """Run `isomargin train` on nodes with so many processes each; return exit codes, all output and the seconds."""
    port, began = free_port(), time.monotonic()
    options = ("--nnodes", len(processes), "--master-addr", "127.0.0.1", "--master-port", port)
    arguments = ("train", *arguments, "--accelerator", "cpu", "--workers", 0)
    agents = [
        start([*options, "--node-rank", node, "--nproc-per-node", count], arguments, killed)
        for node, count in enumerate(processes)
    ]
    return *ended(agents), time.monotonic() - began


def ended(agents):
    """Wait for agents; return their exit codes and their standard errors."""
    try:
        errors = [agent.communicate(timeout=SECONDS)[1] for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()  # it ends its processes first
                agent.communicate()
    return [agent.returncode for agent in agents], errors


def sentences(errors):
    """The lines that isomargin itself printed about what went wrong."""
    return [line for text in errors for line in text.splitlines() if line.startswith("isomargin: ")]


def parameters(folder):
    """The last step of a run, and all parameters of its model and its loss."""
    step, content, _ = load_checkpoint(Path(folder) / "checkpoints")
    tensors = {**content["model"], **{f"loss.{name}": value for name, value in content["loss"].items()}}
    return step, {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}


def largest_difference(one, other):
    """The largest difference between the parameters of two runs after the same number of steps."""
    (step, expected), (other_step, found) = parameters(one), parameters(other)
    assert step == other_step
    assert expected.keys() == found.keys()
    return max(float((expected[name].double() - found[name].double()).abs().max()) for name in expected)
