"""Recipes: all settings of a training run, as a YAML file, checked before anything is loaded.

The sections `data`, `model` and `loss` hold settings of `load_data`, `make_model` and `make_loss`, which check them.
The other sections are checked here. `load_recipe` reads a file and applies changes from a command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, check_file, reading
from isomargin.measure.settings import Pairs, Utility
from isomargin.training.yaml_text import YamlDumper, parse_yaml

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=1, strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LossRecipe(_Section):
    """The base loss and its regularizers.

    >>> LossRecipe(base="smooth_ap", regularizer={"name": "tcm", "weight": 0.5}).parts()
    ['smooth_ap', {'name': 'tcm', 'weight': 0.5}]
    """

    base: str | dict[str, Any]
    """As for `make_loss`."""
    regularizer: str | dict[str, Any] | list[str | dict[str, Any]] | None = None
    """One, several or none; `weight` is its weight."""

    def parts(self) -> list[str | dict[str, Any]]:
        """List base and regularizers, for `make_loss`."""
        more = self.regularizer if isinstance(self.regularizer, list) else [self.regularizer]
        return [self.base, *(part for part in more if part is not None)]


class BatchRecipe(_Section):
    """What a batch consists of."""

    classes: Whole = 64
    """Number of different classes in a batch."""
    images_per_class: Whole = 4
    families: Annotated[int, Field(ge=0, strict=True)] = 0
    """Draw the classes of a batch from this many families first (classes with one parent folder); 0: from all."""
    small_classes: Literal["repeat", "drop"] = "repeat"
    """What to do with classes that have fewer items, see `ClassBatchSampler`."""
    chunk: Whole | None = None
    """Items per pass through the model, for batches larger than memory; all if not given."""


class OptimizerRecipe(_Section):
    """How parameters are updated."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: Positive = 1e-4
    """Of the backbone."""
    head_factor: Positive = 1.0
    """Learning rate of the head relative to the backbone's. Proxies have the `learning_rate_factor` of their loss."""
    weight_decay: NotNegative = 4e-4
    eps: Positive | None = None
    """Of Adam; torch's default if not given."""
    momentum: NotNegative = 0.9
    """Of SGD."""
    clip_value: Positive | None = None
    """The largest entry of a gradient."""
    clip_norm: Positive | None = None
    """The largest norm of all gradients together."""

    @model_validator(mode="after")
    def _one_way_to_clip(self) -> Self:
        if self.clip_value is not None and self.clip_norm is not None:
            raise ValueError("clip_value and clip_norm are given: give one of them")
        return self


class ScheduleRecipe(_Section):
    """How the learning rate changes; see `schedule.py`."""

    name: Literal["constant", "multi_step", "every", "cosine", "one_cycle", "plateau"] = "constant"
    at: tuple[NotNegative, ...] = ()
    """Epochs at which `multi_step` multiplies."""
    epochs: Positive | None = None
    """Epochs between the steps of `every`."""
    factor: Positive = 0.3
    patience: Annotated[int, Field(ge=0, strict=True)] = 4
    """How many evaluations `plateau` waits."""
    rise: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """The share of the epochs in which `one_cycle` rises."""
    warm_up_epochs: NotNegative = 0.0
    """Epochs at the start in which the backbone is frozen and only the head and proxies are trained."""


class EvaluationRecipe(_Section):
    """When and how the model is evaluated, on the test classes or on held-out training classes."""

    every: Positive = 1.0
    """Epochs between evaluations; there is always one at the end."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training classes to hold out and evaluate on instead of the test classes."""
    test: bool = True
    """Whether the finished model is evaluated on the test classes; set to false while settings are searched."""
    best_by: Literal["last", "recall@1", "opis", "epsilon_opis", "map_at_r", "eer"] = "last"
    """The score that chooses the model among the evaluations, or the last model. Without `held_out` a score chooses on
    the test classes, as in the literature, which flatters the result."""
    pairs: tuple[Pairs, ...] = ("all",)
    """`all` pairs, or `sampled`, the paper's protocol for large sets. Given both, the first is used during training and
    for evaluation.json; at the end the model is evaluated with the other too, and saved beside it."""
    negatives_per_positive: Whole = 10
    """Of `sampled`: number of negative pairs drawn per positive pair of a class."""
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    """Of `sampled`: of the random pairs. The same for runs that differ in the seed of their training."""
    far: tuple[Positive, Positive] = (1e-2, 1e-1)
    """The calibration range; classes are compared at its lower end."""
    grid: Annotated[int, Field(ge=10, strict=True)] = 101
    """Number of distances in the calibration range at which utilities are compared."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the classes in each of the two groups of ε-OPIS."""
    utility: Utility = "specificity_sensitivity"
    """The two rates that the utility combines."""
    batch: Whole = 256
    """How many items are embedded at a time."""

    @field_validator("pairs", mode="before")
    @classmethod
    def _one_or_several(cls, pairs: Any) -> Any:
        return (pairs,) if isinstance(pairs, str) else pairs

    @field_validator("pairs")
    @classmethod
    def _at_least_one_and_none_twice(cls, pairs: tuple[Pairs, ...]) -> tuple[Pairs, ...]:
        if not pairs or len(set(pairs)) < len(pairs):
            raise ValueError(f"evaluation.pairs is {list(pairs)}: all, sampled, or both, each once, is needed")
        return pairs

    def settings(self, pairs: Pairs) -> dict[str, Any]:
        """Return the settings of `isomargin.evaluate` with one of the kinds of pairs.

        >>> EvaluationRecipe(grid=51).settings("all")["grid"]
        51
        """
        names = ("negatives_per_positive", "seed", "far", "grid", "epsilon", "utility")
        return {**{name: getattr(self, name) for name in names}, "pairs": pairs, "target_far": self.far[0]}

    @model_validator(mode="after")
    def _test_or_held_out(self) -> Self:
        if not self.test and self.held_out == 0:
            raise ValueError("test is false and nothing is held out: set held_out, the share of classes to evaluate on")
        return self


