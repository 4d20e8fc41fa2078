"""The core alone: measuring imports nothing that only training and figures need; other commands say what to install.

A fresh interpreter in which those packages cannot be imported runs the commands end to end.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

import isomargin as im

BLOCKED = (
    *("torch", "torchvision", "timm", "lightning_fabric", "pytorch_metric_learning", "tensorboard"),
    *("huggingface_hub", "fontTools", "matplotlib", "ray"),
)
"""Not pydantic, which newer versions of typer need themselves, nor yaml, which numba reads where it is there."""

SCRIPT = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from isomargin.cli.app import main

for line in sys.stdin.read().splitlines():
    sys.argv = ["isomargin", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print(f"exit {{ended.code or 0}}", file=sys.stderr)
"""


def run_commands(folder, *lines):
    """Exit codes of commands in an interpreter without the optional packages, and what it wrote to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(lines), cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [int(line[5:]) for line in done.stderr.splitlines() if line.startswith("exit ")], done.stderr


@pytest.fixture
def folder(tmp_path):
    """Embeddings in two formats, and the folder of a finished run."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 10)
    vectors = (generator.normal(size=(12, 16))[labels] + generator.normal(size=(120, 16))).astype(np.float32)
    im.EmbeddingSet(vectors, labels).save(tmp_path / "a.npz")
    im.EmbeddingSet(vectors + 0.1, labels).save(tmp_path / "b.safetensors")
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text("name: run\n", encoding="utf-8")
    im.EmbeddingSet(vectors, labels).save(run / "embeddings.npz")
    im.evaluate(vectors, labels).save(run / "evaluation.json")
    return tmp_path


def test_the_measuring_commands_run_without_the_optional_packages(folder):
    codes, errors = run_commands(
        folder,
        "evaluate a.npz --output a.json --per-class a.csv --report a.html --intervals",
        "evaluate b.safetensors --json",
        "threshold a.json --far 0.05 --output card.json",
        "threshold run --far 0.05 --delta 0.2 --calibrate platt",
        "transfer card.json b.safetensors --output transfer.csv",
        "compare a.json b.safetensors run --output compare.csv",
        "report run a.json -o report.html",
        "equalize a.npz --neighbours 10 --skip 0",
        "equalize a.npz --unlabelled --neighbours 10 --skip 5 --output local.json",
        "evaluate a.npz --equalizer local.json --report equalized.html --json",
        "threshold a.npz --equalizer equalizer.json --far 0.05 --output equalized-card.json",
        "transfer equalized-card.json b.safetensors --equalizer equalizer.json",
    )
    assert codes == [0] * 12, errors
    for name in ("a.csv", "a.html", "card.txt", "transfer.csv", "compare.csv", "report.html", "equalized.html"):
        assert (folder / name).stat().st_size > 0
    assert json.loads((folder / "a.json").read_text())["scores"]["items"] == 120


NEEDED = {
    "train glyphs": "train",
    "tune glyphs": "train",
    "embed run": "train",
    "adapt a.npz": "train",
    "demo": "train",
    "evaluate a.npz --device cpu": "train",
    "evaluate b.safetensors --ray local": "ray",
    "report run --thumbnails 2": "train",
    "figure utility_curves run -o curves.png": "figures",
}


def test_a_command_that_needs_an_extra_says_so_in_one_sentence(folder):
    codes, errors = run_commands(folder, *NEEDED)
    assert codes == [2] * len(NEEDED)
    said = [line for line in errors.splitlines() if not line.startswith("exit ")]
    assert len(said) == len(NEEDED), errors
    for line, extra in zip(said, NEEDED.values(), strict=True):
        assert line.endswith(f"is not installed: pip install 'isomargin[{extra}]'")


def test_torch_is_not_imported_by_measuring_where_it_is_installed(folder):
    script = (
        "import sys; from isomargin.cli.app import main\n"
        "sys.argv = ['isomargin', 'evaluate', 'a.npz', '--report', 'r.html']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        f"print([name for name in {BLOCKED!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.stderr.splitlines()[-1] == "[]"
