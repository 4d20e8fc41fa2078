"""The pass over all pairs: what it counts, and what its result must not depend on."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isomargin as im
from compare import assert_scores_agree, clusters
from isomargin.measure import evaluate as evaluate_module
from isomargin.measure.pairs import inputs
from isomargin.measure.pairs import tiles as pairs_module
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, ListedDistances
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.pairs.tiles import count_pairs, tournament
from isomargin.measure.pairs.torch_tiles import count_pairs_with_torch
from isomargin.measure.pairs.verification import class_errors
from reference import reference

K = (1, 2, 5)


def codes(generator, images):
    """Unit vectors whose products are exact in float32: entries of plus or minus a quarter, 16 of them."""
    return generator.choice(np.array([-0.25, 0.25], np.float32), (images, 16))


def plain_counts(rows, labels, bins, reach):
    """(classes, bins) negative pairs and a list of positive distances per class, by two loops."""
    names = np.unique(labels)
    negatives = np.zeros((len(names), bins), np.int64)
    positives = {name: [] for name in names}
    for i, j in itertools.combinations(range(len(rows)), 2):
        distance = np.sqrt(np.float32(2) - np.float32(2) * np.dot(rows[i], rows[j]))
        if labels[i] == labels[j]:
            positives[labels[i]].append(float(distance))
        else:
            cell = min(int(distance * np.float32(bins / reach)), bins - 1)
            for label in (labels[i], labels[j]):
                negatives[np.searchsorted(names, label), cell] += 1
    return negatives, [sorted(positives[name]) for name in names]


def same_counts(one, other):
    for name in ("positives", "negatives"):
        a, b = getattr(one.counts, name), getattr(other.counts, name)
        assert type(a) is type(b)
        if isinstance(a, BinnedDistances):
            np.testing.assert_array_equal(a.counts, b.counts)
        else:
            np.testing.assert_array_equal(a.distances, b.distances)
            np.testing.assert_array_equal(a.offsets, b.offsets)
    np.testing.assert_array_equal(one.ranks.hits, other.ranks.hits)
    np.testing.assert_allclose(one.ranks.r_precision, other.ranks.r_precision, rtol=1e-12)
    np.testing.assert_allclose(one.ranks.average_precision, other.ranks.average_precision, rtol=1e-12)


sets = st.tuples(st.integers(0, 2**32 - 1), st.integers(5, 60), st.integers(2, 8))


def drawn(seed, images, classes):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, images)
    labels[:4] = [0, 0, 1, 1]
    return codes(generator, images), labels


@settings(max_examples=40, deadline=None)
@given(sets)
def test_counts_are_those_of_two_plain_loops(drawn_set):
    rows, labels = drawn(*drawn_set)
    data = sort_by_class(rows, labels)
    found = count_pairs(data, k=K)
    bins = found.counts.negatives.counts.shape[1]
    negatives, positives = plain_counts(rows, labels, bins, data.reach)
    np.testing.assert_array_equal(found.counts.negatives.counts, negatives)
    for i, expected in enumerate(positives):
        np.testing.assert_allclose(found.counts.positives.of_class(i), expected, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(sets, st.integers(1, 70), st.integers(1, 4))
def test_tile_size_and_number_of_threads_change_nothing(drawn_set, tile_rows, threads):
    data = sort_by_class(*drawn(*drawn_set))
    same_counts(count_pairs(data, k=K), count_pairs(data, k=K, tile_rows=tile_rows, threads=threads))


@settings(max_examples=25, deadline=None)
@given(sets, st.randoms(use_true_random=False))
def test_order_of_rows_changes_nothing(drawn_set, random):
    rows, labels = drawn(*drawn_set)
    order = list(range(len(rows)))
    random.shuffle(order)
    one = count_pairs(sort_by_class(rows, labels), k=K)
    same_counts(one, count_pairs(sort_by_class(rows[order], labels[order]), k=K, tile_rows=7))


@pytest.mark.filterwarnings("ignore:.*single item")
@settings(max_examples=10, deadline=None)
@given(sets)
def test_names_of_labels_change_nothing_but_the_order_of_classes(drawn_set):
    rows, labels = drawn(*drawn_set)
    names = np.array([f"class {9 - i}" for i in range(10)])
    one = im.evaluate(rows, labels, k=K, distances=(0.5, 1.6), target_far=0.5)
    other = im.evaluate(rows, names[labels], k=K, distances=(0.5, 1.6), target_far=0.5)
    assert_same_scores(one, other)
    renamed = one.per_class.assign(**{"class": names[one.names]}).set_index("class").sort_index()
    assert renamed.round(12).equals(other.per_class.set_index("class").sort_index().round(12))


def assert_same_scores(one, other, tolerance=1e-12):
    for name, value in one.scores().items():
        if isinstance(value, float):
            assert value == pytest.approx(other.scores()[name], rel=tolerance), name


@pytest.mark.usefixtures("force_binned")
def test_order_tiles_and_threads_hardly_move_the_scores_of_a_large_set():
    rows, labels = clusters(2000, 60)
    order = np.random.default_rng(0).permutation(len(rows))
    one = im.evaluate(rows, labels)
    assert one.method == "binned"
    assert_same_scores(one, im.evaluate(rows[order], labels[order], threads=1), tolerance=1e-5)


@pytest.mark.parametrize("teams", [2, 3, 8, 9])
def test_tournament_meets_every_pair_once_and_nobody_twice_in_a_round(teams):
    games = list(tournament(teams))
    assert sorted(games) == list(itertools.combinations_with_replacement(range(teams), 2))
    rounds = games[teams:]
    size = teams // 2
    for first in range(0, len(rounds), size):
        assert len({team for game in rounds[first : first + size] for team in game}) == 2 * size


@pytest.fixture
def force_binned(monkeypatch):
    monkeypatch.setattr(evaluate_module, "SMALL", 0)


@pytest.mark.usefixtures("force_binned")
def test_large_classes_are_ranked_by_a_pass_of_their_own(monkeypatch):
    rows, labels = clusters(3000, 12, dimensions=16, noise=1.3)
    kept = im.evaluate(rows, labels)
    monkeypatch.setattr(pairs_module, "RANKED_CLASS", 100)
    assert int(kept.sizes.max()) > 100
    strips = im.evaluate(rows, labels)
    assert strips.r_precision == pytest.approx(kept.r_precision, rel=1e-4)
    assert strips.map_at_r == pytest.approx(kept.map_at_r, rel=1e-4)
    assert strips.recall_at_k == kept.recall_at_k


@pytest.mark.usefixtures("force_binned")
def test_positives_too_many_to_list_are_binned_and_scores_agree(monkeypatch):
    rows, labels = clusters(1500, 8, dimensions=16, noise=1.3)
    monkeypatch.setattr(pairs_module, "LISTED_POSITIVES", 0)
    found = im.evaluate(rows, labels, k=K)
    assert isinstance(found.counts.positives, BinnedDistances)
    assert_scores_agree(found, reference(rows, labels, k=K), 3e-4)


def test_a_class_of_many_blocks_is_counted_whole():
    rows, labels = clusters(2500, 2, dimensions=8, noise=1.5)
    data = sort_by_class(rows, labels)
    same = count_pairs(data, k=K, tile_rows=64, map_at_r=False).counts
    assert same.positives.totals.tolist() == [n * (n - 1) // 2 for n in data.sizes]
    assert same.negatives.totals.tolist() == [int(data.sizes[0] * data.sizes[1])] * 2


@pytest.mark.parametrize("listed", [True, False])
def test_torch_operations_count_what_the_kernels_count(listed, monkeypatch):
    from isomargin.measure.pairs import torch_tiles as torch_pairs

    if not listed:
        monkeypatch.setattr(pairs_module, "LISTED_POSITIVES", 0)
        monkeypatch.setattr(torch_pairs, "LISTED_POSITIVES", 0)
    monkeypatch.setattr(torch_pairs, "STRIP", 50_000)
    generator = np.random.default_rng(3)
    labels = np.concatenate([generator.integers(0, 20, 380), 20 + np.arange(7)])
    data = sort_by_class(codes(generator, len(labels)), labels)
    same_counts(count_pairs(data, k=K), count_pairs_with_torch(data, k=K, device="cpu"))


@pytest.mark.parametrize("listed", [True, False])
def test_the_host_waits_for_the_device_equally_often_for_any_number_of_strips(listed, monkeypatch):
    from fake_device import FakeDevice
    from isomargin.measure.pairs import torch_tiles as torch_pairs

    if not listed:
        monkeypatch.setattr(torch_pairs, "LISTED_POSITIVES", 0)
    rows, labels = clusters(300, 20, singles=3)
    data = sort_by_class(rows, labels)
    waits = []
    for cells in (1 << 25, 10_000):
        monkeypatch.setattr(torch_pairs, "STRIP", cells)
        with FakeDevice() as device:
            count_pairs_with_torch(data, k=K, device="meta")
        waits.append(len(device.waits))
    # Before the first strip: vectors, one number of them, classes, and their ends. After the last one: positives,
    # negatives, and three results of each query.
    assert waits == [9, 9]


def test_device_of_torch_gives_the_scores_of_the_reference():
    rows, labels = clusters(1500, 50, singles=5)
    with pytest.warns(UserWarning, match="5 of 55 classes have a single item"):
        found = im.evaluate(rows, labels, k=K, device="cpu")
    assert found.method == "binned"
    assert_scores_agree(found, reference(rows, labels, k=K), 5e-4)


def test_an_error_in_a_worker_reaches_the_caller(monkeypatch):
    def broken(*arguments):
        raise MemoryError("no room")

    monkeypatch.setattr(pairs_module.kernels, "count_negatives", broken)
    with pytest.raises(MemoryError, match="no room"):
        count_pairs(sort_by_class(*clusters(600, 10)), k=K)


@pytest.mark.parametrize("threads", [2, 5])
def test_rows_scaled_by_several_threads_are_those_of_one(threads, monkeypatch):
    monkeypatch.setattr(inputs, "CHUNK", 64)  # a few rows at a time
    generator = np.random.default_rng(7)
    rows, order = generator.normal(size=(203, 12)), generator.permutation(203)
    lengths, alone = np.empty((2, 203))
    expected = inputs.unit_rows(rows, order, np.float32, alone, threads=1)
    np.testing.assert_array_equal(inputs.unit_rows(rows, order, np.float32, lengths, threads=threads), expected)
    np.testing.assert_array_equal(lengths, alone)
    rows[[4, 90, 200]] = np.nan
    with pytest.raises(im.InputError, match=r"^rows 4, 90, 200 of embeddings are NaN"):
        inputs.unit_rows(rows, order, np.float32, threads=threads)


def test_no_distance_exceeds_the_reach_that_bins_span():
    for seed in range(5):
        rows, labels = clusters(300, 5, dimensions=2 + seed, seed=seed)
        rows += 40 * seed  # a narrow cone
        data = sort_by_class(rows, labels, dtype=np.float64)
        distances = np.sqrt(np.maximum(2 - 2 * data.vectors @ data.vectors.T, 0))
        assert distances.max() <= data.reach <= 2


@pytest.mark.usefixtures("force_binned")
def test_embeddings_in_a_narrow_cone_keep_their_resolution():
    rows, labels = clusters(1500, 50, dimensions=16)
    rows[:, 0] += 25
    assert sort_by_class(rows, labels).reach < 1
    found = im.evaluate(rows, labels, k=K)
    assert found.method == "binned"
    assert_scores_agree(found, reference(rows, labels, k=K), 3e-4)


def test_listed_and_binned_distances_answer_alike():
    generator = np.random.default_rng(0)
    values = [np.sort(generator.normal(1.2, 0.1, 30_000)) for _ in range(20)]
    listed = ListedDistances(np.concatenate(values), np.arange(21) * 30_000, appearances=1)
    counts = np.stack([np.histogram(each, bins=1 << 15, range=(0, 2))[0] for each in values])
    binned = BinnedDistances(counts, 2.0, appearances=1)
    grid = np.linspace(1, 1.3, 50)
    np.testing.assert_allclose(binned.within(grid), listed.within(grid), atol=8)
    np.testing.assert_allclose(binned.pooled_within(grid), listed.pooled_within(grid), atol=12)
    wanted = np.arange(20) * 1000 + 1
    np.testing.assert_allclose(binned.class_distance_at(wanted), listed.class_distance_at(wanted), atol=2 / (1 << 15))
    assert binned.pooled_distance_at(6000) == pytest.approx(listed.pooled_distance_at(6000), abs=2 / (1 << 15) / 4)


def test_the_pairs_of_a_bin_lie_evenly_within_it():
    counts = np.array([[1, 2, 4], [3, 2, 0]])  # as many pairs in each bin, so that interpolation is a straight line
    binned = BinnedDistances(counts, 1.5, appearances=1)
    places = {1: (0.25, 0.5 / 6), 2: (0.5 + 0.125, 0.25), 3: (0.5 + 0.375, 2.5 / 6), 4: (1 + 0.0625, 0.5 + 0.125)}
    for wanted, expected in places.items():
        np.testing.assert_allclose(binned.class_distance_at(np.array([wanted, wanted])), expected, atol=1e-9)


def test_a_classs_auc_from_bins_counts_half_of_those_in_the_same_bin():
    positives, negatives = np.random.default_rng(0).integers(0, 9, (2, 3, 6))
    counts = PairCounts(BinnedDistances(positives, 2.0, appearances=1), BinnedDistances(negatives, 2.0, appearances=2))
    auc = class_errors(counts)[1]
    for i in range(3):
        near, far = (np.repeat(np.arange(6), each[i]) for each in (positives, negatives))
        expected = np.mean([(b > a) + (b == a) / 2 for a, b in itertools.product(near, far)])
        assert auc[i] == pytest.approx(expected)
