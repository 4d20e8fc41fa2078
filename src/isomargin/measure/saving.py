"""Save an evaluation as JSON and load it again, without loss, with a checksum of the content.

The functions work on the fields of an evaluation by name, so that ``evaluation.py`` can import this module.
``core/json_values.py`` turns arrays into JSON values.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, check_file, reading
from isomargin.core.json_values import digest, nan_for_null, null_for_nan, pack_array, unpack_array
from isomargin.measure.identification import Identification
from isomargin.measure.pairs.axis import L2, AxisName, ScoreAxis
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, ClassDistances, ListedDistances
from isomargin.measure.pairs.summary import PairSummary, summarize
from isomargin.measure.pairs.trial_counts import TrialDetails
from isomargin.measure.settings import Comparison, Settings
from isomargin.measure.statistics.item_noise import ItemNoise

FORMAT = "isomargin evaluation"
VERSION = 3
NOT_SHAPED = ("notes", "equalizer", "comparison", "identification", "trials")  # their shape does not depend on others
ACCEPT = "at_most"  # a pair is accepted if its value on the score axis is at most the threshold


def write(path: Path, values: dict[str, Any]) -> None:
    """Write JSON values atomically, with their checksum."""
    text = json.dumps({**values, "sha256": digest(values)}, allow_nan=False, indent=1)
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """Read the fields of an evaluation from a file; a file that cannot be read is refused in one sentence."""
    check_file(path)
    with reading(path):
        content = path.read_bytes()
    try:
        values = json.loads(content.decode("utf-8"))
        check(values)
        return from_json_values(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # damage can make any step fail
        raise InputError(f"{path} cannot be read as an evaluation: it is damaged or truncated") from error


def check(values: dict[str, Any]) -> None:
    """Refuse content that is not an evaluation, has another version, or was changed since it was written."""
    if values.get("format") != FORMAT:
        raise InputError("this JSON is not an evaluation that isomargin wrote")
    if values.get("version") not in (2, VERSION):
        raise InputError(
            f"this evaluation has format version {values.get('version')!r}, but {VERSION} is needed: evaluate again"
        )
    if values["version"] == 2:  # version 2 had no checksum, and other names
        values["summary"], values["item_noise"] = values.pop("answers"), values.pop("image_noise")
        values |= {"comparison": "all_pairs", "score_axis": pack_axis(L2), "equalizer": None}
        return
    if values.pop("sha256", None) != digest(values):
        raise InputError("the content does not match its checksum, so the file was edited or damaged: evaluate again")
    axis = values["score_axis"]
    if (
        values["comparison"] not in get_args(Comparison)
        or axis["name"] not in get_args(AxisName)
        or axis["accept"] != ACCEPT
    ):
        raise InputError("this evaluation was written by a newer version of isomargin: upgrade it, or evaluate again")


def as_json_values(parts: Mapping[str, Any], scores: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an evaluation as JSON values: scores for people to read, settings and counts for loading."""
    names, counts, exact = parts["names"], parts["counts"], parts["method"] == "exact"
    return {
        "format": FORMAT,
        "version": VERSION,
        "comparison": parts["comparison"],
        "score_axis": pack_axis(counts.negatives.axis),
        "equalizer": parts["equalizer"],
        "scores": scores,
        "settings": asdict(parts["settings"]),
        "method": parts["method"],
        "notes": list(parts["notes"]),
        "names": pack_names(names),
        "sizes": pack_array(parts["sizes"]),
        "ranks": {
            field.name: value if field.name == "k" or value is None else pack_array(value)
            for field in fields(RankCounts)
            for value in [getattr(parts["ranks"], field.name)]
        },
        "positives": pack_distances(counts.positives),
        "negatives": pack_distances(counts.negatives),
        # An interpolated summary follows from the counts; an exact one does not.
        "summary": pack_summary(parts["summary"]) if exact else None,
        "item_noise": None if parts["item_noise"] is None else pack_fields(parts["item_noise"]),
        "identification": None if parts["identification"] is None else pack_identification(parts["identification"]),
        **pack_trials(parts["trials"]),
    }


