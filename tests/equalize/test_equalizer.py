"""``Equalizer`` against its definition in float64: offsets, constant, growth, ids, warnings, errors and files."""

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import isomargin as im

CLOSE = 1e-6  # cosines are products in float32


def drawn(rows, dimensions=6, seed=0):
    """Vectors of any length, more of them on one side."""
    return np.random.default_rng(seed).normal(size=(rows, dimensions)) + np.eye(dimensions)[0]


def unit(vectors):
    vectors = np.asarray(vectors, np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def mean_cosine(queries, reference, skip, neighbours, left_out=None):
    """(n,) mean of the cosines ranked skip + 1 to skip + neighbours, without those that are left out."""
    cosines = unit(queries) @ unit(reference).T
    if left_out is not None:
        cosines[left_out] = -np.inf
    return -np.sort(-cosines, axis=1)[:, skip : skip + neighbours].mean(axis=1)


def itself(rows):
    return np.eye(rows, dtype=bool)


# ----- offsets


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 40),
    st.integers(1, 20),
    st.integers(0, 20),
    st.sampled_from(["local", "cohort"]),
)
def test_offsets_are_mean_cosines_to_the_neighbours_and_no_row_is_its_own(seed, rows, neighbours, skip, method):
    rows = max(rows, skip + neighbours + 1)
    reference, queries = drawn(rows, seed=seed), drawn(7, seed=seed + 1)
    equalizer = im.Equalizer(neighbours, skip, 0.4, method).fit(reference)
    own = mean_cosine(reference, reference, skip, neighbours, itself(rows))
    np.testing.assert_allclose(equalizer.offsets_, own, atol=CLOSE)
    np.testing.assert_allclose(equalizer.offsets(reference), own, atol=CLOSE)
    others = mean_cosine(queries, reference, skip, neighbours)
    np.testing.assert_allclose(equalizer.offsets(queries), others, atol=CLOSE)
    assert equalizer.offset_ == pytest.approx(2 * 0.4 * own.mean(), abs=CLOSE)
    np.testing.assert_allclose(equalizer.shifts(queries).values, 0.4 * own.mean() - 0.4 * others, atol=CLOSE)


def test_equalized_similarities_keep_the_scale_of_cosines():
    reference = drawn(200)
    shifts = im.Equalizer(20, 5, 0.7).fit(reference).shifts(reference)
    assert shifts.values.mean() == pytest.approx(0, abs=1e-12)


def test_the_same_addition_to_every_offset_is_taken_back_by_the_constant():
    reference = drawn(100)
    equalizer = im.Equalizer(10, 5).fit(reference)
    moved = im.Equalizer(10, 5)._set(equalizer.vectors_, equalizer.nearest_ + np.float32(0.25), None)
    assert moved.offset_ == pytest.approx(equalizer.offset_ + 0.25)
    np.testing.assert_allclose(moved.shifts(reference).values, equalizer.shifts(reference).values, atol=CLOSE)


def test_no_equalized_similarity_is_outside_the_axis():
    vectors = np.concatenate([drawn(60), np.repeat(drawn(1, seed=1), 5, axis=0), -drawn(20, seed=2)])
    equalizer = im.Equalizer(3, 2, 1.0).fit(vectors)
    shifts = equalizer.shifts(vectors)
    similarity = unit(vectors) @ unit(vectors).T + shifts.values + shifts.values[:, None]
    squared = 2 - 2 * similarity
    distances = np.sign(squared) * np.sqrt(np.abs(squared))
    assert shifts.axis.name == "equalized_distance"
    assert distances.min() < -0.1
    assert shifts.axis.lowest <= distances.min()
    assert distances.max() <= shifts.axis.highest


@pytest.mark.parametrize("as_text", [False, True])
def test_rows_in_another_order_are_recognised_by_their_ids(as_text):
    reference = drawn(50)
    ids = np.random.default_rng(0).permutation(1000)[:50] - 500
    names = [f"item {number}" for number in ids] if as_text else ids
    equalizer = im.Equalizer(8, 3).fit(reference, ids=names)
    order = np.random.default_rng(1).permutation(50)[:30]
    shuffled = np.concatenate([reference[order], drawn(5, seed=9)])
    given_ids = [names[row] for row in order] + ([f"new {i}" for i in range(5)] if as_text else [-9999] * 5)
    left_out = np.concatenate([order, [-1] * 5])[:, None] == np.arange(50)
    np.testing.assert_allclose(
        equalizer.offsets(shuffled, ids=given_ids), mean_cosine(shuffled, reference, 3, 8, left_out), atol=CLOSE
    )


