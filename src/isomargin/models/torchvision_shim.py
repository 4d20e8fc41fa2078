"""The import of torchvision, also with a build of torch that does not fit its compiled part.

Torchvision's wheels are built for one CUDA version. With another build of torch, such as that for the CPU, the compiled
part does not load, and the import fails because the operator `torchvision::nms` is missing, which nothing here needs.
timm imports torchvision, so it is imported after this.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

# An operator exists as long as the library that declared it.
_declared: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Import torchvision; declare the operators that it lacks where the import fails without them.

    With a torchvision that fits this is a plain import. Otherwise everything works except its compiled operators, such
    as `nms`.

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
