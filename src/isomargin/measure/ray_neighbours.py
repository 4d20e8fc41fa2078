"""Find neighbours in the parts of a plan on a Ray cluster: the tasks, which ``ray_parts.py`` runs as it does others."""

from collections.abc import Callable
from typing import Any

from isomargin.measure.pairs.neighbour_files import NeighbourFile, already_found, name_of, save_found
from isomargin.measure.pairs.neighbour_parts import FoundNeighbours, NeighbourPlan, find_neighbours, merge_lists
from isomargin.measure.pairs.neighbours import Singles
from isomargin.measure.ray_parts import Counted, Journal, Report, Run, SentPlan, Tasks


class NeighbourJournal(Journal):
    """The folder of the files of finished parts."""

    def has(self, plan: NeighbourPlan, number: int) -> bool:
        """Whether a part is in the journal; the file of another plan is refused."""
        return already_found(self.folder, plan, self.settings, number)


def find_or_read(sent: SentPlan, journal: Journal | None, number: int, threads: int) -> list[Any]:
    """Find the neighbours of a part and write them into the journal; or read them, if an attempt came that far.

    Returns:
        `Counted`, and the lists of each superblock that the part touches, in order.
    """
    plan: NeighbourPlan = sent.open()
    keeps = journal is not None and journal.seen()
    if keeps and journal is not None and journal.has(plan, number):
        found = NeighbourFile.open(journal.folder / name_of(plan, number)).found()
    else:
        found = find_neighbours(plan, number, threads=threads)
        if keeps and journal is not None:
            save_found(journal.folder, plan, journal.settings, found)
    return [Counted({}, keeps), *(lists for _, lists in sorted(found.lists.items()))]


def save_here(
    sent: SentPlan, journal: Journal, number: int, superblocks: list[int], counted: Counted, *lists: Singles
) -> None:
    """Write a part into the journal, on the driver's node, because its worker does not see the folder."""
    found = FoundNeighbours(sent.digest, (number,), dict(zip(superblocks, lists, strict=True)))
    save_found(journal.folder, sent.open(), journal.settings, found)


def merge_some(sent: SentPlan, superblock: int, *lists: Singles) -> list[Any]:
    """Merge lists of one superblock. Returns None, which the driver waits for, and the merged lists."""
    merged = lists[0].copy()  # arrays in the object store are read-only, and kernels are compiled for the others
    for found in lists[1:]:
        merged = merge_lists(merged, found.copy())
    return [None, merged]


FINDING = Tasks(find_or_read, save_here, merge_some)


def find_on_ray(
    plan: NeighbourPlan,
    journal: Journal | None,
    threads: int,
    report: Report | None,
    finish: Callable[[NeighbourPlan, Callable[[int], Singles]], Any],
) -> Any:
    """Search all parts of a plan on the cluster that this process is connected to.

    Returns what ``finish`` makes of the plan and of a function that gives the merged lists of a superblock, once.
    """
    with Run(plan, journal, threads, FINDING) as run:
        run.count_all(report)
        return finish(plan, run.take)
