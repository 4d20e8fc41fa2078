"""How often 95% confidence intervals of a gallery's rates contain the true ones.

    python benchmarks/check_gallery_intervals.py    # about a minute

Galleries are drawn from a known population of classes, some wider than others, and evaluated at one threshold. The true
rates are the means over all draws.
"""

import argparse
import warnings

import numpy as np

import isomargin as im
from isomargin.measure.statistics.intervals import identification_intervals, rate_intervals

THRESHOLD = 0.9
DIMENSIONS = 16
RATES = ("FAR", "FRR", "FPIR", "FNIR")


def draw(generator: np.random.Generator, enrolled: int, unknown: int) -> tuple[np.ndarray, ...]:
    """Draw classes, five enrolled items of some, and eight probes of all."""
    centres = generator.normal(size=(enrolled + unknown, DIMENSIONS))
    widths = generator.uniform(0.5, 1.3, size=enrolled + unknown)

    def items(labels: np.ndarray) -> np.ndarray:
        return centres[labels] + widths[labels, None] * generator.normal(size=(len(labels), DIMENSIONS))

    gallery, probes = np.repeat(np.arange(enrolled), 5), np.repeat(np.arange(enrolled + unknown), 8)
    return items(gallery), gallery, items(probes), probes


def check(enrolled: int, unknown: int, repetitions: int) -> None:
    """Print the coverage of the intervals, and their mean width relative to four standard deviations."""
    warnings.simplefilter("ignore")
    found = []
    for seed in range(repetitions):
        sets = draw(np.random.default_rng(seed), enrolled, unknown)
        evaluation = im.evaluate_gallery(*sets, progress=None, threads=1)
        found.append([
            *rate_intervals(evaluation, THRESHOLD, draws=300),
            *identification_intervals(evaluation, THRESHOLD, draws=300),
        ])  # fmt: skip
    values = np.array([[bound.value for bound in row] for row in found])
    truth, deviation = values.mean(axis=0), values.std(axis=0)
    print(f"\n{enrolled} enrolled and {unknown} unknown classes, {repetitions} repetitions")
    for i, name in enumerate(RATES):
        inside = np.mean([row[i].low <= truth[i] <= row[i].high for row in found])
        width = np.mean([row[i].high - row[i].low for row in found]) / (4 * deviation[i])
        print(f"  {name:5} {truth[i]:8.3%}  contained {inside:6.1%}  width {width:.2f} of four standard deviations")


def main() -> None:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=300)
    repetitions = parser.parse_args().repetitions
    for enrolled, unknown in ((30, 30), (100, 20), (100, 100)):
        check(enrolled, unknown, repetitions)


if __name__ == "__main__":
    main()
