"""``ThresholdCard``: a threshold with everything needed to use it in production, as one JSON file.

A card has the threshold in every convention, the data and the rates it was measured on, the classes where it fails, and
what it promises. Its hash shows that a card was edited; it is not a signature.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias, cast

from isomargin import __version__
from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, check_file, reading
from isomargin.core.json_values import digest, null_for_nan
from isomargin.core.text import LONGEST, printable
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluate import EqualizesSimilarity
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.gallery_shifts import GalleryShifts, HasClassOffsets, Sides
from isomargin.measure.pairs.inputs import Shifts
from isomargin.measure.settings import COMPARED
from isomargin.measure.statistics.intervals import note_on_few_classes, note_on_no_event
from isomargin.thresholds.calibrate import Calibration
from isomargin.thresholds.card_text import summary
from isomargin.thresholds.conversions import CONVENTIONS, conversions
from isomargin.thresholds.probe_reference import ProbeReference, make_probe_reference
from isomargin.thresholds.reference import Reference, make_reference
from isomargin.thresholds.snippets import snippet
from isomargin.thresholds.threshold_choice import QUANTILES, ThresholdChoice

SourceFile: TypeAlias = str | os.PathLike[str] | tuple[str, EmbeddingSet]
"""A file, or the name of something else, such as the address of a store, with the embeddings that were read."""

FORMAT = "isomargin threshold card"
VERSION = 2
LARGEST_CARD = 1 << 20  # bytes that are searched for the name of the format

NUMBER = (int, float)
PERHAPS_NUMBER = (int, float, NoneType)
INTERVAL = {"value": NUMBER, "low": PERHAPS_NUMBER, "high": PERHAPS_NUMBER, "confidence": NUMBER}
WORST_CLASS = {"name": (int, str), "items": int, "far": PERHAPS_NUMBER, "frr": PERHAPS_NUMBER}
MEASURED: dict[str, Any] = {
    "classes": int,
    "items": int,
    "positive_pairs": int,
    "negative_pairs": int,
    "pairs": str,
    "far": INTERVAL,
    "frr": INTERVAL,
    "class_far_quantiles": dict.fromkeys(map(str, QUANTILES), PERHAPS_NUMBER),
    "class_frr_quantiles": dict.fromkeys(map(str, QUANTILES), PERHAPS_NUMBER),
    "share_over_target": PERHAPS_NUMBER,
    "method": str,
    "notes": [str],
}
PARTS: dict[str, Any] = {
    "target": str,
    "measured": MEASURED,
    "worst_classes": [WORST_CLASS],
    "promise": (dict, NoneType),
    "calibration": (dict, NoneType),
    "source": [{"file": str, "sha256": str}],
    "created": str,
    "isomargin": str,
}
EQUALIZER: dict[str, Any] = {
    "method": str,
    "neighbours": int,
    "skip": int,
    "weight": NUMBER,
    "offset": NUMBER,
    "own_class": str,
    "digest": str,
}
SHIFTS: dict[str, Any] = {"class_thresholds": dict, "digest": str}  # class thresholds without an equalizer
ADDED: dict[str, Any] = {  # older cards do not have them
    "worst_by_far": [WORST_CLASS],
    "worst_by_frr": [WORST_CLASS],
    "model": str,
    "reference": {"comparison": str, "classes": int, "items": int},
    "gallery": {
        "template": str,
        "leave_one_out": bool,
        "sides": str,
        "margin": NUMBER,
        "enrolled": int,
        "known_probes": int,
        "unknown_probes": int,
        "fpir": (dict, NoneType),
        "fnir": INTERVAL,
        "misidentified": NUMBER,
    },
}


@dataclass(frozen=True)
class ThresholdCard:
    """A threshold, how to compare with it, and what is known about it. Made by ``make_card``.

    All values are JSON values, so a loaded card equals the saved one. The threshold is a float64, but search engines
    compute in float32, similarities to about 1e-7 and squared distances to about 1e-6. Pairs that are closer to the
    threshold than that may fall on either side. If pairs are listed, the threshold lies midway between two of them (for
    a FAR, two negative pairs), so it hardly ever matters whether the comparison of an engine is strict.

    >>> import isomargin as im, numpy as np
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> card = im.make_card(im.choose_threshold(evaluation, far=0.05), evaluation)
    >>> {name: f"{card.accept_when[name]} {value:.3f}" for name, value in card.threshold.items()}["squared_l2"]
    'at most 0.955'
    """

    threshold: dict[str, float]
    """The threshold by convention, see ``conversions``."""
    accept_when: dict[str, str]
    """By convention, whether a pair is accepted when its value is "at least" or "at most" the threshold."""
    target: str
    """The target in words."""
    measured: dict[str, Any]
    """Sizes, rates with intervals, quantiles over classes, method and notes, on the set it was chosen on."""
    worst_classes: list[dict[str, Any]]
    """The classes that are farthest from the target, worst first: name, items, far, frr."""
    promise: dict[str, Any] | None
    """What holds for unseen classes, and the assumptions."""
    calibration: dict[str, Any] | None
    """The map from similarity to the probability of a match."""
    source: list[dict[str, str]] | None
    """The evaluated files: their names without folder, and the SHA-256 of their bytes."""
    created: str
    """Date in UTC, such as 2025-12-31."""
    isomargin: str
    """Version of isomargin."""
    worst_by_far: list[dict[str, Any]] | None = None
    """The classes with the largest FAR, worst first; None in cards of older versions."""
    worst_by_frr: list[dict[str, Any]] | None = None
    """The classes with the largest FRR, worst first; None in cards of older versions."""
    score_axis: str = "l2_distance"
    """What the threshold is compared with: L2 distances of unit vectors, or equalized distances."""
    equalizer: dict[str, Any] | None = None
    """Settings, constant and digest of the equalizer; None for plain similarities."""
    comparison: str = "all_pairs"
    """What was compared when the threshold was measured: all pairs, a gallery, or a list of trials."""
    model: str | None = None
    """The name of the model that made the embeddings, if it was given."""
    reference: dict[str, Any] | None = None
    """What ``check_card`` compares new data with; None in cards of older versions."""
    gallery: dict[str, Any] | None = None
    """How templates are made, and what the threshold does to the probes of a gallery; None for other comparisons."""

    @property
    def distance(self) -> float:
        """The threshold as a distance on its axis: L2 distance between unit vectors, or that of shifted cosines.

        Where scores were given it is the score, or minus the score if higher scores are more similar.
        """
        if "score" in self.threshold:
            return -self.threshold["score"] if self.score_axis == "similarity_score" else self.threshold["score"]
        return self.threshold["l2" if self.equalizer is None else self.score_axis]

    @property
    def sha256(self) -> str:
        """Hash of everything else in the file."""
        return digest(as_json_values(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, atomically.

        >>> import isomargin as im, numpy as np, tempfile
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
        >>> card = make_card(im.choose_threshold(evaluation, far=0.05), evaluation)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     card.save(f"{folder}/card.json")
        ...     ThresholdCard.load(f"{folder}/card.json") == card
        True
        """
        text = json.dumps(self.as_values(), allow_nan=False, indent=1)
        with atomic_write(path) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values, with the hash."""
        return {**as_json_values(self), "sha256": self.sha256}

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "ThresholdCard":
        """Read a card that ``save`` wrote; a card that was edited is refused."""
        source = Path(path)
        check_file(source)
        with reading(source):
            content = source.read_bytes()
        try:
            values = json.loads(content.decode("utf-8"), parse_constant=refuse_constant)
            return from_json_values(values)
        except InputError as error:
            raise InputError(f"{source} {error}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{source} is not JSON, so not a threshold card: it may be damaged") from error

    def summary(self) -> str:
        """Summarise the card in about forty lines of at most 88 columns, safe to print."""
        return summary(self)

    def snippet(
        self, engine: str, *, metric: str | None = None, name: str = "items", equalizer: str | None = None
    ) -> str:
        """Return the few lines of Python that apply the threshold in a search engine, on the engine's own scale.

        The code defines ``matches(embedding)``, which returns the accepted items. A card of equalized similarities
        needs the equalizer, which the code loads. Cards that no search can apply are refused with the reason.

        Args:
            engine: faiss, qdrant, lancedb, chroma, pgvector, milvus or redis.
            metric: how the engine compares: cosine, inner_product or l2. By default cosine; inner_product for faiss.
            name: the collection, table or index that is searched.
            equalizer: the saved equalizer, if the card has one. By default equalizer.json.

        >>> import isomargin as im, numpy as np
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
        >>> card = make_card(im.choose_threshold(evaluation, far=0.05), evaluation)
        >>> print("\\n".join(card.snippet("qdrant").splitlines()[-3:-1]))
            query = np.asarray(embedding, dtype=np.float32)
            found = client.query_points("items", query=query.tolist(), limit=limit, score_threshold=0.522...)
        """
        return snippet(self, engine, metric, name, equalizer)


def is_card(path: Path) -> bool:
    """Return whether a file claims to be a threshold card, of any version."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(LARGEST_CARD)
    return f'"{FORMAT}"'.encode() in start


