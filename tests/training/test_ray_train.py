"""The script of docs/training.md for Ray Train, on a cluster of this machine: it trains as one process does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from training.nodes import largest_difference
from training.runs import environment, run, tiny

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_script_for_ray_train_trains_as_one_process_does(tmp_path):
    pytest.importorskip("ray.train", reason="ray is not installed")
    recipe = tiny(
        model={"backbone": "tiny_conv", "freeze_batch_norm": "statistics"}, precision="64-true", epochs=20 / 18
    )
    recipe.save(tmp_path / "recipe.yaml")
    block = re.search(r"```python\n(from ray\.train import.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block
    script = block[1]
    changes = {"/shared/": f"{tmp_path}/", "num_workers=8": "num_workers=2", "use_gpu=True": "use_gpu=False"}
    for shown, here in changes.items():
        assert shown in script
        script = script.replace(shown, here)
    begin = "import ray\n\nray.init('local', num_cpus=2, include_dashboard=False)\n"
    (tmp_path / "train.py").write_text(begin + script)
    settings = environment() | {"PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0"}
    found = subprocess.run(
        [sys.executable, tmp_path / "train.py"], env=settings, capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, found.stderr[-3000:]
    run(tmp_path / "one", recipe)
    difference = largest_difference(tmp_path / "one", tmp_path / "runs/mine")
    print(f"Ray Train, two processes: largest difference {difference:.1e}")
    assert difference < 1e-6