def test_rows_without_ids_in_another_order_are_their_own_neighbours_and_that_is_told():
    reference = drawn(50)
    equalizer = im.Equalizer(8, 3).fit(reference)
    with pytest.warns(UserWarning, match="50 of 50 rows have an exact copy in the reference"):
        found = equalizer.offsets(reference[::-1])
    np.testing.assert_allclose(found, mean_cosine(reference[::-1], reference, 3, 8), atol=CLOSE)


def test_of_rows_with_ids_only_unknown_copies_are_told():
    reference = drawn(50)
    equalizer = im.Equalizer(8, 3).fit(reference, ids=range(50))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        equalizer.offsets(reference[::-1], ids=range(49, -1, -1))
        equalizer.offsets(drawn(200, seed=3))
        twice = im.Equalizer(8, 3).fit(np.concatenate([reference, reference]), ids=range(100))
        twice.offsets(reference[::-1], ids=range(49, -1, -1))  # each has a copy, but is not its own neighbour
    with pytest.warns(UserWarning, match="50 of 50 rows have an exact copy"):
        equalizer.offsets(reference[::-1], ids=range(100, 150))


@pytest.mark.parametrize("large", [False, True])
def test_ids_of_64_bits_are_not_rounded(large, tmp_path):
    reference = drawn(40)
    first = 2**63 - 20 if large else 2**62  # the large ones fit into uint64 only, from the middle on
    ids = np.arange(first, first + 40, dtype=np.uint64)
    im.Equalizer(5, 2).fit(reference, ids=ids).save(tmp_path / "e.json")
    equalizer = im.Equalizer.load(tmp_path / "e.json")
    assert equalizer.ids_.tolist() == ids.tolist()
    found = equalizer.offsets(reference[:19][::-1], ids=ids[:19][::-1].tolist())  # of int64, if not large
    np.testing.assert_allclose(found, equalizer.offsets_[:19][::-1], atol=CLOSE)
    grown = equalizer.partial_fit(drawn(3, seed=1), ids=[1, 2, 3])
    assert grown.ids_.tolist() == [*ids.tolist(), 1, 2, 3]


def test_the_offsets_returned_are_not_those_kept():
    reference = drawn(30)
    equalizer = im.Equalizer(5, 2).fit(reference)
    before = equalizer.offsets_.copy()
    equalizer.offsets(reference)[:] = 0
    np.testing.assert_array_equal(equalizer.offsets_, before)


# ----- classes as new


def test_classes_as_new_have_no_neighbours_of_their_own():
    reference, labels = drawn(60), np.arange(60) % 6
    equalizer = im.Equalizer(7, 2).fit(reference)
    expected = mean_cosine(reference, reference, 2, 7, labels[:, None] == labels)
    np.testing.assert_allclose(equalizer.offsets_without_class(labels), expected, atol=CLOSE)
    found = equalizer.shifts(reference, new_classes=labels.astype(str))
    np.testing.assert_allclose(found.values, equalizer.offset_ / 2 - 0.5 * expected, atol=CLOSE)


def test_classes_as_new_in_another_order_need_ids():
    reference, labels, ids = drawn(60), np.arange(60) % 6, np.arange(60) + 7
    order = np.random.default_rng(0).permutation(60)
    equalizer = im.Equalizer(7, 2).fit(reference, ids=ids)
    expected = equalizer.shifts(reference, new_classes=labels).values
    found = equalizer.shifts(reference[order], ids=ids[order], new_classes=labels[order])
    np.testing.assert_allclose(found.values, expected[order], atol=CLOSE)
    for rows, names in (
        (order, None),
        (order[:-1], ids[order][:-1]),
        (order, np.roll(ids[order], 1)),
        (order, np.full(60, 7)),
    ):
        with pytest.raises(im.InputError, match="not those of the equalizer's reference"):
            equalizer.shifts(reference[rows], ids=names, new_classes=labels[rows])
    with pytest.raises(im.InputError, match="labels has 59 entries, embeddings has 60 rows"):
        equalizer.shifts(reference, new_classes=labels[:-1])
    with pytest.raises(im.InputError, match="labels has 59 entries, the reference has 60 rows"):
        equalizer.offsets_without_class(labels[:-1])


