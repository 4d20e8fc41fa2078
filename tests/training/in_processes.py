"""What other processes do with a run. Nothing of the tests is imported here, so that they begin soon."""

import os
import signal
import sys
import threading
import time

import torch

from isomargin.core.errors import InputError
from isomargin.training import loop
from isomargin.training.recipe import load_recipe

OPTIONS = {"quiet": True, "workers": 0, "accelerator": "cpu"}


def train_until_killed(folder, steps, seconds):
    """Go on with a run, with a checkpoint after every step; so long after so many steps the process is gone."""

    def kill():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def feed(*arguments, **options):
        for step, batch in enumerate(batches(*arguments, **options)):
            if step == steps:
                threading.Thread(target=kill, daemon=True).start()
            yield batch

    batches, loop.training_batches = loop.training_batches, feed
    torch.set_num_threads(1)
    loop.train(load_recipe(folder / "recipe.yaml"), folder, resume=True, checkpoint_seconds=0.0, **OPTIONS)


def become_one_of(nodes, rank, port):
    """Be one of the processes that torchrun starts on nodes of so many each; it tells them so in these variables."""
    node, local_rank = [(node, place) for node, count in enumerate(nodes) for place in range(count)][rank]
    numbers = {"RANK": rank, "LOCAL_RANK": local_rank, "GROUP_RANK": node}
    numbers |= {"WORLD_SIZE": sum(nodes), "LOCAL_WORLD_SIZE": nodes[node]}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none"}
    torch.set_num_threads(1)


def train_as_torchrun_does(rank, nodes, port, recipe, folder):
    """Train as one of several processes."""
    become_one_of(nodes, rank, port)
    loop.train(load_recipe(recipe), folder, **OPTIONS)
    assert torch.distributed.get_world_size() == sum(nodes)


def train_and_note_reads(rank, nodes, port, recipe, folder, root):
    """Train, and write down each time that a file below `root` is opened."""
    become_one_of(nodes, rank, port)
    with open(f"{folder}.reads-{rank}", "w") as notes:
        sys.addaudithook(
            lambda event, arguments: (
                notes.write(f"{arguments[0]}\n")
                if event == "open" and str(arguments[0]).startswith(str(root))
                else None
            )
        )
        loop.train(load_recipe(recipe), folder, **OPTIONS)


def train_by_another_recipe(rank, nodes, port, recipes, folder):
    """Train by the recipe of this process, and write down how that ends."""
    become_one_of(nodes, rank, port)
    try:
        loop.train(load_recipe(recipes[rank]), folder, **OPTIONS)
    except InputError as error:
        with open(f"{folder}.error-{rank}", "w") as notes:
            notes.write(f"{type(error).__name__}: {error}")
