"""What other processes do with a run. Nothing of the tests is imported here, so that they begin soon."""

import os
import signal
import threading
import time

import torch

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


def train_as_torchrun_does(rank, count, port, recipe, folder):
    """Be one of the processes that torchrun starts; it tells them what they are in these variables."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none"}
    torch.set_num_threads(1)
    loop.train(load_recipe(recipe), folder, **OPTIONS)
    assert torch.distributed.get_world_size() == count
