"""What a report must show, from the Evaluation and from the pairs themselves; nothing that a report computes."""

import math

import numpy as np


def class_utility(evaluation, distance):
    """(classes,) utility of each class at a distance by Eq. 1, NaN for those without a positive pair."""
    point, settings = evaluation.at(distance), evaluation.settings
    sensitivity = 1 - point.class_frr
    if settings.utility == "specificity_sensitivity":
        other = 1 - point.class_far
    else:
        accepted = sensitivity * evaluation.counts.positives.totals
        wrong = point.class_far * evaluation.counts.negatives.totals
        other = np.divide(accepted, accepted + wrong, out=np.zeros_like(accepted), where=accepted + wrong > 0)
    weight = settings.c**2
    below = weight * other + sensitivity
    utility = np.divide((1 + weight) * other * sensitivity, below, out=np.zeros_like(below), where=below != 0)
    return np.where(np.isnan(sensitivity), np.nan, utility)


def outside(evaluation, distance, far, frr):
    """Which classes exceed tolerances given in percent: by FAR, by FRR, by either."""
    point = evaluation.at(distance)
    with np.errstate(invalid="ignore"):
        too_near, too_far = point.class_far > far / 100, point.class_frr > frr / 100
    return too_near, too_far, too_near | too_far


SEVEN_DIGITS = ("own_threshold", "mean_utility", "opis_share", "eer", "recall@1")


def tolerance_of(column):
    """Columns that do not follow the threshold are carried with seven digits, all else in full."""
    return 1e-6 if column in SEVEN_DIGITS else 1e-12


def class_columns(evaluation, distance):
    """Every number of the table of classes at a distance, by column, (classes,) each."""
    point, table = evaluation.at(distance), evaluation.per_class
    columns = {
        "items": evaluation.sizes.astype(float),
        "far": point.class_far,
        "frr": point.class_frr,
        "utility": class_utility(evaluation, distance),
        "own_threshold": table["far_threshold"].to_numpy(),
        "mean_utility": table["mean_utility"].to_numpy(),
        "opis_share": table["opis_contribution"].to_numpy() / evaluation.opis,
        "eer": table["eer"].to_numpy(),
    }
    return columns | ({"recall@1": table["recall@1"].to_numpy()} if "recall@1" in table else {})


def worst(values, *, largest):
    """The ten worst values, the worst first, classes without one left out."""
    known = np.sort(values[~np.isnan(values)])
    return (known[::-1] if largest else known)[:10]


def similarity(distance):
    """Of unit vectors so far apart."""
    return 1 - distance**2 / 2


def all_distances(vectors, labels):
    """Every pair's distance by brute force: of positive pairs, of negative pairs."""
    unit = np.asarray(vectors, float)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    first, second = np.triu_indices(len(unit), 1)
    apart = np.sqrt(np.maximum(2 - 2 * np.einsum("ij,ij->i", unit[first], unit[second]), 0))
    same = np.asarray(labels)[first] == np.asarray(labels)[second]
    return apart[same], apart[~same]


def relative_luminance(colour):
    """WCAG's luminance of (red, green, blue) from 0 to 255."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (each / 255 for each in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """WCAG's contrast of two colours, from 1 to 21."""
    low, high = sorted((relative_luminance(one), relative_luminance(other)))
    return (high + 0.05) / (low + 0.05)


def close(actual, wanted, tolerance=1e-12):
    """Whether two numbers are equal but for rounding; NaN equals NaN."""
    if math.isnan(wanted) or math.isnan(actual):
        return math.isnan(wanted) and math.isnan(actual)
    return math.isclose(actual, wanted, rel_tol=tolerance, abs_tol=tolerance)


def shown_name(label):
    """How a label is shown: what could not be seen or would move other text as its escape, a blank one in quotes."""
    if not str(label).strip():
        return repr(str(label))
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(label))
