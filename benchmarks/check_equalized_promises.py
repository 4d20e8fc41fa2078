"""Do promises for unseen classes hold for equalized similarities? Checked on random splits of the classes.

    python benchmarks/check_equalized_promises.py                     # glyphs: 32 principal components of the pixels
    python benchmarks/check_equalized_promises.py embeddings.npz      # any file of embeddings
    python benchmarks/check_equalized_promises.py --method cohort     # with a separate reference

For each split, half of the classes are the index and the calibration set. Thresholds are chosen from their pairs, with
each item's own class among its neighbours (in reference) and without it (left out, as ``new_classes`` measures). Some
unseen classes, drawn at random, are then measured:

- joined: the class has joined the index, alone, by ``partial_fit``; FAR is with the items of all other classes there.
- not joined: its offsets come from the index without it, those of the index stay; FAR is with the items of the index.
- both new: FAR with the other unseen classes, none of which has joined.

FRR is that of the pairs within the class. For a cohort, a third of the classes are the reference, a third are for
calibration, and a third are unseen. Standard errors are over splits of the same classes: they do not say how much
another set of classes would differ.
"""

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import isomargin as im
from check_promises import glyph_features, sampled_classes
from isomargin.equalize.rows import mean_of_ranks
from isomargin.measure.pairs.axis import ScoreAxis, similarity_of
from isomargin.measure.pairs.distances import BinnedDistances
from isomargin.measure.pairs.inputs import Shifts, sort_by_class
from isomargin.measure.pairs.neighbours import grow, nearest_in_reference, nearest_in_set
from isomargin.measure.pairs.rates import ROUNDING
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.thresholds.conformal import promised_distance

TARGETS = (0.02, 0.05, 0.1)
METHODS = {"mean": None, "class, 5%": 0.05, "class, 10%": 0.1}
JOINED, NOT_JOINED, BOTH_NEW = "joined", "not joined", "both new"
MERGED = 16  # bins that are merged into one, because the search for a promise takes time

Key = tuple[str, str, str, float, str, str]  # setting, rate, evaluation, target, method, case
Thresholds = dict[tuple[str, str, float, str], float]  # by evaluation, rate, target, method


@dataclass(frozen=True)
class Setting:
    """The settings of an equalizer."""

    title: str
    neighbours: int
    skip: int
    weight: float = 0.5

    def offsets(self, nearest: np.ndarray) -> np.ndarray:
        """(n,) r of each row."""
        return mean_of_ranks(nearest, self.skip, self.neighbours)


@dataclass(frozen=True)
class Fitted:
    """A setting with the constant c of one reference."""

    setting: Setting
    constant: float

    @classmethod
    def to(cls, nearest: np.ndarray, setting: Setting) -> "Fitted":
        """Fit to a reference, given the similarities of its rows to their neighbours."""
        return cls(setting, 2 * setting.weight * float(setting.offsets(nearest).mean()))

    def shifts(self, nearest: np.ndarray) -> np.ndarray:
        """(n,) what is added to the cosine of a pair by each row."""
        return self.constant / 2 - self.setting.weight * self.setting.offsets(nearest)

    @property
    def axis(self) -> ScoreAxis:
        """The axis of equalized distances."""
        widest = 1 + 2 * self.setting.weight
        return ScoreAxis.equalized(self.constant - widest, self.constant + widest)


def find_thresholds(
    fitted: Fitted, rows: np.ndarray, class_of: np.ndarray, evaluations: dict[str, np.ndarray]
) -> Thresholds:
    """Choose the thresholds of all promises; evaluations are named neighbours' similarities of the rows."""
    if fitted.setting.weight == 0:  # cosines have no neighbours to leave out
        evaluations = {"all pairs": next(iter(evaluations.values()))}
    found = {}
    for name, nearest in evaluations.items():
        data = sort_by_class(rows, class_of, shifts=Shifts(fitted.shifts(nearest), fitted.axis))
        counts = count_pairs(data, k=(1,), map_at_r=False, threads=1).counts
        for rate, distances in (("far", merged(counts.negatives)), ("frr", counts.positives)):
            for target in TARGETS:
                for method, delta in METHODS.items():
                    try:
                        found[name, rate, target, method] = promised_distance(distances, rate, target, delta)
                    except im.InputError:  # too few classes for this promise
                        found[name, rate, target, method] = math.nan
    return found


def merged(distances: BinnedDistances) -> BinnedDistances:
    """Return the counts in fewer bins."""
    counts = distances.counts.reshape(len(distances.counts), -1, MERGED).sum(axis=2, dtype=np.int64)
    return BinnedDistances(counts, distances.reach, distances.appearances, distances.start, distances.axis)


