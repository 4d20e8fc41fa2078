"""A gallery by its definitions, in plain loops; shares no code with the package.

Every probe is compared with every enrolled class by itself. Distances are rounded to twelve digits, so that equal
ones are equal.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np


def unit(vector):
    return vector / math.sqrt(float(vector @ vector))


def distance(similarity):
    squared = round(2 - 2 * similarity, 12)
    return math.copysign(math.sqrt(abs(squared)), squared)


def compare(gallery, gallery_labels, probes, probe_labels, template, leave_one_out=False, add=None):
    """For each probe: its label, and by class the list of its distances (one, or one per item).

    ``add(probe number, label of the class, number of the item or None)`` is added to similarities.
    """
    gallery = [unit(np.asarray(row, np.float64)) for row in gallery]
    by_class = {}
    for number, label in enumerate(gallery_labels):
        by_class.setdefault(label, []).append(number)
    rows = gallery if leave_one_out else [unit(np.asarray(row, np.float64)) for row in probes]
    labels = gallery_labels if leave_one_out else probe_labels
    found = []
    for i, (probe, label) in enumerate(zip(rows, labels, strict=True)):
        scores = {}
        for name, members in by_class.items():
            used = [j for j in members if not (leave_one_out and j == i)]
            if not used:
                continue
            if template == "mean":
                mean = unit(sum(gallery[j] for j in used))
                similarities = [float(probe @ mean) + (add(i, name, None) if add else 0.0)]
            else:
                similarities = [float(probe @ gallery[j]) + (add(i, name, j) if add else 0.0) for j in used]
            if template == "max":
                similarities = [max(similarities)]
            scores[name] = [distance(similarity) for similarity in similarities]
        if leave_one_out and label not in scores:
            continue  # alone in its class: no probe
        found.append((label, scores))
    return sorted(by_class), found


def identification(classes, found, threshold, margin=0.0, rank=1):
    """FPIR, FNIR, share misidentified, and by class FNIR and its share of false positives."""
    unknown = accepted = 0
    known = missed = wrong = 0
    of_class, missed_of, first_of = {}, {}, {}
    for label, scores in found:
        nearest = {name: min(values) for name, values in scores.items()}
        own = nearest.get(label)
        order = sorted(nearest, key=lambda name: (nearest[name], name != label, name))
        gap = nearest[order[1]] if len(order) > 1 else None
        clear = margin == 0 or gap is None or similarity(nearest[order[0]]) - similarity(gap) >= margin
        if own is None:
            unknown += 1
            if nearest[order[0]] <= threshold and clear:
                accepted += 1
                first_of[order[0]] = first_of.get(order[0], 0) + 1
            continue
        known += 1
        of_class[label] = of_class.get(label, 0) + 1
        everything = [value for name, values in scores.items() if name != label for value in values]
        own_rank = 1 + sum(value < own for value in everything)
        if not (own <= threshold and own_rank <= rank and clear):
            missed += 1
            missed_of[label] = missed_of.get(label, 0) + 1
        if order[0] != label and nearest[order[0]] <= threshold and clear:
            wrong += 1
    return SimpleNamespace(
        fpir=accepted / unknown if unknown else math.nan,
        fnir=missed / known,
        misidentified=wrong / known,
        class_fnir=[missed_of.get(name, 0) / of_class[name] if name in of_class else math.nan for name in classes],
        false_positive_share=[first_of.get(name, 0) / max(accepted, 1) for name in classes],
    )


def similarity(value):
    return 1 - value * abs(value) / 2


def threshold_at_fpir(found, classes, fpir):
    """The largest threshold whose FPIR does not exceed a rate, among the scores of unknown probes: the last allowed."""
    best = sorted(min(min(values) for values in scores.values()) for label, scores in found if label not in classes)
    allowed = [value for value in best if sum(other <= value for other in best) / len(best) <= fpir + 1e-12]
    return (max(allowed) if allowed else -math.inf), min((v for v in best if v not in allowed), default=math.inf)


def consistency(classes, found, far=(1e-2, 1e-1), grid=101, target_far=1e-2, epsilon=0.1):
    """Pooled and per-class rates, OPIS and epsilon-OPIS over classes with at least two known probes."""
    positives = {name: [] for name in classes}
    negatives = {name: [] for name in classes}
    probes_of = dict.fromkeys(classes, 0)
    for label, scores in found:
        if label in probes_of:
            probes_of[label] += 1
        for name, values in scores.items():
            (positives if name == label else negatives)[name] += values
    pooled = sorted(value for values in negatives.values() for value in values)

    def at_far(values, rate):
        return sorted(values)[max(math.ceil(rate * len(values) - 1e-9), 1) - 1]

    low, high = at_far(pooled, far[0]), at_far(pooled, far[1])
    points = [low + (high - low) * i / (grid - 1) for i in range(grid)]
    points[-1] = high
    with_curve = [name for name in classes if probes_of[name] >= 2]

    def rates(name, threshold):
        accepted = sum(value <= threshold for value in positives[name]) / len(positives[name])
        return 1 - sum(value <= threshold for value in negatives[name]) / len(negatives[name]), accepted

    curves = np.array([[rates(name, threshold) for threshold in points] for name in with_curve])
    total = curves.sum(axis=2)
    utility = np.divide(2 * curves[..., 0] * curves[..., 1], total, out=np.zeros_like(total), where=total > 0)
    opis = float(np.mean([np.mean((utility[:, j] - utility[:, j].mean()) ** 2) for j in range(grid)]))
    order = np.argsort(utility.mean(axis=1), kind="stable")
    size = max(1, math.floor(epsilon * len(order) + 0.5))
    groups = []
    for chosen in (order[:size], order[::-1][:size]):
        first, second = curves[chosen, :, 0].mean(axis=0), curves[chosen, :, 1].mean(axis=0)
        groups.append(2 * first * second / (first + second))
    target = at_far(pooled, target_far)
    everything = [value for values in positives.values() for value in values]
    return SimpleNamespace(
        calibration_range=(low, high),
        opis=opis,
        epsilon_opis=float(np.mean((groups[0] - groups[1]) ** 2)),
        target=target,
        frr=sum(value > target for value in everything) / len(everything),
        far=sum(value <= target for value in pooled) / len(pooled),
        class_far=[sum(v <= target for v in negatives[name]) / len(negatives[name]) for name in classes],
        class_frr=[
            sum(v > target for v in positives[name]) / len(positives[name]) if positives[name] else math.nan
            for name in classes
        ],
        with_curve=with_curve,
        negative_pairs=len(pooled),
        positive_pairs=len(everything),
    )
