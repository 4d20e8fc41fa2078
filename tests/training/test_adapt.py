"""Fitting an adapter: what is recommended, what the judgement classes are used for, bad input, and the command."""

import json
from functools import partial

import numpy as np
import pytest

import isomargin as im
from isomargin.measure.comparison import Comparison, Difference
from isomargin.measure.statistics.intervals import Interval
from isomargin.training import adapt, adapt_result
from isomargin.training.adapt import fit_adapter, frr_at_target, rows_for_looks, split_classes
from isomargin.training.linear_layer import LabelledVectors, principal_components

LABELS = np.arange(600) % 50  # 12 items per class, 120 of them for judgement
FAST = {"learning_rates": [0.02], "margins": [(0.6, 0.4)], "steps": [30], "progress": None}


def hidden_classes(seed=0):
    """Classes in 4 dimensions, beside 4 dimensions of nuisance that are larger."""
    generator = np.random.default_rng(seed)
    centres, noise = generator.normal(size=(50, 4)), generator.normal(size=(len(LABELS), 4))
    return np.hstack([centres[LABELS] + 0.3 * noise, 3 * generator.normal(size=(len(LABELS), 4))])


@pytest.fixture(scope="module")
def fitted():
    return fit_adapter(hidden_classes(), LABELS, **FAST, refit=False)


def test_the_adapter_is_recommended_where_nuisance_dimensions_hide_the_classes(fitted):
    raw, adapted = fitted.evaluations["raw"], fitted.evaluations["adapter"]
    assert fitted.recommended == "adapter"
    assert adapted.eer < raw.eer / 2
    assert f"lowers FRR at FAR 1% from {raw.target.frr:.1%} to {adapted.target.frr:.1%}" in fitted.recommendation


def test_the_raw_embeddings_are_kept_where_nothing_can_be_gained(tmp_path):
    generator = np.random.default_rng(0)  # classes and noise are alike in all directions
    embeddings = generator.normal(size=(50, 16))[LABELS] + 0.5 * generator.normal(size=(len(LABELS), 16))
    result = fit_adapter(embeddings, LABELS, **FAST, refit=False)
    assert result.recommended == "raw"
    assert "keep the raw embeddings" in result.recommendation
    assert result.adapter.equalizer is None


def test_the_scores_are_those_of_the_adapter_on_the_judgement_classes(fitted):
    judged = split_classes(np.arange(50), seed=0).judgement
    rows = np.isin(LABELS, judged)
    again = im.evaluate(fitted.adapter.transform(hidden_classes()[rows]), LABELS[rows])
    assert again.scalars() == pytest.approx(fitted.evaluations["adapter"].scalars(), nan_ok=True)
    assert fitted.classes == {"training": 30, "selection": 10, "judgement": 10, "left_out": 0}


def test_the_same_seed_gives_the_same_adapter_and_the_judgement_labels_do_not_matter(fitted):
    labels = LABELS.copy()
    judged = np.isin(labels, split_classes(np.arange(50), seed=0).judgement)
    labels[judged] = np.random.default_rng(1).permutation(labels[judged])
    again = fit_adapter(hidden_classes(), labels, **FAST, refit=False)
    np.testing.assert_array_equal(again.adapter.matrix, fitted.adapter.matrix)
    np.testing.assert_array_equal(again.adapter.bias, fitted.adapter.bias)
    assert again.search == fitted.search
    assert again.evaluations["adapter"].eer != fitted.evaluations["adapter"].eer


def test_the_last_fit_uses_all_classes_and_changes_no_score(fitted):
    result = fit_adapter(hidden_classes(), LABELS, **FAST)
    assert not np.array_equal(result.adapter.matrix, fitted.adapter.matrix)
    assert (result.adapter.record["trained_on"], fitted.adapter.record["trained_on"]) == (
        "all classes",
        "training and selection classes",
    )
    scores = "scores_on_judgement_classes"
    assert result.adapter.record[scores] == fitted.adapter.record[scores]


def test_an_equalizer_of_all_adapted_rows_is_part_of_the_adapter_if_recommended(monkeypatch):
    monkeypatch.setattr(adapt, "recommend", lambda *arguments: "adapter + equalizer")
    adapter = fit_adapter(hidden_classes(), LABELS, **FAST).adapter
    expected = im.Equalizer().fit(adapter.transform(hidden_classes()))
    assert adapter.equalizer.digest_ == expected.digest_


