"""Stored draws: a table can be computed again from what is beside it, and a changed number is found."""

import numpy as np
import pytest
from pretended_training import Trainer

from lab.files import read_csv, write_csv
from lab.run_experiment import run_experiment
from lab.stored_draws import DIFFERENCES, StoredDraws, in_steps, read_draws, write_draws


@pytest.fixture
def made(add, tmp_path):
    add("losses", against={"training": "plain"}, columns=["recall@1", "recall@4", "opis"])
    run_experiment("losses", tmp_path / "runs", tmp_path / "results", scale="toy", seeds=2, train=Trainer())
    return tmp_path / "results"


def check(run_lab, results):
    code, out, err = run_lab("check", "losses", "--results", results)
    return code, out, err


def test_a_table_follows_from_its_runs_and_draws(run_lab, made):
    code, out, _ = check(run_lab, made)
    assert code == 0
    assert "all are as they should be" in out
    row = next(row for row in read_csv(made / "losses" / "table.csv") if row["training"] == "tcm")
    intervals = [column for column in row if column.endswith(" low") and row[column]]
    assert len(intervals) >= 10
    assert "recall@4 difference low" in intervals
    assert int(out.split(": ")[1].split()[0].replace(",", "")) > 2 * 4 * len(intervals)


def test_a_changed_number_is_found(run_lab, made):
    path = made / "losses" / "table.csv"
    before = path.read_bytes()
    for column in ("opis change low", "recall@4 difference high", "opis p", "opis change", "eer", "frr deviation"):
        rows = read_csv(path)
        row = next(row for row in rows if row["training"] == "tcm" and row["loss"] == "arcface")
        row[column] = str(float(row[column]) * 1.02 + 1e-4)
        write_csv(path, rows)
        code, out, err = check(run_lab, made)
        assert code == 2
        assert f"toy arcface tcm: {column} is {float(row[column]):.6g}" in out
        assert "losses: table.csv does not follow" in err
        path.write_bytes(before)


def test_results_without_draws_are_named(run_lab, made):
    (made / "losses" / DIFFERENCES).unlink()
    code, out, _ = check(run_lab, made)
    assert code == 0
    assert "losses: has no differences.npz, so its intervals and p values cannot be checked" in out


def test_a_part_that_is_run_again_leaves_the_draws_of_the_others(run_lab, made):
    before = {(row.key, row.column): row.draws for row in read_draws(made / "losses")}
    folder = made.parent / "runs"
    run_experiment("losses", folder, made, scale="toy", seeds=2, only={"loss": ["arcface"]}, train=Trainer())
    after = {(row.key, row.column): row.draws for row in read_draws(made / "losses")}
    assert {key: draws.tolist() for key, draws in after.items()} == {
        key: draws.tolist() for key, draws in before.items()
    }
    assert {key[0][1] for key in after} == {"smooth_ap", "arcface"}
    assert check(run_lab, made)[0] == 0


def test_draws_are_stored_in_order_within_a_step_and_on_their_side_of_zero(tmp_path):
    generator = np.random.default_rng(0)
    columns = [generator.normal(size=500) * 10.0**power for power in (-6, 0, 3)]
    columns.append(np.concatenate([np.zeros(3), np.full(200, 1e-12), generator.random(97)]))
    columns.append(np.full(500, -0.25))
    stored = [
        StoredDraws("a b", ("x", "y"), "", f"score {number}", "change", 0.01, *in_steps(draws))
        for number, draws in enumerate(columns)
    ]
    write_draws(stored, tmp_path)
    again = read_draws(tmp_path)
    for draws, row in zip(columns, again, strict=True):
        np.testing.assert_allclose(row.values, np.sort(draws), atol=row.step)
        for compare in (np.less, np.equal, np.greater):
            assert compare(row.values, 0).sum() == compare(draws, 0).sum()
        assert row.key == ("a b", "x", "y")
