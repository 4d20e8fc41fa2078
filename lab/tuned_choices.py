"""The settings of TCM and of the class alignment that searches on held-out classes have chosen: one home for them.

    results/tuning/choices.yaml    by setting, loss and name: a regularizer as a recipe has it

The experiment `tuning` writes the file, and the choices of settings.yaml with `tuned` read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from isomargin.core.errors import InputError
from isomargin.training.yaml_text import YamlLoader
from lab.files import write_text

CHOICES = "choices.yaml"
HOME = Path(__file__).parents[1] / "results" / "tuning" / CHOICES
HEADER = """\
# Regularizers by setting, loss and name, chosen on held-out training classes by the experiment `tuning`, which writes
# this file.
"""

Regularizer = dict[str, Any]
Chosen = dict[str, dict[str, dict[str, Regularizer]]]
"""By setting, loss and name."""


def read_choices(path: Path) -> Chosen:
    """Read a file of choices; nothing where there is none."""
    if not path.is_file():
        return {}
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=YamlLoader) or {}
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no choices by setting: move it away")
    return content


@cache
def known_choices() -> Chosen:
    """Give the choices that the experiments use."""
    return read_choices(HOME)


def write_choices(chosen: Mapping[str, Mapping[str, Mapping[str, Regularizer]]], path: Path) -> None:
    """Write choices over those of the same setting, loss and name; the others stay."""
    merged: Chosen = read_choices(path)
    for setting, by_loss in chosen.items():
        for loss, by_name in by_loss.items():
            merged.setdefault(setting, {}).setdefault(loss, {}).update(by_name)
    lines = [HEADER]
    for setting, by_loss in merged.items():
        lines.append(f"{setting}:\n")
        for loss, by_name in by_loss.items():
            lines.append(f"  {loss}:\n")
            lines += [f"    {name}: {in_line(regularizer)}\n" for name, regularizer in by_name.items()]
    write_text(path, "".join(lines))


def in_line(regularizer: Regularizer) -> str:
    """Write a regularizer as YAML on one line.

    >>> in_line({"name": "tcm", "positive_margin": 0.9, "share": 0.3})
    '{name: tcm, positive_margin: 0.9, share: 0.3}'
    """
    return yaml.safe_dump(regularizer, default_flow_style=True, sort_keys=False, width=1000).strip()


def tuned_change(setting: str | None, loss: str | None, name: str) -> str:
    """Give the change of a recipe that a choice stands for; a setting and loss that were not searched are refused."""
    regularizer = known_choices().get(setting or "", {}).get(loss or "", {}).get(name)
    if regularizer is None:
        raise InputError(f"{HOME} has no {name} for {loss} in {setting}: run the experiment tuning there first")
    return f"loss.regularizer={in_line(regularizer)}"
