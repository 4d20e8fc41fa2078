"""Draw docs/images/figure-embeddings_2d.png: the digits of MNIST in two dimensions, ArcFace with and without TCM.

    python docs/mnist_figure.py FOLDER

FOLDER holds the four idx files of MNIST. Runs that are missing in runs/mnist are trained first, which takes about ten
minutes each on one core.
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
# Ten classes spread evenly around a circle are 36 degrees apart, a cosine of 0.81, so no embedding could satisfy a
# negative margin much below that. The margins are angles of 8 and 32 degrees.
TCM = {"name": "tcm", "positive_margin": 0.99, "negative_margin": 0.85}
# Smaller than the usual 64 and 0.5 of ArcFace, with which the digits stayed on top of each other for the first epoch.
# Two dimensions are still hard to train: classes can hardly pass each other on a circle, and with another seed some may
# stay together.
ARCFACE = {"name": "arcface", "scale": 16, "margin": 0.1}
EPOCHS = 5


def recipe(name: str, folder: Path, regularizer: dict[str, Any] | None) -> Recipe:
    """Return the recipe of a run on the digits in `folder`."""
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
    """Train the missing runs and draw the figure."""
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