def from_json_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an evaluation from the values that ``as_json_values`` returned."""
    settings = Settings.from_values(**values["settings"])
    axis = unpack_axis(values["score_axis"])
    counts = PairCounts(unpack_distances(values["positives"], axis), unpack_distances(values["negatives"], axis))
    ranks: dict[str, Any] = {
        name: unpack_array(value) if isinstance(value, dict) else value for name, value in values["ranks"].items()
    }
    noise = values["item_noise"]
    parts = {
        "settings": settings,
        "names": unpack_names(values["names"]),
        "sizes": unpack_array(values["sizes"]),
        "counts": counts,
        "ranks": RankCounts(**{**ranks, "k": tuple(ranks["k"])}),
        "summary": summarize(counts, settings) if values["summary"] is None else unpack_summary(values["summary"]),
        "method": values["method"],
        "item_noise": noise and ItemNoise(**{name: unpack_array(value) for name, value in noise.items()}),
        "notes": tuple(values["notes"]),
        "equalizer": values["equalizer"],
        "comparison": values["comparison"],
        "identification": unpack_identification(values.get("identification"), axis),
        "trials": unpack_trials(values),
    }
    if not fits_together(**{name: part for name, part in parts.items() if name not in NOT_SHAPED}):
        raise InputError("the parts of this evaluation do not fit together: the file is damaged")
    return parts


def fits_together(
    settings: Settings,
    names: Any,
    sizes: Any,
    counts: PairCounts,
    ranks: RankCounts,
    summary: PairSummary,
    method: str,
    item_noise: ItemNoise | None,
) -> bool:
    """Whether the fields read from a file have the shapes that the scores need."""
    positives, negatives = counts.positives, counts.negatives
    classes, grid = sizes.shape, (settings.grid,)
    by_class = [names, ranks.queries, positives.totals, negatives.totals]
    by_class += [summary.target_positives_within, summary.target_negatives_within]
    by_class += [summary.class_far_distance, summary.class_frr_distance, summary.class_eer, summary.class_auc]
    by_class += [sums for sums in (ranks.r_precision, ranks.average_precision) if sums is not None]
    on_grid = [summary.distances, summary.pooled_positives_within, summary.pooled_negatives_within]
    shapes_fit = (
        all(array.shape == classes for array in by_class)
        and all(array.shape == grid for array in on_grid)
        and summary.positives_within.shape == summary.negatives_within.shape == classes + grid
        and ranks.hits.shape == (*classes, len(ranks.k))
    )
    noise_fits = item_noise is None or fits_classes(item_noise, len(sizes))
    appearances_fit = positives.appearances in (1, 2) and negatives.appearances in (1, 2)
    kinds_fit = names.dtype.kind in "iuU" and method in ("exact", "binned")
    return shapes_fit and noise_fits and appearances_fit and kinds_fit


def fits_classes(noise: ItemNoise, classes: int) -> bool:
    """Whether the noise read from a file has the shape that this many classes need."""
    shape = (len(noise.classes), len(noise.distances))
    arrays = (noise.sensitivity, noise.false_accepts, noise.covariance)
    known = noise.classes.ndim == 1 and 2 <= len(noise.classes) <= classes and int(noise.classes.max()) < classes
    return known and len(noise.distances) >= 1 and all(array.shape == shape for array in arrays)


def pack_fields(noise: ItemNoise) -> dict[str, Any]:
    """Return the arrays of the noise as JSON values."""
    return {field.name: pack_array(getattr(noise, field.name)) for field in fields(ItemNoise)}


def pack_names(names: Any) -> dict[str, Any]:
    """Return labels as JSON values."""
    return {"dtype": "text" if names.dtype.kind == "U" else names.dtype.name, "values": names.tolist()}


def unpack_names(values: dict[str, Any]) -> Any:
    """Return the labels that ``pack_names`` packed."""
    kind = values["dtype"]
    return np.array(values["values"], str if kind == "text" else kind)


def pack_identification(found: Identification) -> dict[str, Any]:
    """Return the best classes of each probe as JSON values."""
    packed = {field.name: getattr(found, field.name) for field in fields(Identification)}
    by_name = {"unknown_names": pack_names, "by_probe": pack_distances}
    return {
        name: by_name[name](value) if name in by_name else pack_array(value) if isinstance(value, np.ndarray) else value
        for name, value in packed.items()
    }


def unpack_identification(values: dict[str, Any] | None, axis: ScoreAxis) -> Identification | None:
    """Return the identification that ``pack_identification`` packed."""
    if values is None:
        return None
    unpacked: dict[str, Any] = {
        name: unpack_array(value) if isinstance(value, dict) and name not in ("unknown_names", "by_probe") else value
        for name, value in values.items()
    }
    unpacked["unknown_names"] = unpack_names(values["unknown_names"])
    unpacked["by_probe"] = unpack_distances(values["by_probe"], axis)
    found = Identification(**unpacked)
    probes = found.probe_class.shape
    by_probe = [found.first_distance, found.first_class, found.second_distance, found.second_class]
    rows = len(found.enrolled) + len(found.unknown_names)
    if not (
        all(array.shape == probes for array in by_probe)
        and found.own_rank.shape == found.own_distance.shape
        and found.levels.shape == found.class_share.shape
        and isinstance(found.by_probe, BinnedDistances)
        and len(found.by_probe.counts) == rows
        and (probes == (0,) or int(found.probe_class.max()) < rows)
    ):
        raise InputError("the parts of this evaluation do not fit together: the file is damaged")
    return found


def pack_trials(details: TrialDetails | None) -> dict[str, Any]:
    """Return the details of trials as JSON values; nothing for other comparisons."""
    if details is None:
        return {}
    return {"trials": {name: null_for_nan(value) for name, value in asdict(details).items()}}


def unpack_trials(values: dict[str, Any]) -> TrialDetails | None:
    """Return the details that ``pack_trials`` packed."""
    if values["comparison"] != "trials":
        return None
    return TrialDetails(**{**values["trials"], "cllr": nan_for_null(values["trials"]["cllr"])})


def pack_axis(axis: ScoreAxis) -> dict[str, Any]:
    """Return the score axis as JSON values."""
    return {**asdict(axis), "accept": ACCEPT}


def unpack_axis(values: dict[str, Any]) -> ScoreAxis:
    """Return the axis that ``pack_axis`` packed."""
    return ScoreAxis(values["name"], float(values["lowest"]), float(values["highest"]))


def pack_distances(distances: ClassDistances) -> dict[str, Any]:
    """Return distances as JSON values."""
    if isinstance(distances, ListedDistances):
        listed = {"distances": pack_array(distances.distances), "offsets": pack_array(distances.offsets)}
        if distances.each_once is not None:
            listed["each_once"] = pack_array(distances.each_once)
        return {"kind": "listed", "appearances": distances.appearances, **listed}
    binned = {"counts": pack_array(distances.counts), "start": distances.start, "reach": distances.reach}
    return {"kind": "binned", "appearances": distances.appearances, **binned}


def unpack_distances(values: dict[str, Any], axis: ScoreAxis) -> ClassDistances:
    """Return the distances that ``pack_distances`` packed."""
    if values["kind"] == "listed":
        offsets, distances = unpack_array(values["offsets"]), unpack_array(values["distances"])
        if distances.shape != (offsets[-1],):
            raise InputError("the distances of this evaluation do not fit together: the file is damaged")
        each_once = unpack_array(values["each_once"]) if "each_once" in values else None
        return ListedDistances(distances, offsets, values["appearances"], axis, each_once)
    span = float(values.get("start", 0.0)), float(values["reach"])  # files without a start have plain distances
    return BinnedDistances.within_span(unpack_array(values["counts"]), span, axis, values["appearances"])


def pack_summary(summary: PairSummary) -> dict[str, Any]:
    """Return a summary as JSON values."""
    packed: dict[str, Any] = {}
    for field in fields(PairSummary):
        value = getattr(summary, field.name)
        packed[field.name] = pack_array(value) if isinstance(value, np.ndarray) else value
    return {name: null_for_nan(value) for name, value in packed.items()}


def unpack_summary(values: dict[str, Any]) -> PairSummary:
    """Return the summary that ``pack_summary`` packed."""
    low, high = values["calibration_range"]
    plain: dict[str, Any] = {
        name: unpack_array(value) if isinstance(value, dict) else nan_for_null(value)
        for name, value in values.items()
        if name != "calibration_range"
    }
    return PairSummary(calibration_range=(low, high), **plain)
