"""Losses by name, and from the plain dictionaries of a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses._base import MetricLoss
from isomargin.losses.arcface import ArcFaceLoss, SubCenterArcFaceLoss
from isomargin.losses.calibration import CalibrationLoss
from isomargin.losses.class_alignment import ClassAlignmentLoss
from isomargin.losses.composition import added, share, weighted
from isomargin.losses.contrastive import ContrastiveLoss
from isomargin.losses.proxy_anchor import ProxyAnchorLoss
from isomargin.losses.proxy_nca import ProxyNCALoss, ProxyNCAPlusPlusLoss
from isomargin.losses.recall_at_k import RecallAtKLoss
from isomargin.losses.roadmap import RoadmapLoss
from isomargin.losses.smooth_ap import SmoothAPLoss
from isomargin.losses.soft_triple import SoftTripleLoss
from isomargin.losses.sup_ap import SupAPLoss
from isomargin.losses.tcm import TCMLoss
from isomargin.losses.threshold_penalty import ThresholdPenaltyLoss
from isomargin.losses.triplet import TripletLoss

REGISTRY: dict[str, type[MetricLoss]] = {
    loss_class.name: loss_class
    for loss_class in (
        ArcFaceLoss,
        CalibrationLoss,
        ClassAlignmentLoss,
        ContrastiveLoss,
        ProxyAnchorLoss,
        ProxyNCALoss,
        ProxyNCAPlusPlusLoss,
        RecallAtKLoss,
        RoadmapLoss,
        SmoothAPLoss,
        SoftTripleLoss,
        SubCenterArcFaceLoss,
        SupAPLoss,
        TCMLoss,
        ThresholdPenaltyLoss,
        TripletLoss,
    )
}

LossConfig = MetricLoss | str | Mapping[str, Any] | Sequence[Any]


def loss_names() -> list[str]:
    """List the names that `make_loss` knows.

    >>> loss_names()[:3]
    ['arcface', 'calibration', 'class_alignment']
    """
    return list(REGISTRY)


def make_loss(config: LossConfig) -> MetricLoss:
    """Create a loss from its name, from a dictionary with its name and settings, or from a list of these to add up.

    A `weight` in a dictionary is the weight of that loss in the sum; a `share` sets the length of its gradient (see
    `share`). Class names and other spellings are understood too (`TCMLoss`, `smooth-ap`).

    >>> make_loss("smooth_ap")
    SmoothAPLoss(temperature=0.01, include_query=False)
    >>> make_loss(["smooth_ap", {"name": "tcm", "weight": 0.5, "positive_margin": 0.8}]).extra_repr()
    '1 * smooth_ap + 0.5 * tcm'
    >>> make_loss({"name": "tcm", "positve_margin": 0.8})
    Traceback (most recent call last):
    isomargin.InputError: tcm has no setting 'positve_margin': did you mean 'positive_margin'?
    """
    if isinstance(config, MetricLoss):
        return config
    if isinstance(config, torch.nn.Module):
        return added(config)
    if isinstance(config, str):
        return _make_one(config, {})
    if isinstance(config, Mapping):
        settings = dict(config)
        if "name" not in settings:
            raise InputError(f"the loss {settings!r} has no name: one of {', '.join(REGISTRY)} is needed")
        weight = settings.pop("weight", 1)
        of_base = settings.pop("share", None)
        loss = _make_one(settings.pop("name"), settings)
        if of_base is not None:
            if weight != 1:
                raise InputError(f"{loss.name} has a weight and a share: give one of them")
            return share(loss, of_base)
        return loss if weight == 1 and not isinstance(weight, bool) else weighted(loss, weight)
    if isinstance(config, Sequence) and len(config):
        losses = [make_loss(part) for part in config]
        return losses[0] if len(losses) == 1 else added(*losses)
    raise InputError(f"the loss is {config!r}: a name, a dictionary with a name, or a list of these is needed")


def loss_settings(name: Any) -> list[str]:
    """List the settings of a loss by its name.

    >>> loss_settings("smooth-ap")
    ['temperature', 'include_query', 'check_finite']
    """
    return list(inspect.signature(REGISTRY[_known(name)]).parameters)


def _known(name: Any) -> str:
    """Return the name as it is in the registry."""
    known = {_plain(key): key for key in REGISTRY} | {_plain(loss.__name__): key for key, loss in REGISTRY.items()}
    if not isinstance(name, str) or _plain(name) not in known:
        raise InputError(f"there is no loss {name!r}: {checks.nearest(str(name), list(REGISTRY))}")
    return known[_plain(name)]


def _make_one(name: Any, settings: dict[str, Any]) -> MetricLoss:
    name = _known(name)
    parameters = inspect.signature(REGISTRY[name]).parameters
    for setting in settings:
        if setting not in parameters:
            raise InputError(f"{name} has no setting {setting!r}: {checks.nearest(str(setting), list(parameters))}")
    missing = [key for key, found in parameters.items() if found.default is found.empty and key not in settings]
    if missing:
        raise InputError(f"{name} was given no {' and no '.join(missing)}: a proxy is needed for each training class")
    return REGISTRY[name](**settings)


def _plain(name: str) -> str:
    """Reduce a name to its letters, so that `Smooth-AP`, `smooth_ap` and `SmoothAPLoss` are the same.

    >>> _plain("Smooth-AP"), _plain("SmoothAPLoss"), _plain("proxy_nca++"), _plain("ProxyNCApp")
    ('smoothap', 'smoothap', 'proxynca++', 'proxynca++')
    """
    plain = "".join(letter for letter in name.lower() if letter.isalnum() or letter == "+").removesuffix("loss")
    return plain.removesuffix("pp") + "++" if plain.endswith("pp") else plain
