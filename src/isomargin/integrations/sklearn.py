"""A classifier of scikit-learn that accepts or rejects by one similarity threshold for all classes."""

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.gallery import evaluate_gallery
from isomargin.thresholds.choose import choose_threshold

__all__ = ["ThresholdClassifier"]

Floats = NDArray[np.float64]


class ThresholdClassifier(ClassifierMixin, BaseEstimator):
    """Assigns embeddings to the class with the most similar template, if one threshold accepts the similarity.

    The template of a class is the mean of its unit vectors. `accepts` says which rows the threshold accepts; `predict`
    returns ``unknown`` for the others if that is set, and otherwise the most similar class of every row.

    Args:
        similarity: the threshold, such as that of a card; None to choose it by ``far`` when fitting.
        far: the share of comparisons of training items with templates of other classes that may be accepted.
        unknown: the label of rejected rows, of the same type as the classes; None to label all rows.

    >>> generator, labels = np.random.default_rng(0), np.arange(60) % 6
    >>> embeddings = generator.normal(size=(60, 8)) + 3 * np.eye(8)[labels]
    >>> classifier = ThresholdClassifier(far=0.02, unknown=-1).fit(embeddings, labels)
    >>> round(classifier.threshold_, 2), classifier.predict([*3 * np.eye(8)[:2], -np.ones(8)]).tolist()
    (0.56, [0, 1, -1])
    """

    classes_: NDArray[Any]
    """The classes."""
    templates_: Floats
    """(classes, d) their templates, of length one."""
    threshold_: float
    """The least similarity that is accepted."""

    def __init__(self, similarity: float | None = None, far: float = 0.01, unknown: Any = None) -> None:
        self.similarity = similarity
        self.far = far
        self.unknown = unknown

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803 scikit-learn's name
        """Compute the templates of (n, d) embeddings with n labels, and choose the threshold unless it is given."""
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        rows = unit_rows(rows)
        self.classes_, classes = np.unique(labels, return_inverse=True)
        if self.unknown is not None and self.unknown in self.classes_:
            raise InputError(f"unknown is {self.unknown!r}, which is a class too: give rejected rows another label")
        sums = np.zeros((len(self.classes_), rows.shape[1]))
        np.add.at(sums, classes, rows)
        self.templates_ = unit_rows(sums)
        if self.similarity is not None:
            self.threshold_ = float(checks.number(self.similarity, "similarity"))
        else:
            self.threshold_ = self._choose(rows, classes)
        return self

    def _choose(self, rows: Floats, classes: NDArray[np.int64]) -> float:
        """Return the smallest similarity whose FAR does not exceed the target, with each item left out in turn."""
        checks.share(self.far, "far")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # notes about scores over classes, which are not used
            evaluation = evaluate_gallery(
                rows, classes, leave_one_out=True, distances=(0.0, 2.0), target_far=self.far, progress=None
            )
        distance = choose_threshold(evaluation, far=self.far, draws=100).distance
        return 1 - distance * abs(distance) / 2

    def similarities(self, X: Any) -> Floats:  # noqa: N803
        """(n, classes) the cosine of each row to each template; 0 for a row of zeros."""
        check_is_fitted(self)
        rows = unit_rows(validate_data(self, X, dtype=np.float64, reset=False))
        return np.asarray(rows @ self.templates_.T)

    def accepts(self, X: Any) -> NDArray[np.bool_]:  # noqa: N803
        """(n,) whether the similarity of each row to its most similar class reaches the threshold."""
        return np.asarray(self.similarities(X).max(axis=1) >= self.threshold_)

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """(n,) the most similar class of each row, or ``unknown`` where that is set and the threshold rejects."""
        similarity = self.similarities(X)
        found = self.classes_[similarity.argmax(axis=1)]
        if self.unknown is None:
            return np.asarray(found)
        accepted = similarity.max(axis=1) >= self.threshold_
        return np.array([name if kept else self.unknown for name, kept in zip(found.tolist(), accepted, strict=True)])


def unit_rows(rows: Floats) -> Floats:
    """(n, d) rows divided by their lengths; a row of zeros stays zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1))
