"""A backbone as a sequence of stages, so that what its frozen first stages return can be computed once and kept."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["run_stages", "split_stages", "stages_of"]


def stages_of(backbone: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the stages, by name, that a backbone's `forward_features` runs one after another; empty if it is not known.

    Known are timm's EfficientNets and ResNets, with what is built on them.
    """
    kinds = {base.__name__ for base in type(backbone).__mro__ if base.__module__.startswith("timm.")}
    order: tuple[str, ...]
    if "EfficientNet" in kinds:
        order = ("conv_stem", "bn1", "blocks", "conv_head", "bn2")
    elif "ResNet" in kinds:
        order = ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3", "layer4")
    else:
        return []
    stages: list[tuple[str, nn.Module]] = []
    for name in order:
        module = getattr(backbone, name)
        if name == "blocks":
            stages += [(f"{name}.{number}", stage) for number, stage in module.named_children()]
        else:
            stages.append((name, module))
    return stages


def split_stages(backbone: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """Divide the stages into the frozen ones at the start and the others, which begin with the first that is trained.

    Where the stages are not known, or the first one is trained, there are no frozen ones.
    """
    stages = stages_of(backbone)
    trained = [any(parameter.requires_grad for parameter in stage.parameters()) for _, stage in stages]
    first = trained.index(True) if True in trained else len(stages)
    if not any(True for _, stage in stages[:first] for _ in stage.parameters()):
        first = 0
    return [stage for _, stage in stages[:first]], [stage for _, stage in stages[first:]]


def run_stages(stages: Sequence[nn.Module], images: Tensor) -> Tensor:
    """Run stages one after another: (n, channels, height, width) to the same with other numbers."""
    for stage in stages:
        images = stage(images)
    return images
