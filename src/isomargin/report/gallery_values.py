"""What the report shows of a gallery: its probes and templates, identification at every stop, and confusions.

Everything comes from the best classes of each probe, so that no embeddings are needed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.evaluation import Evaluation
from isomargin.measure.identification import Identification
from isomargin.measure.pairs.distances import BinnedDistances, Floats
from isomargin.measure.settings import TEMPLATE_WORDS
from isomargin.report.examples import ClassExamples, Confusion
from isomargin.report.packing import pack_increments
from isomargin.report.slider_stops import ThresholdStops

MOST_CONFUSIONS = 5  # labels listed for a class


def gallery_values(evaluation: Evaluation, stops: ThresholdStops) -> dict[str, Any] | None:
    """Return the sizes of a gallery and its counts at every stop as JSON values; None for another comparison."""
    gallery = evaluation.identification
    if gallery is None:
        return None
    left_out = ", without the probe" if gallery.leave_one_out else ""
    unknown_labels = len(np.unique(gallery.unknown_names))
    return {
        "template": TEMPLATE_WORDS[gallery.template] + left_out,
        "margin": gallery.margin,
        "enrolled": int(gallery.enrolled.sum()),
        "known": gallery.known,
        "known_classes": int((evaluation.sizes > 0).sum()),
        "unknown": gallery.unknown,
        "unknown_labels": unknown_labels,
        "presets": [[fpir, stop] for fpir, stop in sorted(stops.fpir_presets.items())],
        "identified": pack_increments(identified(gallery, stops.distances)),
        "misidentified": pack_increments(misidentified(gallery, stops.distances)[None]),
        "false_positives": pack_increments(false_positives(gallery, stops.distances)),
        "between_edges": bool(stops.fpir_presets) and isinstance(evaluation.counts.negatives, BinnedDistances),
    }


def identified(gallery: Identification, distances: Floats) -> NDArray[np.int64]:
    """(classes, stops) number of known probes of each class that are identified at each threshold."""
    possible = gallery.comes_first & enough_margin(gallery)[: gallery.known]
    classes = gallery.probe_class[: gallery.known]
    return counted_within(gallery.own_distance[possible], classes[possible], len(gallery.enrolled), distances)


def misidentified(gallery: Identification, distances: Floats) -> NDArray[np.int64]:
    """(stops,) number of known probes for which another class comes first and is accepted."""
    possible = ~gallery.comes_first & enough_margin(gallery)[: gallery.known]
    found = gallery.first_distance[: gallery.known][possible]
    return np.asarray(counted_within(found, np.zeros(len(found), np.int64), 1, distances)[0])


def false_positives(gallery: Identification, distances: Floats) -> NDArray[np.int64]:
    """(classes, stops) number of accepted unknown probes for which each class comes first."""
    possible = enough_margin(gallery)[gallery.known :]
    found, classes = gallery.first_distance[gallery.known :], gallery.first_class[gallery.known :]
    return counted_within(found[possible], classes[possible], len(gallery.enrolled), distances)


def enough_margin(gallery: Identification) -> NDArray[np.bool_]:
    """(n,) whether the first class of each probe exceeds the second by the margin of the evaluation."""
    if gallery.margin == 0:
        return np.ones(len(gallery.first_distance), np.bool_)
    return np.asarray(gallery.gaps >= gallery.margin)


def counted_within(found: Floats, class_of: NDArray[np.int64], classes: int, distances: Floats) -> NDArray[np.int64]:
    """(classes, stops) how many of the found distances (n,) of each class are within each threshold (ascending).

    >>> counted_within(np.array([0.1, 0.2, 0.3]), np.array([0, 1, 1]), 2, np.array([0.2, 0.4])).tolist()
    [[1, 1], [1, 2]]
    """
    width = len(distances) + 1  # the last column is beyond all thresholds
    places = class_of * width + np.searchsorted(distances, found, side="left")
    counts = np.bincount(places, minlength=classes * width).reshape(classes, width)
    return np.asarray(np.cumsum(counts[:, :-1], axis=1))


def gallery_confusions(
    evaluation: Evaluation, classes: Sequence[int | str], distance: float
) -> dict[int | str, ClassExamples]:
    """Find the labels that each of these classes is confused with at a threshold.

    A confusion is a probe of the label that is identified as the class, or a probe of the class that is identified as
    the label; its share is that of the probes of both. Most probes come first, then the nearest.
    """
    gallery = evaluation.gallery
    labels, label_of = probe_labels(evaluation, gallery)
    number = np.bincount(label_of, minlength=len(labels))
    wrong = np.flatnonzero(gallery.accepted_other(distance, gallery.margin))
    label_of, first_of, apart = label_of[wrong], gallery.first_class[wrong], gallery.first_distance[wrong]
    places = {name: place for place, name in enumerate(evaluation.names.tolist())}
    examples = {}
    for name in classes:
        taken, lost = first_of == places[name], label_of == places[name]
        found, of_found = np.unique(np.concatenate([label_of[taken], first_of[lost]]), return_inverse=True)
        probes = np.bincount(of_found, minlength=len(found))
        nearest = np.full(len(found), np.inf)
        np.minimum.at(nearest, of_found, np.concatenate([apart[taken], apart[lost]]))
        order = np.lexsort((nearest, -probes))[:MOST_CONFUSIONS]
        confusions = tuple(
            Confusion(
                labels[found[place]],
                int(probes[place]),
                float(probes[place] / (number[found[place]] + number[places[name]])),
                float(nearest[place]),
                None,
            )
            for place in order.tolist()
        )
        examples[name] = ClassExamples(confusions, ())
    return examples


def probe_labels(evaluation: Evaluation, gallery: Identification) -> tuple[list[int | str], NDArray[np.int64]]:
    """Return the labels of enrolled and unknown classes, and (n,) the place of each probe's label among them."""
    names, classes = evaluation.names.tolist(), evaluation.class_count
    unknown, place = np.unique(gallery.unknown_names, return_inverse=True)
    label_of = np.concatenate([np.arange(classes), classes + place])[gallery.probe_class]
    return [*names, *unknown.tolist()], np.asarray(label_of, np.int64)
