"""The experiments on the paper's remarks: their arithmetic against brute force, and the commands on made data."""

import importlib.util
import io
import re
from contextlib import redirect_stderr, redirect_stdout
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest

import isomargin as im
from isomargin.cli.running import run_app
from lab.files import read_csv, write_csv
from lab.remarks import __main__ as command
from lab.remarks import decomposition, floor, heads, label_noise, margin_grids, shift

ROOT = Path(__file__).parents[2]
GRID = np.array([[0.1, -0.3, 0.7], [0.4, 0.2, 1.1], [-0.6, 0.5, 0.9]])


def explained(values, *factors):
    """The share of variance that a linear model of dummy variables explains, by least squares."""
    design = np.hstack([np.eye(factor.max() + 1)[factor] for factor in factors])
    fitted = design @ np.linalg.lstsq(design, values, rcond=None)[0]
    return 1 - np.square(values - fitted).sum() / np.square(values - values.mean()).sum()


@pytest.mark.parametrize("grid", [GRID, GRID[:, :2]], ids=["3 x 3", "3 x 2"])
def test_the_shares_are_those_of_a_linear_model_of_both_margins(grid):
    rows, columns = (index.ravel() for index in np.indices(grid.shape))
    found = decomposition.shares(grid)
    both = explained(grid.ravel(), rows, columns)
    assert found.positive == pytest.approx(explained(grid.ravel(), rows))
    assert found.negative == pytest.approx(explained(grid.ravel(), columns))
    assert found.rest == pytest.approx(1 - both)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_p_value_counts_permutations_within_the_other_margin(axis):
    blocks = GRID.T if axis == 0 else GRID  # one row per value of the other margin
    observed = np.var(blocks.mean(axis=0))
    orders = product(permutations(range(3)), repeat=3)
    as_large = [
        np.var([np.mean([blocks[row][order[column]] for row, order in enumerate(chosen)]) for column in range(3)])
        >= observed - 1e-12
        for chosen in orders
    ]
    assert len(as_large) == 216
    assert decomposition.permutation_p(GRID, axis) == pytest.approx(np.mean(as_large))


def test_all_of_a_grid_without_effects_is_noise_between_seeds():
    generator = np.random.default_rng(0)
    shift_of_seed = generator.normal(size=(2000, 2, 1, 1))
    grids = generator.normal(size=(2000, 2, 3, 3)) + 5 * shift_of_seed
    # The ratio of two mean squares with 8 degrees of freedom each has the mean 8 / 6.
    assert np.mean([decomposition.noise_share(grid) for grid in grids]) == pytest.approx(8 / 6, abs=0.1)


def test_a_grid_is_compared_with_the_run_of_the_same_seed_without_tcm(tmp_path):
    def row(seed, positive, negative, opis, recall):
        margins = {"positive_margin": positive, "negative_margin": negative}
        return {"setting": "a-heads", "loss": "arcface", "seed": seed, **margins, "opis": opis, "recall_at_1": recall}

    rows = [
        row(0, None, None, 0.2, 0.5),
        row(0, 0.6, 0.45, 0.1, 0.6),
        row(0, 0.9, 0.45, 0.8, 0.4),
        row(1, None, None, 0.1, 0.7),
        row(1, 0.6, 0.45, 0.2, 0.8),
        row(1, 0.9, 0.45, 0.1125, 0.7),
    ]
    for experiment in margin_grids.EXPERIMENTS:
        (tmp_path / experiment).mkdir()
        write_csv(tmp_path / experiment / "runs.csv", rows)
    grid = next(margin_grids.read_grids(tmp_path))
    found = margin_grids.count_row(grid)
    assert (found["pairs"], found["lower"], found["lower in every seed"]) == (
        2,
        0,
        0,
    )  # halved and doubled is unchanged
    assert found["higher in every seed"] == 1
    assert found["best"] == pytest.approx(0)
    assert found["near the paper"] == pytest.approx(np.sqrt(4 * 1.125) - 1)
    assert grid.recall_change((0.9, 0.45)) == pytest.approx(-0.05)