def test_a_class_that_leaves_too_few_neighbours_is_refused():
    equalizer = im.Equalizer(7, 2).fit(drawn(20))
    with pytest.raises(im.InputError, match="too many rows of the reference to find 9 neighbours of other classes"):
        equalizer.offsets_without_class([0] * 12 + [1] * 8)
    assert len(equalizer.offsets_without_class([0] * 11 + [1] * 9)) == 20


# ----- growing


@pytest.mark.parametrize("first", [16, 150])
def test_a_reference_that_has_grown_has_the_offsets_of_a_new_fit_and_keeps_its_constant(first):
    reference, queries = drawn(200), drawn(9, seed=1)
    grown = im.Equalizer(10, 5).fit(reference[:first])
    constant, digest = grown.offset_, grown.digest_
    grown.partial_fit(reference[first:170]).partial_fit(reference[170:])
    whole = im.Equalizer(10, 5).fit(reference)
    np.testing.assert_allclose(grown.offsets_, whole.offsets_, atol=CLOSE)
    np.testing.assert_allclose(grown.offsets(queries), whole.offsets(queries), atol=CLOSE)
    np.testing.assert_array_equal(grown.offsets(reference), grown.offsets_)
    assert (grown.skip_, grown.neighbours_) == (5, 10)
    assert (grown.offset_, grown.digest_) == (constant, digest)
    assert whole.digest_ != digest


def test_a_reference_too_small_for_the_settings_does_not_grow():
    reference = drawn(60)
    with pytest.warns(UserWarning, match="too few to skip 5 neighbours and average 10"):
        small = im.Equalizer(10, 5).fit(reference[:12])
    assert (small.record()["neighbours"], small.record()["skip"]) == (6, 5)  # what is used, not what was asked for
    with pytest.raises(im.InputError, match=r"had 12 rows, too few for the settings.*call fit with all rows"):
        small.partial_fit(reference[12:])


def test_more_neighbours_than_memory_could_hold_are_cut_to_what_there_is():
    with pytest.warns(UserWarning, match="too few"):
        assert im.Equalizer(10**9).fit(drawn(50)).nearest_.shape == (50, 49)


def test_rows_in_another_float_type_are_those_of_the_reference():
    rows = drawn(200).astype(np.float64)
    equalizer = im.Equalizer(10, 5).fit(rows)
    np.testing.assert_array_equal(equalizer.offsets(rows.astype(np.float32)), equalizer.offsets_)
    assert equalizer.shifts(rows.astype(np.float32)).own_class == "in_reference"


def test_equal_ids_of_other_items_are_noticed():
    ids = np.arange(200)
    equalizer = im.Equalizer(10, 5).fit(drawn(200), ids=ids)
    other = drawn(200, seed=1)
    with pytest.warns(
        UserWarning, match="200 of 200 rows have the id of a row of the reference with another embedding"
    ):
        equalizer.offsets(other, ids=ids)
    shifts = equalizer.shifts(other, ids=ids)
    assert shifts.own_class == "outside"
    assert "another embedding" in shifts.notes[0]


def test_growing_without_a_fit_is_a_fit():
    reference = drawn(40)
    grown, fitted = im.Equalizer(5, 2).partial_fit(reference), im.Equalizer(5, 2).fit(reference)
    assert grown.digest_ == fitted.digest_


def test_settings_changed_after_the_fit_do_not_meet_lists_that_are_too_short():
    reference = drawn(60)
    equalizer = im.Equalizer(5, 2).fit(reference[:40])
    equalizer.set_params(neighbours=20)
    with pytest.raises(im.InputError, match="settings were changed after fit"):
        equalizer.partial_fit(reference[40:])
    assert equalizer.record()["neighbours"] == 5
    equalizer.fit(reference[:40]).partial_fit(reference[40:])
    np.testing.assert_allclose(equalizer.offsets_, mean_cosine(reference, reference, 2, 20, itself(60)), atol=CLOSE)


