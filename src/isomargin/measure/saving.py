"""An ``Evaluation`` as JSON values and back, without loss. The bytes of its arrays are ``serial.py``'s work."""

from dataclasses import asdict, fields
from typing import Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.json_values import nan_for_null, null_for_nan, pack_array, unpack_array
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, ClassDistances, ListedDistances
from isomargin.measure.pairs.summary import Answers, answer
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.item_noise import ImageNoise

FORMAT = "isomargin evaluation"
VERSION = 2


def as_json_values(evaluation: Evaluation) -> dict[str, Any]:
    """Give everything as JSON values: the scores for reading, settings and counts for loading."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "scores": evaluation.scores(),
        "settings": asdict(evaluation.settings),
        "method": evaluation.method,
        "notes": list(evaluation.notes),
        "names": {"dtype": "text" if evaluation.names.dtype.kind == "U" else evaluation.names.dtype.name}
        | {"values": evaluation.names.tolist()},
        "sizes": pack_array(evaluation.sizes),
        "ranks": {
            each.name: value if each.name == "k" or value is None else pack_array(value)
            for each in fields(RankCounts)
            for value in [getattr(evaluation.ranks, each.name)]
        },
        "positives": pack_distances(evaluation.counts.positives),
        "negatives": pack_distances(evaluation.counts.negatives),
        # Interpolated answers follow from the counts; exact ones do not.
        "answers": pack_answers(evaluation.answers) if evaluation.method == "exact" else None,
        "image_noise": None if evaluation.image_noise is None else pack_fields(evaluation.image_noise),
    }


def from_json_values(values: dict[str, Any]) -> Evaluation:
    """Read back what ``as_json_values`` gave."""
    if values.get("format") != FORMAT:
        raise InputError("this JSON is not an evaluation that isomargin wrote")
    if values.get("version") != VERSION:
        raise InputError(
            f"this evaluation has format version {values.get('version')!r}, and {VERSION} is needed: evaluate again"
        )
    settings = Settings.from_values(**values["settings"])
    counts = PairCounts(unpack_distances(values["positives"]), unpack_distances(values["negatives"]))
    kind = values["names"]["dtype"]
    ranks: dict[str, Any] = {
        name: unpack_array(each) if isinstance(each, dict) else each for name, each in values["ranks"].items()
    }
    evaluation = Evaluation(
        settings=settings,
        names=np.array(values["names"]["values"], str if kind == "text" else kind),
        sizes=unpack_array(values["sizes"]),
        counts=counts,
        ranks=RankCounts(**{**ranks, "k": tuple(ranks["k"])}),
        answers=answer(counts, settings) if values["answers"] is None else unpack_answers(values["answers"]),
        method=values["method"],
        image_noise=None
        if values["image_noise"] is None
        else ImageNoise(**{name: unpack_array(each) for name, each in values["image_noise"].items()}),
        notes=tuple(values["notes"]),
    )
    if not fits_together(evaluation):
        raise InputError("the parts of this evaluation do not fit together: the file is damaged")
    return evaluation


def fits_together(evaluation: Evaluation) -> bool:
    """Whether what was read from a file has the shapes that the scores are computed from."""
    answers, ranks = evaluation.answers, evaluation.ranks
    positives, negatives = evaluation.counts.positives, evaluation.counts.negatives
    classes, grid = evaluation.sizes.shape, (evaluation.settings.grid,)
    by_class = [evaluation.names, ranks.queries, positives.totals, negatives.totals]
    by_class += [answers.target_positives_within, answers.target_negatives_within]
    by_class += [answers.class_far_distance, answers.class_frr_distance, answers.class_eer, answers.class_auc]
    by_class += [each for each in (ranks.r_precision, ranks.average_precision) if each is not None]
    on_grid = [answers.distances, answers.pooled_positives_within, answers.pooled_negatives_within]
    shapes_fit = (
        all(each.shape == classes for each in by_class)
        and all(each.shape == grid for each in on_grid)
        and answers.positives_within.shape == answers.negatives_within.shape == classes + grid
        and ranks.hits.shape == (*classes, len(ranks.k))
    )
    noise_fits = evaluation.image_noise is None or fits_classes(evaluation.image_noise, len(evaluation.sizes))
    appearances_fit = positives.appearances == 1 and negatives.appearances in (1, 2)
    kinds_fit = evaluation.names.dtype.kind in "iuU" and evaluation.method in ("exact", "binned")
    return shapes_fit and noise_fits and appearances_fit and kinds_fit


def fits_classes(noise: ImageNoise, classes: int) -> bool:
    """Whether the noise read from a file is that of so many classes."""
    shape = (len(noise.classes), len(noise.distances))
    arrays = (noise.sensitivity, noise.false_accepts, noise.covariance)
    known = noise.classes.ndim == 1 and 2 <= len(noise.classes) <= classes and int(noise.classes.max()) < classes
    return known and len(noise.distances) >= 2 and all(each.shape == shape for each in arrays)


def pack_fields(noise: ImageNoise) -> dict[str, Any]:
    """Give the noise's arrays as JSON values."""
    return {each.name: pack_array(getattr(noise, each.name)) for each in fields(ImageNoise)}


def pack_distances(distances: ClassDistances) -> dict[str, Any]:
    """Give distances as JSON values."""
    if isinstance(distances, ListedDistances):
        listed = {"distances": pack_array(distances.distances), "offsets": pack_array(distances.offsets)}
        return {"kind": "listed", "appearances": distances.appearances, **listed}
    binned = {"counts": pack_array(distances.counts), "reach": distances.reach}
    return {"kind": "binned", "appearances": distances.appearances, **binned}


def unpack_distances(values: dict[str, Any]) -> ClassDistances:
    """Read them back."""
    if values["kind"] == "listed":
        offsets, distances = unpack_array(values["offsets"]), unpack_array(values["distances"])
        if distances.shape != (offsets[-1],):
            raise InputError("the distances of this evaluation do not fit together: the file is damaged")
        return ListedDistances(distances, offsets, values["appearances"])
    return BinnedDistances(unpack_array(values["counts"]), float(values["reach"]), values["appearances"])


def pack_answers(answers: Answers) -> dict[str, Any]:
    """Give answers as JSON values."""
    packed: dict[str, Any] = {}
    for each in fields(Answers):
        value = getattr(answers, each.name)
        packed[each.name] = pack_array(value) if isinstance(value, np.ndarray) else value
    return {name: null_for_nan(value) for name, value in packed.items()}


def unpack_answers(values: dict[str, Any]) -> Answers:
    """Read them back."""
    low, high = values["calibration_range"]
    plain: dict[str, Any] = {
        name: unpack_array(value) if isinstance(value, dict) else nan_for_null(value)
        for name, value in values.items()
        if name != "calibration_range"
    }
    return Answers(calibration_range=(low, high), **plain)
