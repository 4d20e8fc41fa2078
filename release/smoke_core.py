"""The core as it was installed, with no optional package at hand: the commands that a user types first.

Run by the interpreter of that environment, in an empty folder: `python -I smoke_core.py VERSION`.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import isomargin as im
from isomargin.core.extras import EXTRAS

BROUGHT = {"pydantic", "yaml"}
"""Packages of extras that a requirement of the core may bring as well."""


def isomargin(*arguments: str) -> str:
    """Run the installed command; return what it prints."""
    command = Path(sys.executable).with_name("isomargin")
    done = subprocess.run([command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"isomargin {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


def main(version: str) -> None:
    """Check what can be imported, then each command and what it leaves behind."""
    assert Path(im.__file__).is_relative_to(sys.prefix), im.__file__
    there = {name for names in EXTRAS.values() for name in names if importlib.util.find_spec(name) is not None}
    assert there <= BROUGHT, f"optional packages can be imported: {there}"
    assert isomargin("--version") == f"isomargin {version}\n"

    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 8)
    centres = generator.normal(size=(30, 16))
    for name in ("items", "later"):
        vectors = centres[labels] + generator.normal(size=(240, 16))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        im.EmbeddingSet(vectors.astype(np.float32), labels).save(f"{name}.npz")
    assert "OPIS" in isomargin("evaluate", "items.npz", "--output", "items.json")
    isomargin("report", "items.json", "--output", "report.html")
    assert Path("report.html").stat().st_size > 100_000
    isomargin("threshold", "items.npz", "--far", "0.02", "--output", "card.json")
    assert "holds" in isomargin("check", "card.json", "later.npz")

    # What the threshold accepts, counted here: at most two in a hundred negative pairs, and not many fewer.
    vectors = im.EmbeddingSet.load("items.npz").vectors.astype(np.float64)
    negatives = np.triu(labels[:, None] != labels)
    threshold = im.ThresholdCard.load("card.json").threshold["l2"]
    far = (np.linalg.norm(vectors[:, None] - vectors, axis=2)[negatives] <= threshold).mean()
    assert 0.0195 < far <= 0.02, far
    opis = json.loads(Path("items.json").read_text())["scores"]["opis"]
    assert opis == im.evaluate(vectors, labels, progress=None).opis
    print(f"isomargin {version}: the core works without optional packages")


if __name__ == "__main__":
    main(sys.argv[1])