def test_wrong_labels_are_as_many_as_asked_for_and_evenly_of_the_other_classes():
    classes = np.repeat(np.arange(10), 500)
    found = label_noise.flipped(classes, 0.4, seed=3)
    wrong = found != classes
    assert wrong.sum() == 2000
    moved = np.zeros((10, 10))
    np.add.at(moved, (classes[wrong], found[wrong]), 1)
    assert np.diag(moved).sum() == 0
    assert moved[~np.eye(10, dtype=bool)].min() > 5  # 22 are expected of each


def test_changes_are_paired_by_class_and_by_seed():
    generator = np.random.default_rng(0)
    first = []
    for _ in range(3):
        run = {name: generator.uniform(1, 2) for name in heads.SCORES}
        first.append(run | {f"drawn {name}": generator.uniform(1, 2, heads.DRAWS) for name in heads.SCORES})
    other = [{name: 0.8 * value if "opis" in name else value + 0.1 for name, value in run.items()} for run in first]
    found = heads.changes(first, other)
    for end in ("", " low", " high"):
        assert found[f"opis change{end}"] == pytest.approx(-0.2)
        assert found[f"recall@1 change{end}"] == pytest.approx(0.1)


def test_noise_doubles_the_variance_at_strength_one_and_half_of_the_features_are_missing():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(200, 400)).astype(np.float32)
    noisy = shift.noise(1.0)(vectors, 1.0, np.random.default_rng(1))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.mean((noisy * unit).sum(axis=1)) == pytest.approx(1 / np.sqrt(2), abs=0.01)
    assert np.mean(shift.missing(0.5)(vectors, 1.0, np.random.default_rng(1)) == 0) == pytest.approx(0.5, abs=0.01)


def test_classes_that_are_alike_have_an_opis_of_chance_that_is_removed_without_bias():
    found = [floor.measure(40, 12, 0.9, seed) for seed in range(8)]
    plugged, cleaned = (np.array([getattr(one, name) for one in found]) for name in ("opis", "debiased_opis"))
    assert plugged.min() > 0
    assert abs(cleaned.mean()) < 4 * cleaned.std(ddof=1) / np.sqrt(len(cleaned))
    assert abs(cleaned.mean()) < plugged.mean() / 4


def run_command(*arguments):
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said, pytest.raises(SystemExit) as stop:
        run_app(command.app, "lab.remarks", [str(argument) for argument in arguments])
    return stop.value.code, said.getvalue()


@pytest.fixture
def features(tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "STEPS", 4)
    monkeypatch.setattr(heads, "DRAWS", 50)
    for name in ("TCM, weight 1", "TCM, share 0.3"):
        monkeypatch.delitem(heads.LOSSES, name)
    monkeypatch.delitem(shift.SHIFTS, "noise 0.5")
    monkeypatch.setattr(label_noise, "NOISE", (0.0, 0.4))
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(24), 10)
    vectors = 2 * generator.normal(size=(24, 32))[labels] + generator.normal(size=(240, 32))
    im.EmbeddingSet(vectors.astype(np.float32), labels).save(tmp_path / "birds.npz")
    return tmp_path / "birds.npz"


def test_label_noise_is_compared_with_plain_training_on_the_same_labels(features, tmp_path):
    arguments = ("label-noise", "--data", f"birds={features}", "--seeds", 2, "--output", tmp_path / "runs")
    for _ in range(2):  # the second time everything is there
        code, said = run_command(*arguments, "--results", tmp_path)
        assert not code, said
    assert said == ""
    runs = read_csv(tmp_path / "remarks/label-noise-runs.csv")
    assert len(runs) == 2 * len(heads.LOSSES) * 2
    by_key = {(row["noise"], row["training"], row["seed"]): float(row["opis"]) for row in runs}
    rows = {(row["noise"], row["training"]): row for row in read_csv(tmp_path / "remarks/label-noise.csv")}
    name = "alignment, share 0.3"
    after, before = (np.mean([by_key["0.4", one, str(seed)] for seed in (0, 1)]) for one in (name, "plain"))
    assert float(rows["0.4", name]["opis change"]) == pytest.approx(after / before - 1)
    effect = np.mean([
        np.log(by_key["0.4", name, str(seed)] / by_key["0.4", "plain", str(seed)])
        - np.log(by_key["0.0", name, str(seed)] / by_key["0.0", "plain", str(seed)])
        for seed in (0, 1)
    ])  # fmt: skip
    assert float(rows["0.4", name]["effect change"]) == pytest.approx(effect)