def make_card(
    choice: ThresholdChoice,
    evaluation: Evaluation,
    *,
    source: SourceFile | Sequence[SourceFile] | None = None,
    calibration: Calibration | None = None,
    embeddings: EmbeddingSet | None = None,
    shifts: Shifts | None = None,
    gallery: EmbeddingSet | None = None,
    equalizer: EqualizesSimilarity | None = None,
    class_thresholds: HasClassOffsets | None = None,
    model: str | None = None,
) -> ThresholdCard:
    """Make the card of a threshold.

    Args:
        choice: the threshold, from ``choose_threshold`` or ``promise_threshold``.
        evaluation: the evaluation on which it was chosen.
        source: the evaluated file or files, such as embeddings and labels; their bytes are hashed. What is not a file
            is given as its name and its embeddings, whose values are hashed.
        calibration: the map from similarity to the probability of a match, from ``calibrate``.
        embeddings: the evaluated embeddings. With them, ``check_card`` can later compare the whole distribution of
            distances, the vectors' lengths, their mean and their dimension; without them, the accept rate alone.
        shifts: the shifts of these embeddings, if they were equalized.
        gallery: the enrolled items, if ``embeddings`` are probes; a later check needs both.
        equalizer: the equalizer of a gallery's evaluation, for the same purpose.
        class_thresholds: the class thresholds of a gallery's evaluation, for the same purpose.
        model: a name of the model that made the embeddings, for ``check_card``.

    >>> import isomargin as im, numpy as np
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> card = make_card(im.choose_threshold(evaluation, far=0.05), evaluation)
    >>> round(card.distance, 3), round(card.threshold["cosine_similarity"], 3), card.measured["classes"]
    (0.977, 0.523, 6)
    >>> make_card(im.promise_threshold(evaluation, far=0.2), evaluation).promise["what"]
    'the expected FAR of an unseen class is at most 20%'
    """
    check_type(choice, "choice", ThresholdChoice, "choose_threshold or isomargin.promise_threshold")
    check_type(evaluation, "evaluation", Evaluation, "evaluate")
    if calibration is not None:
        check_type(calibration, "calibration", Calibration, "calibrate")
    if embeddings is not None:
        check_type(embeddings, "embeddings", EmbeddingSet, "EmbeddingSet")
    if model is not None and (not isinstance(model, str) or not model.strip()):
        raise InputError(f"model is {model!r}: a name of the model is needed, or leave it out")
    if gallery is not None:
        check_type(gallery, "gallery", EmbeddingSet, "EmbeddingSet")
    reference: Reference | ProbeReference | None
    if evaluation.identification is not None:
        sides = cast(Sides, "both" if equalizer is None else evaluation.identification.sides)
        added = GalleryShifts(equalizer, sides, class_thresholds)
        reference = make_probe_reference(evaluation, choice.distance, embeddings, gallery, added)
    else:
        reference = make_reference(evaluation, choice.distance, embeddings, shifts)
    files = [source] if isinstance(source, str | os.PathLike | tuple) else source
    return ThresholdCard(
        threshold=conversions(choice.distance, evaluation.axis),
        accept_when=dict(CONVENTIONS[evaluation.axis.name]),
        target=choice.target,
        measured={
            "classes": evaluation.class_count,
            "items": evaluation.items,
            "positive_pairs": evaluation.positive_pairs,
            "negative_pairs": evaluation.negative_pairs,
            "pairs": evaluation.settings.pairs,
            "far": without_nan(asdict(choice.far_interval)) | {"value": choice.far},
            "frr": without_nan(asdict(choice.frr_interval)) | {"value": choice.frr},
            "class_far_quantiles": {str(q): value for q, value in choice.class_far_quantiles.items()},
            "class_frr_quantiles": {str(q): value for q, value in choice.class_frr_quantiles.items()},
            "share_over_target": choice.share_over_target,
            "method": evaluation.method,
            "notes": [
                *evaluation.all_notes,
                *note_on_few_classes(evaluation),
                *note_on_no_event(evaluation, "far", choice.far_interval),
                *note_on_no_event(evaluation, "frr", choice.frr_interval),
            ],
        },
        worst_classes=[without_nan(asdict(rates)) for rates in choice.worst_classes],
        promise=None if choice.promise is None else choice.promise.as_values(),
        calibration=None if calibration is None else calibration.as_values(),
        source=None if files is None else [file_record(file) for file in files],
        created=datetime.now(UTC).date().isoformat(),
        isomargin=__version__,
        worst_by_far=[without_nan(asdict(rates)) for rates in choice.worst_by_far],
        worst_by_frr=[without_nan(asdict(rates)) for rates in choice.worst_by_frr],
        score_axis=evaluation.axis.name,
        equalizer=evaluation.equalizer,
        comparison=evaluation.comparison,
        model=model,
        reference=None if reference is None else reference.as_values(),
        gallery=gallery_values(choice, evaluation),
    )


