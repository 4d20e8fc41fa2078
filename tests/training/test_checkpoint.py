"""Checkpoints: what is written comes back, damage is seen, and the last whole one is used."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from isomargin.training import checkpoint
from isomargin.training.checkpoint import find_checkpoints, load_checkpoint, read_checkpoint, save_checkpoint


def make_state(number):
    return {
        "model": {"weight": torch.full((3, 4), float(number))},
        "optimizer": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": 1e-3, "params": [0]}]},
        "random": torch.get_rng_state(),
        "epoch": number,
        "best": None,
        "names": ["a", "b"],
    }


def test_a_state_comes_back_as_it_was(tmp_path):
    save_checkpoint(tmp_path / "new" / "folder", 7, make_state(3))
    step, state, notes = load_checkpoint(tmp_path / "new" / "folder")
    assert (step, notes) == (7, [])
    torch.testing.assert_close(state["model"], make_state(3)["model"])
    assert state["optimizer"]["param_groups"] == [{"lr": 1e-3, "params": [0]}]
    assert torch.equal(state["random"], torch.get_rng_state())
    assert (state["epoch"], state["best"], state["names"]) == (3, None, ["a", "b"])


def test_only_the_newest_are_kept(tmp_path):
    for step in (5, 1, 12, 100):
        save_checkpoint(tmp_path, step, make_state(step))
    assert [step for step, _ in find_checkpoints(tmp_path)] == [12, 100]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_the_last_whole_checkpoint_is_used_and_the_damaged_one_named(tmp_path, damage):
    save_checkpoint(tmp_path, 1, make_state(1))
    newest = save_checkpoint(tmp_path, 2, make_state(2))
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    newest.write_bytes({"cut": content[:-10], "flip": content, "empty": b"", "text": b"hello"}[damage])
    step, state, notes = load_checkpoint(tmp_path)
    assert (step, state["epoch"]) == (1, 1)
    assert len(notes) == 1
    assert str(newest) in notes[0]
    assert "damaged or cut short" in notes[0]


def test_where_none_is_whole_all_are_named(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, make_state(step)).write_bytes(b"")
    with pytest.raises(ValueError, match="none of the 2 checkpoints") as raised:
        load_checkpoint(tmp_path)
    assert "step-000000001.ckpt" in str(raised.value)
    assert "step-000000002.ckpt" in str(raised.value)


def test_a_full_disk_leaves_the_last_one_and_says_so(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, make_state(1))

    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "atomic_write", full)
    with pytest.raises(ValueError, match=r"the disk is full.*the last good one is .*step-000000001\.ckpt"):
        save_checkpoint(tmp_path, 2, make_state(2))
    assert load_checkpoint(tmp_path)[0] == 1


def test_nothing_that_runs_code_is_unpickled(tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.system, ("true",)

    path = save_checkpoint(tmp_path, 1, {"harm": Harmful()})
    with pytest.raises(ValueError, match="holds something else than a checkpoint"):
        read_checkpoint(path)


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    script = (
        "import sys, torch\nfrom pathlib import Path\nfrom isomargin.training.checkpoint import save_checkpoint\n"
        "for step in range(10**6):\n"
        "    save_checkpoint(Path(sys.argv[1]), step, {'weight': torch.full((200_000,), float(step))})\n"
        "    print(step, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    last = -1
    for line in process.stdout:
        last = int(line)
        if last >= 5:
            break
    time.sleep(0.0123)
    os.kill(process.pid, signal.SIGKILL)
    rest = process.communicate()[0].split()
    step, state, notes = load_checkpoint(tmp_path)
    assert notes == []
    assert step >= int(rest[-1] if rest else last)
    assert torch.equal(state["weight"], torch.full((200_000,), float(step)))