def test_settings_are_varied_one_at_a_time_and_the_lowest_frr_wins(monkeypatch):
    tried = []

    def look(vectors, classes):
        tried.append(vectors.shape[1])
        return 1 / len(tried)  # every look is better than the one before

    monkeypatch.setattr(adapt, "frr_at_target", look)
    choices = {"dimensions": [3, 5, 99], "learning_rates": [0.01, 0.02], "margins": [(0.6, 0.4), (0.9, 0.5)]}
    seen = []
    result = fit_adapter(hidden_classes(), LABELS, **choices, steps=[2, 4], refit=False, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert tried == [8] * 4 + [5] * 2 + [3] * 4  # 99 are more than the embeddings have
    last = {"dimensions": 3, "learning_rate": 0.02, "positive_margin": 0.9, "negative_margin": 0.5, "steps": 4}
    assert result.adapter.record["settings"] == last
    assert result.adapter.matrix.shape == (8, 3)


def test_small_classes_are_left_out():
    labels = LABELS.astype(str)
    labels[:3], labels[3] = "three items", "one item"
    result = fit_adapter(hidden_classes(), labels, **FAST, refit=False)
    assert result.classes["left_out"] == 2
    assert result.notes[0] == "2 classes with fewer than 4 items were left out"
    assert result.adapter.record["rows"] == len(labels) - 4
    assert set(result.evaluations["raw"].names) < set(labels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.arange(600) % 19}, "19 of 19 classes have at least 4 items: an adapter needs 20"),
        ({"labels": np.arange(600)}, "0 of 600 classes have at least 4 items"),
        ({"labels": LABELS[:-1]}, "labels has 599 entries, embeddings has 600 rows"),
        ({"embeddings": np.full((600, 8), np.nan)}, "are NaN or infinite"),
        ({"embeddings": np.ones((600, 8))}, "all embeddings point in the same direction"),
        ({"dimensions": 1}, "dimensions is 1"),
        ({"learning_rates": 0.01}, "learning_rates is 0.01: a list of at least one value"),
        ({"margins": [(0.4, 0.6)]}, "the positive margin cannot be below"),
        ({"margins": [(0.4, 0.6, 0.8)]}, "pairs of a positive and a negative margin"),
        ({"steps": []}, "steps is \\[\\]: a list of at least one value"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(changes, message):
    given = {"embeddings": hidden_classes(), "labels": LABELS, **FAST, **changes}
    with pytest.raises(im.InputError, match=message):
        fit_adapter(**given)


def test_the_smallest_data_that_is_accepted_can_be_judged():
    embeddings = np.random.default_rng(0).normal(size=(80, 8))
    result = fit_adapter(embeddings, np.arange(80) % 20, **FAST)
    assert result.recommended == "raw"
    assert result.classes == {"training": 9, "selection": 5, "judgement": 6, "left_out": 0}
    assert any("too few to skip 30 neighbours" in note for note in result.notes)


@pytest.mark.filterwarnings("ignore:all of OPIS may be noise")
def test_the_frr_of_a_look_is_that_of_an_evaluation():
    centres = np.random.default_rng(0).normal(size=(600, 8)) + 2 * np.eye(8)[LABELS % 8]
    assert frr_at_target(centres, LABELS % 8) == pytest.approx(im.evaluate(centres, LABELS % 8).target.frr, abs=1e-3)


@pytest.mark.parametrize(("classes", "size"), [(30, 200), (2000, 4), (50, 20)])
def test_looks_take_few_rows_of_as_many_classes_as_possible(classes, size):
    data = LabelledVectors(
        np.ones((classes * size, 1), np.float32), np.arange(classes * size) % classes, np.arange(classes)
    )
    found = rows_for_looks(data)
    assert len(found.vectors) <= 2500
    assert len(found.vectors) >= min(2400, classes * size)
    assert len(np.unique(found.classes)) == min(classes, 625)


def test_principal_components_are_those_of_scikit_learn():
    from sklearn.decomposition import PCA

    vectors = hidden_classes().astype(np.float32)
    reference = PCA(3).fit(vectors)
    layer = principal_components(vectors, 3)
    signs = np.sign((layer.matrix * reference.components_.T).sum(axis=0))
    np.testing.assert_allclose(layer.matrix * signs, reference.components_.T, atol=1e-5)
    np.testing.assert_allclose((vectors @ layer.matrix + layer.bias) * signs, reference.transform(vectors), atol=1e-4)


# ----- the rule


class Worst:
    """Stands in for an evaluation: the utility of every class."""

    def __init__(self, utility):
        self.curves = self
        self.class_mean_utility = np.full(10, utility)


def differences(frr=0.0, opis=0.0, recall=0.0, p_value=0.001):
    """The differences of one candidate, all of them significant unless they are 0."""

    def row(name, change):
        bounds = (0.9 * change, 1.1 * change) if change else (-0.1, 0.1)
        return Difference(name, 0.5, 0.5 + change, Interval(change, *sorted(bounds), 0.95), None, p_value)

    return (row("frr", frr), row("opis", opis), row("recall@1", recall))


@pytest.mark.parametrize(
    ("candidates", "utility", "expected"),
    [
        ([{"frr": -0.1}, {"frr": -0.3}, {"frr": -0.2}], 0.5, "adapter"),
        ([{"frr": -0.1}, {"frr": -0.3, "recall": -0.1}, {"frr": -0.2}], 0.5, "adapter + equalizer"),
        ([{"frr": -0.1}, {"frr": -0.3, "opis": 0.1}, {}], 0.4, "equalizer"),
        ([{"frr": -0.1}, {"frr": -0.3, "opis": 0.1}, {}], 0.6, "adapter"),  # the worst classes gain
        ([{"frr": -0.1, "p_value": 0.06}, {"frr": 0.1}, {}], 0.5, "raw"),  # too few classes for a small p value
    ],
)
def test_the_lowest_frr_without_harm_is_recommended(candidates, utility, expected):
    others = {name: differences(**row) for name, row in zip(adapt_result.CANDIDATES[1:], candidates, strict=True)}
    comparison = Comparison("raw", others, 0.95, 10, 0.001)
    evaluations = {name: Worst(0.5 if name == "raw" else utility) for name in adapt_result.CANDIDATES}
    assert adapt_result.recommend(evaluations, comparison) == expected


# ----- the command


@pytest.fixture
def command(typed, monkeypatch):
    """The command with a short search."""
    monkeypatch.setattr(adapt, "fit_adapter", partial(fit_adapter, **FAST))
    return typed


def save_separately(folder, embeddings):
    np.savez(folder / "a.npz", vectors=embeddings)
    (folder / "labels.txt").write_text("\n".join(map(str, LABELS)), encoding="utf-8")
    return ["adapt", "a.npz", "--labels", "labels.txt", "--embeddings-key", "vectors"]


def test_the_command_writes_the_adapter_and_says_how_to_use_it(command, tmp_path):
    arguments = save_separately(tmp_path, hidden_classes())
    code, out, err = command(*arguments, "-o", "out", "--dimensions", 6, "--seed", 0)
    assert code == 0, err
    assert im.Adapter.load(tmp_path / "out").transform(hidden_classes()).shape == (600, 6)
    header = next(line for line in out.splitlines() if "raw" in line)
    assert header.split() == ["raw", "equalizer", "adapter", "adapter", "+", "equalizer"]
    for title in ("recall@1", "equal error rate", "FRR at FAR 1%", "OPIS", "spread of class thresholds at FAR 1%"):
        assert f"\n{title} " in out
    assert "120 items of 10 classes" in out
    assert "Recommended: use the adapter" in out
    assert "im.Adapter.load('out').transform(embeddings)" in out


def test_the_command_writes_nothing_if_the_raw_embeddings_are_recommended(command, tmp_path):
    generator = np.random.default_rng(0)
    embeddings = generator.normal(size=(50, 16))[LABELS] + 0.5 * generator.normal(size=(len(LABELS), 16))
    code, out, err = command(*save_separately(tmp_path, embeddings), "--json")
    assert code == 0, err
    values = json.loads(out)
    assert (values["recommended"], values["written_to"]) == ("raw", None)
    assert set(values["scores_on_judgement_classes"]) == set(adapt_result.CANDIDATES)
    assert not (tmp_path / "adapter").exists()


def test_the_command_refuses_bad_input_in_one_sentence(command, tmp_path):
    arguments = save_separately(tmp_path, hidden_classes())
    assert command(*arguments, "-o", "a.npz")[::2] == (
        2,
        "isomargin: a.npz is a file: give a folder for the adapter with --output\n",
    )
    code, _, err = command(*arguments, "-o", "a.npz/adapter")  # before anything is trained
    assert code == 2
    assert "a.npz/adapter cannot be made, because" in err
    im.EmbeddingSet(np.ones((4, 3)), [0, 0, 1, 1]).save(tmp_path / "few.npz")
    code, _, err = command("adapt", "few.npz")
    assert code == 2
    assert err.startswith("isomargin: 0 of 2 classes have at least 4 items")
