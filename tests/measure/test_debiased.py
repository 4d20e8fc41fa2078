"""OPIS without the noise of few images: held against class curves that are known, and against loops over images."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isomargin as im
from isomargin.measure import evaluate as evaluate_module
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.item_noise import count_levels, estimate, slopes

CLASSES, DIMENSIONS = 200, 8

pytestmark = pytest.mark.xdist_group("debiased")  # the truth is computed once, in one of pytest's workers


# --- Drawn data whose class curves are known --------------------------------------------------------------------------


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


class Population:
    """Classes around fixed centres, of fixed spreads: any number of images of each can be drawn."""

    def __init__(self, classes=CLASSES, seed=1):
        generator = np.random.default_rng(seed)
        self.centres = generator.normal(size=(classes, DIMENSIONS))
        self.spreads = generator.uniform(0.6, 1.0, classes)

    def images(self, class_of, generator):
        noise = generator.normal(size=(len(class_of), DIMENSIONS))
        return unit(self.centres[class_of] + self.spreads[class_of, None] * noise)

    def curves(self, pairs, seed, grid=101):
        """(classes, grid) sensitivity and FAR of each class from pairs without a common image: a share of so many."""
        generator = np.random.default_rng(seed)
        classes = len(self.spreads)
        positives, negatives = [], []
        for i in range(classes):
            own = np.full(pairs, i)
            others = generator.integers(0, classes - 1, pairs)
            others += others >= i
            ends = [self.images(which, generator) for which in (own, own, own, others)]
            positives.append(np.sort(np.linalg.norm(ends[0] - ends[1], axis=1)))
            negatives.append(np.sort(np.linalg.norm(ends[2] - ends[3], axis=1)))
        low, high = np.quantile(negatives, [0.01, 0.1])
        distances = np.linspace(low, high, grid)
        return [np.array([np.searchsorted(each, distances) for each in of]) / pairs for of in (positives, negatives)]


@pytest.fixture(scope="module")
def population():
    return Population()


@pytest.fixture(scope="module")
def true_curves(population):
    """The curves twice, from pairs of their own, so that the noise of either cancels from a product of the two."""
    return [population.curves(pairs=2_000, seed=seed) for seed in (2, 3)]


def f_score(first, second, c=1.0):
    return (1 + c**2) * first * second / (c**2 * first + second)


def covariance(one, other):
    return np.mean((one - one.mean(axis=0)) * (other - other.mean(axis=0)))


def true_opis(true_curves, c=1.0):
    return covariance(*(f_score(1 - far, sensitivity, c) for sensitivity, far in true_curves))


def true_precision_recall_opis(true_curves, images):
    """Precision depends on how many pairs there are of each kind: on the number of images, then, not their noise."""
    ratio = (images - 1) / 2 / (images * (CLASSES - 1))
    precision = [ratio * sensitivity / (ratio * sensitivity + far) for sensitivity, far in true_curves]
    return covariance(
        *(f_score(each, sensitivity) for each, (sensitivity, _) in zip(precision, true_curves, strict=True))
    )


def repeat(population, sizes, repetitions, **choices):
    """Evaluations of other images of the same classes each time."""
    class_of = np.repeat(np.arange(len(population.spreads)), sizes)
    drawn = [population.images(class_of, np.random.default_rng([seed, 3])) for seed in range(repetitions)]
    return [im.evaluate(rows, class_of, k=(1,), map_at_r=False, threads=1, **choices) for rows in drawn]


def check(evaluations, truth, deviation, inflated):
    """De-biased OPIS is the truth on average, where the plug-in is that many times as much.

    `deviation` is the standard deviation of one set's de-biased OPIS as a share of the truth, from some dozen sets; the
    mean may miss the truth by 3.5 standard errors, which happens once in 2,000.
    """
    plug_in, debiased = np.mean([(each.opis, each.debiased_opis) for each in evaluations], axis=0) / truth
    assert debiased == pytest.approx(1.0, abs=3.5 * deviation / np.sqrt(len(evaluations)))
    assert plug_in > inflated


@pytest.fixture
def _binned(monkeypatch):
    """Pairs in bins, five times as fast; scores agree with the exact count to 1e-4."""
    monkeypatch.setattr(evaluate_module, "SMALL", 0)


@pytest.fixture(scope="module")
def ten_images(population):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_module, "SMALL", 0)
        return repeat(population, 10, 8)


def test_ten_images_a_class_give_the_truth_where_the_plug_in_is_far_above(ten_images, true_curves):
    check(ten_images, true_opis(true_curves), deviation=0.05, inflated=1.25)


@pytest.mark.usefixtures("_binned")
@pytest.mark.parametrize(
    ("images", "repetitions", "deviation", "inflated"), [(5, 6, 0.12, 1.6), (20, 3, 0.032, 1.1)], ids=["5", "20"]
)
def test_other_numbers_of_images_give_the_truth(population, true_curves, images, repetitions, deviation, inflated):
    check(repeat(population, images, repetitions), true_opis(true_curves), deviation, inflated)


@pytest.mark.usefixtures("_binned")
def test_unequal_classes_give_the_truth(population, true_curves):
    sizes = np.random.default_rng(4).permutation(np.resize([4, 6, 10, 20], CLASSES))
    check(repeat(population, sizes, 5), true_opis(true_curves), deviation=0.085, inflated=1.3)


def test_another_weight_of_sensitivity_gives_its_truth(ten_images, true_curves):
    changed = [each.with_settings(c=2.0) for each in ten_images]
    check(changed, true_opis(true_curves, c=2.0), deviation=0.045, inflated=1.2)


def test_precision_and_recall_give_their_truth(ten_images, true_curves):
    changed = [each.with_settings(utility="precision_recall") for each in ten_images]
    check(changed, true_precision_recall_opis(true_curves, images=10), deviation=0.095, inflated=1.2)


@pytest.mark.usefixtures("_binned")
def test_sampled_negatives_give_the_truth_too(population, true_curves):
    check(repeat(population, 10, 4, pairs="sampled"), true_opis(true_curves), deviation=0.05, inflated=1.2)


# --- The estimators, against loops over images ------------------------------------------------------------------------


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def by_loops(accepted, rates, images):
    """Unbiased variances and covariance of a class's sensitivity and FAR with so many images.

    accepted is (m, m), whether two of its images are taken for friends; rates is (2, m), each image's FAR twice.
    """
    every = range(len(accepted))
    pairs = list(combinations(every, 2))
    theta = mean(accepted[a, b] for a, b in pairs)
    disjoint = mean(accepted[p] * accepted[q] for p in pairs for q in pairs if not set(p) & set(q))
    common = mean(accepted[a, b] * accepted[a, c] for a, b, c in permutations(every, 3))
    # The mean over pairs of pairs of the covariance, by how many images they have in common.
    number = images * (images - 1) / 2
    with_one = images * (images - 1) * (images - 2)
    variance = (with_one * (common - disjoint) + number * (theta - disjoint)) / number**2
    far = mean(rates[0, a] * rates[1, a] for a in every) - mean(
        rates[0, a] * rates[1, b] for a, b in permutations(every, 2)
    )
    own = rates.mean(axis=0)
    near = mean(accepted[a, b] * own[a] for a, b in permutations(every, 2))
    apart = mean(accepted[a, b] * own[c] for a, b, c in permutations(every, 3))
    return variance, far / images, (near - apart) * 2 / images


@given(seed=st.integers(0, 2**32 - 1), taken=st.lists(st.integers(4, 7), min_size=2, max_size=4))
def test_estimates_are_those_of_loops_over_pairs_and_triples(seed, taken):
    generator = np.random.default_rng(seed)
    sizes = np.array(taken) + generator.integers(0, 50, len(taken))
    friends, rates, expected = [], [], []
    for number, size in zip(taken, sizes, strict=True):
        accepted = np.triu(generator.random((number, number)) < generator.random(), 1).astype(float)
        accepted += accepted.T
        own = generator.random((2, number))
        friends.append(accepted.sum(axis=1)[:, None])
        rates.append(own[:, :, None])
        expected.append(by_loops(accepted, own, size))
    found = estimate(np.concatenate(friends), np.concatenate(rates, axis=1), np.array(taken), sizes)
    np.testing.assert_allclose(np.column_stack(found), expected, rtol=0, atol=1e-9)


def test_estimates_are_without_bias():
    """Many classes of one law: the mean estimate is the variance, over the classes, of what each of them shows."""
    generator = np.random.default_rng(0)
    classes, images, threshold = 6000, 6, 0.7
    rows = unit(np.array([1.0, 0, 0]) + 0.5 * generator.normal(size=(classes, images, 3)))
    near = np.linalg.norm(rows[:, :, None] - rows[:, None], axis=3) <= threshold
    friends = near.sum(axis=2) - 1.0
    similar = 1 - threshold**2 / 2
    # Strangers are uniform on the sphere, and accepted within the threshold, less often by images far from the pole.
    often = np.clip(rows[:, :, 0], 0, 1)
    strangers = unit(generator.normal(size=(2, classes, 100, 3)))  # each class's own, in two halves
    within = np.einsum("cid,hcsd->hcis", rows, strangers) >= similar
    halves = within & (generator.random(within.shape) < often[None, :, :, None])
    taken = np.full(classes, images)
    found = estimate(friends.reshape(-1, 1), halves.mean(axis=3).reshape(2, -1, 1), taken, taken)
    sensitivity = friends.sum(axis=1) / (images * (images - 1))
    # Archimedes: a cap's share of the sphere is half its height. What 100 strangers do by chance is not in it.
    rates = ((1 - similar) / 2 * often).mean(axis=1)
    truth = sensitivity.var(), rates.var(), np.cov(sensitivity, rates)[0, 1]
    for name, estimated, expected in zip(("sensitivity", "far", "covariance"), found, truth, strict=True):
        error = estimated.std() / np.sqrt(classes)
        # The variance over 6,000 classes that it is held against is itself known to about 2%.
        assert estimated.mean() == pytest.approx(expected, abs=4 * error + 0.06 * abs(expected)), name
        assert error < 0.05 * abs(expected), name


def test_half_a_class_tells_the_noise_of_all_of_it():
    generator = np.random.default_rng(1)
    near = np.triu(generator.random((4, 4)) < 0.5, 1).astype(float)
    friends, rates = (near + near.T).sum(axis=1)[:, None], generator.random((2, 4, 1))
    of_four, of_forty = (estimate(friends, rates, np.array([4]), np.array([n])) for n in (4, 40))
    assert of_forty[1] * 40 == pytest.approx(of_four[1] * 4)
    assert of_forty[2] * 40 == pytest.approx(of_four[2] * 4)


def test_images_are_counted_as_the_distances_say():
    generator = np.random.default_rng(3)
    labels = np.repeat(np.arange(5), [4, 5, 6, 4, 7])
    data = sort_by_class(generator.normal(size=(26, 6)) + 2 * np.eye(6)[labels], labels, dtype=float)
    distances, strangers = np.array([0.3, 0.7, 1.1, 1.5]), generator.permutation(26)[:15]
    friends, rates = count_levels(data, np.arange(26), data.sizes, [strangers[::2], strangers[1::2]], distances)
    for row in range(26):
        apart = np.linalg.norm(data.vectors - data.vectors[row], axis=1)
        same = labels == labels[row]
        for level, threshold in enumerate(distances):
            assert friends[row, level] == (same & (apart <= threshold)).sum() - 1
            for half in range(2):
                others = [each for each in strangers[half::2] if not same[each]]
                assert rates[half, row, level] == pytest.approx(np.mean(apart[others] <= threshold))


@given(
    sensitivity=st.floats(0.05, 0.95),
    far=st.floats(0.001, 0.5),
    ratio=st.floats(1e-3, 1.0),
    c=st.floats(0.5, 3.0),
    utility=st.sampled_from(["specificity_sensitivity", "precision_recall"]),
)
def test_slopes_are_those_of_the_utility(sensitivity, far, ratio, c, utility):
    def value(psi, false_accepts):
        if utility == "precision_recall":
            return f_score(ratio * psi / (ratio * psi + false_accepts), psi, c)
        return f_score(1 - false_accepts, psi, c)

    found = slopes(np.array([sensitivity]), np.array([far]), np.array([ratio]), Settings(c=c, utility=utility))
    step = 1e-6
    by_sensitivity = (value(sensitivity + step, far) - value(sensitivity - step, far)) / (2 * step)
    by_far = (value(sensitivity, far + step * far) - value(sensitivity, far - step * far)) / (2 * step * far)
    assert found[0][0] == pytest.approx(by_sensitivity, rel=1e-4, abs=1e-7)
    assert found[1][0] == pytest.approx(by_far, rel=1e-4, abs=1e-7)


# --- What an Evaluation carries ---------------------------------------------------------------------------------------


def small(seed=0, classes=20, images=6):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    rows = generator.normal(size=(classes, DIMENSIONS))[labels]
    return rows + 0.7 * generator.normal(size=(len(labels), DIMENSIONS)), labels


def test_classes_without_noise_keep_their_opis():
    centres = np.random.default_rng(0).normal(size=(12, 4))
    found = im.evaluate(np.repeat(centres, 5, axis=0), np.repeat(np.arange(12), 5), far=(0.01, 0.3))
    assert found.opis > 0
    assert found.debiased_opis == pytest.approx(found.opis, rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*single item")
def test_classes_of_fewer_than_four_images_are_left_out():
    rows, labels = small()
    few = np.concatenate([np.arange(100, 110).repeat(2), [200]])
    noise = np.random.default_rng(1).normal(size=(len(few), DIMENSIONS))
    found = im.evaluate(np.concatenate([rows, noise]), np.concatenate([labels, few]))
    assert found.item_noise.classes.tolist() == list(range(20))
    large = found.curves.utility[:20]
    noise_of_utility = found.item_noise.of_utility(found.curves.distances, found).mean() * (1 - 1 / 20)
    assert found.debiased_opis == pytest.approx(large.var(axis=0).mean() - noise_of_utility, rel=1e-9)
    assert found.opis != pytest.approx(large.var(axis=0).mean(), rel=0.01)


@pytest.mark.parametrize("images", [[3, 3, 3], [9, 3, 3]])
def test_fewer_than_two_classes_of_four_images_say_nothing(images):
    labels = np.repeat(np.arange(3), images)
    found = im.evaluate(np.random.default_rng(0).normal(size=(len(labels), 4)), labels, far=(0.1, 0.5), target_far=0.1)
    assert np.isnan(found.debiased_opis)
    assert found.scores()["debiased_opis"] is None


def test_order_and_names_hardly_matter():
    rows, labels = small()
    found = im.evaluate(rows, labels)
    order = np.random.default_rng(5).permutation(len(rows))
    names = np.array([f"name {(7 * i) % 20:02}" for i in range(20)])
    # Strangers are split at random, and so is their noise.
    assert im.evaluate(rows[order], labels[order]).debiased_opis == pytest.approx(found.debiased_opis, rel=0.01)
    assert im.evaluate(rows, names[labels]).debiased_opis == pytest.approx(found.debiased_opis, rel=0.01)


def test_saved_and_loaded_it_is_the_same(tmp_path):
    found = im.evaluate(*small())
    found.save(tmp_path / "evaluation.json")
    loaded = im.Evaluation.load(tmp_path / "evaluation.json")
    assert loaded.debiased_opis == found.debiased_opis
    np.testing.assert_array_equal(loaded.item_noise.sensitivity, found.item_noise.sensitivity)


def test_it_does_not_hang_on_how_many_images_of_large_classes_are_looked_at(monkeypatch):
    from isomargin.measure.statistics import item_noise as item_noise

    rows, labels = small(images=40)
    found = im.evaluate(rows, labels)
    monkeypatch.setattr(item_noise, "MOST", 20)
    monkeypatch.setattr(item_noise, "SAMPLED_OTHERS", 300)
    fewer = im.evaluate(rows, labels)
    assert fewer.debiased_opis != found.debiased_opis
    assert fewer.debiased_opis == pytest.approx(found.debiased_opis, rel=0.05)


@pytest.mark.parametrize("threads", [1, 3])
def test_it_does_not_depend_on_threads_nor_on_how_many_classes_are_estimated_at_a_time(threads, monkeypatch):
    from isomargin.measure.statistics import item_noise

    rows, labels = small()
    found = im.evaluate(rows, labels).item_noise
    monkeypatch.setattr(item_noise, "CLASSES", 7)
    again = im.evaluate(rows, labels, threads=threads).item_noise
    for name in ("classes", "sensitivity", "false_accepts", "covariance"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
