"""Optional packages: which extra installs them, and a one-sentence error if one is missing."""

import importlib
import importlib.util
from types import ModuleType

from isomargin.core.errors import InputError

EXTRAS = {
    "train": (
        *("torch", "torchvision", "timm", "pytorch_metric_learning", "lightning_fabric", "tensorboard"),
        *("pydantic", "yaml", "huggingface_hub", "fontTools"),
    ),
    "figures": ("matplotlib",),
    "qdrant": ("qdrant_client",),
    "lancedb": ("lancedb",),
    "chroma": ("chromadb",),
    "duckdb": ("duckdb",),
    "postgresql": ("psycopg",),
    "faiss": ("faiss",),
    "ray": ("ray",),
    "datasets": ("datasets",),
    "torchmetrics": ("torchmetrics",),
    "sentence-transformers": ("sentence_transformers", "transformers", "accelerate"),
    "lightning": ("pytorch_lightning",),
}
"""Import names of the optional packages, by the extra of isomargin that installs them."""


class MissingPackageError(InputError, ImportError):
    """An optional package is not installed; the text says how to install it."""


MissingPackageError.__module__ = "isomargin"


def missing_package(error: ModuleNotFoundError) -> MissingPackageError | None:
    """Return an error that names the extra to install for a failed import, or None if no extra has the module.

    >>> str(missing_package(ModuleNotFoundError("No module named 'torch'", name="torch")))
    "torch is not installed: pip install 'isomargin[train]'"
    """
    package = (error.name or "").split(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    if extra is None:
        return None
    return MissingPackageError(f"{package} is not installed: pip install 'isomargin[{extra}]'")


def import_or_explain(module: str) -> ModuleType:
    """Import a module. If an optional package that it needs is missing, raise an error that says what to install.

    >>> import_or_explain("isomargin.theory").__name__
    'isomargin.theory'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        explained = missing_package(error)
        if explained is None:
            raise
        raise explained from error


def require(package: str) -> None:
    """Raise an error that names the extra unless an optional package is installed; nothing is imported.

    >>> require("numpy")
    """
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        error = ModuleNotFoundError(f"No module named {package!r}", name=package)
        raise missing_package(error) or error
