"""Creates what a recipe describes: data, model, loss, optimiser, schedule. Nothing is trained here."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isomargin.core.errors import InputError
from isomargin.core.labels import as_labels
from isomargin.core.progress import progress_bar
from isomargin.data.augment import RandomAffine, RandomCrop
from isomargin.data.feeding import Augmentation, check_augmentation
from isomargin.data.images import DataSplit, ImageSet, find_bad_images, joined, without_bad
from isomargin.data.registry import load_data
from isomargin.data.sampler import ClassBatchSampler
from isomargin.losses import MetricLoss, WeightedSum
from isomargin.losses.registry import loss_settings, make_loss
from isomargin.measure.evaluate import check_labels
from isomargin.models.embedder import Embedder, make_model
from isomargin.training.recipe import Recipe
from isomargin.training.schedule import Cosine, EveryEpochs, MultiStep, OneCycle, Plateau

Schedule = Callable[[float], float]

NOT_EVALUATED = (
    "all classes are trained on, so there are no unseen classes and nothing is evaluated; take scores and thresholds "
    "from an earlier run that kept classes out"
)

_SHOWN = 20  # the most bad images that are listed


@dataclass(frozen=True, eq=False)
class RecipeData:
    """The items that a recipe trains on and evaluates on."""

    digest: str
    """Checksum of the names of the classes, the labels and the names of the files, to recognise the same data."""

    train: ImageSet
    """Without the held-out classes; with `all_classes`, everything."""
    unseen: ImageSet | None
    """Evaluated during training: held-out training classes, or the test items; None with `all_classes`."""
    test: ImageSet | None
    """None with `all_classes`."""
    notes: tuple[str, ...]
    """Sentences to show with the results."""
    bad: tuple[tuple[Path, str], ...] = ()
    """Files that were left out because they cannot be decoded, with the reasons."""


def open_data(recipe: Recipe, check: bool = True, bad: Sequence[tuple[Path, str]] | None = None) -> RecipeData:
    """Read the data of a recipe, and hold classes out.

    With `check` every image file is decoded. Files that cannot be decoded are an error that lists them, unless the
    recipe says to leave them out. Then they are looked for in any case, unless `bad` has them from another process.
    """
    settings = dict(recipe.data)
    if "name" not in settings:
        raise InputError("the recipe's data has no name: data.name=glyphs, or another of `load_data`, is needed")
    if settings.get("root") is None and settings["name"] not in ("glyphs",):
        raise InputError(
            f"the recipe does not set data.root for {settings['name']}: add data.root=FOLDER, the folder of its files"
        )
    data = load_data(settings.pop("name"), **settings)
    if recipe.skip_bad_images:
        bad = _find_bad(data) if bad is None else bad
        data = without_bad(data, bad=bad)
    elif check:
        _refuse_bad(data)
    bad = tuple(bad or ())
    for images in (data.train, data.test):
        as_labels(np.array(images.class_names))  # names that no file can hold are refused now, not after training
    if recipe.all_classes:
        everything = joined(data.train, data.test)
        return RecipeData(_digest(everything), everything, None, None, (*data.notes, NOT_EVALUATED), bad)
    train, unseen = hold_out(data.train, recipe.evaluation.held_out, recipe.seed)
    for images in (data.test,) if unseen is None else (unseen, data.test):
        for pairs in recipe.evaluation.pairs:
            check_labels(images.labels, **recipe.evaluation.settings(pairs))
    unseen = data.test if unseen is None else unseen
    return RecipeData(_digest(train, unseen, data.test), train, unseen, data.test, data.notes, bad)


def _digest(*sets: ImageSet) -> str:
    digest = hashlib.sha256()
    for images in sets:
        names = "\0".join((*images.class_names, *(path.name for path in images.paths or ())))
        digest.update(names.encode())
        digest.update(images.labels.tobytes())
    return digest.hexdigest()


def _find_bad(data: DataSplit) -> list[tuple[Path, str]]:
    with progress_bar("checking images") as report:
        return [*find_bad_images(data.train, report=report), *find_bad_images(data.test, report=report)]


def _refuse_bad(data: DataSplit) -> None:
    bad = _find_bad(data)
    if bad:
        listed = [f"{path}: {reason}" for path, reason in bad[:_SHOWN]]
        more = [f"and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []
        count = "1 image" if len(bad) == 1 else f"{len(bad):,} images"
        raise InputError(
            f"{count} cannot be read: replace the files, or leave them out with --skip-bad-images", [*listed, *more]
        )


def hold_out(images: ImageSet, share: float, seed: int) -> tuple[ImageSet, ImageSet | None]:
    """Divide a set by class into a training set and one, with `share` of the classes, to evaluate on.

    >>> images = ImageSet(np.arange(40) // 2, tuple(map(str, range(20))), pixels=np.zeros((40, 28, 28), np.uint8))
    >>> hold_out(images, 0.1, seed=0)
    (ImageSet(36 images in 18 classes), ImageSet(4 images in 2 classes))
    """
    if share == 0:
        return images, None
    classes = len(images.class_names)
    held = max(2, round(share * classes))
    if classes - held < 2:
        raise InputError(f"held_out is {share} of {classes} classes: at least 2 must be held out, and 2 must be left")
    chosen = np.random.default_rng([seed, 1]).permutation(classes)[:held]
    mask = np.isin(images.labels, chosen)
    return images.select(~mask), images.select(mask)


def make_recipe_model(recipe: Recipe, images: ImageSet, load_weights: bool = True) -> Embedder:
    """Create the model of a recipe; weights that are not loaded are a function of its seed."""
    torch.manual_seed(recipe.seed)
    return make_model(with_features(recipe, images).model, load_weights=load_weights).channels_last()


def with_features(recipe: Recipe, images: ImageSet) -> Recipe:
    """Fill in the length of the vectors, where the data are vectors."""
    if images.vectors is None or "features" in recipe.model:
        return recipe
    return recipe.model_copy(update={"model": {**recipe.model, "features": images.vectors.shape[1]}})


def make_recipe_loss(recipe: Recipe, classes: int, dimensions: int) -> MetricLoss:
    """Create the loss of a recipe; proxies for the training classes are a function of its seed.

    >>> recipe = Recipe(name="a", data={}, model={}, loss={"base": "proxy_nca", "regularizer": "tcm"})
    >>> make_recipe_loss(recipe, classes=10, dimensions=4).extra_repr()
    '1 * proxy_nca + 1 * tcm'
    """
    torch.manual_seed(recipe.seed)
    known = {"num_classes": classes, "embedding_size": dimensions}
    return make_loss([_with_known(part, known) for part in recipe.loss.parts()])


def _with_known(part: str | dict[str, Any], known: dict[str, int]) -> dict[str, Any]:
    """Fill in what the data and the model determine, in a loss and in its base loss."""
    settings: dict[str, Any] = {"name": part} if isinstance(part, str) else dict(part)
    wanted = loss_settings(settings.get("name"))
    if "base" in wanted and isinstance(settings.get("base"), str | dict):
        settings["base"] = _with_known(settings["base"], known)
    return {**{name: value for name, value in known.items() if name in wanted}, **settings}


def check_warm_up(recipe: Recipe, model: Embedder) -> None:
    """Refuse a warm-up in which no part of the model would be trained."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if recipe.schedule.warm_up_epochs > 0 and all(name.startswith("backbone.") for name in trained):
        raise InputError("warm_up_epochs is set, and the model has no head that could train during it: set dimensions")


def check_views(recipe: Recipe, model: Embedder, augmentation: Augmentation) -> None:
    """Refuse a number of views where there are no frozen stages whose outputs could be kept."""
    if recipe.augmentation.views is None:
        return
    if not isinstance(augmentation, RandomCrop):
        raise InputError("augmentation.views is set, which is for image files that are cropped: leave it out")
    if not model.has_frozen_stages:
        raise InputError(
            "augmentation.views is set, which keeps the outputs of frozen first stages, and the model has none that "
            "can be kept: freeze some of an EfficientNet or a ResNet with model.freeze, or leave views out"
        )


def check_positive_pairs(recipe: Recipe, loss: MetricLoss) -> list[str]:
    """Refuse batches of one item per class for a loss that learns from positive pairs.

    Where only a part of the loss needs positive pairs, such as a regularizer with a proxy loss, return a note.
    """
    parts: Sequence[Any] = loss.leaves() if isinstance(loss, WeightedSum) else [loss]
    lacking = [part.name for part in parts if getattr(part, "needs_positive_pairs", False)]
    if recipe.batch.images_per_class > 1 or not lacking:
        return []
    sentence = (
        f"batch.images_per_class is 1, so no batch holds a positive pair, and {' and '.join(lacking)} "
        f"{'learns' if len(lacking) == 1 else 'learn'} from such pairs"
    )
    if loss.needs_positive_pairs:
        raise InputError(f"{sentence}: set it to 2 or more, or take a proxy loss")
    return [f"{sentence}; the other parts of the loss train without them"]


def make_optimizer(recipe: Recipe, model: Embedder, loss: MetricLoss) -> torch.optim.Optimizer:
    """Create the optimiser of a recipe for the parameters of the model and of the loss."""
    settings = recipe.optimizer
    groups = model.parameter_groups(settings.learning_rate, settings.head_factor, settings.weight_decay)
    groups += loss.parameter_groups(settings.learning_rate)
    groups = [{"weight_decay": settings.weight_decay, **group} for group in groups]  # of proxies too
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=settings.learning_rate, eps=1e-8 if settings.eps is None else settings.eps)


