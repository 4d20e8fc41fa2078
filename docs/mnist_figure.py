"""Draws docs/images/figure-embeddings_2d.png: digits of MNIST in two dimensions, ArcFace without and with TCM.

python docs/mnist_figure.py FOLDER

FOLDER holds MNIST's four idx files. Runs that are not in runs/mnist yet are trained first,
about ten minutes each on one core.
"""

import sys
from pathlib import Path
from typing import Any

from isomargin.figures import save
from isomargin.figures.embeddings_2d import embeddings_2d
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.training.loop import train
from isomargin.training.recipe import Recipe, read_recipe
from isomargin.training.run_folder import RunFolder

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs" / "mnist"
# Ten classes evenly around a circle are 36 degrees apart, of a cosine of 0.81: a negative margin much below that could
# not be kept by any embedding. The margins are angles of 8 and 32 degrees.
TCM = {"name": "tcm", "positive_margin": 0.99, "negative_margin": 0.85}
# Gentler than ArcFace's usual 64 and 0.5, with which digits stayed on top of each other for the first epoch. Two
# dimensions are hard to train all the same: classes can hardly pass each other on a circle, and another seed may leave
# some together.
ARCFACE = {"name": "arcface", "scale": 16, "margin": 0.1}
EPOCHS = 5


def recipe(name: str, folder: Path, regularizer: dict[str, Any] | None) -> Recipe:
    return read_recipe(
        {
            "name": f"mnist-{name}",
            "data": {"name": "mnist", "root": str(folder)},
            "model": {"backbone": "small_conv4", "pooling": "avg+max", "layer_norm": True, "dimensions": 2},
            "loss": {"base": ARCFACE, "regularizer": regularizer},
            "batch": {"classes": 10, "images_per_class": 10},
            "optimizer": {"name": "adam", "learning_rate": 4e-3},
            "schedule": {"name": "cosine"},
            "augmentation": {"name": "none"},
            "evaluation": {"every": EPOCHS},
            "epochs": EPOCHS,
        }
    )


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    shown = {}
    for name, title, regularizer in (("arcface", "ArcFace", None), ("arcface-tcm", "ArcFace + TCM", TCM)):
        run = RunFolder(RUNS / name)
        if not run.finished:
            RUNS.mkdir(parents=True, exist_ok=True)
            train(recipe(name, Path(sys.argv[1]).resolve(), regularizer), run.path)
        shown[title] = EmbeddingSet.load(run.embeddings)
    save(embeddings_2d(shown), HERE / "images" / "figure-embeddings_2d.png")


if __name__ == "__main__":
    main()
