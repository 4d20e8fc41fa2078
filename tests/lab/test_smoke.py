"""Every experiment, end to end: trained for real on patterns, with its tables and figures."""

from lab.experiment import experiment_names, load_experiment


def test_every_experiment_is_trained_and_leaves_its_tables_and_figures(run_lab, tmp_path):
    code, out, err = run_lab(
        *("all", "--scale", "toy", "--seeds", 1),
        *("--output", tmp_path / "runs", "--results", tmp_path / "results"),
    )
    assert code == 0, err
    for name in experiment_names():
        experiment, place = load_experiment(name), tmp_path / "results" / name
        plan = experiment.plans["toy"]
        for file in ("table.md", "table.tex", "table.csv", "runs.json"):
            assert (place / file).stat().st_size > 0, (name, file)
        assert (place / "table.md").read_text() in out
        assert len((place / "table.csv").read_text().splitlines()) > 1, name
        assert list((place / "recipes").glob("*.yaml")), name
        figures = {f"{each.figure}-{setting}.png" for each in experiment.figures for setting in plan.settings}
        assert figures <= {path.name for path in place.glob("*.png")}, (name, err)
        assert bool(list(place.glob("margins_grid-*.png"))) == (experiment.kind == "margins"), name
        assert (place / "ranges.md").is_file() == bool(experiment.ranges), name
    assert list((tmp_path / "runs" / "toy").glob("*/seed-0/embeddings.npz"))
