"""The experiment ``floor``: the OPIS that chance alone gives to classes that are all alike.

The paper: "the lower bound of OPIS for prevailing DML losses coupled with ViT backbones is around 1e-5", and OPIS needs
"a sufficient number of samples per class".

The items of a class are its own unit axis plus noise in 16 dimensions that all classes share; the noise of an item has
a length of its own, so that items differ in quality. Every class has the same law, so the OPIS of the law is exactly 0,
and the distances have the same law for any number of classes. With a difference, half of the classes have noise that
is longer by a factor and the other half shorter, so that the OPIS of the law is above 0.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.theory import GaussianClass, opis
from lab.files import read_csv, write_csv

NUISANCE = 16  # dimensions of the noise
UNEQUAL = 0.3  # standard deviation of the log of the items' lengths of noise
SPREADS = {"easy": 0.7, "hard": 1.2}
"""Length of the noise: the first gives an EER near 0.5%, the second near 10%."""
CASES = {
    "easy": ((100, 5), (100, 10), (100, 20), (100, 41), (100, 100), (25, 5), (25, 20)),
    "hard": ((100, 5), (100, 10)),
}
"""Numbers of classes and of items per class. The paper's test sets have 5.3 (SOP), 29 (CUB), 41 (Cars), 55 (iNat)."""
REPEATS = 20
TRUE = 1e-5
COMPARED = "easy"  # the kind that is also drawn with classes that differ: with the other, 1e-5 is far below the noise
FIRST_DIFFERENCE = 0.04  # from which that of an OPIS of 1e-5 is extrapolated
QUANTILE = 1.645  # of the normal distribution, one-sided at 5%


def draw_items(
    classes: int, items: int, spread: float, generator: np.random.Generator, difference: float = 0.0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Draw the items of classes that are alike, except for the difference of the odd ones from the even ones."""
    labels = np.repeat(np.arange(classes), items)
    length = spread * np.exp(UNEQUAL * generator.normal(size=len(labels)))
    length = length * (1 + difference * np.where(labels % 2 == 1, 1, -1))
    nuisance = generator.normal(size=(len(labels), NUISANCE)) / np.sqrt(NUISANCE) * length[:, None]
    vectors = np.concatenate([np.eye(classes)[labels], nuisance], axis=1)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def measure(classes: int, items: int, spread: float, seed: int, difference: float = 0.0) -> Evaluation:
    """Evaluate one draw."""
    generator = np.random.default_rng([seed, classes, items, round(1000 * spread), round(1e9 * difference)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a note that OPIS is noise: it is
        vectors, labels = draw_items(classes, items, spread, generator, difference)
        return evaluate(vectors, labels, k=(1,), map_at_r=False, threads=1, progress=None)


def difference_for(true: float, spread: float, repeats: int, items: int = 100) -> float:
    """Return the difference between the classes at which the OPIS of the law is as given: it grows as its square."""
    found = [measure(100, items, spread, seed, FIRST_DIFFERENCE).debiased_opis for seed in range(1000, 1000 + repeats)]
    return FIRST_DIFFERENCE * float(np.sqrt(true / np.mean(found)))


def run_spread(name: str, repeats: int, folder: Path) -> list[dict[str, Any]]:
    """Return one row per draw of one spread; what was drawn before is read."""
    spread, rows = SPREADS[name], []
    places = [folder / f"{name}-{classes}-{items}.csv" for classes, items in CASES[name]]
    laws = [(0.0, 0.0)]
    if name == COMPARED and not all(place.is_file() for place in places):
        laws.append((TRUE, difference_for(TRUE, spread, max(2, repeats // 2))))
    for (classes, items), place in zip(CASES[name], places, strict=True):
        if not place.is_file():
            found = []
            for seed in range(repeats):
                for true, used in laws:
                    evaluation = measure(classes, items, spread, seed, used)
                    values = {"opis": evaluation.opis, "debiased_opis": evaluation.debiased_opis, "eer": evaluation.eer}
                    begin = {"spread": name, "classes": classes, "items": items, "true": true, "difference": used}
                    found.append({**begin, "seed": seed, **values})
            place.parent.mkdir(parents=True, exist_ok=True)
            write_csv(place, found)
            print(f"{name}, {classes} classes, {items} items: OPIS {found[0]['opis']:.3g}", file=sys.stderr)
        rows += read_csv(place)
    return rows


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per spread and size: OPIS by chance, and how often an OPIS of 1e-5 is told from it.

    It is told from 0 if the debiased OPIS exceeds the mean of the draws of equal classes by 1.645 of their deviations.
    """
    found = []
    for key in dict.fromkeys((row["spread"], int(row["classes"]), int(row["items"])) for row in rows):
        alike, different = (
            [
                row
                for row in rows
                if (row["spread"], int(row["classes"]), int(row["items"])) == key and float(row["true"]) == true
            ]
            for true in (0.0, TRUE)
        )
        plugged, cleaned, other, other_plugged = (
            np.array([float(row[score]) for row in group])
            for group, score in (
                (alike, "opis"),
                (alike, "debiased_opis"),
                (different, "debiased_opis"),
                (different, "opis"),
            )
        )
        limit = cleaned.mean() + QUANTILE * cleaned.std(ddof=1)
        compared = (
            {}
            if not different
            else {
                "different opis": other_plugged.mean(),
                "different debiased": other.mean(),
                "different debiased error": other.std(ddof=1) / np.sqrt(len(other)),
                "told apart": float((other > limit).mean()),
            }
        )
        found.append(
            {
                "spread": key[0],
                "classes": key[1],
                "items": key[2],
                "draws": len(alike),
                "eer": np.mean([float(row["eer"]) for row in alike]),
                "opis": plugged.mean(),
                "opis deviation": plugged.std(ddof=1),
                "debiased": cleaned.mean(),
                "debiased deviation": cleaned.std(ddof=1),
                "debiased error": cleaned.std(ddof=1) / np.sqrt(len(cleaned)),
                "limit": limit,
                **compared,
            }
        )
    return found


def gaussian_deviation(true: float) -> float:
    """Return the difference of two Gaussian classes' mean positive distances from their middle that gives this OPIS.

    Positive distances have the mean 0.7 and the deviation 0.15, negative ones 1.3 and 0.1; the range is that where the
    FAR is 1% to 10%.
    """
    negative_mean, negative_deviation = 1.3, 0.1
    calibration = (negative_mean - 2.3263 * negative_deviation, negative_mean - 1.2816 * negative_deviation)
    low, high = 0.0, 0.5
    for _ in range(60):
        middle = (low + high) / 2
        pair = [GaussianClass(0.7 + side * middle, 0.15, negative_mean, negative_deviation) for side in (-1, 1)]
        low, high = (middle, high) if opis(pair, calibration) < true else (low, middle)
    return low


def run(output: Path, results: Path) -> None:
    """Draw what is missing, and write the tables."""
    rows = [row for name in SPREADS for row in run_spread(name, REPEATS, output / "floor")]
    results.mkdir(parents=True, exist_ok=True)
    write_csv(results / "floor-runs.csv", rows)
    write_csv(results / "floor.csv", table(rows))
    gaussian = [{"opis": true, "difference": gaussian_deviation(true)} for true in (1e-6, 1e-5, 1e-4, 1e-3)]
    write_csv(results / "floor-gaussian.csv", gaussian)