class Measured:
    """Rates of unseen classes, collected by split."""

    def __init__(self) -> None:
        self.by_split: dict[Key, list[list[float]]] = defaultdict(list)
        """One list of rates per split."""

    def start_split(self) -> None:
        """Begin a list of rates for the next split."""
        self.now: dict[Key, list[float]] = defaultdict(list)

    def add(self, setting: str, rate: str, case: str, similarity: np.ndarray, thresholds: Thresholds) -> None:
        """Add the rates of a class, from the similarities of its pairs, at all thresholds for this rate."""
        for (evaluation, promised, target, method), distance in thresholds.items():
            if promised == rate and not math.isnan(distance):
                accepted = np.count_nonzero(similarity >= similarity_of(distance)) / similarity.size
                key = (setting, rate, evaluation, target, method, case)
                self.now[key].append(accepted if rate == "far" else 1 - accepted)

    def end_split(self) -> None:
        """Keep the split's rates."""
        for key, rates in self.now.items():
            self.by_split[key].append(rates)

    def summary(self, key: Key) -> str:
        """Return mean rate and share of classes over the target, with standard errors over splits."""
        if key not in self.by_split:
            return f"{'too few classes':>34}"
        values = [(np.mean(rates), np.mean(np.array(rates) > key[3] + ROUNDING)) for rates in self.by_split[key]]
        means, errors = np.mean(values, axis=0), np.std(values, axis=0) / np.sqrt(len(values))
        return "".join(f"{f'{m:.2%} ± {e:.2%}':>17}" for m, e in zip(means, errors, strict=True))


def within(similarity: np.ndarray) -> np.ndarray:
    """(pairs,) the entries above the diagonal."""
    return similarity[np.triu_indices(len(similarity), 1)]


