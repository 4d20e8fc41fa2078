"""Models that people use, as they are: timm's for images, sentence-transformers for text, CLIP for both.

A name is one of the model's own hub, or a folder in which the model was saved. Vectors are what the model returns;
nothing here trains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.extras import missing_package
from isomargin.models.hub import cache_if_unreachable
from isomargin.models.torchvision_shim import import_torchvision
from isomargin.models.weights import load_file, load_lite, make_pretrained, timm_statistics

PRECISIONS = ("auto", "float32", "float16")
TAKES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"timm": ("images",), "st": ("text",), "clip": ("images", "text")}
)
"""What each kind of model embeds."""


@dataclass(frozen=True)
class Encoder:
    """A model that embeds images or texts."""

    name: str
    """As it was asked for, such as `timm:resnet50`."""
    digest: str
    """SHA-256 of the weights."""
    precision: str
    """float32 or float16: that of the products."""
    prepare: Callable[[Any], Any]
    """From one image or text to what `encode` takes; called in threads."""
    encode: Callable[[Sequence[Any]], NDArray[np.float32]]
    """From prepared items to vectors (n, d)."""


def open_encoder(
    name: str, what: str, weights: str | None = None, device: str = "cpu", precision: str = "auto"
) -> Encoder:
    """Open a model by `timm:NAME`, `st:NAME` or `clip:NAME`.

    Args:
        name: the kind and the name, or a folder in place of the name.
        what: "images" or "text".
        weights: for timm: "lite" for those of a pip package, or a file; by default those of the hub.
        device: a torch device.
        precision: "float16" halves the time of most GPUs; "auto" takes it on a GPU, and float32 elsewhere.

    >>> open_encoder("resnet50", "images")
    Traceback (most recent call last):
    isomargin.InputError: the model is 'resnet50': timm:NAME, st:NAME or clip:NAME is needed
    """
    kind, colon, rest = name.partition(":")
    if not colon or kind not in TAKES or not rest:
        raise InputError(f"the model is {name!r}: timm:NAME, st:NAME or clip:NAME is needed")
    if what not in TAKES[kind]:
        others = " or ".join(f"{other}:NAME" for other, taken in TAKES.items() if what in taken)
        raise InputError(f"{kind}: models embed {' and '.join(TAKES[kind])}, not {what}: take {others}")
    if weights is not None and kind != "timm":
        raise InputError(f"weights were given, but {kind}: models bring their own: leave them out")
    place = _device(device)
    used = _precision(precision, place)
    opened = {"timm": _open_timm, "st": _open_sentences, "clip": _open_clip}[kind]
    prepare, run, model = _explained(name, rest, lambda: opened(rest, what, weights, place))

    def encode(items: Sequence[Any]) -> NDArray[np.float32]:
        with torch.inference_mode(), _casting(place, used):
            found: NDArray[np.float32] = run(items).astype(np.float32)
        return found

    return Encoder(name, _digest(model), used, prepare, encode)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device is {name!r}, which this torch cannot use: take cpu, or cuda on a GPU") from error
    return device


def _precision(precision: str, device: torch.device) -> str:
    checks.one_of(precision, "precision", PRECISIONS)
    if precision == "auto":
        return "float32" if device.type == "cpu" else "float16"
    return precision


def _casting(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, dtype=torch.float16) if precision == "float16" else nullcontext()


def _explained(name: str, rest: str, opened: Callable[[], Any]) -> Any:
    """Open a model; a failure becomes one sentence."""
    if rest.startswith((".", "/", "~")) and not Path(rest).expanduser().is_dir():
        raise InputError(f"there is no folder {rest}: check the path of the model")
    asked = True
    try:
        if _folder(rest) is not None:
            return opened()
        with cache_if_unreachable() as asked:
            return opened()
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error
    except Exception as error:  # libraries of hubs fail in many ways
        if not asked and isinstance(error, OSError):
            raise InputError(
                f"the model {name} is not in the hub's cache, and the hub cannot be reached: save the model on a "
                "machine with network, and give its folder in place of the name"
            ) from error
        words = " ".join(str(error).split())
        raise InputError(
            f"the model {name} could not be opened ({type(error).__name__}: {words[:160]}): check the name, or give a "
            "folder in which the model was saved"
        ) from error


def _digest(model: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for key, value in model.state_dict().items():
        found.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _folder(name: str) -> Path | None:
    path = Path(name).expanduser()
    return path if path.is_dir() else None


Opened = tuple[Callable[[Any], Any], Callable[[Sequence[Any]], NDArray[Any]], torch.nn.Module]


def _open_timm(name: str, what: str, weights: str | None, device: torch.device) -> Opened:
    """Open a backbone of timm, with its own pooling and without its classifier, and timm's own transform for tests."""
    import_torchvision()
    import timm
    from timm.data.config import resolve_data_config
    from timm.data.transforms_factory import create_transform

    backbone: Any
    folder = _folder(name)
    if folder is not None and weights is None:
        backbone = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
    elif weights is None:
        backbone = make_pretrained(name, num_classes=0)
    else:
        backbone = timm.create_model(name, pretrained=False, num_classes=0)
        if weights == "lite":
            load_lite(backbone, name)
        else:
            load_file(backbone, Path(weights))
    config = resolve_data_config({}, model=backbone)  # type: ignore[no-untyped-call]
    statistics = timm_statistics(backbone.pretrained_cfg, weights)
    transform = create_transform(**{**config, "mean": statistics.mean, "std": statistics.std})
    backbone.eval().to(device)

    def run(items: Sequence[Any]) -> NDArray[Any]:
        vectors: NDArray[Any] = backbone(torch.stack(list(items)).to(device)).float().cpu().numpy()
        return vectors

    return transform, run, backbone


def _open_sentences(name: str, what: str, weights: str | None, device: torch.device) -> Opened:
    """Open a model of sentence-transformers."""
    import_torchvision()  # transformers imports it where it is installed
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(_folder(name) or name), device=str(device)).eval()

    def run(items: Sequence[Any]) -> NDArray[Any]:
        vectors: NDArray[Any] = model.encode(
            list(items), batch_size=len(items), convert_to_numpy=True, show_progress_bar=False
        )
        return vectors

    return _as_it_is, run, model


def _open_clip(name: str, what: str, weights: str | None, device: torch.device) -> Opened:
    """Open CLIP or a model of the same kind, such as SigLIP, of transformers."""
    import_torchvision()
    from transformers import AutoModel, AutoProcessor

    place = str(_folder(name) or name)
    model = AutoModel.from_pretrained(place).eval().to(device)
    processor = AutoProcessor.from_pretrained(place)  # type: ignore[no-untyped-call, unused-ignore]
    features = getattr(model, f"get_{'image' if what == 'images' else 'text'}_features", None)
    if features is None:
        raise InputError(f"clip:{name} is a {type(model).__name__}, which has no {what} features: give a CLIP model")

    def run(items: Sequence[Any]) -> NDArray[Any]:
        given = {"images": list(items)} if what == "images" else {"text": list(items), "padding": True}
        cut = {} if what == "images" else {"truncation": True}
        inputs = processor(**given, **cut, return_tensors="pt").to(device)
        found = features(**inputs)
        vectors = getattr(found, "pooler_output", found)  # a tensor in older versions
        array: NDArray[Any] = vectors.float().cpu().numpy()
        return array

    return _as_it_is, run, model


def _as_it_is(item: Any) -> Any:
    return item
