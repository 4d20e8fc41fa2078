"""The demo: evaluate a plain embedding of the rendered letters. Writes a run's folder like any other command."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from isomargin.data.glyphs import load_glyphs
from isomargin.embeddings import EmbeddingSet

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

DIMENSIONS = 64


def run_demo(folder: Path) -> "Evaluation":
    """Embed the test letters with the principal components of the training letters' pixels, evaluate, save.

    Writes ``embeddings.npz`` and ``evaluation.json`` into the folder.
    """
    from isomargin.measure.evaluate import evaluate

    folder.mkdir(parents=True, exist_ok=True)
    train, test = load_glyphs("train"), load_glyphs("test")
    vectors = project(train.images, test.images, DIMENSIONS)
    embeddings = EmbeddingSet(vectors, np.array(test.class_names)[test.labels])
    evaluation = evaluate(embeddings.vectors, embeddings.labels)
    embeddings.save(folder / "embeddings.npz")
    evaluation.save(folder / "evaluation.json")
    return evaluation


def project(train: NDArray[np.uint8], test: NDArray[np.uint8], dimensions: int) -> NDArray[np.float32]:
    """(n, dimensions) the test images in the coordinates of the training images' principal components.

    >>> images = np.random.default_rng(0).integers(0, 256, (20, 4, 4)).astype(np.uint8)
    >>> project(images, images, 3).shape
    (20, 3)
    """
    train_pixels = train.reshape(len(train), -1).astype(np.float32) / 255
    test_pixels = test.reshape(len(test), -1).astype(np.float32) / 255
    mean = train_pixels.mean(axis=0)
    covariance = np.cov((train_pixels - mean).T)
    components = np.linalg.eigh(covariance)[1][:, ::-1][:, :dimensions]  # largest variance first
    return np.asarray((test_pixels - mean) @ components, np.float32)
