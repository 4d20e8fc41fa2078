"""Importing isomargin changes no class of another package."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import importlib, inspect, sys
import timm, torch, torch.utils.data, pytorch_metric_learning.losses, pytorch_metric_learning.utils.distributed

def attributes():
    found = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] in ("pytorch_metric_learning", "timm") or module_name.startswith("torch.nn"):
            for name, value in list(vars(module).items()):
                if inspect.isclass(value) and value.__module__ == module_name:
                    found |= {(module_name, name, key): id(item) for key, item in vars(value).items()}
    return found

before = attributes()
assert any(module == "pytorch_metric_learning.losses.cross_batch_memory" for module, *_ in before)
for name in ("losses", "losses.wrappers", "losses.registry", "models", "training.loop", "training.embed"):
    importlib.import_module(f"isomargin.{name}")
after = attributes()
print([key for key in before if after.get(key) != before[key]])
"""


def test_importing_isomargin_changes_no_class_of_another_package():
    # Beside a CPU build of torch, timm can be imported only after the shim: its file is run without the package.
    shim = Path(__file__).parents[2] / "src/isomargin/models/torchvision_shim.py"
    script = f"import runpy\nrunpy.run_path({str(shim)!r})['import_torchvision']()\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