def test_a_shift_keeps_the_threshold_that_was_chosen_before(features, tmp_path):
    code, said = run_command(
        "shift", "--data", f"birds={features}", "--seeds", 2, "--output", tmp_path / "runs", "--results", tmp_path
    )
    assert not code, said
    rows = [row for row in read_csv(tmp_path / "remarks/shift-runs.csv") if row["embedding"] == "raw"]
    found = {(row["shift"], row["similarity"], row["seed"]): row for row in rows}
    halves = heads.read_halves(features)
    for vectors, classes, name in (
        (halves.test, halves.test_classes, shift.TEST),
        (halves.training, halves.training_classes, shift.KNOWN),
    ):
        row = found[name, "cosine", "1"]
        distances = np.sort(np.linalg.norm(vectors[:, None] - vectors, axis=2)[classes[:, None] < classes])
        reached = distances[int(np.ceil(0.01 * len(distances))) - 1]
        assert float(row["threshold"]) == pytest.approx(reached, abs=1e-6)
        test = np.linalg.norm(halves.test[:, None] - halves.test, axis=2)
        negatives = test[halves.test_classes[:, None] < halves.test_classes]
        assert float(row["carried far"]) == pytest.approx((negatives <= reached + 1e-7).mean(), abs=1e-4)
    for name in shift.SHIFTS:
        row = found[name, "cosine", "1"]
        assert row["threshold"] == found[shift.TEST, "cosine", "1"]["threshold"] != row["own threshold"]


def test_floor_and_margins_write_their_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(floor, "CASES", {"easy": ((10, 6),), "hard": ((10, 4),)})
    monkeypatch.setattr(floor, "REPEATS", 4)
    monkeypatch.setattr(floor, "difference_for", lambda true, spread, repeats: 0.3)
    code, said = run_command("floor", "--output", tmp_path / "runs", "--results", tmp_path)
    assert not code, said
    rows = read_csv(tmp_path / "remarks/floor.csv")
    runs = read_csv(tmp_path / "remarks/floor-runs.csv")
    assert [row["spread"] for row in rows] == list(floor.SPREADS)
    alike = [float(run["opis"]) for run in runs if run["spread"] == "easy" and float(run["true"]) == 0]
    assert float(rows[0]["opis"]) == pytest.approx(np.mean(alike))
    assert len(alike) == 4
    code, said = run_command("margins", "--results", ROOT / "nowhere")
    assert code


def filler():
    specification = importlib.util.spec_from_file_location("fill_remarks", ROOT / "docs" / "fill_remarks.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_tables_of_the_page_are_those_of_the_results():
    script = filler()
    page = script.PAGE.read_text(encoding="utf-8")
    named = re.findall(r"<!-- remark: (.*?) -->", page)
    assert sorted(named) == sorted(script.TABLES)
    assert len(named) == page.count("<!-- end -->")
    assert script.filled(page) == page
    for link in re.findall(r"\]\((?!http)([^)#]+)", page):
        assert (script.PAGE.parent / link).exists(), link


def test_the_stored_tables_of_the_margins_follow_from_the_stored_grids(tmp_path):
    for experiment in margin_grids.EXPERIMENTS:
        (tmp_path / experiment).mkdir()
        (tmp_path / experiment / "runs.csv").write_text((ROOT / "results" / experiment / "runs.csv").read_text())
    margin_grids.run(tmp_path)
    for path in sorted((tmp_path / "remarks").iterdir()):
        assert path.read_text() == (ROOT / "results" / "remarks" / path.name).read_text(), path.name


def test_the_difference_of_gaussian_classes_has_the_opis_that_was_asked_for():
    difference = floor.gaussian_deviation(1e-4)
    distances = np.linspace(1.3 - 0.23263, 1.3 - 0.12816, 101)
    generator = np.random.default_rng(0)
    negatives = np.sort(1.3 + 0.1 * generator.normal(size=400_000))
    curves = []
    for side in (-1, 1):
        positives = np.sort(0.7 + side * difference + 0.15 * generator.normal(size=400_000))
        sensitivity = np.searchsorted(positives, distances) / len(positives)
        specificity = 1 - np.searchsorted(negatives, distances) / len(negatives)
        curves.append(2 * sensitivity * specificity / (sensitivity + specificity))
    assert np.var(curves, axis=0).mean() == pytest.approx(1e-4, rel=0.05)
