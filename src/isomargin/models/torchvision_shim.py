"""The import of torchvision, also beside a build of torch that its compiled part does not fit.

Torchvision's wheels are built for one CUDA version. Beside another build of torch, such as that for the CPU, the
compiled part does not load, and the import fails on the missing operator `torchvision::nms`, though nothing here
needs it. timm imports torchvision, so it goes through here too.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

# An operator is gone when the library that declared it is.
_declared: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Import torchvision, declaring the operators it misses if it cannot be imported without.

    Where torchvision is whole this is a plain import. Else all works but its compiled operators, `nms` among them.

    >>> import_torchvision().__name__
    'torchvision'
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or _declared:
            raise
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    return importlib.import_module("torchvision")
