"""``ClassThresholds``: a similarity threshold for each enrolled class of a gallery.

Classes differ in how similar their templates are to everything else, and in how similar their own items are to the
template. One threshold accepts too many unknown probes for some classes and too few of their own for others. An offset
per class corrects it, computed from the gallery alone. Whether that helps is judged on classes that are left out.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.json_values import array_digest, digest
from isomargin.core.labels import as_labels, labels_of_rows
from isomargin.core.text import percent
from isomargin.equalize import saving
from isomargin.equalize.class_offsets import ONE_THRESHOLD, QUANTILE, ClassParts, Mix, mean_mix
from isomargin.equalize.class_trials import Folds, Kind, Trials, random_groups, related_groups
from isomargin.equalize.enrolled import Enrolled, Places, Template
from isomargin.equalize.equalizer import augmented
from isomargin.equalize.rows import Floats, Singles, comparable, unit_vectors
from isomargin.measure.statistics.intervals import Interval

if TYPE_CHECKING:
    import pandas

Unknowns = Literal["both", "random", "related"]

WEIGHTS = ((0.25, 0.25), (0.5, 0.25), (0.5, 0.5), (0.5, 0.0), (1.0, 0.0))  # of negatives and of positives
SHRINKS = (0.0, 0.5, 0.8)
WIDTH = 0.01  # a mix whose FNIR is higher than the best by this share of that with one threshold counts 1/e as much
MOST_PROBES = 6000  # more cost time and add little
MOST_NEGATIVES = 10_000
MOST_PRODUCTS = 60_000_000  # of items with classes: with many classes, fewer items serve
FEWEST_ROWS = 1000
FEWEST_CLASSES = 10
SAME = 2.0**-12  # templates are the same if the sums of a class differ by less
FEWEST_ACCEPTED = 5  # unknown probes that a threshold accepts, without which FPIR says nothing


@dataclass(frozen=True)
class ClassVerdict:
    """Whether class thresholds are worth it, judged on classes that had no part in choosing the mix."""

    fpir: float
    """The false positive identification rate, FPIR, that sets the thresholds."""
    one_threshold: float
    """FNIR, the false negative identification rate, with one threshold."""
    class_thresholds: float
    """FNIR with class thresholds."""
    gain: Interval
    """How much lower it is, with its confidence interval over classes."""
    classes: int
    """Number of classes."""

    @property
    def worth_it(self) -> bool:
        """Whether FNIR is lower by more than chance explains, at the confidence of the interval."""
        return self.gain.low > 0

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        found = (
            f"with whole classes left out as unknowns, FNIR around FPIR {percent(self.fpir)} is "
            f"{100 * self.class_thresholds:.1f}%, {100 * self.one_threshold:.1f}% with one threshold"
        )
        change = f"a change of {-100 * self.gain.high:+.1f} to {-100 * self.gain.low:+.1f} points"
        measured = f"({change}, {self.gain.confidence:.0%} interval over {self.classes:,} classes)"
        if self.worth_it:
            return f"Class thresholds are worth it: {found} {measured}."
        worse = "worse" if self.gain.high < 0 else "no improvement that chance does not explain"
        return f"Keep one threshold: {found}, which is {worse} {measured}."


class ClassThresholds(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Finds a threshold for each enrolled class, so that unknown probes are rejected at a lower cost.

    .. math:: o_c = k_c \left( a\,(q_c - \bar q) + b\,(p_c - \bar p) \right)

    :math:`q_c` is the 99.8% quantile of the similarities of other classes' items to the template of class c, and
    :math:`p_c` the mean similarity of its own items to the template of the others; both relative to their means over
    the classes. :math:`k_c` shrinks the offset towards 0 where few items are enrolled: it is the reliability of a
    mean of n - 1 items if that of one is 1 - shrink, and 0 for a class of one item, which keeps the common threshold.

    The weights a and b and the shrinkage are found by cross-validation: whole classes are left out of the gallery,
    their items are the unknown probes, and the items of the other classes, each compared with its class as if it were
    not enrolled, are the known probes. What counts is FNIR around ``fpir``, its mean over FPIRs from half to twice
    that, which is steadier than FNIR at one. The mixes that were tried are averaged by how low theirs is. For the
    verdict the classes of each fold are judged with the mix of the other classes. If that is not better than one
    threshold by more than chance explains, the fit refuses: it warns, all offsets are 0, and ``verdict_`` holds the
    numbers.

    A probe is accepted for class c if its similarity to the template is at least ``thresholds_[c]``, and classes are
    ranked by similarity minus offset. Both are what a search by inner product of `augment_queries` in `augment` gives
    with the one threshold ``threshold_``.

    Args:
        shrink: ``"cv"``, or how far the offset of a class of two items is shrunk: 0 not at all, 1 to nothing.
        weights: ``"cv"``, or the weights a and b. If the shrinkage is a number too, nothing is chosen, and the offsets
            are used whatever the verdict.
        fpir: the false positive identification rate to choose at.
        template: ``"mean"``, the unit mean of a class's unit vectors; ``"max"`` or ``"each"``, the best enrolled item
            counts, and every item has a row of its own.
        unknowns: which unknown probes to expect. ``"random"``: classes like the enrolled ones, such as other people;
            classes are left out at random. ``"related"``: items of another kind, such as requests out of scope; related
            classes are left out together, so that nothing like the unknowns is enrolled. ``"both"``: either.
        confidence: confidence level of the interval of the gain, which must lie above 0. The default asks for less
            than the usual 95%, because refusing a gain costs about as much as using thresholds that gain nothing.
        folds: number of folds, at least 3; no more than there are classes are used.
        seed: seed of the random folds.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.arange(600) % 60
    >>> crowding = np.linspace(0.4, 2.0, 6)[:, None]  # six regions, some with their classes close together
    >>> regions = 2 * generator.normal(size=(6, 16))
    >>> centres = (regions + crowding * generator.normal(size=(10, 6, 16))).reshape(60, 16)
    >>> gallery = centres[labels] + 0.7 * generator.normal(size=(600, 16))
    >>> thresholds = im.ClassThresholds().fit(gallery, labels)
    >>> thresholds.verdict_.worth_it, thresholds.verdict_.class_thresholds < thresholds.verdict_.one_threshold
    (True, True)
    >>> scores = thresholds.augment_queries(gallery[:5]) @ thresholds.augment().T
    >>> scores.shape, thresholds.thresholds_.shape
    ((5, 60), (60,))
    """

    classes_: NDArray[Any]
    """(classes,) the labels, in ascending order."""
    templates_: Singles
    """(m, d) unit templates: one per class, in the order of ``classes_``, or one per item, sorted by class."""
    template_labels_: NDArray[Any]
    """(m,) the label of each template."""
    offsets_: Floats
    """(classes,) what is subtracted from the similarities to each class."""
    threshold_: float
    """The threshold common to all classes, for FPIR ``fpir`` among unknown probes like the classes left out."""
    mix_: Mix
    """The mix in use, a mean of those in ``scores_``; its weights are 0 if class thresholds were refused."""
    verdict_: ClassVerdict | None
    """Whether class thresholds are worth it; None if there are too few items to tell and nothing was to be chosen."""
    digest_: str
    """Names this fit: settings, templates and offsets."""
    n_features_in_: int
    """Number of dimensions."""

    def __init__(
        self,
        shrink: float | Literal["cv"] = "cv",
        weights: tuple[float, float] | Literal["cv"] = "cv",
        fpir: float = 0.05,
        template: Template = "mean",
        unknowns: Unknowns = "both",
        confidence: float = 0.8,
        folds: int = 10,
        seed: int = 0,
    ) -> None:
        self.shrink = shrink
        self.weights = weights
        self.fpir = fpir
        self.template = template
        self.unknowns = unknowns
        self.confidence = confidence
        self.folds = folds
        self.seed = seed

    def fit(self, gallery: Any, labels: Any) -> Self:
        """Choose the mix, judge it, and compute the offset of every class.

        Args:
            gallery: (n, d) enrolled items.
            labels: n labels.
        """
        self._check_settings()
        enrolled = Enrolled.of(gallery, labels, self.template)
        check_enough(enrolled)
        generator = np.random.default_rng(self.seed)
        groups = self._groups(enrolled, generator)
        most_probes, most_negatives = (
            max(FEWEST_ROWS, min(most, MOST_PRODUCTS // len(enrolled.names))) for most in (MOST_PROBES, MOST_NEGATIVES)
        )
        probes = balanced_rows(enrolled, most_probes, generator)
        negatives = np.arange(len(enrolled.vectors))
        if len(negatives) > most_negatives:
            negatives = np.sort(generator.choice(negatives, most_negatives, replace=False))
        why_not = self._too_few(enrolled, len(probes))
        chosen_here = "cv" in (self.shrink, self.weights)
        if why_not and chosen_here:
            raise InputError(f"{why_not}, or give both shrink and weights as numbers, which are then not judged")
        folds = Folds.of(enrolled, probes, negatives, groups, generator)
        self._mixes = [ONE_THRESHOLD, *self._candidates(enrolled)]
        tried = folds.run(self._mixes)
        everything = np.ones(len(enrolled.names), bool)
        self._fnir = [] if why_not else tried.all_rates(everything, self.fpir).tolist()
        mixes = [self._mean_mix(tried, ~folds.classes_of(fold)) for fold in range(folds.folds)]
        mixes = [ONE_THRESHOLD, self._mean_mix(tried, everything), *mixes]
        trials = folds.run(mixes)
        self.verdict_ = None if why_not else self._verdict(trials, len(enrolled.names))
        used = 1
        if self.verdict_ is not None and chosen_here and not self.verdict_.worth_it:
            used = 0
            warnings.warn(self.verdict_.sentence, UserWarning, stacklevel=2)
        self.mix_ = mixes[used]
        # Held-out unknowns see a part of the templates. FPIR grows at most in proportion to their number.
        return self._set(enrolled, folds.parts[-1], trials.level(used, self.fpir * (1 - 1 / folds.folds)))

    def _mean_mix(self, tried: Trials, kept: NDArray[np.bool_]) -> Mix:
        """Average the mixes that do well on some of the (classes,)."""
        rates = tried.all_rates(kept, self.fpir)
        return mean_mix(self._mixes[1:], rates[1:], WIDTH * rates[0])

    def _set(self, enrolled: Enrolled, parts: ClassParts, level: float) -> Self:
        """Set the offsets and the threshold, which lies just above the level."""
        self.classes_, self.templates_ = enrolled.names, enrolled.templates
        self.template_labels_ = np.repeat(enrolled.names, np.diff(enrolled.template_starts))
        self.n_features_in_ = self.templates_.shape[1]
        self.offsets_ = parts.offsets(self.mix_)
        self.threshold_ = float(np.nextafter(np.float32(level), np.float32(np.inf)))
        self._fit_settings = {"template": self.template, "fpir": float(self.fpir), "quantile": QUANTILE}
        named = {"templates": array_digest(self.templates_), "offsets": array_digest(self.offsets_)}
        labels = {"labels": self.template_labels_.tolist(), "threshold": self.threshold_}
        self.digest_ = digest({**self._fit_settings, **self.mix_._asdict(), **named, **labels})
        return self

    @property
    def thresholds_(self) -> Floats:
        """(classes,) the least similarity that accepts a probe for each class: the common threshold plus the offset.

        For another operating point, add ``offsets_`` to the threshold that you choose on your own unknown probes.
        """
        check_is_fitted(self)
        return self.threshold_ + self.offsets_

    @property
    def scores_(self) -> pandas.DataFrame:
        """One row per mix: its settings and its FNIR in cross-validation, best first. One threshold has weights 0."""
        import pandas

        check_is_fitted(self)
        rows = [{**mix._asdict(), "fnir": fnir} for mix, fnir in zip(self._mixes, self._fnir, strict=False)]
        columns = [*Mix._fields, "fnir"]
        return pandas.DataFrame(rows, columns=columns).sort_values("fnir", kind="stable", ignore_index=True)

    def _check_settings(self) -> None:
        if isinstance(self.shrink, str):
            checks.one_of(self.shrink, "shrink", ("cv",))
        elif not 0 <= checks.number(self.shrink, "shrink") <= 1:
            raise InputError(f"shrink is {self.shrink}: 'cv' or a number from 0 to 1 is needed")
        if isinstance(self.weights, str):
            checks.one_of(self.weights, "weights", ("cv",))
        else:
            if not isinstance(self.weights, Sequence | np.ndarray) or len(self.weights) != 2:
                raise InputError(
                    f"weights is {self.weights!r}: 'cv' or two numbers are needed, negatives and positives"
                )
            for weight in self.weights:
                if not 0 <= checks.number(weight, "weights") <= 1:
                    raise InputError(f"weights has {weight}: numbers from 0 to 1 are needed")
        checks.share(self.fpir, "fpir")
        checks.one_of(self.template, "template", get_args(Template))
        checks.one_of(self.unknowns, "unknowns", get_args(Unknowns))
        checks.share(self.confidence, "confidence")
        checks.whole(self.folds, "folds", 3)
        checks.whole(self.seed, "seed", 0)

    def _candidates(self, enrolled: Enrolled) -> list[Mix]:
        """List the mixes to try; where classes have the same size, shrinking all of them is left to the weights."""
        weights = WEIGHTS if isinstance(self.weights, str) else (self.weights,)
        same_size = len(np.unique(enrolled.sizes)) == 1 and isinstance(self.weights, str)
        shrinks = ((0.0,) if same_size else SHRINKS) if isinstance(self.shrink, str) else (float(self.shrink),)
        return [
            Mix(float(negative), float(positive), shrink) for (negative, positive), shrink in product(weights, shrinks)
        ]

    def _too_few(self, enrolled: Enrolled, probes: int) -> str | None:
        """Say why a gallery is too small for cross-validation; None if it is not."""
        usable = int((enrolled.sizes > 1).sum())
        if usable < FEWEST_CLASSES:
            return (
                f"{usable} classes have two or more enrolled items, too few for cross-validation: enrol more, at least "
                f"{FEWEST_CLASSES} are needed"
            )
        if probes * self.fpir < FEWEST_ACCEPTED - 1e-9:
            return (
                f"the gallery has {probes} items to serve as unknown probes, too few to tell FPIR "
                f"{percent(self.fpir)}: use fpir={FEWEST_ACCEPTED / probes:.2g} or more, or enrol more items"
            )
        return None

    def _groups(self, enrolled: Enrolled, generator: np.random.Generator) -> Places:
        """(kinds, classes) the fold in which each class is left out."""
        folds = min(self.folds, len(enrolled.names))
        kinds: dict[Kind, Places] = {
            "random": random_groups(len(enrolled.names), folds, generator),
            "related": related_groups(enrolled.means, folds, generator),
        }
        return np.stack([kinds[kind] for kind in get_args(Kind) if self.unknowns in (kind, "both")])

    def _verdict(self, trials: Trials, classes: int) -> ClassVerdict:
        """Judge the classes of each fold with the mix of the other classes; it is the one after the first two."""
        mixes = 2 + trials.fold_of[0]
        one, chosen, gain = trials.gain(mixes, classes, self.fpir, self.confidence, self.seed)
        return ClassVerdict(self.fpir, one, chosen, gain, len(np.unique(trials.class_of)))

    # ----- for serving

    def augment(self, templates: Any = None, labels: Any = None) -> Singles:
        """(m, d + 1) the vectors to put into an index that compares by inner product: [template, -offset].

        The inner product with `augment_queries` is the cosine minus the offset of the template's class, to be compared
        with ``threshold_``. An index that compares by cosine would scale the vectors to length one and undo it.

        Args:
            templates: (m, d) templates; by default ``templates_``.
            labels: m labels; by default those of ``templates_``, of which there are as many.
        """
        check_is_fitted(self)
        vectors = self.templates_ if templates is None else self._unit_vectors(templates, "templates")
        if labels is None and len(vectors) != len(self.templates_):
            raise InputError(
                f"templates has {len(vectors):,} rows, the gallery {len(self.templates_):,} templates: give the labels "
                "of the rows"
            )
        wanted = self.template_labels_ if labels is None else labels_of_rows(labels, len(vectors))
        return augmented(vectors, -self.offsets_[self._places(wanted)])

    def augment_queries(self, embeddings: Any) -> Singles:
        """(n, d + 1) the vectors to search that index with: [probe, 1], the probe scaled to length one."""
        check_is_fitted(self)
        return augmented(self._unit_vectors(embeddings, "embeddings"), 1.0)

    def offsets_for(self, names: Any, template: Template, dimensions: int) -> Floats:
        """(classes,) the offsets of the classes of a gallery, in the order of ``names``, for `evaluate_gallery`.

        Refused is a gallery of other classes, of templates that are made in another way, or of other dimensions.
        """
        check_is_fitted(self)
        fitted = self._fit_settings["template"]
        if (template == "mean") != (fitted == "mean"):
            raise InputError(
                f"the class thresholds are for {fitted} templates and the gallery has {template} templates: fit them "
                "again, or use the same template"
            )
        self._check_dimensions(dimensions, "the gallery")
        places = self._places(as_labels(names))
        missing = np.delete(self.classes_, places)
        if len(missing):
            raise InputError(
                f"{str(missing[0])!r} has a class threshold and is not in the gallery: fit the class thresholds again "
                "on this gallery"
            )
        return np.asarray(self.offsets_[places])

    def were_fitted_on(self, rows: NDArray[Any], labels: Any) -> bool:
        """Return whether these (m, d) unit templates, with m labels of enrolled classes, are those of the fit.

        Compared are the sums of each class's templates, so their order does not matter, nor does rounding.
        """
        wanted, now = np.zeros((2, len(self.classes_), self.n_features_in_))
        np.add.at(wanted, self._places(self.template_labels_), self.templates_)
        np.add.at(now, self._places(as_labels(labels)), rows)
        return len(rows) == len(self.templates_) and bool(np.allclose(now, wanted, rtol=0, atol=SAME))

    def _places(self, labels: NDArray[Any]) -> Places:
        """(m,) the place of each label in ``classes_``; labels that were not enrolled are refused."""
        known, wanted = comparable(self.classes_, labels)
        order = np.argsort(known)
        place = order[np.clip(np.searchsorted(known[order], wanted), 0, len(known) - 1)]
        unseen = wanted[known[place] != wanted]
        if len(unseen):
            raise InputError(
                f"{str(unseen[0])!r} is not an enrolled class: thresholds exist for the {len(known):,} classes of the "
                "gallery, so fit again with it"
            )
        return np.asarray(place)

    def _unit_vectors(self, embeddings: Any, name: str) -> Singles:
        vectors = unit_vectors(embeddings)
        self._check_dimensions(vectors.shape[1], name)
        return vectors

    def _check_dimensions(self, dimensions: int, name: str) -> None:
        if dimensions != self.n_features_in_:
            raise InputError(
                f"{name} has {dimensions} dimensions, the gallery of the class thresholds {self.n_features_in_}: "
                "embeddings of the same model are needed"
            )

    # ----- files

    def record(self) -> dict[str, Any]:
        """Return the settings in use, the threshold and the digest as JSON values."""
        check_is_fitted(self)
        worth_it = None if self.verdict_ is None else self.verdict_.worth_it
        used = {**self._fit_settings, **self.mix_._asdict(), "threshold": self.threshold_}
        return {**used, "worth_it": worth_it, "classes": len(self.classes_), "digest": self.digest_}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the offsets to a .json file and the templates to a .safetensors file beside it, atomically."""
        check_is_fitted(self)
        values = {
            **self.record(),
            "verdict": None if self.verdict_ is None else asdict(self.verdict_),
            "offsets": self.offsets_.tolist(),
            "classes": self.classes_.tolist(),
            "rows": np.unique(self.template_labels_, return_counts=True)[1].tolist(),
            "mixes": [list(mix) for mix in self._mixes],
            "fnir": self._fnir,
        }
        saving.write({Path(path): saving.Content("class thresholds", values, {"templates": self.templates_})})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read class thresholds that `save` wrote; files that were changed since are refused."""
        values, arrays = saving.read(Path(path), "class thresholds")
        mix = Mix(*(values[name] for name in Mix._fields))
        weights = (mix.negative_weight, mix.positive_weight)
        found = cls(mix.shrink, weights, values["fpir"], values["template"])
        found._fit_settings = {name: values[name] for name in ("template", "fpir", "quantile")}
        found.mix_, found.threshold_, found.digest_ = mix, values["threshold"], values["digest"]
        found.classes_, found.offsets_ = as_labels(values["classes"]), np.array(values["offsets"])
        found.template_labels_ = np.repeat(found.classes_, values["rows"])
        found.templates_, found.n_features_in_ = arrays["templates"], arrays["templates"].shape[1]
        found._mixes, found._fnir = [Mix(*entry) for entry in values["mixes"]], values["fnir"]
        verdict = values["verdict"]
        if verdict is not None:
            verdict = ClassVerdict(**{**verdict, "gain": Interval(**verdict["gain"])})
        found.verdict_ = verdict
        return found


def check_enough(enrolled: Enrolled) -> None:
    """Refuse galleries of fewer than three classes, or without a class of two items."""
    if len(enrolled.names) < 3:
        raise InputError(
            f"the gallery has {len(enrolled.names)} class{'es' if len(enrolled.names) > 1 else ''}: at least three are "
            "needed, so that one can be left out and the others have negatives"
        )
    if enrolled.sizes.max() < 2:
        raise InputError(
            "every class has one enrolled item, so nothing tells how similar its items are to the template: enrol at "
            "least two items of some classes"
        )


def balanced_rows(enrolled: Enrolled, most: int, generator: np.random.Generator) -> Places:
    """Return the rows of all items; if there are too many, as many of each class as there is room, drawn at random."""
    shuffled = generator.permutation(len(enrolled.vectors))
    shuffled = shuffled[np.argsort(enrolled.class_of[shuffled], kind="stable")]  # by class, in random order
    place = np.arange(len(shuffled)) - enrolled.starts[enrolled.class_of[shuffled]]
    chosen = shuffled[np.lexsort((generator.permutation(len(shuffled)), place))][:most]  # the first of each class first
    return np.sort(chosen)
