"""Every experiment runs end to end: it trains on patterns, and writes its tables and figures."""

from lab.experiment import experiment_names, load_experiment
from lab.files import read_csv
from lab.results_folder import read_recipes
from lab.tables import tables_text


def test_every_experiment_trains_and_writes_its_tables_and_figures(run_lab, tmp_path):
    code, out, err = run_lab(
        *("all", "--scale", "toy", "--seeds", 1),
        *("--output", tmp_path / "runs", "--results", tmp_path / "results"),
    )
    assert code == 0, err
    for name in experiment_names():
        experiment, place = load_experiment(name), tmp_path / "results" / name
        plan = experiment.plans["toy"]
        for file in ("table.csv", "runs.csv", "recipes.yaml"):
            assert (place / file).stat().st_size > 0, (name, file)
        assert tables_text(name, tmp_path / "results") in out
        assert read_csv(place / "table.csv"), name
        assert read_recipes(place / "recipes.yaml"), name
        figures = {f"{each.figure}-{setting}.png" for each in experiment.figures for setting in plan.settings}
        assert figures <= {path.name for path in place.glob("*.png")}, (name, err)
        assert bool(list(place.glob("margins_grid-*.png"))) == (experiment.kind == "margins"), name
        assert (place / "ranges.csv").is_file() == bool(experiment.ranges), name
        compared = experiment.kind == "training" and experiment.against
        assert (place / "differences.npz").is_file() == bool(compared), name
        raw = [row for row in read_csv(place / "runs.csv") if row.get("training") == "raw"]
        assert bool(raw) == (plan.raw and "toy-heads" in plan.settings), name
        equalized = [row for row in read_csv(place / "runs.csv") if row.get("training", "").endswith(" + local")]
        assert bool(equalized) == plan.equalized, name
        kept = list(place.glob("evaluations/*/*.npz.xz"))
        assert len(kept) == (len(read_csv(place / "runs.csv")) if experiment.keep else 0), name
    assert list((tmp_path / "runs" / "toy").glob("*/seed-0/embeddings.npz"))
    assert (tmp_path / "results" / "tuning" / "choices.yaml").is_file()
    code, out, err = run_lab("check", "all", "--results", tmp_path / "results")
    assert code == 0, out
    assert "cannot be checked" not in out