def test_a_reference_with_ids_grows_by_rows_with_new_ids_only():
    reference = drawn(40)
    equalizer = im.Equalizer(5, 2).fit(reference[:30], ids=range(30))
    before = equalizer.offsets_.copy()
    for ids, told in (
        (None, "need ids both or not at all"),
        ([7] * 10, "the id 7 names more than one row"),
        (range(21, 31), "the id 21 names more than one row"),
        ([f"{i}" for i in range(10)], "integers and text"),
    ):
        with pytest.raises(im.InputError, match=told):
            equalizer.partial_fit(reference[30:], ids=ids)
    np.testing.assert_array_equal(equalizer.offsets_, before)
    equalizer.partial_fit(reference[30:], ids=range(30, 40))
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(equalizer.offsets(reference[order], ids=order), equalizer.offsets_[order], atol=CLOSE)
    with pytest.raises(im.InputError, match="need ids both or not at all"):
        im.Equalizer(5, 2).fit(reference).partial_fit(reference, ids=range(40))


# ----- small references


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 30), st.integers(1, 30), st.integers(0, 30))
def test_a_reference_too_small_for_the_settings_uses_what_there_is_and_says_so(rows, neighbours, skip):
    reference = drawn(rows, seed=rows)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        equalizer = im.Equalizer(neighbours, skip).fit(reference)
    used = equalizer.skip_, equalizer.neighbours_
    assert 1 <= used[1] <= neighbours
    assert 0 <= used[0] <= skip
    assert sum(used) == min(skip + neighbours, rows - 1)
    assert used[0] == min(skip, rows - 2)  # neighbours are given up first
    assert equalizer.get_params()["skip"] == skip
    assert equalizer.get_params()["neighbours"] == neighbours
    told = [str(warning.message) for warning in caught]
    if used == (skip, neighbours):
        assert told == []
    else:
        assert len(told) == 1
        assert f"{used[0]} are skipped and {used[1]} averaged" in told[0]
    np.testing.assert_allclose(equalizer.offsets_, mean_cosine(reference, reference, *used, itself(rows)), atol=CLOSE)


# ----- scikit-learn's conventions


def test_parameters_are_kept_and_cloned_without_what_was_fitted():
    equalizer = im.Equalizer(5, skip=2, weight=0.35, method="cohort", threads=1)
    parameters = {"neighbours": 5, "skip": 2, "weight": 0.35, "method": "cohort", "threads": 1}
    assert equalizer.fit(drawn(40)).get_params() == parameters
    copy = clone(equalizer)
    assert copy.get_params() == parameters
    with pytest.raises(NotFittedError):
        copy.offsets(drawn(3))
    assert copy.fit(drawn(40), y=np.zeros(40)).digest_ == equalizer.digest_


def test_what_needs_a_fit_says_so(tmp_path):
    equalizer, rows = im.Equalizer(), drawn(3)
    for call in (
        lambda: equalizer.offsets(rows),
        lambda: equalizer.shifts(rows),
        lambda: equalizer.shifts(rows, new_classes=[0, 0, 1]),
        lambda: equalizer.transform(rows),
        lambda: equalizer.transform_queries(rows),
        lambda: equalizer.save(tmp_path / "e.json"),
        lambda: im.evaluate(rows, [0, 0, 1], equalizer=equalizer),
    ):
        with pytest.raises(NotFittedError):
            call()


@pytest.mark.parametrize(
    "kind", [np.float16, np.float64, torch.float16, torch.bfloat16, torch.float32, list], ids=lambda kind: str(kind)
)
def test_embeddings_of_every_kind_are_taken(kind):
    rows = drawn(40).round(1).astype(np.float16)  # float16 holds them well enough for any of the kinds
    if kind is list:
        given_rows = rows.tolist()
    elif isinstance(kind, torch.dtype):
        given_rows = torch.from_numpy(rows).to(kind)
    else:
        given_rows = rows.astype(kind)
    values = given_rows.double().numpy() if isinstance(kind, torch.dtype) else np.array(given_rows, np.float64)
    equalizer = im.Equalizer(5, 2).fit(given_rows)
    expected = mean_cosine(values, values, 2, 5, itself(40))
    np.testing.assert_allclose(equalizer.offsets_, expected, atol=CLOSE)
    np.testing.assert_array_equal(equalizer.offsets(given_rows), equalizer.offsets_)


