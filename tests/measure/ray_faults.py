"""Faults for tests on a Ray cluster: every worker calls ``install`` when it starts, and does what ``FAULTS`` says.

A worker that is to be killed kills itself, with a signal that it cannot catch, once its part is counted.
"""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

VARIABLE = "FAULTS"
LOCAL = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""Settings of clusters in tests: no reports, and workers that are not put behind the other processes of the machine."""
PATIENCE = 120  # seconds for a gate to open


def environment(folder: Path, **faults: object) -> dict:
    """The runtime environment of workers: the folder for their notes, limits of the pass and what goes wrong.

    ``killed_once``, ``always_killed`` and ``waiting`` are numbers of parts; the last wait until ``folder/gate`` exists.
    """
    values = {"folder": str(folder), **faults}
    variables = {VARIABLE: json.dumps(values), "PYTHONPATH": os.pathsep.join(sys.path)}
    return {"worker_process_setup_hook": "measure.ray_faults.install", "env_vars": variables}


def counted(folder: Path) -> list[int]:
    """The numbers of the parts that workers have begun to count, each as often as it was begun."""
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("begun-*"))


def install() -> None:
    """Put the faults into this process."""
    faults = json.loads(os.environ[VARIABLE])
    from isomargin.measure import ray_galleries, ray_parts
    from isomargin.measure.pairs import tiles

    for name, value in faults.get("limits", {}).items():
        setattr(tiles, name, value)
    folder = Path(faults["folder"])

    def count_and_fail(count, plan, number, **options):
        (folder / f"begun-{number}-{time.time_ns()}").touch()
        deadline = time.monotonic() + PATIENCE
        while number in faults.get("waiting", ()) and not (folder / "gate").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        counts = count(plan, number, **options)
        once = number in faults.get("killed_once", ()) and not (folder / f"killed-{number}").exists()
        if once or number in faults.get("always_killed", ()):
            (folder / f"killed-{number}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return counts

    ray_parts.count_part = partial(count_and_fail, ray_parts.count_part)
    ray_galleries.count_gallery_part = partial(count_and_fail, ray_galleries.count_gallery_part)