def gallery_values(choice: ThresholdChoice, evaluation: Evaluation) -> dict[str, Any] | None:
    """Return what a card says about a gallery, as JSON values; None for other comparisons."""
    found, rates = evaluation.identification, choice.identification
    if found is None or rates is None:
        return None
    return {
        "template": found.template,
        "leave_one_out": found.leave_one_out,
        "sides": found.sides,
        "margin": found.margin,
        "enrolled": int(found.enrolled.sum()),
        "known_probes": found.known,
        "unknown_probes": found.unknown,
        "fpir": None if rates.fpir is None else without_nan(asdict(rates.fpir)),
        "fnir": without_nan(asdict(rates.fnir)),
        "misidentified": rates.misidentified,
    }


def file_record(source: SourceFile) -> dict[str, str]:
    """Return the name of a file and the hash of its bytes, or of embeddings that were read from a store."""
    if isinstance(source, tuple):
        name, embeddings = source
        check_type(embeddings, "source", EmbeddingSet, "EmbeddingSet")
        return {"file": str(name), "sha256": embeddings.sha256}
    path = Path(source)
    check_file(path)
    with reading(path), path.open("rb") as file:
        return {"file": path.name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def without_nan(values: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN, which JSON does not have, by None."""
    return {name: null_for_nan(value) for name, value in values.items()}


def check_type(value: Any, name: str, kind: type, makers: str) -> None:
    """Refuse anything but the result of a function of this package."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is of type {type(value).__name__}: the result of isomargin.{makers} is needed")


# ----- JSON values


def as_json_values(card: ThresholdCard) -> dict[str, Any]:
    """Convert a card to JSON values, without the hash."""
    values = {field.name: getattr(card, field.name) for field in fields(card)}
    missing = [name for name in ADDED if values[name] is None]
    known = {name: value for name, value in values.items() if name not in missing}
    return {"format": FORMAT, "version": VERSION, **known}


def refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads but JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def from_json_values(values: Any) -> ThresholdCard:
    """Convert the JSON values of a card with its hash; the text of an error follows the path of the file."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError("is JSON, but not a threshold card that isomargin wrote")
    version = values.get("version")
    if version not in (1, VERSION) or isinstance(version, bool):
        shown = printable(repr(version)[:LONGEST])
        raise InputError(
            f"is a threshold card of version {shown}, but this isomargin reads version {VERSION}: make the card again"
        )
    parts = {**PARTS, **{name: shape for name, shape in ADDED.items() if name in values}, "sha256": str}
    if values.get("source", 0) is None:
        parts["source"] = NoneType
    content = {name: value for name, value in values.items() if name != "sha256"}
    if version == 1:
        values = with_new_names(values)
    elif values.get("comparison") not in COMPARED or values.get("score_axis") not in CONVENTIONS:
        raise InputError("is a threshold card of a kind that this isomargin does not know: upgrade isomargin")
    conventions = CONVENTIONS[values.get("score_axis", "l2_distance")]
    parts |= {"threshold": dict.fromkeys(conventions, NUMBER), "accept_when": dict.fromkeys(conventions, str)}
    if values.get("equalizer") is not None:
        parts["equalizer"] = EQUALIZER if "neighbours" in values["equalizer"] else SHIFTS
    if missing := list(misfits(values, parts)):
        raise InputError(f"is a threshold card without a valid {', '.join(missing[:5])}: make the card again")
    if digest(content) != values["sha256"]:
        raise InputError(
            "was changed after it was written (its sha256 does not match): use the original or make the card again"
        )
    return ThresholdCard(**{field.name: values[field.name] for field in fields(ThresholdCard) if field.name in values})


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """Rename what version 1 called images: the items of the set and of its classes."""

    def renamed(part: Any) -> Any:
        if isinstance(part, list):
            return [renamed(entry) for entry in part]
        if isinstance(part, dict):
            return {"items" if name == "images" else name: value for name, value in part.items()}
        return part

    parts = ("measured", "worst_classes", "worst_by_far", "worst_by_frr")
    return {name: renamed(value) if name in parts else value for name, value in values.items()}


def misfits(values: Any, shape: Any, name: str = "") -> Iterator[str]:
    """Yield the names of values that are missing or do not fit a shape: types, a dict of shapes, or [a shape].

    >>> list(misfits({"a": 1, "c": [{"d": "x"}, {}]}, {"a": str, "b": int, "c": [{"d": str}]}))
    ['a', 'b', 'c[1].d']
    """
    if isinstance(shape, dict):
        if not isinstance(values, dict):
            yield name
            return
        for key, inner in shape.items():
            below = f"{name}.{key}" if name else key
            if key in values:
                yield from misfits(values[key], inner, below)
            else:
                yield below
    elif isinstance(shape, list):
        if not isinstance(values, list):
            yield name
            return
        for i, value in enumerate(values):
            yield from misfits(value, shape[0], f"{name}[{i}]")
    elif (
        not isinstance(values, shape)
        or (isinstance(values, bool) and shape is not bool)
        or (isinstance(values, float) and math.isinf(values))
    ):
        yield name
