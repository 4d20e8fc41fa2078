"""The heat maps of a search, which the command draws."""

from PIL import Image

from isomargin import figures
from isomargin.training.tuned import TunedRun
from training.runs import tiny


def test_the_command_tune_draws_its_maps(run, tmp_path):
    tiny().save(tmp_path / "tiny.yaml")
    options = ("--positive", "0.9", "--negative", "0.5", "--no-baseline", "--held-out", "0.3", "--workers", 0)
    code, _, err = run("tune", tmp_path / "tiny.yaml", "epochs=0.2", "--output", tmp_path / "search", *options)
    assert code == 0, err
    with Image.open(tmp_path / "search/tune.png") as image:
        assert min(image.size) > 200


def test_maps_are_drawn_with_runs_that_have_no_scores(tmp_path):
    nan = float("nan")
    rows = [TunedRun("0.9-0.5", 0.9, 0.5, 1.0, nan, nan, nan, nan), TunedRun("0.9-0.4", 0.9, 0.4, 1.0, 0.8, 1e-3, 0, 0)]
    figures.save(figures.margins_grid(rows, 0.01), tmp_path / "tune.png")
    with Image.open(tmp_path / "tune.png") as image:
        assert image.format == "PNG"
