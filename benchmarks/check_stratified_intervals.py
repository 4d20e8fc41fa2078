"""Do confidence intervals cover where negatives are a sample? Checked on synthetic classes drawn from one population.

    python benchmarks/check_stratified_intervals.py    # 300 sets of 40 classes; minutes

Each set is evaluated with all pairs and with stratified samples of negatives, whose FARs have a stated relative error.
The true value of a score is its mean over all sets with all pairs, also for the samples: an interval has to make up for
what sampling adds to a score, too. The columns of the table are those of check_equalized_intervals.py.
"""

import argparse
import tempfile
import time
from collections import defaultdict

import numpy as np

import isomargin as im
from check_equalized_intervals import Bounds, all_bounds, draw_set, print_table

SCORES = ("opis", "debiased_opis", "mean_utility", "eer", "frr at a threshold", "far at a threshold")
TARGET = 0.01
ERRORS = (None, 0.3, 0.5)  # relative standard error of a class's FAR at the target; None: all pairs


def name_of(error: float | None) -> str:
    """Name a way of choosing pairs."""
    return "all pairs" if error is None else f"sampled, relative error {error:g}"


def evaluate(folder: str, error: float | None, seed: int) -> im.Evaluation:
    """Evaluate the prepared set in a folder."""
    settings = {} if error is None else {"pairs": "stratified", "relative_error": error, "seed": seed}
    return im.evaluate_shards(folder, target_far=TARGET, map_at_r=False, threads=1, **settings)


def evaluate_set(rows: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, im.Evaluation]:
    """Evaluate a set in every way, from files, because only these are counted in parts."""
    with tempfile.TemporaryDirectory() as name:
        im.EmbeddingSet(rows.astype(np.float32), labels).save(f"{name}/items.npy")
        im.prepare(f"{name}/items.npy", f"{name}/prepared")
        return {name_of(error): evaluate(f"{name}/prepared", error, seed) for error in ERRORS}


def run(sets: int, classes: int, items: int, seed: int) -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """Return one value with its bounds per set, by way and score."""
    found = defaultdict(list)
    drawn = [draw_set(classes, items, np.random.default_rng([seed, number])) for number in range(sets + 1)]
    threshold = evaluate_set(*drawn[0], seed=0)[name_of(None)].target.distance
    for number, (rows, labels) in enumerate(drawn[1:]):
        for name, evaluation in evaluate_set(rows, labels, seed=number).items():
            bounds: Bounds = all_bounds(evaluation, threshold, seed=number)
            for score in SCORES:
                found[name, score].append((bounds[score].value, bounds[score].low, bounds[score].high))
    return found


def main() -> None:
    """Draw sets of classes and check the intervals of their scores."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sets", type=int, default=300)
    parser.add_argument("--classes", type=int, default=40)
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.perf_counter()
    found = run(arguments.sets, arguments.classes, arguments.items, arguments.seed)
    print(
        f"{arguments.sets} sets of {arguments.classes} classes of {arguments.items} items; nominal coverage 95%, "
        f"± binomial error; {time.perf_counter() - started:.0f} seconds"
    )
    truths = {score: float(np.mean([value for value, _, _ in found[name_of(None), score]])) for score in SCORES}
    print_table(found, truths)


if __name__ == "__main__":
    main()
