"""A head trained on vectors is compared with those vectors, on the same classes."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest

import isomargin as im
from isomargin.cli import app as cli
from isomargin.cli.training import training_verdict
from isomargin.data.registry import load_data
from isomargin.measure.comparison import Difference
from isomargin.measure.statistics.intervals import Interval
from isomargin.training.recipe import read_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a head on made vectors by the command; give the run's folder, the test vectors and the output."""
    folder = tmp_path_factory.mktemp("head")
    labels = np.repeat(np.arange(40), 8)
    generator = np.random.default_rng(0)
    vectors = (generator.normal(size=(40, 12))[labels] + 0.7 * generator.normal(size=(320, 12))).astype(np.float32)
    np.savez(folder / "features.npz", embeddings=vectors, labels=labels)
    recipe = read_recipe(
        {
            "name": "head",
            "data": {"name": "embeddings", "root": str(folder / "features.npz")},
            "model": {"backbone": "vectors", "dimensions": 4},
            "loss": {"base": "smooth_ap"},
            "batch": {"classes": 8, "images_per_class": 4},
            "epochs": 1,
        }
    )
    recipe.save(folder / "head.yaml")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["isomargin", "train", "head.yaml"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert not stop.value.code, err.getvalue()
    return folder / "runs/head", load_data("embeddings", folder / "features.npz").test, out.getvalue()


def test_the_raw_features_are_evaluated_on_the_head_s_own_classes(trained):
    run, test, _ = trained
    raw = im.Evaluation.load(run / "raw-evaluation.json")
    assert raw.names.tolist() == im.Evaluation.load(run / "evaluation.json").names.tolist()
    assert raw.opis == pytest.approx(im.evaluate(test.vectors, test.labels).opis, rel=1e-6)


def test_both_are_printed_with_a_sentence_on_which_is_worse(trained):
    run, _, out = trained
    raw, head = (im.Evaluation.load(run / name) for name in ("raw-evaluation.json", "evaluation.json"))
    line = next(line for line in out.splitlines() if line.startswith("recall@1 ") and " points " in line)
    assert f"{raw.recall_at_k[1]:.2%}" in line
    assert f"{head.recall_at_k[1]:.2%}" in line
    assert out.rstrip().splitlines()[-1].startswith("The trained model ")


def row(score, low, high):
    return Difference(score, 0.5, 0.5 + (low + high) / 2, Interval((low + high) / 2, low, high, 0.95), None, 0.01)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            (row("recall@1", -0.3, -0.1), row("eer", -0.2, -0.1)),
            "WORSE than the frozen features in recall@1; better in",
        ),
        (
            (row("recall@1", -0.1, 0.1), row("opis", -0.2, -0.1)),
            "better than the frozen features in OPIS",
        ),
        ((row("recall@1", -0.1, 0.1), row("auc", -0.2, -0.1)), "does not differ significantly"),
    ],
)
def test_the_verdict_names_the_scores_that_differ_significantly(rows, sentence):
    assert sentence in training_verdict(rows)