class AugmentationRecipe(_Section):
    """How training images are distorted; see `data/feeding.py`."""

    name: Literal["affine", "crop", "none"] | None = None
    """`affine` for small images in memory, `crop` for files; what fits the data if not given."""
    rotation: NotNegative = 10.0
    """Of `affine`, as in `RandomAffine`, like the next three."""
    scale: NotNegative = 0.1
    shear: NotNegative = 0.1
    shift: NotNegative = 2.0
    smallest_area: Annotated[float, Field(gt=0, le=1)] = 0.08
    """Of `crop`: the smallest area of the crop, as a share of the image."""
    flip: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Of `crop`: the share of images that are flipped left to right."""
    views: Whole | None = None
    """Of `crop`: how many random views of each image there are, so that what the frozen first stages of the model make
    of them can be kept; see `frozen_stages.py`. Every crop is a new one if not given."""
    resize: Whole | None = None
    """Of test images that are files: the shorter side before the centre is cropped; 8/7 of the size of the model (256
    for 224) if not given."""


class Recipe(_Section):
    """A training run.

    >>> recipe = Recipe(name="a", data={"name": "glyphs"}, model={"backbone": "small_conv"}, loss={"base": "smooth_ap"})
    >>> recipe.batch.images_per_class, recipe.optimizer.name
    (4, 'adam')
    """

    name: str
    """Also that of the run's folder, `runs/NAME`."""
    data: dict[str, Any]
    """`name`, and settings of `load_data`."""
    model: dict[str, Any]
    """Settings of `make_model`."""
    loss: LossRecipe
    batch: BatchRecipe = BatchRecipe()
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    evaluation: EvaluationRecipe = EvaluationRecipe()
    augmentation: AugmentationRecipe = AugmentationRecipe()
    all_classes: bool = False
    """Train on the test classes too, for a final model. No unseen classes are left, so nothing is evaluated."""
    skip_bad_images: bool = False
    """Leave out image files that cannot be decoded; otherwise they are an error."""
    pretrained_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the pretrained weights in the model that is kept, the trained ones having the rest; see
    `pretrained_share.py`."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "64-true"] = "32-true"
    """Of lightning-fabric; bfloat16 needs a CPU that supports it. 64-true is for comparing runs."""
    epochs: Positive = 10.0
    seed: Annotated[int, Field(ge=0, strict=True)] = 0

    @field_validator("name")
    @classmethod
    def _name_within_runs(cls, name: str) -> str:
        ways = (PurePosixPath(name), PureWindowsPath(name))
        leaves = any(way.anchor or not way.parts or ".." in way.parts for way in ways)
        if leaves or not name.isprintable() or name != name.strip():
            raise ValueError(f"name is {name!r}: a name inside runs/ is needed, such as mine or birds/mine")
        return name

    @model_validator(mode="after")
    def _precision_of_chunks(self) -> Self:
        if self.precision == "16-mixed" and self.batch.chunk is not None:
            raise ValueError("precision is 16-mixed and batch.chunk is set, which cannot be combined: take bf16-mixed")
        return self

    @model_validator(mode="after")
    def _no_scores_with_all_classes(self) -> Self:
        if not self.all_classes:
            return self
        if self.evaluation.held_out > 0:
            raise ValueError("all_classes is true and evaluation.held_out keeps classes out: give one of them")
        if self.evaluation.best_by != "last":
            raise ValueError(
                f"all_classes is true, so there are no unseen classes to choose a model on, and evaluation.best_by is "
                f"{self.evaluation.best_by!r}: set evaluation.best_by=last, and epochs as an earlier run found them"
            )
        if self.schedule.name == "plateau":
            raise ValueError("all_classes is true and the schedule 'plateau' needs scores: take another schedule")
        return self

    def to_yaml(self) -> str:
        """Return it in full, with defaults, as YAML."""
        content = self.model_dump(mode="json")
        text: str = yaml.dump(content, Dumper=YamlDumper, sort_keys=False, allow_unicode=True, width=110)
        return text

    def save(self, path: Path) -> None:
        """Write it to a file, atomically."""
        with atomic_write(path) as temporary:
            temporary.write_text(self.to_yaml(), encoding="utf-8")


