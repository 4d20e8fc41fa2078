"""Tuning TCM and the class alignment by one rule: which points are tried, which is chosen, and where it is used."""

import pytest
from pretended_training import Trainer, evaluated

from isomargin.core.errors import InputError
from lab import experiment, tuned_choices
from lab.experiment import Tuning, load_settings
from lab.files import read_csv
from lab.plan import planned_runs
from lab.run_experiment import run_experiment
from lab.tables import tables_text
from lab.tuned_choices import read_choices, write_choices
from lab.tuning import ALIGNMENT, PLAIN, TCM, Case, Point, fewest_and_most

LADDERS = Tuning(
    positive=(0.3, 0.45, 0.6, 0.75, 0.9, 0.95),
    negative=(0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9),
    start_positive=(0.6, 0.75, 0.9),
    start_negative=(0.3, 0.45, 0.6),
)


def search(opis, recall=lambda point: 0.8):
    """Search with scores that are functions of a point; give the case, and the points by rounds."""
    case, rounds = Case("toy", {"loss": "smooth_ap"}, (), LADDERS), []
    for points in case.rounds():
        rounds.append(points)
        assert not set(points) & set(case.scores), "a point is tried once"
        for point in points:
            case.scores[point] = {"opis": [opis(point)], "recall@1": [recall(point)]}
    return case, rounds


def bowl(positive, negative, share=0.3):
    """Give an OPIS that is lowest at one point."""

    def opis(point):
        if point.method != TCM:
            return 1.0
        return (point.positive - positive) ** 2 + (point.negative - negative) ** 2 + 0.01 * abs(point.share - share)

    return opis


def test_a_choice_within_the_first_grid_needs_no_more_margins():
    case, rounds = search(bowl(0.75, 0.45))
    assert case.best(case.of(TCM)) == Point(TCM, 0.3, 0.75, 0.45)
    assert [len(points) for points in rounds] == [1 + 3 + 9, 2]
    assert fewest_and_most(LADDERS)[0] == 1 + 3 + 9 + 2


def test_a_choice_at_the_edge_is_followed_until_all_its_neighbours_are_worse_or_the_ladder_ends():
    case, _ = search(bowl(0.45, 0.15))
    assert case.best(case.of(TCM)) == Point(TCM, 0.3, 0.45, 0.15)
    assert Point(TCM, 0.3, 0.3, 0.0) in case.scores
    beyond, _ = search(bowl(2, 2))
    assert beyond.best(beyond.of(TCM)) == Point(TCM, 0.3, 0.95, 0.9)
    assert len(beyond.scores) <= fewest_and_most(LADDERS)[1]
    assert all(point.positive >= point.negative for point in beyond.of(TCM))


def test_another_share_is_tried_with_the_chosen_margins_and_their_neighbours():
    case, rounds = search(bowl(0.75, 0.45, share=1.0))
    assert case.best(case.of(TCM)) == Point(TCM, 1.0, 0.75, 0.45)
    assert {(point.positive, point.negative) for point in rounds[-1]} == {
        *((0.6, 0.45), (0.9, 0.45), (0.75, 0.3), (0.75, 0.6)),
    }
    assert {point.share for point in rounds[-1]} == {1.0}


@pytest.mark.parametrize("method", [TCM, ALIGNMENT])
def test_both_methods_lose_at_most_half_a_point_of_plains_recall(method):
    shares = {0.1: (3.0, 0.8), 0.3: (2.0, 0.796), 1.0: (1.0, 0.79)}  # OPIS and recall@1

    def value(which):
        return lambda point: (9.0, 0.8)[which] if point.method == PLAIN else shares[point.share][which]

    case, _ = search(value(0), value(1))
    assert case.best(case.of(method)).share == 0.3
    worse, _ = search(value(0), lambda point: value(1)(point) - (0 if point.method == PLAIN else 0.1))
    assert worse.best(worse.of(method)).share == 0.1, "if all lose more, the one that loses least"


class ByShare(Trainer):
    """Training whose classes differ the less, the nearer the share is to 1."""

    def __call__(self, recipe, folder, **options):
        super().__call__(recipe, folder, **options)
        regularizer = recipe.loss.regularizer or {"share": 0}
        evaluated(recipe.seed, round(0.7 - 0.5 * regularizer["share"], 2)).save(folder / "evaluation.json")


def test_what_was_chosen_is_written_and_used_by_the_choices_of_settings(add, tmp_path, monkeypatch):
    ladders = {"positive": [0.6, 0.9], "negative": [0.5], "start_positive": [0.9], "start_negative": [0.5]}
    plan = {"settings": ["toy"], "axes": {"loss": ["smooth_ap", "arcface"]}, "seeds": 2}
    add("tuning", kind="tuning", plans={"toy": {**plan, "tuning": {**ladders, "tolerance": 0.5}}})
    options = {"scale": "toy", "train": ByShare(), "only": {"loss": ["arcface"]}}
    run_experiment("tuning", tmp_path / "runs", tmp_path / "results", **options)
    options["only"] = {"loss": ["smooth_ap"]}
    run_experiment("tuning", tmp_path / "runs", tmp_path / "results", **options)
    place = tmp_path / "results" / "tuning"
    rows = read_csv(place / "table.csv")
    assert [(row["loss"], row["training"], row["share"]) for row in rows] == [
        (loss, method, "1.0") for loss in ("arcface", "smooth_ap") for method in ("tcm", "alignment")
    ]
    assert "| smooth_ap | alignment | 2 | 3 | – | – | 1* |" in tables_text("tuning", tmp_path / "results")
    chosen = read_choices(place / "choices.yaml")
    assert list(chosen["toy"]) == ["arcface", "smooth_ap"]
    assert chosen["toy"]["smooth_ap"]["alignment"]["share"] == 1.0

    monkeypatch.setattr(tuned_choices, "HOME", place / "choices.yaml")
    tuned_choices.known_choices.cache_clear()
    fields = load_settings()[0]["toy"].model_dump(exclude={"choices", "features"})
    choices = {"training": {"tcm": [{"tuned": "tcm"}]}}
    add.settings(
        toy={**fields, "changes": list(fields["changes"]), "tuned_in": "toy", "choices": choices},
        other={**fields, "changes": list(fields["changes"]), "tuned_in": "other", "choices": choices},
    )
    axes = {"loss": ["smooth_ap"], "training": ["tcm"]}
    plans = {"toy": {"settings": ["toy"], "axes": axes}}
    (run,) = planned_runs(add("losses", plans=plans), "toy", 1, {"patterns": tmp_path})
    assert run.recipe.loss.regularizer == chosen["toy"]["smooth_ap"]["tcm"]
    plans["toy"]["settings"] = ["other"]
    with pytest.raises(InputError, match="has no tcm for smooth_ap in other: run the experiment tuning there first"):
        planned_runs(add("others", plans=plans), "toy", 1, {"patterns": tmp_path})
    tuned_choices.known_choices.cache_clear()
    experiment.load_settings.cache_clear()


def test_choices_of_other_settings_stay(tmp_path):
    path = tmp_path / "choices.yaml"
    write_choices({"a": {"x": {"tcm": {"name": "tcm", "share": 0.3}}}}, path)
    write_choices({"a": {"y": {"tcm": {"name": "tcm", "share": 1.0}}}, "b": {"x": {"tcm": {"name": "tcm"}}}}, path)
    assert read_choices(path) == {
        "a": {"x": {"tcm": {"name": "tcm", "share": 0.3}}, "y": {"tcm": {"name": "tcm", "share": 1.0}}},
        "b": {"x": {"tcm": {"name": "tcm"}}},
    }
