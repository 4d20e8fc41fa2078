"""The command `isomargin`, in a process that may be killed, alone or with its node, before a step."""

import os
import signal

from isomargin.cli.app import main
from isomargin.training import loop


def batches_until_killed(feed):
    """Return batches as `feed` does, for a process that is gone before step KILLED_STEP."""
    rank, step = os.environ["KILLED_RANK"], int(os.environ["KILLED_STEP"])

    def batches(images, sampler, steps, *arguments, **options):
        for number, batch in zip(steps, feed(images, sampler, steps, *arguments, **options), strict=True):
            if number == step and rank in ("all", str(sampler.rank)):
                if rank == "all" and os.environ["LOCAL_RANK"] == "0":
                    os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    return batches


if __name__ == "__main__":
    if "KILLED_RANK" in os.environ:
        loop.training_batches = batches_until_killed(loop.training_batches)
    main()
