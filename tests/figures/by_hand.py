"""Small sets, names that nobody would choose, and numbers by their definitions, sharing no code with the package."""

from types import SimpleNamespace

import numpy as np

import isomargin as im
from isomargin.training.tuned import TunedRun

HOSTILE = ("$x_", "<b>&", "\x1b[2J", "a" * 300, "中文", "😀", "_hidden", "", "two\nlines", "\udcff", r"\frac{$", "%s")


def make_set(seed, classes=6, images=12, dimensions=5, spread=0.5):
    """Make unit vectors around centres, some classes looser than others; distances come from float64 products."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    centres = random.normal(size=(classes, dimensions))
    looseness = np.linspace(0.4, 1.6, classes)[labels, None] * spread
    vectors = centres[labels] + looseness * random.normal(size=(len(labels), dimensions))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return SimpleNamespace(vectors=vectors, labels=labels, evaluation=im.evaluate(vectors, labels))


def pair_distances(made, which=None):
    """All distances of positive and of negative pairs, of one class or of all, by definition."""
    row, column = np.triu_indices(len(made.labels), 1)
    distances = np.linalg.norm(made.vectors[row] - made.vectors[column], axis=1)
    first, second = made.labels[row], made.labels[column]
    touched = np.full(len(row), True) if which is None else (first == which) | (second == which)
    return distances[touched & (first == second)], distances[touched & (first != second)]


def utility_by_hand(made, which, thresholds):
    """(m,) the harmonic mean of the shares of friends accepted and of strangers refused."""
    positives, negatives = pair_distances(made, which)
    accepted = np.array([(positives <= each).mean() for each in thresholds])
    refused = np.array([(negatives > each).mean() for each in thresholds])
    return 2 * accepted * refused / (accepted + refused)


def distance_at_far(negatives, far):
    """The smallest distance of a negative pair at which so large a share of them is accepted."""
    ascending = np.sort(negatives)
    return next(each for number, each in enumerate(ascending, 1) if number / len(ascending) >= far)


def opis_by_hand(made, far):
    """The variance over classes of the utility, averaged over the calibration range."""
    negatives = pair_distances(made)[1]
    grid = np.linspace(distance_at_far(negatives, far[0]), distance_at_far(negatives, far[1]), 101)
    classes = np.unique(made.labels)
    return np.mean(np.var([utility_by_hand(made, which, grid) for which in classes], axis=0))


def tuned_run(positive=None, negative=None, weight=None, recall=0.8, opis=1e-3, picked=False):
    name = "baseline" if positive is None else f"{positive}-{negative}"
    return TunedRun(name, positive, negative, weight, recall, opis, epsilon_opis=0.1, map_at_r=0.5, picked=picked)
