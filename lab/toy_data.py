"""Data small enough to run every experiment in seconds: patterns in a file laid out as Omniglot's, and features."""

from pathlib import Path

import numpy as np

from isomargin.core.files import atomic_write

CLASSES, TRAINING, IMAGES, FEATURES = 24, 12, 8, 32


def write_toy_data(folder: Path) -> dict[str, Path]:
    """Write the data, which are always the same, and give the folder of each data set.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     sorted(path.name for path in write_toy_data(Path(folder)).values())
    ['features.npz', 'patterns']
    """
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    shapes = np.kron(generator.random((CLASSES, 7, 7)) < 0.4, np.ones((1, 4, 4)))
    images = shapes[labels] * 180 + generator.integers(0, 75, (len(labels), 28, 28))
    (folder / "patterns").mkdir(parents=True, exist_ok=True)
    names = np.array([f"pattern/{number:02}" for number in range(CLASSES)])
    with atomic_write(folder / "patterns" / "omniglot28.npz") as temporary:  # another process may be reading it
        np.savez(
            temporary,
            images=images.astype(np.uint8),
            label=labels,
            class_name=names,
            background=np.arange(CLASSES) < TRAINING,
        )
    mixing = generator.normal(size=(images[0].size, FEATURES))
    with atomic_write(folder / "features.npz") as temporary:
        np.savez(temporary, embeddings=(images.reshape(len(images), -1) @ mixing).astype(np.float32), labels=labels)
    return {"patterns": folder / "patterns", "pattern-features": folder / "features.npz"}
