"""Rows that are not trained: raw features and equalized runs; and runs that are known without their folders."""

import shutil

import numpy as np
import pytest

import isomargin as im
from isomargin.core.errors import InputError
from lab import comparisons
from lab.files import read_csv
from lab.kept import compact, load_kept, measured, save_kept
from lab.run_experiment import run_experiment

SETTING = {
    "recipe": "omniglot",
    "data": "pattern-features",
    "changes": [
        "data={name: embeddings, order: 12}",
        "model={backbone: vectors, dimensions: 8}",
        "augmentation={name: none}",
        "batch={classes: 6, images_per_class: 2}",
        "epochs=0.25",
        "evaluation.far=[0.05, 0.2]",
    ],
}
PLAN = {
    "settings": ["heads"],
    "axes": {"loss": ["smooth_ap"], "training": ["plain", "tcm"]},
    "seeds": 2,
    "raw": True,
    "equalized": True,
}


@pytest.fixture
def heads(add, tmp_path):
    """An experiment on heads that keeps its evaluations, run once."""
    add.settings(heads=SETTING)
    add("heads", plans={"toy": PLAN}, against={"training": "plain"}, keep="evaluations")
    run_experiment("heads", tmp_path / "runs", tmp_path / "results", scale="toy")
    return tmp_path


def rows_of(folder):
    return {row["training"]: row for row in read_csv(folder / "results" / "heads" / "table.csv")}


@pytest.mark.filterwarnings("ignore:the reference has 96 rows")
def test_raw_features_and_equalized_runs_are_measured_and_compared(heads, run_lab):
    rows = rows_of(heads)
    assert list(rows) == ["raw", "raw + local", "plain", "plain + local", "tcm", "tcm + local"]
    assert [(row["loss"], row["seeds"]) for row in rows.values()][:3] == [
        ("none", "1"),
        ("none", "1"),
        ("smooth_ap", "2"),
    ]
    with np.load(heads / "runs" / "data" / "features.npz") as features:
        vectors, labels = features["embeddings"], features["labels"]
    test = labels >= 12
    options = {"far": (0.05, 0.2), "target_far": 0.05}
    raw = im.evaluate(vectors[test], labels[test], **options)
    local = im.evaluate(vectors[test], labels[test], equalizer=im.Equalizer().fit(vectors[test]), **options)
    assert float(rows["raw"]["opis"]) == pytest.approx(raw.opis, rel=1e-6)
    assert float(rows["raw + local"]["opis"]) == pytest.approx(local.opis, rel=1e-6)
    assert float(rows["raw + local"]["opis change"]) == pytest.approx(local.opis / raw.opis - 1, rel=1e-6)
    plain, tcm_local, tcm = (float(rows[name]["opis"]) for name in ("plain", "tcm + local", "tcm"))
    assert float(rows["plain"]["opis change from raw"]) == pytest.approx(plain / raw.opis - 1, rel=1e-6)
    assert float(rows["tcm + local"]["opis change"]) == pytest.approx(tcm_local / plain - 1, rel=1e-6)
    assert float(rows["tcm + local"]["opis change from unequalized"]) == pytest.approx(tcm_local / tcm - 1, rel=1e-6)
    code, out, _ = run_lab("check", "heads", "--results", heads / "results")
    assert code == 0
    assert "all are as they should be" in out


def test_runs_whose_folders_are_gone_are_known_from_the_results(heads):
    before = rows_of(heads)
    shutil.rmtree(heads / "runs" / "heads")
    notes, trained = [], []

    def train(recipe, folder, **options):
        trained.append(folder)
        raise AssertionError(folder)

    options = {"scale": "toy", "report": notes.append, "train": train}
    run_experiment("heads", heads / "runs", heads / "results", **options)
    assert trained == []
    assert "5 of 5 runs are known from the evaluations that are kept with the results" in notes
    after = rows_of(heads)
    for name, row in before.items():
        assert after[name] == row


