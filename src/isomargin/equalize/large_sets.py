"""Rows of a set that may be larger than memory, found in an equalizer's reference block by block.

Rows that are prepared for counting in parts are sorted by class, so they are usually those of the reference in another
order. They are recognised by their numbers.
"""

import numpy as np
from numpy.typing import NDArray

from isomargin.core.memory import forget_pages
from isomargin.core.progress import progress_bar
from isomargin.equalize.rows import CHUNK, Floats, Singles, are_same, mean_of_ranks
from isomargin.measure.pairs.neighbours import NearestLists, add_rectangle

SEARCHED = 8192  # rows whose neighbours are searched at a time, in as many others: whole blocks of the search


def places_in_reference(vectors: Singles, reference: Singles) -> NDArray[np.int64] | None:
    """(n,) the place of each row in a reference that has the same rows in any order; None if it has others.

    >>> places_in_reference(np.eye(3, dtype=np.float32)[[2, 0, 1]], np.eye(3, dtype=np.float32)).tolist()
    [2, 0, 1]
    >>> places_in_reference(np.eye(3, dtype=np.float32), -np.eye(3, dtype=np.float32)) is None
    True
    """
    if vectors.shape != reference.shape:
        return None
    if all_same(vectors, reference, None):
        return np.arange(len(vectors))
    hashes, known = row_hashes(vectors), row_hashes(reference)
    order, known_order = np.argsort(hashes, kind="stable"), np.argsort(known, kind="stable")
    if not np.array_equal(hashes[order], known[known_order]):
        return None
    places = np.empty_like(order)
    places[order] = known_order
    return places if all_same(vectors, reference, places) else None


def all_same(vectors: Singles, reference: Singles, places: NDArray[np.int64] | None) -> bool:
    """Whether each row is the row of the reference at its place, except for rounding; None if they are in order."""
    for first in range(0, len(vectors), CHUNK):
        part = slice(first, first + CHUNK)
        if not are_same(vectors[part], reference[part if places is None else places[part]]).all():
            return False
        forget_pages(vectors)
        forget_pages(reference)
    return True


def row_hashes(vectors: Singles) -> NDArray[np.uint64]:
    """(n,) a number for each row that depends on all bits of its numbers."""
    factors = np.random.default_rng(0).integers(0, 2**64, vectors.shape[1], np.uint64) | np.uint64(1)
    hashes = np.empty(len(vectors), np.uint64)
    for first in range(0, len(vectors), CHUNK):
        part = slice(first, first + CHUNK)
        hashes[part] = np.ascontiguousarray(vectors[part]).view(np.uint32).astype(np.uint64) @ factors
        forget_pages(vectors)
    return hashes


def search_in_blocks(
    vectors: Singles, reference: Singles, skip: int, neighbours: int, threads: int | None
) -> tuple[Floats, Singles]:
    """(n,) each row's mean cosine to its neighbours in the reference, and (n,) its largest one."""
    offsets, largest = np.empty(len(vectors)), np.empty(len(vectors), np.float32)
    with progress_bar("finding neighbours") as progress:
        for first in range(0, len(vectors), SEARCHED):
            part = slice(first, min(first + SEARCHED, len(vectors)))
            lists = NearestLists.empty(part.stop - part.start, min(skip + neighbours, len(reference)))
            for begin in range(0, len(reference), SEARCHED):
                columns = reference[begin : begin + SEARCHED]
                add_rectangle(vectors[part], columns, lists, None, None, threads, None)
                forget_pages(reference)
            nearest = lists.descending(threads)
            offsets[part], largest[part] = mean_of_ranks(nearest, skip, neighbours), nearest[:, 0]
            if progress is not None:
                progress(part.stop / len(vectors))
            forget_pages(vectors)
    return offsets, largest
