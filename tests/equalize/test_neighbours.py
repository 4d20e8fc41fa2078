"""The nearest similarities of each row against sorted rows of the whole product, in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.neighbours import NOTHING, grow, nearest_in_reference, nearest_in_set

CLOSE = 1e-6  # float32 products of a few dozen dimensions


def unit(rows, dimensions=8, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(rows, dimensions))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def sorted_rows(rows, columns, length, left_out):
    """(rows, length) the largest products that are not left out, largest first; NOTHING where there are fewer."""
    product = rows.astype(np.float64) @ columns.astype(np.float64).T
    product[left_out] = -np.inf
    found = -np.sort(-product, axis=1)[:, :length]
    return np.where(np.isneginf(found), NOTHING, found)


def in_set(vectors, length, groups=None):
    names = np.arange(len(vectors)) if groups is None else groups
    return sorted_rows(vectors, vectors, min(length, len(vectors) - 1), names[:, None] == names)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("length", [1, 7, 70, 400])
def test_of_a_set_of_several_blocks_each_row_has_its_nearest_others(length, threads, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 50)  # the last block has 21 rows
    vectors = unit(371)
    found = nearest_in_set(vectors, length, threads=threads)
    np.testing.assert_allclose(found, in_set(vectors, length), atol=CLOSE)


def test_the_blocks_of_the_real_size_meet_at_their_edges():
    vectors = unit(1030, dimensions=4)  # blocks of 512, 512 and 6 rows
    np.testing.assert_allclose(nearest_in_set(vectors, 40), in_set(vectors, 40), atol=CLOSE)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 60), st.integers(1, 25), st.booleans())
def test_of_any_set_each_row_has_its_nearest_others_of_other_groups(seed, rows, length, tile_rows, ties):
    generator = np.random.default_rng(seed)
    vectors = unit(rows, dimensions=3, seed=seed)
    if ties:  # a few directions, so that most products are equal
        vectors = np.eye(3, dtype=np.float32)[generator.integers(0, 3, rows)]
    groups = generator.integers(0, generator.integers(1, rows + 1), rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE_ROWS", tile_rows)
        found, grouped = nearest_in_set(vectors, length), nearest_in_set(vectors, length, groups)
    np.testing.assert_allclose(found, in_set(vectors, length), atol=CLOSE)
    np.testing.assert_allclose(grouped, in_set(vectors, length, groups), atol=CLOSE)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 40), st.integers(1, 50), st.integers(1, 25))
def test_in_any_reference_each_query_has_its_nearest_rows_except_the_excluded(seed, queries, rows, length, tile_rows):
    generator = np.random.default_rng(seed)
    reference = unit(rows, seed=seed)
    vectors = np.where(
        generator.random((queries, 1)) < 0.5, reference[generator.integers(0, rows, queries)], unit(queries, seed=1)
    )
    excluded = generator.integers(-1, rows, queries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE_ROWS", tile_rows)
        every = nearest_in_reference(vectors, reference, length)
        found = nearest_in_reference(vectors, reference, length, excluded)
    nothing = np.zeros((queries, rows), bool)
    left_out = excluded[:, None] == np.arange(rows)
    np.testing.assert_allclose(every, sorted_rows(vectors, reference, length, nothing), atol=CLOSE)
    np.testing.assert_allclose(found, sorted_rows(vectors, reference, length, left_out), atol=CLOSE)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40), st.integers(1, 60), st.integers(1, 25))
def test_a_set_that_has_grown_is_as_if_it_were_searched_anew(seed, known, new, length, tile_rows):
    vectors = unit(known + new, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE_ROWS", tile_rows)
        before = nearest_in_set(vectors[:known], length)  # all there are where the known rows are fewer than the list
        old, added = grow(vectors[:known], before, vectors[known:], length)
    np.testing.assert_allclose(np.concatenate([old, added]), in_set(vectors, length), atol=CLOSE)


def test_a_set_that_grows_twice_keeps_what_it_found():
    vectors = unit(300)
    nearest = nearest_in_set(vectors[:20], 50)
    for first, last in ((20, 120), (120, 300)):
        nearest = np.concatenate(grow(vectors[:first], nearest, vectors[first:last], 50, threads=2))
    np.testing.assert_allclose(nearest, in_set(vectors, 50), atol=CLOSE)


def test_copies_of_a_row_are_neighbours_and_the_row_itself_is_not():
    vectors = np.repeat(unit(30), [3, *[1] * 29], axis=0)  # the first row three times
    found = nearest_in_set(vectors, 5)
    assert (found[:3, :2] > 1 - CLOSE).all()
    assert (found[:3, 2] < 0.999).all()
    assert (found[3:, 0] < 0.999).all()


def test_the_result_does_not_depend_on_the_number_of_threads(monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 16)
    vectors = unit(200)
    alone, together = nearest_in_set(vectors, 20, threads=1), nearest_in_set(vectors, 20, threads=8)
    np.testing.assert_array_equal(alone, together)


def test_progress_ends_at_one_and_never_falls(monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 16)
    seen = []
    nearest_in_set(unit(70), 3, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert len(seen) == 15  # one per tile of the upper triangle of five blocks
