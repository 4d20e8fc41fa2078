"""Evaluations small enough to be committed: what a comparison needs of a run, without the run's folder.

    RESULTS/NAME/evaluations/SETTING/CHOICES-seed-0.npz.xz    one file per run, 20 to 60 KB

The scores are kept as they are. The pairs of each class are kept as counts in `BINS` bins, from which classes are
resampled; the draws are shifted by what the bins change in a score, as for every evaluation that is binned. Variances
of item noise are kept with two to three significant digits. The recipe's settings are stored with them: a run that is
trained with other settings is not represented by the file.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, ClassDistances
from isomargin.measure.pairs.summary import summarize
from isomargin.measure.scores import registry
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.item_noise import ItemNoise

FOLDER = "evaluations"
BINS = 64
NOISE = ("sensitivity", "false_accepts", "covariance")


@dataclass(frozen=True, eq=False)
class Measured:
    """What is known of a run: an evaluation to resample, and its scores."""

    evaluation: Evaluation
    scores: dict[str, float]
    """By the names of columns; NaN where a score is unknown."""
    name: str = ""
    """Tells it from all others."""
    seconds: float | None = None
    """That training took, where the run's folder does not tell."""


def measured(evaluation: Evaluation) -> Measured:
    """Give an evaluation with its scores and its calibration range."""
    low, high = evaluation.calibration_range
    scores = {name: float(score.read(evaluation)) for name, score in registry.scores_of(evaluation).items()}
    return Measured(evaluation, {**scores, "calibration_low": low, "calibration_high": high})


def compact(run: Measured) -> Measured:
    """Keep the scores, and the pairs of each class as counts in few bins."""
    evaluation = run.evaluation
    counts = PairCounts(*(in_bins(part) for part in (evaluation.counts.positives, evaluation.counts.negatives)))
    small = replace(
        evaluation,
        counts=counts,
        summary=summarize(counts, evaluation.settings),
        method="binned",
        item_noise=None if evaluation.item_noise is None else rounded(evaluation.item_noise),
        notes=(),
        equalizer=None,
    )
    return replace(run, evaluation=small)


def in_bins(distances: ClassDistances) -> BinnedDistances:
    """Count the pairs of each class in bins of equal width between the nearest and the farthest pair."""
    total = distances.pooled_total
    low, high = distances.pooled_distance_at(1), distances.pooled_distance_at(total)
    low, high = min(low, high), np.nextafter(max(low, high), np.inf) + 1e-6
    edges = np.linspace(low, high, BINS + 1)
    within = np.rint(distances.within(edges)).astype(np.int64)
    within[:, -1] = distances.totals
    counts = np.diff(within[:, 1:], prepend=0, axis=1)
    return BinnedDistances.within_span(counts, (float(low), float(high)), distances.axis, distances.appearances)


def rounded(noise: ItemNoise) -> ItemNoise:
    """Round variances to the sixteen bits that are kept of them."""

    def both_ways(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return from_halves(as_halves(values))

    return replace(
        noise,
        sensitivity=both_ways(noise.sensitivity),
        false_accepts=both_ways(noise.false_accepts),
        covariance=both_ways(noise.covariance),
    )


def as_halves(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 to its first sixteen bits: the sign, the exponent and seven bits of the mantissa."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return np.asarray((bits + np.uint32(1 << 15)) >> np.uint32(16), np.uint16)


def from_halves(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Give the float32 of which `as_halves` kept the first bits.

    >>> from_halves(as_halves(np.array([1.0, -0.001234], np.float32))).round(6).tolist()
    [1.0, -0.0012359999818727374]
    """
    return np.asarray((halves.astype(np.uint32) << np.uint32(16)).view(np.float32))


def save_kept(run: Measured, settings: Mapping[str, Any], path: Path) -> None:
    """Write a compact evaluation with the settings of its recipe, atomically."""
    evaluation = run.evaluation
    noise, ranks = evaluation.item_noise, evaluation.ranks
    arrays: dict[str, Any] = {
        "names": evaluation.names,
        "sizes": smallest(evaluation.sizes),
        "queries": smallest(ranks.queries),
        "hits": smallest(ranks.hits),
        "score_names": np.array(list(run.scores)),
        "scores": np.array(list(run.scores.values()), np.float64),
    }
    for name in ("r_precision", "average_precision"):
        if getattr(ranks, name) is not None:
            arrays[name] = getattr(ranks, name).astype(np.float32)
    spans = {}
    for name in ("positives", "negatives"):
        part = getattr(evaluation.counts, name)
        arrays[name] = smallest(part.counts)
        spans[name] = [part.start, part.reach, part.appearances]
    if noise is not None:
        arrays |= {"noise_classes": smallest(noise.classes), "noise_distances": noise.distances}
        arrays |= {f"noise_{name}": as_halves(getattr(noise, name)) for name in NOISE}
    axis = evaluation.axis
    about = {
        "recipe": settings,
        "settings": {name: getattr(evaluation.settings, name) for name in evaluation.settings.__dataclass_fields__},
        "axis": [axis.name, axis.lowest, axis.highest],
        "spans": spans,
        "k": list(ranks.k),
        "seconds": run.seconds,
    }
    content = io.BytesIO()
    np.savez(content, about=np.array(json.dumps(about)), **arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_bytes(lzma.compress(content.getvalue()))


def smallest(values: NDArray[Any]) -> NDArray[Any]:
    """Give whole numbers in the smallest type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of the recipe that a kept evaluation belongs to."""
    return dict(json.loads(str(read_arrays(path)["about"]))["recipe"])


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a kept evaluation."""
    try:
        with np.load(io.BytesIO(lzma.decompress(path.read_bytes())), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (lzma.LZMAError, ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as a kept evaluation ({error}): delete it to make it again") from error


def load_kept(path: Path) -> Measured:
    """Read what `save_kept` wrote."""
    arrays = read_arrays(path)
    about = json.loads(str(arrays["about"]))
    axis = ScoreAxis(*about["axis"])

    def distances(name: str) -> BinnedDistances:
        start, reach, appearances = about["spans"][name]
        return BinnedDistances.within_span(arrays[name].astype(np.int64), (start, reach), axis, appearances)

    counts = PairCounts(distances("positives"), distances("negatives"))
    settings = Settings.from_values(**about["settings"])
    precision = {
        name: arrays[name].astype(np.float64) if name in arrays else None
        for name in ("r_precision", "average_precision")
    }
    ranks = RankCounts(
        arrays["queries"].astype(np.int64), tuple(about["k"]), arrays["hits"].astype(np.int64), **precision
    )
    noise = None
    if "noise_classes" in arrays:
        noise = ItemNoise(
            arrays["noise_classes"].astype(np.int64),
            arrays["noise_distances"],
            *(from_halves(arrays[f"noise_{name}"]) for name in NOISE),
        )
    evaluation = Evaluation(
        settings,
        arrays["names"],
        arrays["sizes"].astype(np.int64),
        counts,
        ranks,
        summarize(counts, settings),
        "binned",
        noise,
    )
    scores = dict(zip(arrays["score_names"].tolist(), arrays["scores"].tolist(), strict=True))
    return Measured(evaluation, scores, seconds=about["seconds"])
