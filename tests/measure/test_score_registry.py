"""The registry of scores: complete, and what every place that shows scores reads."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

import isomargin as im
from isomargin.measure.scores.registry import SCORES, find_score, scores_of

PAGE = Path(__file__).parents[2] / "docs" / "scores.md"


@pytest.fixture(scope="module")
def evaluation():
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(20), 8)
    return im.evaluate(generator.normal(size=(20, 16))[labels] + generator.normal(size=(160, 16)), labels, k=(1, 5))


def test_scalars_are_plain_floats_of_every_score_and_size(evaluation):
    scalars = evaluation.scalars()
    assert all(type(value) is float for value in scalars.values())
    usual = {
        name for name, score in SCORES.items() if not score.on_request and evaluation.comparison in score.comparisons
    }
    assert usual | {"recall@1", "recall@5", "classes", "items", "positive_pairs", "negative_pairs"} <= set(scalars)
    assert not (set(SCORES) - usual) & set(scalars)
    assert scalars["opis"] == evaluation.opis
    assert scalars["recall@5"] == evaluation.recall_at_k[5]
    assert scalars["far_threshold_spread"] == evaluation.far_threshold_spread.relative_deviation
    assert scalars["items"] == 160


def test_every_score_lies_within_its_bounds_and_says_so_in_its_interval(evaluation):
    for name, bound in evaluation.intervals().items():
        low, high = find_score(name).bounds
        assert low <= bound.low <= bound.value <= bound.high <= high


def test_the_direction_of_every_score_is_that_in_which_better_embeddings_move(evaluation):
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(20), 8)
    centres = generator.normal(size=(20, 16))[labels]
    good, bad = (
        im.evaluate(centres + noise * generator.normal(size=(160, 16)), labels, k=(1,)) for noise in (0.4, 1.2)
    )
    # FAR is what was asked for; the relative scores need not fall when everything gets better.
    relative = {"relative_opis", "far_threshold_spread", "frr_threshold_spread", "far_within_two", "frr_within_two"}
    free = set(scores_of(good)) - {"far"} - relative
    for name in free:
        score = find_score(name)
        assert (score.read(good) < score.read(bad)) == score.lower_is_better, name


def test_an_unknown_score_is_refused_and_an_unmeasured_recall_is_nan(evaluation):
    with pytest.raises(im.InputError, match="there is no score 'recall': did you mean 'recall@1'"):
        find_score("recall")
    assert math.isnan(find_score("recall@7").read(evaluation))


def test_the_documentation_has_the_table_that_the_registry_gives():
    spec = importlib.util.spec_from_file_location("fill_scores", PAGE.parent / "fill_scores.py")
    fill_scores = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fill_scores)
    page = PAGE.read_text(encoding="utf-8")
    assert fill_scores.filled(page) == page, "run docs/fill_scores.py"


def test_the_old_name_of_items_still_works_and_warns(evaluation):
    with pytest.warns(DeprecationWarning, match=r"use Evaluation\.items"):
        assert evaluation.images == evaluation.items == 160
