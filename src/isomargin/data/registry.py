"""Data sets by name, with their settings in a recipe."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.data.benchmarks import read_cars, read_cub, read_inat, read_sop
from isomargin.data.embedded import read_all_embeddings, read_embeddings
from isomargin.data.folder import read_all_folders, read_folder
from isomargin.data.images import DataSplit, ImageSet, joined
from isomargin.data.omniglot_mnist import read_glyphs, read_mnist, read_omniglot

__all__ = ["data_names", "load_all", "load_data"]

REGISTRY: dict[str, Callable[..., DataSplit]] = {
    "sop": read_sop,
    "cub": read_cub,
    "cars": read_cars,
    "inat": read_inat,
    "omniglot": read_omniglot,
    "mnist": read_mnist,
    "glyphs": read_glyphs,
    "folder": read_folder,
    "embeddings": read_embeddings,
}


def data_names() -> list[str]:
    """List the names that `load_data` knows.

    >>> data_names()[:3]
    ['sop', 'cub', 'cars']
    """
    return list(REGISTRY)


def load_data(name: str, root: str | os.PathLike[str] | None = None, **settings: Any) -> DataSplit:
    """Read the data set of this name at the path `root`; the settings are those of its reader, such as `read_cub`.

    `glyphs` is generated, not read, and has no root.

    >>> load_data("glyphs", draws=1).name
    'glyphs'
    >>> load_data("omniglott", "data")
    Traceback (most recent call last):
    isomargin.InputError: there is no data set 'omniglott': did you mean 'omniglot'?
    >>> load_data("cub", "data", splitt="closed")
    Traceback (most recent call last):
    isomargin.InputError: cub has no setting 'splitt': did you mean 'split'?
    """
    known, folder = _find(name, root, settings)
    return REGISTRY[known](**settings) if folder is None else REGISTRY[known](folder, **settings)


def load_all(name: str, root: str | os.PathLike[str] | None = None, **settings: Any) -> ImageSet:
    """Read all items of a data set as one set; the settings are those of `load_data`.

    Class folders and a file of embeddings are read in the order of the source. Of other data sets the training items
    come first, then the test items.

    >>> load_all("glyphs", draws=1)
    ImageSet(6,608 images in 413 classes)
    """
    known, folder = _find(name, root, settings)
    if known == "folder" and folder is not None and settings.get("split", "classes") == "classes":
        return read_all_folders(folder)
    if known == "embeddings" and folder is not None and not folder.is_dir():
        keys = {key: value for key, value in settings.items() if key in ("embeddings_key", "labels_key")}
        return read_all_embeddings(folder, **keys)
    data = load_data(name, root, **settings)
    return joined(data.train, data.test)


def _find(name: str, root: str | os.PathLike[str] | None, settings: dict[str, Any]) -> tuple[str, Path | None]:
    """Check the name, root and settings of a data set; return its name in the registry, and its path or None."""
    known = name.lower() if isinstance(name, str) else name
    if known not in REGISTRY:
        raise InputError(f"there is no data set {name!r}: {checks.nearest(str(name), list(REGISTRY))}")
    parameters = list(inspect.signature(REGISTRY[known]).parameters)
    for setting in settings:
        if setting not in parameters:
            raise InputError(f"{known} has no setting {setting!r}: {checks.nearest(setting, parameters)}")
    if "root" not in parameters:
        if root is not None:
            raise InputError(
                f"{known} was given the root {os.fspath(root)!r}: it is generated, not read, so leave the root out"
            )
        return known, None
    if root is None:
        raise InputError(f"{known} was given no root: the path of its files is needed")
    folder = Path(str(root) if isinstance(root, int) else root).expanduser()  # YAML reads a folder 2018 as a number
    if not folder.exists():
        raise InputError(f"{folder} does not exist: give the path of the files of {known}")
    return known, folder