# ----- bad input


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"neighbours": 0}, "neighbours is 0"),
        ({"neighbours": 2.5}, "neighbours is 2.5"),
        ({"neighbours": True}, "neighbours is True"),
        ({"skip": -1}, "skip is -1"),
        ({"weight": 0}, "weight is 0"),
        ({"weight": 1.01}, "weight is 1.01"),
        ({"weight": float("nan")}, "weight is nan"),
        ({"weight": "0.5"}, "weight is '0.5'"),
        ({"method": "global"}, "method is 'global'"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_bad_settings_are_refused_when_fitting(options, told):
    with pytest.raises(im.InputError, match=told):
        im.Equalizer(**options).fit(drawn(200))


def with_row(value):
    rows = drawn(40)
    rows[3] = value
    return rows


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (drawn(1), "reference has 1 row"),
        (with_row(np.nan), "rows 3 of embeddings are NaN"),
        (with_row(np.inf), "rows 3 of embeddings are NaN or infinite"),
        (with_row(0), "rows 3 of embeddings are zero vectors"),
        (np.zeros((0, 4)), "is empty"),
        (np.arange(5.0), "two dimensions are needed"),
        (np.array([["a", "b"], ["c", "d"]]), "real numbers are needed"),
    ],
)
def test_references_that_cannot_be_used_are_refused(reference, told):
    with pytest.raises(im.InputError, match=told):
        im.Equalizer(5, 2).fit(reference)


def test_rows_that_cannot_be_equalized_are_refused():
    equalizer = im.Equalizer(5, 2).fit(drawn(40))
    for call in (equalizer.offsets, equalizer.shifts, equalizer.transform, equalizer.partial_fit):
        with pytest.raises(im.InputError, match="embeddings has 5 dimensions, the reference of the equalizer has 6"):
            call(drawn(3, dimensions=5))
        with pytest.raises(im.InputError, match="rows 3 of embeddings are NaN"):
            call(with_row(np.nan))


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (range(39), "ids has 39 entries, embeddings has 40 rows"),
        ([0, 0, *range(2, 40)], "the id 0 names more than one row"),
        (["a", *range(1, 40)], "ids cannot be used"),
        (np.linspace(0, 1, 40), "ids cannot be used"),
    ],
)
def test_ids_that_cannot_name_the_rows_are_refused(ids, told):
    with pytest.raises(im.InputError, match=told):
        im.Equalizer(5, 2).fit(drawn(40), ids=ids)


def test_ids_that_cannot_be_compared_with_those_of_the_reference_are_refused():
    rows = drawn(40)
    with pytest.raises(im.InputError, match="fitted without ids"):
        im.Equalizer(5, 2).fit(rows).offsets(rows[::-1], ids=range(40))
    with pytest.raises(im.InputError, match="integers and text"):
        im.Equalizer(5, 2).fit(rows, ids=range(40)).offsets(rows[::-1], ids=[f"{i}" for i in range(40)])


# ----- serving


def test_inner_products_of_transformed_vectors_decide_as_equalized_similarities_do():
    index, queries = drawn(80), drawn(15, seed=1)
    equalizer = im.Equalizer(10, 5, 0.6).fit(index)
    products = equalizer.transform_queries(queries).astype(np.float64) @ equalizer.transform(index).T
    r_queries = mean_cosine(queries, index, 5, 10)
    r_index = mean_cosine(index, index, 5, 10, itself(80))
    similarity = unit(queries) @ unit(index).T - 0.6 * (r_queries[:, None] + r_index) + 2 * 0.6 * r_index.mean()
    accepted = products >= equalizer.inner_product_thresholds(0.4, equalizer.offsets(queries))[:, None]
    clear = np.abs(similarity - 0.4) > 1e-5
    assert 0 < accepted.mean() < 1
    np.testing.assert_array_equal(accepted[clear], (similarity >= 0.4)[clear])
    cosines = -np.sort(-equalizer.transform_neighbour_queries(queries) @ equalizer.transform(index).T, axis=1)
    np.testing.assert_allclose(equalizer.offsets_from_search(cosines[:, :15]), r_queries, atol=CLOSE)
    with pytest.raises(im.InputError, match="at least 15 cosines"):
        equalizer.offsets_from_search(cosines[:, :14])


# ----- files


