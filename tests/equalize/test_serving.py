"""What an index needs from an equalizer: vectors, offsets from the engine's results, and checks of those results."""

import numpy as np
import pytest

import isomargin as im
from compare import clusters


@pytest.fixture(scope="module")
def fitted():
    rows, _ = clusters(200, 10, dimensions=3, seed=3)  # in few dimensions unit vectors change when normalised again
    return rows, im.Equalizer(neighbours=40, skip=15).fit(rows)


def cosines(rows, equalizer):
    """(n, m) cosines of new rows to the whole reference, largest first."""
    vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return -np.sort(-vectors @ equalizer.vectors_.T, axis=1)


def test_offsets_from_a_search_are_those_of_the_reference(fitted):
    _, equalizer = fitted
    queries, _ = clusters(20, 5, dimensions=3, seed=4)
    found = equalizer.offsets_from_search(cosines(queries, equalizer))
    assert found == pytest.approx(equalizer.offsets(queries), abs=1e-6)


@pytest.mark.parametrize(
    "spoil",
    {
        "distances": lambda found: 1 - found,
        "negative inner products": lambda found: -found,
        "smallest first": lambda found: found[:, ::-1],
        "missing results": lambda found: np.where(np.arange(found.shape[1]) < 54, found, np.finfo(np.float32).min),
        "NaN": lambda found: np.where(np.arange(found.shape[1]) == 20, np.nan, found),
    }.items(),
    ids=lambda item: item[0],
)
def test_results_that_are_not_cosines_largest_first_are_refused(fitted, spoil):
    rows, equalizer = fitted
    with pytest.raises(im.InputError, match="not a list of cosines, largest first"):
        equalizer.offsets_from_search(spoil[1](cosines(rows[:5], equalizer)))


def test_the_transformed_reference_follows_partial_fit(fitted):
    rows, equalizer = fitted
    assert np.array_equal(equalizer.transform_reference(), equalizer.transform(rows))
    grown = im.Equalizer(neighbours=40, skip=15).fit(rows[:120]).partial_fit(rows[120:])
    assert grown.transform_reference() == pytest.approx(equalizer.transform_reference(), abs=1e-6)
