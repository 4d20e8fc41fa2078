"""Figures of an experiment: which runs they show, under which names, in which files."""

import pytest
from pretended_training import Trainer, evaluated

from isomargin.figures import gaussian_curves, registry
from isomargin.figures.registry import FigureKind
from lab.run_experiment import run_experiment

pytestmark = pytest.mark.usefixtures("unsaved_figures")


@pytest.fixture
def shown(monkeypatch):
    """Add a figure `recorded` that notes what it is drawn from."""
    seen = []

    def recorded(evaluations, classes=None):
        seen.append((evaluations, classes))
        return gaussian_curves()

    monkeypatch.setitem(registry.FIGURES, "recorded", FigureKind(recorded, "evaluations", "nothing of note"))
    return seen


def draw(tmp_path, diverges=lambda recipe: False):
    notes = []
    options = {"scale": "toy", "train": Trainer(diverges), "report": notes.append}
    run_experiment("drawn", tmp_path / "runs", tmp_path / "results", **options)
    return sorted(path.name for path in (tmp_path / "results" / "drawn").glob("*.png")), notes


def test_the_first_seeds_of_the_runs_that_fit_are_drawn_by_what_differs_between_them(add, shown, tmp_path):
    wanted = {"figure": "recorded", "runs": {"training": ["tcm"]}, "options": {"classes": ["3"]}}
    add("drawn", figures=[wanted, {"figure": "recorded"}, {"figure": "recorded", "runs": {"loss": ["arcface"]}}])
    files, _ = draw(tmp_path)
    assert files == ["recorded-toy-2.png", "recorded-toy-3.png", "recorded-toy.png"]
    (first, classes), (every, _), (arcface, _) = shown
    assert list(first) == ["smooth_ap", "arcface"]
    assert classes == ["3"]
    assert first["smooth_ap"].opis == evaluated(0, 0.1).opis
    assert list(every) == ["smooth_ap plain", "smooth_ap tcm", "arcface plain", "arcface tcm"]
    assert list(arcface) == ["plain", "tcm"]


def test_runs_that_diverged_are_left_out_and_without_any_there_is_no_figure(add, shown, tmp_path):
    add("drawn", figures=[{"figure": "recorded"}, {"figure": "recorded", "runs": {"training": ["tcm"]}}])
    draw(tmp_path)
    for folder in (tmp_path / "runs" / "toy").glob("*tcm"):
        for file in folder.glob("*/evaluation.json"):
            file.unlink()
    shown.clear()
    files, notes = draw(tmp_path, diverges=lambda recipe: bool(recipe.loss.regularizer))
    assert files == ["recorded-toy.png"]
    assert [list(evaluations) for evaluations, _ in shown] == [["smooth_ap", "arcface"]]
    assert notes[-1] == "note: recorded-toy-2.png is not drawn, none of its runs has scores"


def test_a_figure_that_cannot_be_drawn_is_reported_and_the_others_are_drawn(add, tmp_path):
    figures = [
        {"figure": "embeddings_2d"},
        {"figure": "utility_curves", "options": {"colour": "red"}},
        {"figure": "margins_grid"},
        {"figure": "distance_distributions", "runs": {"loss": ["smooth_ap"]}},
    ]
    add("drawn", figures=figures)
    files, notes = draw(tmp_path)
    assert files == ["distance_distributions-toy.png"]
    sentences = "\n".join(notes)
    for part in ("embeddings_2d-toy.png is not drawn", "'colour'", "experiments of kind margins draw it"):
        assert part in sentences


def test_points_show_all_seeds(add, tmp_path, monkeypatch):
    models = []

    def error_against_opis(given):
        models.extend(given)
        return gaussian_curves()

    monkeypatch.setitem(registry.FIGURES, "error_against_opis", FigureKind(error_against_opis, "models", "points"))
    add("drawn", figures=[{"figure": "error_against_opis", "runs": {"loss": ["arcface"]}}])
    draw(tmp_path)
    assert [model.name for model in models] == ["plain seed 0", "plain seed 1", "tcm seed 0", "tcm seed 1"]
    assert [model.opis for model in models[:2]] == [evaluated(seed, 0.7).opis for seed in (0, 1)]


def test_the_seed_that_is_drawn_is_the_first_that_all_have(add, shown, tmp_path):
    add("drawn", figures=[{"figure": "recorded"}])
    diverges = {(0, "arcface"), (1, "smooth_ap")}
    _, notes = draw(tmp_path / "one", lambda recipe: (recipe.seed, recipe.loss.base["name"]) in {(0, "arcface")})
    (every, _) = shown.pop()
    assert list(every) == ["smooth_ap plain", "smooth_ap tcm", "arcface plain", "arcface tcm"]
    assert every["smooth_ap plain"].opis == evaluated(1, 0.5).opis
    assert not [note for note in notes if "recorded" in note]

    _, notes = draw(tmp_path / "two", lambda recipe: (recipe.seed, recipe.loss.base["name"]) in diverges)
    (smooth_ap, _) = shown.pop()
    assert list(smooth_ap) == ["plain", "tcm"]
    assert smooth_ap["plain"].opis == evaluated(0, 0.5).opis
    assert notes[-1] == (
        "note: recorded-toy.png leaves out arcface+plain, arcface+tcm: no scores with the seed that is shown"
    )


def test_a_fault_of_a_figure_is_not_taken_for_a_bad_option(add, tmp_path, monkeypatch):
    def faulty(evaluations):
        return len(3)

    monkeypatch.setitem(registry.FIGURES, "faulty", FigureKind(faulty, "evaluations", "nothing"))
    add("drawn", figures=[{"figure": "faulty"}])
    with pytest.raises(TypeError, match="has no len"):
        draw(tmp_path)