def drawn_classes(
    class_of: np.ndarray, new: np.ndarray, most: int, generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield (n,) the rows of each of some unseen classes."""
    for i in generator.permutation(np.flatnonzero(new))[:most]:
        yield class_of == i


def check_local(
    rows: np.ndarray,
    class_of: np.ndarray,
    part: np.ndarray,
    settings: list[Setting],
    most: int,
    generator: np.random.Generator,
    measured: Measured,
) -> None:
    """Measure one split with the calibration classes as the index; (classes,) part is 0 for these, 1 for unseen.

    The lists of neighbours are found once, long enough for all settings; `Equalizer` finds the same.
    """
    length = max(setting.skip + setting.neighbours for setting in settings)
    known, new = part[class_of] == 0, part[class_of] == 1
    index, unseen = rows[known], rows[new]
    evaluations = {
        "in reference": nearest_in_set(index, length, threads=1),
        "left out": nearest_in_set(index, length, class_of[known], threads=1),
    }
    nearest, of_new = evaluations["in reference"], nearest_in_reference(unseen, index, length, threads=1)
    fits = [Fitted.to(nearest, setting) for setting in settings]
    chosen = [find_thresholds(fitted, index, class_of[known], evaluations) for fitted in fits]
    for members in drawn_classes(class_of, part == 1, most, generator):
        items, own = rows[members], members[new]
        of_index, of_items = grow(index, nearest, items, length, threads=1)
        cosines = {"index": items @ index.T, "new": items @ unseen[~own].T, "own": items @ items.T}
        for fitted, thresholds in zip(fits, chosen, strict=True):
            title = fitted.setting.title
            joined, apart = fitted.shifts(of_items)[:, None], fitted.shifts(of_new[own])[:, None]
            pairs = {
                ("far", JOINED): cosines["index"] + joined + fitted.shifts(of_index),
                ("far", NOT_JOINED): cosines["index"] + apart + fitted.shifts(nearest),
                ("far", BOTH_NEW): cosines["new"] + apart + fitted.shifts(of_new[~own]),
                ("frr", JOINED): within(cosines["own"] + joined + joined.T),
                ("frr", NOT_JOINED): within(cosines["own"] + apart + apart.T),
            }
            for (rate, case), similarity in pairs.items():
                measured.add(title, rate, case, similarity, thresholds)


def check_cohort(
    rows: np.ndarray,
    class_of: np.ndarray,
    part: np.ndarray,
    settings: list[Setting],
    most: int,
    generator: np.random.Generator,
    measured: Measured,
) -> None:
    """Measure one split with a separate reference; (classes,) part is 0 for calibration, 1 for unseen, 2 for it."""
    length = max(setting.skip + setting.neighbours for setting in settings)
    calibration, new, cohort = (rows[part[class_of] == i] for i in range(3))
    of_cohort = nearest_in_set(cohort, length, threads=1)
    of_known, of_new = (nearest_in_reference(some, cohort, length, threads=1) for some in (calibration, new))
    known = class_of[part[class_of] == 0]
    fits = [Fitted.to(of_cohort, setting) for setting in settings]
    chosen = [find_thresholds(fitted, calibration, known, {"outside": of_known}) for fitted in fits]
    for members in drawn_classes(class_of, part == 1, most, generator):
        items, own = rows[members], members[part[class_of] == 1]
        cosines = {"known": items @ calibration.T, "new": items @ new[~own].T, "own": items @ items.T}
        for fitted, thresholds in zip(fits, chosen, strict=True):
            shifts = fitted.shifts(of_new[own])[:, None]
            pairs = {
                ("far", NOT_JOINED): cosines["known"] + shifts + fitted.shifts(of_known),
                ("far", BOTH_NEW): cosines["new"] + shifts + fitted.shifts(of_new[~own]),
                ("frr", NOT_JOINED): within(cosines["own"] + shifts + shifts.T),
            }
            for (rate, case), similarity in pairs.items():
                measured.add(fitted.setting.title, rate, case, similarity, thresholds)


def print_tables(measured: Measured) -> None:
    """Print the rates of unseen classes next to what was promised."""
    for title in dict.fromkeys(key[0] for key in measured.by_split):
        keys = [key for key in measured.by_split if key[0] == title]
        for rate in ("far", "frr"):
            cases = list(dict.fromkeys(key[5] for key in keys if key[1] == rate))
            print(f"\n{f'{title}: {rate.upper()} of unseen classes':<54}" + "".join(f"{case:>34}" for case in cases))
            columns = f"{f'mean {rate.upper()}':>17}{'over target':>17}" * len(cases)
            print(f"{'evaluation':<14}{'target':>7}  {'promise':<12}{'promised':<19}{columns}")
            for evaluation in dict.fromkeys(key[2] for key in keys):
                for target in TARGETS:
                    for method, delta in METHODS.items():
                        promised = f"over ≤ {delta:.0%}" if delta else f"mean ≤ {target:.0%}"
                        cells = [measured.summary((title, rate, evaluation, target, method, case)) for case in cases]
                        print(f"{evaluation:<14}{target:>7.0%}  {method:<12}{promised:<19}{''.join(cells)}")


def limited_items(class_of: np.ndarray, most: int) -> np.ndarray:
    """(n,) whether a row is among the first items of its class; rows are sorted by class."""
    starts = np.searchsorted(class_of, class_of)
    return np.arange(len(class_of)) - starts < most


def load(file: str | None, without: str | None, classes: int, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors sorted by class, and their class numbers."""
    if file is None:
        vectors, labels = glyph_features()
    else:
        loaded = im.EmbeddingSet.load(file)
        vectors, labels = np.asarray(loaded.vectors), np.asarray(loaded.labels)
    if without is not None:
        vectors, labels = vectors[labels != without], labels[labels != without]
    rows, class_of = sampled_classes(vectors, labels, classes)
    kept = limited_items(class_of, items)
    return rows[kept], class_of[kept]


def main() -> None:
    """Check the promises on a file of embeddings or on the glyphs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", nargs="?", help="embeddings with labels; by default the glyphs")
    parser.add_argument("--method", choices=("local", "cohort"), default="local")
    parser.add_argument("--without", help="a label to leave out")
    parser.add_argument("--classes", type=int, default=240, help="the most classes to use, drawn at random")
    parser.add_argument("--items", type=int, default=1000, help="the most items of a class, the first in the file")
    parser.add_argument("--unseen", type=int, default=40, help="unseen classes that are measured in each split")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows, class_of = load(arguments.file, arguments.without, arguments.classes, arguments.items)
    classes, largest = int(class_of[-1]) + 1, int(np.bincount(class_of).max())
    settings = [
        Setting("cosine", 1, 0, weight=0.0),
        Setting("local, k=30, skip=0", 30, 0),
        Setting("local, k=100, skip=30", 100, 30),
        Setting(f"local, k=100, skip={largest}", 100, largest),  # the size of the largest class
    ]
    if arguments.method == "cohort":
        settings = [settings[0], Setting("cohort, k=100, skip=0", 100, 0)]
    check, parts = (check_local, 2) if arguments.method == "local" else (check_cohort, 3)
    generator, measured, started = np.random.default_rng(arguments.seed), Measured(), time.perf_counter()
    for _ in range(arguments.splits):
        measured.start_split()
        part = generator.permutation(classes) % parts
        check(rows, class_of, part, settings, arguments.unseen, generator, measured)
        measured.end_split()
    print(
        f"{arguments.file or 'glyphs'}: {len(rows):,} items in {classes} classes; {arguments.splits} splits, "
        f"up to {arguments.unseen} unseen classes of each; ± standard error over splits; "
        f"{time.perf_counter() - started:.0f} seconds"
    )
    print_tables(measured)


if __name__ == "__main__":
    main()
