"""OPIS by calibration range equals that of separate evaluations, and so does the order of the models."""

import warnings
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from pretended_training import Trainer, drawn

import isomargin as im
from lab.calibration_ranges import RangeScores
from lab.files import read_csv
from lab.run_experiment import run_experiment
from lab.tables import tables_text

RANGES = [[0.01, 0.05], [0.05, 0.2]]
SPREADS = {("smooth_ap", "plain"): 0.5, ("smooth_ap", "tcm"): 0.1, ("arcface", "plain"): 0.7, ("arcface", "tcm"): 0.3}


@cache
def opis_of(spread, far):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return np.mean([im.evaluate(*drawn(seed, spread), far=far).opis for seed in range(2)])


def kendall(one, other):
    """The share of pairs in the same order minus the share in the opposite order."""
    signs = [np.sign((one[a] - one[b]) * (other[a] - other[b])) for a, b in combinations(range(len(one)), 2)]
    return np.sum(signs) / len(signs)


def test_every_range_has_the_opis_and_the_order_of_separate_evaluations(add, tmp_path):
    add("ranges", ranges=RANGES)
    run_experiment("ranges", tmp_path / "runs", tmp_path / "results", scale="toy", train=Trainer())
    rows = read_csv(tmp_path / "results" / "ranges" / "ranges.csv")
    assert [(float(row["low"]), float(row["high"])) for row in rows[::4]] == [(0.01, 0.05), (0.05, 0.2), (0.01, 0.1)]
    own = [opis_of(spread, (0.01, 0.1)) for spread in SPREADS.values()]
    for far in (*RANGES, [0.01, 0.1]):
        found = [row for row in rows if [float(row["low"]), float(row["high"])] == far]
        expected = [opis_of(SPREADS[row["loss"], row["training"]], tuple(far)) for row in found]
        assert [float(row["opis"]) for row in found] == pytest.approx(expected)
        assert [int(row["rank"]) for row in found] == [1 + sum(other < opis for other in expected) for opis in expected]
        assert [float(row["tau"]) for row in found] == pytest.approx([kendall(expected, own)] * 4)
    text = tables_text("ranges", tmp_path / "results")
    assert "| setting | loss | training | 0.01 to 0.05 | 0.05 to 0.2 | 0.01 to 0.1 |" in text
    first = next(row for row in rows if row["loss"] == "smooth_ap")
    assert f"| {1e3 * float(first['opis']):.3g} ({first['rank']}) |" in text
    taus = [f"{kendall([opis_of(spread, tuple(far)) for spread in SPREADS.values()], own):.2f}" for far in RANGES]
    assert f"| τ with 0.01 to 0.1 |  |  | {taus[0]} | {taus[1]} | 1.00 |" in text


def test_orders_that_disagree_have_a_tau_below_one():
    opis = {(0.01, 0.1): [1.0, 2.0, 3.0], (0.1, 0.2): [1.0, 3.0, 2.0], (0.2, 0.3): [3.0, 2.0, 1.0]}
    scores = RangeScores("toy", [{"loss": loss} for loss in "abc"], (0.01, 0.1), opis)
    assert [scores.tau(far) for far in opis] == pytest.approx([1, 1 / 3, -1])
    assert scores.ranks((0.1, 0.2)) == [1, 3, 2]


def test_a_range_with_too_few_pairs_is_reported_and_left_out(add, tmp_path):
    add("ranges", ranges=[[1e-6, 1e-5], [0.01, 0.05]])
    notes = []
    options = {"scale": "toy", "train": Trainer(), "report": notes.append}
    run_experiment("ranges", tmp_path / "runs", tmp_path / "results", **options)
    assert any("no OPIS from 1e-06 to 1e-05" in note for note in notes)
    assert {row["low"] for row in read_csv(tmp_path / "results" / "ranges" / "ranges.csv")} == {"0.01"}
