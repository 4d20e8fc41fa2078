"""What every integration does first: check that its package is installed and can be imported."""

import importlib.util

from isomargin.core.extras import require


def prepare(package: str) -> None:
    """Raise an error that names the extra unless the package is installed; see that torchvision can be imported.

    These packages import torchvision where it is installed, which fails if its compiled part is for another build of
    torch; `isomargin.models.torchvision_shim` explains that.

    >>> prepare("torch")
    """
    require(package)
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        from isomargin.models.torchvision_shim import import_torchvision

        import_torchvision()
