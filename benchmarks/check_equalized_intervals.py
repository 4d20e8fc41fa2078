"""Do the confidence intervals of equalized evaluations cover? Checked on synthetic classes drawn from one population.

    python benchmarks/check_equalized_intervals.py    # 300 sets of 40 classes; minutes

Intervals come from resampling the classes of one set, with the offsets of its items as they were fitted. Another set
of classes would have had other neighbours and so other offsets. Here each set is drawn and its equalizer fitted again,
with the constant c of a first set, as partial_fit keeps it. For comparison, one equalizer with a reference of its own
serves all sets. The true value of a score is its mean over all sets: one large set would not do, because its items have
nearer neighbours. Spread is the mean width of the intervals over that of a normal distribution with the scores' own
deviation; below and above are the shares of intervals that lie entirely on that side of the true value.
"""

import argparse
import time
from collections import defaultdict

import numpy as np

import isomargin as im
from isomargin.measure.statistics.intervals import Interval, rate_intervals

DIMENSIONS = 16
Variant = tuple[int, int, bool | None] | None
VARIANTS: dict[str, Variant] = {  # neighbours, skip and whether classes are measured as new; None: outside
    "cosine": None,
    "k=30, skip=0, in reference": (30, 0, False),
    "k=30, skip=0, left out": (30, 0, True),
    "k=100, skip=15, in reference": (100, 15, False),
    "k=100, skip=15, left out": (100, 15, True),
    "k=30, skip=0, other reference": (30, 0, None),
}
SCORES = ("opis", "debiased_opis", "mean_utility", "eer", "frr at FAR 1%", "frr at a threshold", "far at a threshold")

Bounds = dict[str, Interval]


def draw_set(classes: int, items: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw classes of different spread; those along the first axis are crowded, so that classes differ in FAR too."""
    centres = generator.normal(size=(classes, DIMENSIONS))
    centres[:, 0] += 2 * generator.exponential(size=classes)
    spreads = generator.uniform(0.4, 0.8, classes)
    noise = generator.normal(size=(classes, items, DIMENSIONS))
    rows = centres[:, None] + spreads[:, None, None] * noise
    return rows.reshape(-1, DIMENSIONS), np.repeat(np.arange(classes), items)


def evaluate(rows: np.ndarray, labels: np.ndarray, variant: Variant, first: np.ndarray) -> im.Evaluation:
    """Evaluate a set with its own equalizer, or with that of the first set."""
    if variant is None:
        return im.evaluate(rows, labels, k=(1,), map_at_r=False, threads=1)
    neighbours, skip, new = variant
    equalizer = im.Equalizer(neighbours, skip, threads=1).fit(first)
    if new is not None:
        constant = equalizer.offset_
        equalizer.fit(rows)
        equalizer.offset_ = constant  # a threshold belongs to one constant
    return im.evaluate(rows, labels, k=(1,), map_at_r=False, equalizer=equalizer, new_classes=bool(new), threads=1)


def all_bounds(evaluation: im.Evaluation, threshold: float, seed: int) -> Bounds:
    """Return the intervals of all scores."""
    bounds = evaluation.intervals(seed=seed)
    far, frr = rate_intervals(evaluation, threshold, seed=seed)
    return bounds | {"frr at FAR 1%": bounds["frr"], "far at a threshold": far, "frr at a threshold": frr}


def run(sets: int, classes: int, items: int, seed: int) -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """Return one value with its bounds per set, by variant and score."""
    found = defaultdict(list)
    drawn = [draw_set(classes, items, np.random.default_rng([seed, number])) for number in range(sets + 2)]
    (first, _), (second, labels), *others = drawn
    thresholds = {name: evaluate(second, labels, variant, first).target.distance for name, variant in VARIANTS.items()}
    for number, (rows, labels) in enumerate(others):
        for name, variant in VARIANTS.items():
            bounds = all_bounds(evaluate(rows, labels, variant, first), thresholds[name], seed=number)
            for score in SCORES:
                found[name, score].append((bounds[score].value, bounds[score].low, bounds[score].high))
    return found


def print_table(
    found: dict[tuple[str, str], list[tuple[float, float, float]]], truths: dict[str, float] | None = None
) -> None:
    """Print how many intervals contain the true value of the score: the mean of a row's own values unless given."""
    print(f"\n{'similarities':<30}{'score':<20}{'mean':>10}{'coverage':>16}{'below':>8}{'above':>8}{'spread':>8}")
    for (name, score), rows in found.items():
        values, low, high = np.array(rows).T
        truth = values.mean() if truths is None else truths[score]
        coverage = np.mean((low <= truth) & (truth <= high))
        error = np.sqrt(coverage * (1 - coverage) / len(values))
        spread = np.mean(high - low) / (2 * 1.96) / values.std()
        sides = "".join(f"{np.mean(side):>8.1%}" for side in (high < truth, low > truth))
        print(f"{name:<30}{score:<20}{truth:>10.5f}{f'{coverage:.1%} ± {error:.1%}':>16}{sides}{spread:>8.2f}")


def main() -> None:
    """Draw sets of classes and check the intervals of their scores."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--items", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.perf_counter()
    found = run(arguments.sets, arguments.classes, arguments.items, arguments.seed)
    print(
        f"{arguments.sets} sets of {arguments.classes} classes of {arguments.items} items; nominal coverage 95%, "
        f"± binomial error; {time.perf_counter() - started:.0f} seconds"
    )
    print_table(found)


if __name__ == "__main__":
    main()
