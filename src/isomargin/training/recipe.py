"""Recipes: everything a training run is made from, as a YAML file, checked before anything is loaded.

The sections `data`, `model` and `loss` hold settings of `load_data`, `make_model` and `make_loss`, which check them;
the others are checked here. `load_recipe` reads a file and takes changes from a command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isomargin import checks
from isomargin.errors import InputError
from isomargin.files import atomic_write, check_file, reading

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=1, strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LossRecipe(_Section):
    """The base loss and what regularizes it.

    >>> LossRecipe(base="smooth_ap", regularizer={"name": "tcm", "weight": 0.5}).parts()
    ['smooth_ap', {'name': 'tcm', 'weight': 0.5}]
    """

    base: str | dict[str, Any]
    """As `make_loss` takes it."""
    regularizer: str | dict[str, Any] | list[str | dict[str, Any]] | None = None
    """One, several or none; `weight` weighs it."""

    def parts(self) -> list[str | dict[str, Any]]:
        """List base and regularizers, for `make_loss`."""
        more = self.regularizer if isinstance(self.regularizer, list) else [self.regularizer]
        return [self.base, *(each for each in more if each is not None)]


class BatchRecipe(_Section):
    """What a batch is made of."""

    classes: Whole = 64
    """Different classes in a batch."""
    images_per_class: Whole = 4
    small_classes: Literal["repeat", "drop"] = "repeat"
    """What becomes of classes that have fewer images: see `ClassBatchSampler`."""
    chunk: Whole | None = None
    """How many images go through the model at a time, for batches larger than memory; all if not given."""


class OptimizerRecipe(_Section):
    """How parameters are changed."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: Positive = 1e-4
    """Of the backbone."""
    head_factor: Positive = 1.0
    """How many times that rate the head gets. Proxies have their loss's `learning_rate_factor`."""
    weight_decay: NotNegative = 4e-4
    eps: Positive | None = None
    """Of Adam; torch's own if not given."""
    momentum: NotNegative = 0.9
    """Of SGD."""
    clip_value: Positive | None = None
    """The largest entry of a gradient."""
    clip_norm: Positive | None = None
    """The largest norm of all gradients together."""


class ScheduleRecipe(_Section):
    """How the learning rate changes; see `schedule.py`."""

    name: Literal["constant", "multi_step", "every", "cosine", "one_cycle", "plateau"] = "constant"
    at: tuple[NotNegative, ...] = ()
    """Epochs at which `multi_step` multiplies."""
    epochs: Positive | None = None
    """How often `every` multiplies."""
    factor: Positive = 0.3
    patience: Annotated[int, Field(ge=0, strict=True)] = 4
    """Evaluations that `plateau` waits."""
    warm_up_epochs: NotNegative = 0.0
    """Epochs at the start in which the backbone is frozen and only the head, and proxies, train."""


class EvaluationRecipe(_Section):
    """When and how the model is evaluated on the unseen classes."""

    every: Positive = 1.0
    """Epochs between evaluations; there is one at the end in any case."""
    best_by: Literal["recall@1", "opis", "epsilon_opis", "map_at_r", "eer"] = "recall@1"
    """By which score the best model is kept."""
    far: tuple[Positive, Positive] = (1e-2, 1e-1)
    """The calibration range."""


class Recipe(_Section):
    """A training run.

    >>> recipe = Recipe(name="a", data={"name": "glyphs"}, model={"backbone": "small_conv"}, loss={"base": "smooth_ap"})
    >>> recipe.batch.images_per_class, recipe.optimizer.name
    (4, 'adam')
    """

    name: str
    data: dict[str, Any]
    """`name`, and settings of `load_data`."""
    model: dict[str, Any]
    """Settings of `make_model`."""
    loss: LossRecipe
    batch: BatchRecipe = BatchRecipe()
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    evaluation: EvaluationRecipe = EvaluationRecipe()
    augmentation: dict[str, Any] = {}
    """Settings of the training images' distortions."""
    epochs: Positive = 10.0
    seed: Annotated[int, Field(ge=0, strict=True)] = 0

    def to_yaml(self) -> str:
        """Write it out in full, defaults too."""
        text: str = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110)
        return text

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        with atomic_write(path) as temporary:
            temporary.write_text(self.to_yaml(), encoding="utf-8")


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: 1e-4 is one, as everywhere else; in PyYAML it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def load_recipe(path: Path, changes: Iterable[str] = ()) -> Recipe:
    """Read a recipe and change single settings: `loss.regularizer.negative_margin=0.4`.

    >>> from tempfile import TemporaryDirectory
    >>> text = "{name: a, data: {name: glyphs}, model: {backbone: small_conv}, loss: {base: {name: smooth_ap}}}"
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.yaml"
    ...     _ = path.write_text(text)
    ...     recipe = load_recipe(path, ["loss.base.temperature=1e-2", "optimizer.learning_rate=1e-3"])
    >>> recipe.loss.base, recipe.optimizer.learning_rate
    ({'name': 'smooth_ap', 'temperature': 0.01}, 0.001)
    """
    check_file(path)
    with reading(path):
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {type(content).__name__}: a recipe is settings by name, see recipes/")
    for change in changes:
        _change(content, change)
    return read_recipe(content, str(path))


def read_recipe(content: Mapping[str, Any], source: str = "the recipe") -> Recipe:
    """Check a recipe's settings; raise `InputError` with the first that cannot be used."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise InputError(_sentence(error, source)) from error


def _change(content: dict[str, Any], change: str) -> None:
    """Set one setting, by the path of its names."""
    path, equals, text = change.partition("=")
    if not equals or not path.strip():
        raise InputError(f"{change!r} is no change of a recipe: section.setting=value is needed")
    *sections, last = path.strip().split(".")
    place = content
    for name in sections:
        below = place.get(name)
        if below is None:
            below = place[name] = {}
        elif isinstance(below, str) and place is not content:  # a loss by its name alone
            below = place[name] = {"name": below}
        if not isinstance(below, dict):
            raise InputError(f"{change!r}: {name} is {below!r} and has no settings below it")
        place = below
    try:
        place[last] = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{change!r}: {text!r} is no value in YAML") from error


def _sentence(error: ValidationError, source: str) -> str:
    """Say of the first thing that is wrong what was expected and what came."""
    first = error.errors()[0]
    place = [str(each) for each in first["loc"] if isinstance(each, int) or "[" not in str(each)]
    name = ".".join(place)
    if first["type"] == "extra_forbidden":
        known = _settings_at(place[:-1])
        return f"{source} has no setting {name!r}: {checks.nearest(place[-1], known)}"
    if first["type"] == "missing":
        return f"{source} lacks {name!r}: it is needed"
    expected = first["msg"].removeprefix("Input should be ")
    return f"{source}: {name} is {first['input']!r}: {expected} is needed"


def _settings_at(place: list[str]) -> list[str]:
    section: Any = Recipe
    for name in place:
        section = section.model_fields[name].annotation
    return list(section.model_fields)
