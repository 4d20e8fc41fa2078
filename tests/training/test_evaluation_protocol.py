"""The recipe's section `evaluation` decides how a run is evaluated, during training and at its end."""

import pytest

import isomargin as im
from isomargin.cli.training import show_other_pairs
from isomargin.training.recipe import EvaluationRecipe, load_recipe
from training.runs import metrics, run, tiny

PROTOCOL = {
    "pairs": ["sampled", "all"],
    "negatives_per_positive": 7,
    "seed": 5,
    "far": [0.1, 0.3],
    "grid": 33,
    "epsilon": 0.2,
    "utility": "precision_recall",
    "every": 1,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("protocol") / "run"
    return folder, run(folder, tiny(evaluation=PROTOCOL, epochs=3 / 18))


def by_hand(folder, pairs):
    embeddings = im.EmbeddingSet.load(folder / "embeddings.npz")
    settings = {name: value for name, value in PROTOCOL.items() if name not in ("pairs", "every")}
    return im.evaluate(embeddings.vectors, embeddings.labels, pairs=pairs, target_far=0.1, **settings)


def test_the_run_is_evaluated_by_the_first_pairs_with_every_setting(finished):
    folder, evaluation = finished
    expected = by_hand(folder, "sampled")
    assert evaluation.settings == expected.settings
    assert evaluation.scores() == expected.scores()
    assert evaluation.negative_pairs == 7 * evaluation.positive_pairs
    (row,) = metrics(folder)  # the last model is kept
    assert row["opis"] == evaluation.opis
    assert row["epsilon_opis"] == evaluation.epsilon_opis


def test_the_other_pairs_are_evaluated_at_the_end_and_saved_beside(finished, capsys):
    folder, evaluation = finished
    other = im.Evaluation.load(folder / "all-evaluation.json")
    assert other.scores() == by_hand(folder, "all").scores()
    assert other.opis != evaluation.opis
    show_other_pairs(folder / "all-evaluation.json", as_json=False)
    assert f"By all pairs: OPIS {other.opis:.4g}" in capsys.readouterr().out
    assert load_recipe(folder).evaluation.pairs == ("sampled", "all")


def test_without_a_second_kind_of_pairs_nothing_is_beside(tmp_path):
    run(tmp_path / "run", tiny(epochs=1 / 18))
    assert not list((tmp_path / "run").glob("*-evaluation.json"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["evaluation.pairs=[]"], r"evaluation.pairs is \[\]: all, sampled, or both"),
        (["evaluation.pairs=[all, all]"], "each once, is needed"),
        (["evaluation.pairs=some"], "evaluation.pairs.0 is 'some': 'all' or 'sampled' is needed"),
        (["evaluation.grid=9"], "evaluation.grid is 9"),
        (["evaluation.epsilon=0"], "evaluation.epsilon is 0"),
        (["evaluation.utility=f1"], "'specificity_sensitivity' or 'precision_recall' is needed"),
    ],
    ids=str,
)
def test_what_evaluate_would_refuse_is_refused_before_training(changes, sentence):
    with pytest.raises(im.InputError, match=sentence):
        load_recipe("demo", changes)


def test_rates_too_small_for_the_sampled_pairs_are_refused_before_training(tmp_path):
    recipe = tiny(evaluation={"pairs": ["all", "sampled"], "negatives_per_positive": 1, "far": [0.001, 0.2]})
    with pytest.raises(im.InputError, match=r"false accept rate of 0\.001"):
        run(tmp_path / "run", recipe)
    assert not (tmp_path / "run" / "metrics.csv").exists()


def test_the_defaults_are_those_of_evaluate():
    chosen = EvaluationRecipe().settings("all")
    assert im.measure.settings.Settings.from_values(**chosen) == im.measure.settings.Settings()