def shipped_recipes() -> dict[str, Path]:
    """List the recipes that come with the package, by name.

    >>> "cub-lite0" in shipped_recipes()
    True
    """
    folder = Path(__file__).parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_recipe(name: str) -> Path:
    """Find a recipe: a file, the folder of a run, or the name of one that comes with the package.

    >>> find_recipe("cub-lite0").name
    'cub-lite0.yaml'
    >>> find_recipe("cub-lite")
    Traceback (most recent call last):
    isomargin.InputError: there is no recipe 'cub-lite', neither a file nor one that comes with isomargin: ...
    """
    path, shipped = Path(name), shipped_recipes()
    if path.is_dir() and (name not in shipped or (path / "recipe.yaml").is_file()):
        return path / "recipe.yaml"
    if path.is_file() or (path.suffix and path.stem not in shipped):
        return path
    if path.stem in shipped and path.name in (path.stem, f"{path.stem}.yaml"):
        return shipped[path.stem]
    raise InputError(
        f"there is no recipe {name!r}, neither a file nor one that comes with isomargin: "
        f"{checks.nearest(path.stem, list(shipped))}"
    )


def load_recipe(source: str | os.PathLike[str], changes: Iterable[str] = ()) -> Recipe:
    """Read a recipe and change single settings: `loss.regularizer.negative_margin=0.4`.

    `source` is a file, the folder of a run, or the name of a recipe that comes with the package.
    A recipe with `extends: NAME` starts with the settings of `NAME.yaml` in the same folder and overrides them.

    >>> from tempfile import TemporaryDirectory
    >>> text = "{name: a, data: {name: glyphs}, model: {backbone: small_conv}, loss: {base: {name: smooth_ap}}}"
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.yaml"
    ...     _ = path.write_text(text)
    ...     recipe = load_recipe(path, ["loss.base.temperature=1e-2", "optimizer.learning_rate=1e-3"])
    >>> recipe.loss.base, recipe.optimizer.learning_rate
    ({'name': 'smooth_ap', 'temperature': 0.01}, 0.001)
    """
    path = find_recipe(os.fspath(source))
    content = _read_yaml(path)
    for change in changes:
        _change(content, change)
    return read_recipe(content, str(path))


def read_recipe(content: Mapping[str, Any], source: str = "the recipe") -> Recipe:
    """Check a recipe's settings; raise `InputError` with the first that cannot be used."""
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise InputError(_sentence(error, source)) from error


def _read_yaml(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a recipe's settings, with those of the recipe it extends."""
    check_file(path)
    with reading(path):
        content = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {type(content).__name__}: a recipe is settings by name, see recipes/")
    if "extends" not in content:
        return content
    base = path.parent / f"{content.pop('extends')}.yaml"
    if base in above:
        raise InputError(f"{path} extends {base}, which extends it in turn: one of them must not extend the other")
    return _merged(_read_yaml(base, (*above, path)), content)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Override settings by others; sections are merged, everything else is replaced.

    >>> _merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}})
    {'a': {'b': 4, 'c': 2}, 'd': 3}
    """
    both = dict(below)
    for name, value in above.items():
        inner = both.get(name)
        both[name] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def _change(content: dict[str, Any], change: str) -> None:
    """Set one setting, by the path of its names."""
    path, equals, text = change.partition("=")
    if not equals or not path.strip():
        raise InputError(f"{change!r} is not a change of a recipe: section.setting=value is needed")
    *sections, last = path.strip().split(".")
    place = content
    for name in sections:
        below = place.get(name)
        if below is None:
            below = place[name] = {}
        elif isinstance(below, str) and place is not content:  # a loss given by its name only
            below = place[name] = {"name": below}
        if not isinstance(below, dict):
            raise InputError(f"{change!r}: {name} is {below!r} and has no settings below it")
        place = below
    try:
        place[last] = parse_yaml(text, repr(path))
    except yaml.YAMLError as error:
        raise InputError(f"{change!r}: {text!r} is not a value in YAML") from error


def _sentence(error: ValidationError, source: str) -> str:
    """Say what was expected and what was given, for the first error."""
    first = error.errors()[0]
    kinds = ("str", "int", "float", "bool")  # of the alternatives of a type, which pydantic lists too
    place = [str(part) for part in first["loc"] if isinstance(part, int) or not ("[" in part or part in kinds)]
    name = ".".join(place)
    if first["type"] == "extra_forbidden":
        known = _settings_at(place[:-1])
        return f"{source} has no setting {name!r}: {checks.nearest(place[-1], known)}"
    if first["type"] == "missing":
        return f"{source} lacks {name!r}: it is needed"
    if first["type"] == "value_error":
        return f"{source}: {first['msg'].removeprefix('Value error, ')}"
    expected = first["msg"].removeprefix("Input should be ")
    return f"{source}: {name} is {first['input']!r}: {expected} is needed"


def _settings_at(place: list[str]) -> list[str]:
    section: Any = Recipe
    for name in place:
        section = section.model_fields[name].annotation
    return list(section.model_fields)
