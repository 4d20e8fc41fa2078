"""scikit-learn's own checks, and the classifier compared with its definition."""

import warnings

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import isomargin as im
from compare import clusters
from isomargin.core.errors import InputError
from isomargin.integrations.sklearn import ThresholdClassifier

SENTENCE = "it refuses this input as the check demands, but in this package's words"
NOT_OF_EQUALIZERS = {
    "check_n_features_in_after_fitting": SENTENCE,
    "check_complex_data": SENTENCE,
    "check_estimators_empty_data_messages": SENTENCE,
    "check_fit2d_1sample": SENTENCE,
    "check_fit2d_predict1d": SENTENCE,
    "check_dtype_object": "arrays of objects are refused, because their entries need not be numbers",
    "check_estimators_dtypes": "its data have a row of zeros, which has no direction and is refused",
    "check_methods_sample_order_invariance": "rows of the reference are recognised in their order, or by ids",
    "check_methods_subset_invariance": "a part of the reference is recognised by ids, which the check does not give",
}
"""The checks that do not apply to Equalizer, and why."""


def run_checks(estimator, expected=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check_estimator(estimator, expected_failed_checks=expected, on_skip=None)


def test_an_equalizer_passes_every_check_that_applies():
    results = run_checks(im.Equalizer(neighbours=3, skip=0, threads=1), NOT_OF_EQUALIZERS)
    failed = {result["check_name"] for result in results if result["status"] == "xfail"}
    assert failed == set(NOT_OF_EQUALIZERS), "a check that is listed passes"


def test_the_classifier_passes_every_check():
    results = run_checks(ThresholdClassifier(similarity=0.5))
    assert {result["status"] for result in results} <= {"passed", "skipped"}


def test_an_equalizer_fits_and_transforms_in_one_call():
    rows, _ = clusters(200, 8)
    equalizer = im.Equalizer(neighbours=20, skip=5, threads=1)
    np.testing.assert_array_equal(equalizer.fit_transform(rows), equalizer.transform_reference())


def definition(rows, labels):
    """(n, classes) cosines to the normalised means of unit vectors, by loops."""
    unit = np.array([row / np.sqrt((row**2).sum()) for row in rows])
    means = np.array([unit[labels == name].mean(axis=0) for name in np.unique(labels)])
    return unit @ np.array([mean / np.sqrt((mean**2).sum()) for mean in means]).T


def test_the_chosen_threshold_keeps_the_false_accept_rate_and_no_smaller_one_does():
    rows, labels = clusters(300, 10)
    classifier = ThresholdClassifier(far=0.05).fit(rows, labels)
    similarity = definition(rows, labels)
    others = np.sort(similarity[np.unique(labels) != labels[:, None]])[::-1]
    allowed = int(0.05 * len(others))
    assert others[allowed - 1] >= classifier.threshold_ > others[allowed]


def test_rejected_rows_are_unknown_and_accepted_ones_are_of_the_nearest_class():
    rows, labels = clusters(300, 10)
    names = np.array([f"class {label}" for label in labels])
    classifier = ThresholdClassifier(far=0.02, unknown="none of them").fit(rows[:200], names[:200])
    similarity = classifier.similarities(rows)
    np.testing.assert_allclose(similarity[:200], definition(rows[:200], names[:200]), atol=1e-12)
    expected = [
        classifier.classes_[row.argmax()] if row.max() >= classifier.threshold_ else "none of them"
        for row in similarity
    ]
    assert classifier.predict(rows).tolist() == expected
    np.testing.assert_array_equal(classifier.accepts(rows), np.array(expected) != "none of them")
    assert 0 < classifier.accepts(rows).mean() < 1


def test_the_classifier_works_in_a_pipeline():
    rows, labels = clusters(300, 10, noise=0.3)
    pipeline = make_pipeline(FunctionTransformer(lambda values: values[:, :12]), ThresholdClassifier(far=0.05))
    assert cross_val_score(pipeline, rows, labels, cv=3).mean() > 0.9


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"far": 1e-6}, "far asks for a false accept rate of 1e-06"),
        ({"far": 2}, "far is 2"),
        ({"unknown": 3}, "unknown is 3, which is a class too"),
        ({"similarity": "high"}, "similarity is 'high'"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(choices, sentence):
    rows, labels = clusters(100, 5)
    with pytest.raises(InputError, match=sentence):
        ThresholdClassifier(**choices).fit(rows, labels)
