"""The pass over all pairs in torch operations, for a GPU: strips of complete rows instead of tiles.

It gives the same counts and ranks as the compiled kernels; the two are tested against each other. It computes the full
product rather than its upper triangle, which is simpler and fast enough on a GPU. The host waits for the device before
the first strip and after the last one only.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from isomargin.core.errors import InputError
from isomargin.measure.pairs import kernels
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.tiles import (
    LISTED_POSITIVES,
    TIE,
    PassResult,
    Progress,
    list_by_class,
    number_of_bins,
)

if TYPE_CHECKING:
    import torch

ABOVE_ALL = float(kernels.ABOVE_ALL)
STRIP = 1 << 25  # similarities of one strip: 128 MB in float32


def count_pairs_with_torch(
    data: ClassSortedVectors,
    *,
    k: tuple[int, ...],
    device: str,
    map_at_r: bool = True,
    progress: Progress | None = None,
) -> PassResult:
    """Count all pairs of unit vectors by class and distance, and rank every query's positives, on a torch device."""
    import torch

    try:
        vectors = torch.as_tensor(data.vectors, device=device)
        vectors[0, 0].item()  # some devices accept values but cannot return them
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={device!r} cannot be used ({reason}): leave it out to use the CPU") from error
    sizes = data.sizes
    bins, span, axis = number_of_bins(len(sizes), len(data.class_of)), data.span, data.axis
    shifts = None if data.shifts is None else torch.as_tensor(data.single_shifts, device=device)
    listing = int((sizes * (sizes - 1) // 2).sum()) <= LISTED_POSITIVES
    class_of = torch.as_tensor(data.class_of, device=device)
    after = torch.as_tensor(data.ends[data.class_of], device=device)  # (n,) one past the last row of each row's class
    unused = len(sizes) * bins  # a cell behind the counters, for pairs that are not to be counted
    negatives = torch.zeros(unused + 1, dtype=torch.int64, device=device)
    positives = torch.zeros(0 if listing else unused, dtype=torch.int64, device=device)
    listed, nearer = [], []
    r_precision: list[torch.Tensor] = []
    average_precision: list[torch.Tensor] = []
    for first, last in strips(len(class_of), STRIP):
        similarity = vectors[first:last] @ vectors.T  # (strip, n)
        if shifts is not None:
            similarity += shifts[first:last, None] + shifts  # their sum first: a pair is counted from both sides
        row_class = class_of[first:last]
        same = row_class[:, None] == class_of[None, :]
        cell = bin_of(similarity, bins, span) + (row_class * bins)[:, None]
        row, column = positives_after(data, after, first, last)
        if listing:
            listed.append(similarity[row, column])
        else:
            count_cells(positives, cell[row, column])
        count_cells(negatives, cell.masked_fill_(same, unused).view(-1))
        del cell, row, column
        rank = torch.arange(last - first, device=device)
        similarity[rank, rank + first] = -ABOVE_ALL  # exclude the query itself
        similarity = torch.where(same, similarity + TIE, similarity)
        best = torch.where(same, similarity, -ABOVE_ALL).amax(dim=1, keepdim=True)
        nearer.append(((similarity > best) & ~same).sum(dim=1))
        if map_at_r:
            most = int(sizes[data.class_of[first] : data.class_of[last - 1] + 1].max()) - 1
            for scores, values in zip((r_precision, average_precision), at_r(similarity, same, most), strict=True):
                scores.append(values)
        if progress:
            progress(last / len(class_of))
    shape = (len(sizes), bins)
    kept_negatives = BinnedDistances.within_span(
        negatives[:unused].view(shape).cpu().numpy(), span, axis, appearances=2
    )
    ranks = RankCounts.from_queries(
        data.class_of,
        sizes,
        k,
        torch.cat(nearer).cpu().numpy().astype(np.int32),
        torch.cat(r_precision).cpu().numpy() if map_at_r else None,
        torch.cat(average_precision).cpu().numpy() if map_at_r else None,
    )
    if listing:
        return PassResult(
            PairCounts(list_by_class(torch.cat(listed).cpu().numpy(), sizes, axis), kept_negatives), ranks
        )
    kept_positives = BinnedDistances.within_span(positives.view(shape).cpu().numpy(), span, axis, appearances=1)
    return PassResult(PairCounts(kept_positives, kept_negatives), ranks)


def strips(n: int, cells: int) -> Iterator[tuple[int, int]]:
    """Cut n rows into strips of at most ``cells`` similarities, and at least one row."""
    step = max(1, cells // n)
    for first in range(0, n, step):
        yield first, min(first + step, n)


def bin_of(similarity: "torch.Tensor", bins: int, span: tuple[float, float]) -> "torch.Tensor":
    """Return the bin of each pair's distance, int64, in the shape of ``similarity``."""
    scale = np.float32(bins / (span[1] - span[0])).item()
    squared = 2 - 2 * similarity
    distance = squared.abs().sqrt_().copysign_(squared)
    return distance.sub_(span[0]).mul_(scale).clamp_(min=0, max=bins - 1).long()


def positives_after(
    data: ClassSortedVectors, after: "torch.Tensor", first: int, last: int
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """(pairs,) row within the strip and (pairs,) column of its positive pairs above the diagonal, row by row.

    How many there are follows from the sizes of the classes, so the host need not wait for the device to find them.
    """
    import torch

    number = int((data.ends[data.class_of[first:last]] - np.arange(first, last) - 1).sum())
    rows = torch.arange(last - first, device=after.device)
    others = after[first:last] - rows - first - 1
    row = torch.repeat_interleave(rows, others, output_size=number)
    place = torch.arange(number, device=after.device) - (others.cumsum(0) - others)[row]  # within its row's positives
    return row, row + first + 1 + place


def count_cells(counters: "torch.Tensor", cells: "torch.Tensor") -> None:
    """Add one to the counter of each cell. Unlike ``bincount``, this makes no tensor whose size the host must know."""
    counters.scatter_add_(0, cells, counters.new_ones(1).expand(len(cells)))


def at_r(similarity: "torch.Tensor", same: "torch.Tensor", most: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """(queries,) R-precision and (queries,) average precision at R; 0 for a query that is alone in its class.

    ``most`` is the largest R.
    """
    import torch

    possible = same.sum(dim=1) - 1  # R, which does not count the query itself
    if most == 0:
        zeros = torch.zeros(len(possible), dtype=torch.float64, device=same.device)
        return zeros, zeros
    nearest = similarity.topk(most, dim=1).indices
    rank = torch.arange(1, most + 1, device=same.device)
    relevant = (same.gather(1, nearest) & (rank <= possible[:, None])).double()
    precision = relevant.cumsum(dim=1) / rank
    divisor = possible.clamp(min=1).double()
    return relevant.sum(dim=1) / divisor, (precision * relevant).sum(dim=1) / divisor
