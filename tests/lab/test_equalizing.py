"""The experiment equalize: its own arithmetic against brute force, and the command on made data."""

import io
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest

import isomargin as im
from isomargin.cli.running import run_app
from lab.equalizing import __main__ as command
from lab.equalizing.methods import METHODS, Setting, Split, local, plain
from lab.equalizing.regimes import new_class_rates, query_rates
from lab.equalizing.score_matrix import evaluate_scores
from lab.files import read_csv


def made(classes=24, items=12, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), items)
    crowding = np.linspace(0.4, 1.5, classes)[:, None]
    vectors = (crowding * generator.normal(size=(classes, 8)))[labels] + 0.5 * generator.normal(size=(len(labels), 8))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture(scope="module")
def split():
    vectors, labels = made()
    known = labels < 12
    return Split(vectors[known], labels[known], vectors[~known], labels[~known], seed=0)


def test_a_matrix_of_cosines_is_evaluated_like_the_embeddings(split):
    cosines = split.test @ split.test.T
    given, plainly = evaluate_scores(split.test, split.labels, cosines), plain(split)
    for name in ("recall@1", "map_at_r", "eer", "opis", "far_threshold_spread"):
        assert given.scalars()[name] == pytest.approx(plainly.scalars()[name], abs=2e-4, rel=2e-2)


def test_a_class_left_out_of_the_index_has_offsets_without_its_own_items(split):
    neighbours, skip, weight = 10, 3, 0.5
    threshold = local(split, neighbours, skip).target.distance
    cosines = split.test.astype(float) @ split.test.T.astype(float)
    np.fill_diagonal(cosines, -9)

    def offset(row, allowed):
        return np.sort(cosines[row, allowed])[::-1][skip : skip + neighbours].mean()

    inside = np.array([offset(row, np.arange(len(cosines)) != row) for row in range(len(cosines))])
    expected = []
    for name in np.unique(split.labels):
        own, others = split.labels == name, split.labels != name
        outside = np.array([offset(row, others) for row in np.flatnonzero(own)])
        scores = cosines[np.ix_(own, others)] - weight * outside[:, None] - weight * inside[others]
        scores += 2 * weight * inside.mean()
        expected.append((scores >= 1 - threshold * abs(threshold) / 2).mean())
    assert new_class_rates(split, Setting(neighbours, skip), threshold) == pytest.approx(np.array(expected), abs=1e-12)


def test_queries_outside_the_index_are_the_odd_items_of_each_class(split):
    far, frr, _, recall = query_rates(split, None)
    odd = np.arange(len(split.labels)) % 2 == 1
    scores = split.test[odd] @ split.test[~odd].T
    same = split.labels[odd][:, None] == split.labels[~odd]
    assert recall == np.mean(same[np.arange(len(same)), scores.argmax(axis=1)])
    threshold = np.sort(scores[~same])[::-1][int(np.ceil(0.01 * (~same).sum())) - 1]
    assert frr == pytest.approx((scores[same] < threshold).mean())
    assert far.mean() == pytest.approx((scores[~same] >= threshold).mean())


def test_the_command_writes_means_over_splits_and_changes_from_raw(tmp_path, monkeypatch):
    vectors, labels = made(40)
    im.EmbeddingSet(vectors, labels).save(tmp_path / "birds.npz")
    chosen = {name: METHODS[name] for name in ("raw", "local, 1 to 30", "oracle")}
    monkeypatch.setattr(command, "METHODS", chosen)
    monkeypatch.setattr(command, "ADAPTERS", {})
    monkeypatch.setattr(command, "REGIME_SPLITS", 0)
    arguments = ["--data", f"birds={tmp_path / 'birds.npz'}", "--splits", "2", "--output", str(tmp_path / "runs")]
    for _ in range(2):  # the second time everything is there
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said, pytest.raises(SystemExit) as stop:
            run_app(command.app, "lab.equalizing", [*arguments, "--results", str(tmp_path / "results")])
        assert not stop.value.code, said.getvalue()
    assert "split" not in said.getvalue()
    rows = {row["method"]: row for row in read_csv(tmp_path / "results/table.csv")}
    runs = read_csv(tmp_path / "results/runs.csv")
    assert list(rows) == list(chosen)
    for method, row in rows.items():
        values = [float(run["opis"]) for run in runs if run["method"] == method]
        assert len(values) == 2
        assert float(row["opis"]) == pytest.approx(np.mean(values))
    change = float(rows["oracle"]["opis"]) / float(rows["raw"]["opis"]) - 1
    assert float(rows["oracle"]["opis change"]) == pytest.approx(change)
    assert float(rows["oracle"]["far_threshold_spread"]) < float(rows["raw"]["far_threshold_spread"]) / 2