def make_schedule(recipe: Recipe) -> Schedule:
    """Create the schedule of a recipe: the multiple of the learning rates at an epoch."""
    settings = recipe.schedule
    match settings.name:
        case "constant":
            return lambda epoch: 1.0
        case "multi_step":
            return MultiStep(settings.at, settings.factor)
        case "every":
            if settings.epochs is None:
                raise InputError("the schedule is 'every' and schedule.epochs is not set: set how often, in epochs")
            return EveryEpochs(settings.epochs, settings.factor)
        case "cosine":
            return Cosine(recipe.epochs)
        case "one_cycle":
            return OneCycle(recipe.epochs, settings.rise)
        case "plateau":
            return Plateau(settings.patience, settings.factor)


def make_augmentation(recipe: Recipe, images: ImageSet) -> Augmentation:
    """Create the augmentation of a recipe, or the default one for the kind of images."""
    settings = recipe.augmentation
    name = settings.name
    if name is None:
        name = "crop" if images.paths is not None else "affine" if images.pixels is not None else "none"
    augmentation: Augmentation = None
    if name == "affine":
        augmentation = RandomAffine(settings.rotation, settings.scale, settings.shear, settings.shift)
    elif name == "crop":
        augmentation = RandomCrop(settings.smallest_area, settings.flip)
    check_augmentation(images, augmentation)
    return augmentation