@pytest.fixture
def saved(tmp_path):
    """An equalizer that has grown, in its two files."""
    equalizer = im.Equalizer(6, 2, 0.35).fit(drawn(30), ids=[f"é {i}" for i in range(30)])
    equalizer.partial_fit(drawn(10, seed=1), ids=[f"new {i}" for i in range(10)])
    equalizer.save(tmp_path / "e.json")
    return equalizer, tmp_path / "e.json"


def test_a_loaded_equalizer_does_what_the_saved_one_does(saved):
    equalizer, path = saved
    loaded = im.Equalizer.load(str(path))
    queries = drawn(9, seed=2)
    assert loaded.record() == equalizer.record()
    assert loaded.get_params() == equalizer.get_params()
    assert loaded.ids_.tolist() == equalizer.ids_.tolist()
    assert loaded.axis == equalizer.axis
    np.testing.assert_array_equal(loaded.shifts(queries).values, equalizer.shifts(queries).values)
    more = drawn(20, seed=3), [f"more {i}" for i in range(20)]
    np.testing.assert_array_equal(
        loaded.partial_fit(more[0], ids=more[1]).offsets_, equalizer.partial_fit(more[0], ids=more[1]).offsets_
    )


def test_a_small_reference_is_loaded_without_the_warning_that_fit_gave(tmp_path):
    with pytest.warns(UserWarning, match="too few"):
        equalizer = im.Equalizer().fit(drawn(20))
    equalizer.save(tmp_path / "e.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = im.Equalizer.load(tmp_path / "e.json")
    assert (loaded.skip_, loaded.neighbours_) == (equalizer.skip_, equalizer.neighbours_) == (18, 1)


@pytest.mark.parametrize("name", ["neighbours", "skip", "weight", "method", "offset", "digest", "arrays", "ids"])
def test_a_file_with_another_value_is_refused(saved, name):
    values = json.loads(saved[1].read_text())
    values[name] = {"weight": 0.4, "method": "cohort", "offset": 0.1, "ids": None}.get(name, 7)
    saved[1].write_text(json.dumps(values))
    with pytest.raises(im.InputError, match="was changed after it was written"):
        im.Equalizer.load(saved[1])


def test_files_of_different_equalizers_are_refused(saved, tmp_path):
    im.Equalizer(6, 2, 0.35).fit(drawn(40)).save(tmp_path / "other.json")
    shutil.copy(tmp_path / "other.safetensors", tmp_path / "e.safetensors")
    with pytest.raises(im.InputError, match=r"does not belong to e\.json"):
        im.Equalizer.load(saved[1])


def test_a_damaged_or_missing_reference_is_refused(saved):
    tensors = saved[1].with_suffix(".safetensors")
    content = tensors.read_bytes()
    tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(im.InputError, match=r"does not belong to e\.json"):
        im.Equalizer.load(saved[1])
    tensors.write_bytes(content[: len(content) // 2])
    with pytest.raises(im.InputError, match="could not be read"):
        im.Equalizer.load(saved[1])
    tensors.unlink()
    with pytest.raises(im.InputError, match=r"needs e.safetensors beside it"):
        im.Equalizer.load(saved[1])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{}", "is not an equalizer"),
        ("[1]", "is not an equalizer"),
        ('{"format": "isomargin evaluation", "version": 3}', "is not an equalizer"),
        ('{"format": "isomargin equalizer", "version": 2}', "another version of isomargin"),
        ('{"format": "isomargin equalizer", "version": 1, "offset": NaN}', "could not be read"),
        ('{"format": "isomargin equalizer", "version": 1}', "was changed after it was written"),
        ("{", "could not be read"),
        ("", "is empty"),
    ],
)
def test_other_json_is_refused(tmp_path, content, told):
    (tmp_path / "e.json").write_text(content)
    with pytest.raises(im.InputError, match=told):
        im.Equalizer.load(tmp_path / "e.json")


def test_files_have_the_right_names_and_replace_each_other_together(saved, tmp_path):
    with pytest.raises(im.InputError, match=r"should end in \.json"):
        saved[0].save(tmp_path / "e.npz")
    im.Equalizer(6, 2).fit(drawn(40)).save(saved[1])
    assert im.Equalizer.load(saved[1]).ids_ is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.json", "e.safetensors"]
