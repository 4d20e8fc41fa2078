"""Batches of one item per class: refused for losses that learn from positive pairs."""

import pytest

from training.runs import tiny

ALONE = "batch.images_per_class is 1, so no batch holds a positive pair, and {} from such pairs: set it to 2 or more"


@pytest.fixture
def recipe(tmp_path):
    tiny(batch={"classes": 8, "images_per_class": 1}, epochs=0.1).save(tmp_path / "tiny.yaml")
    return tmp_path / "tiny.yaml"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["loss.base=smooth_ap", "loss.regularizer=null"], "smooth_ap learns"),
        (["loss.base=contrastive", "loss.regularizer=null"], "contrastive learns"),
        (["loss.base=roadmap", "loss.regularizer=tcm"], "sup_ap and calibration and tcm learn"),
        (["loss.base=threshold_penalty", "loss.regularizer=null"], "threshold_penalty learns"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_losses_of_pairs_refuse_batches_of_one_item_per_class(run, recipe, tmp_path, changes, told, dry):
    code, out, err = run("train", recipe, *changes, "--output", tmp_path / "run", *(["--dry-run"] if dry else []))
    assert (code, out) == (2, "")
    assert ALONE.format(told) in err
    assert len(err.splitlines()) == 1


def test_a_proxy_loss_trains_with_one_item_per_class(run, recipe, tmp_path):
    code, _, err = run("train", recipe, "loss.regularizer=null", "--output", tmp_path / "run", "--workers", 0)
    assert code == 0, err
    assert "positive pair" not in err


def test_a_regularizer_without_positive_pairs_beside_a_proxy_loss_is_a_note(run, recipe, tmp_path):
    code, _, err = run("train", recipe, "--output", tmp_path / "run", "--workers", 0)
    assert code == 0, err
    assert "note: batch.images_per_class is 1, so no batch holds a positive pair, and tcm learns from such pairs" in err