def test_a_kept_evaluation_of_another_recipe_is_trained_again(heads, add):
    shutil.rmtree(heads / "runs" / "heads")
    add.settings(heads={**SETTING, "changes": [*SETTING["changes"], "optimizer.learning_rate=0.01"]})
    notes = []
    run_experiment("heads", heads / "runs", heads / "results", scale="toy", report=notes.append)
    assert not any("kept with the results" in note for note in notes)
    assert (heads / "runs" / "heads" / "smooth_ap+plain" / "seed-1" / "evaluation.json").is_file()


def test_a_kept_evaluation_has_the_scores_and_nearly_the_draws(tmp_path):
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(40), 30)
    widths = np.linspace(0.4, 0.9, 40)[labels, None]
    centres = generator.normal(size=(40, 32))[labels]
    runs = [
        measured(im.evaluate(centres + scale * widths * generator.normal(size=(1200, 32)), labels))
        for scale in (1.0, 1.3)
    ]
    kept = []
    for number, run in enumerate(runs):
        save_kept(compact(run), {"epochs": 3}, tmp_path / f"{number}.npz.xz")
        kept.append(load_kept(tmp_path / f"{number}.npz.xz"))
        assert kept[-1].scores == pytest.approx(run.scores, nan_ok=True, rel=0, abs=0)
    assert (tmp_path / "0.npz.xz").stat().st_size < 25_000
    (exact, small) = (comparisons.Comparer().compare([pair[0]], [pair[1]]) for pair in (runs, kept))
    assert set(exact) == set(small)
    for name in ("opis", "debiased_opis", "epsilon_opis", "recall@1", "eer", "frr", "far_threshold_spread"):
        one, two = exact[name].difference.difference, small[name].difference.difference
        assert two.value == pytest.approx(one.value, abs=1e-12)
        assert [two.low, two.high] == pytest.approx([one.low, one.high], abs=0.04 * (one.high - one.low))


def test_raw_features_are_added_to_earlier_rows_without_training(add, tmp_path):
    add.settings(heads=SETTING)
    plan = {**PLAN, "raw": False, "equalized": False}
    add("heads", plans={"toy": plan}, against={"training": "plain"})
    run_experiment("heads", tmp_path / "runs", tmp_path / "results", scale="toy")
    before = rows_of(tmp_path)

    def train(*args, **kwargs):
        raise AssertionError("something was trained")

    only = {"only": {"training": ["raw"]}, "scale": "toy", "train": train}
    with pytest.raises(InputError, match="training is 'raw'"):
        run_experiment("heads", tmp_path / "runs", tmp_path / "results", **only)
    add("heads", plans={"toy": {**plan, "raw": True}}, against={"training": "plain"})
    run_experiment("heads", tmp_path / "others", tmp_path / "results", **only)
    after = rows_of(tmp_path)
    assert list(after) == ["raw", "plain", "tcm"]
    assert all(after[name][column] == value for name, row in before.items() for column, value in row.items())


def test_rows_stay_when_raw_features_join_the_plan_and_another_setting_is_run(add, tmp_path):
    add.settings(heads=SETTING, others=SETTING)
    plan = {**PLAN, "raw": False, "equalized": False}
    add("heads", plans={"toy": plan}, against={"training": "plain"})
    run_experiment("heads", tmp_path / "runs", tmp_path / "results", scale="toy")
    before = rows_of(tmp_path)
    plan = {**plan, "raw": True, "settings": ["heads", "others"]}
    add("heads", plans={"toy": plan}, against={"training": "plain"})
    run_experiment("heads", tmp_path / "runs", tmp_path / "results", scale="toy", settings=["others"])
    rows = [row for row in read_csv(tmp_path / "results" / "heads" / "table.csv") if row["setting"] == "heads"]
    assert {row["training"]: row["opis"] for row in rows} == {name: row["opis"] for name, row in before.items()}