def make_sampler(recipe: Recipe, images: ImageSet, rank: int = 0, world_size: int = 1) -> ClassBatchSampler:
    """Create the sampler that draws the batches of a recipe."""
    batch = recipe.batch
    if batch.classes < world_size:
        raise InputError(
            f"batch.classes is {batch.classes} for {world_size} processes: at least one per process is needed"
        )
    families = None
    if batch.families:
        names = np.array([family_of(name) for name in images.class_names])
        if len(np.unique(names)) == 1:
            raise InputError(
                f"batch.families is {batch.families}, but all classes are of one family: classes in folders of folders "
                "are needed, such as alphabet/character"
            )
        families = names[images.labels]
    try:
        return ClassBatchSampler(
            images.labels,
            batch.classes,
            batch.images_per_class,
            batch.small_classes,
            recipe.seed,
            rank,
            world_size,
            families,
            batch.families,
        )
    except InputError as error:  # a recipe has other names for the settings
        raise InputError(str(error).replace("classes_per_batch", "batch.classes")) from error


def family_of(class_name: str) -> str:
    """Return the parent folder of a class's folder; drawings rotated by the same angle are a separate family.

    >>> family_of("Greek/character01"), family_of("Greek/character01 90°"), family_of("owl")
    ('Greek', 'Greek 90°', '')
    """
    folder, _, name = class_name.rpartition("/")
    turned = re.search(r" \d+°$", name)
    return folder + (turned.group() if turned else "")


@dataclass(frozen=True)
class Plan:
    """What a run would be, for `--dry-run`."""

    train: ImageSet
    unseen: ImageSet | None
    test: ImageSet | None
    batches_an_epoch: int
    steps: int
    parameters: int
    """The number of trained parameters."""
    dimensions: int
    size: int
    """Height and width of the images, or the length of the vectors."""
    notes: tuple[str, ...]


def plan(recipe: Recipe) -> Plan:
    """Create everything that a run needs except its weights, and count; images are not decoded."""
    data = open_data(recipe, check=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_recipe_model(recipe, data.train, load_weights=False)
    check_warm_up(recipe, model)
    loss = make_recipe_loss(recipe, len(data.train.class_names), model.dimensions)
    notes = (*data.notes, *check_positive_pairs(recipe, loss))
    make_optimizer(recipe, model, loss)
    make_schedule(recipe)
    check_views(recipe, model, make_augmentation(recipe, data.train))
    batches = len(make_sampler(recipe, data.train))
    parameters = (*model.parameters(), *loss.parameters())
    trained = [parameter.numel() for parameter in parameters if parameter.requires_grad]
    size = model.input_statistics.size
    steps = count_steps(recipe, batches)
    return Plan(data.train, data.unseen, data.test, batches, steps, sum(trained), model.dimensions, size, notes)


def count_steps(recipe: Recipe, batches_an_epoch: int) -> int:
    """Count the steps of a run, at least one."""
    return max(1, round(recipe.epochs * batches_an_epoch))
