"""Choices of the axis `training` that stand for no training: raw features, and runs with equalized similarities."""

from __future__ import annotations

from collections.abc import Mapping

AXIS = "training"
RAW, LOCAL, NONE = "raw", " + local", "none"


def is_raw(choices: Mapping[str, str]) -> bool:
    """Tell whether choices are those of raw features, equalized or not."""
    return without_local(choices).get(AXIS) == RAW


def is_local(choices: Mapping[str, str]) -> bool:
    """Tell whether choices are those of an equalized run."""
    return choices.get(AXIS, "").endswith(LOCAL)


def with_local(choices: Mapping[str, str]) -> dict[str, str]:
    """Give the choices of the same run equalized."""
    return {**choices, AXIS: choices[AXIS] + LOCAL}


def without_local(choices: Mapping[str, str]) -> dict[str, str]:
    """Give the choices of the run that was equalized; those of another run as they are.

    >>> without_local({"loss": "arcface", "training": "tcm + local"})
    {'loss': 'arcface', 'training': 'tcm'}
    """
    return {axis: choice.removesuffix(LOCAL) if axis == AXIS else choice for axis, choice in choices.items()}


def is_derived(choices: Mapping[str, str]) -> bool:
    """Tell whether choices stand for no training of their own."""
    return is_raw(choices) or is_local(choices)
