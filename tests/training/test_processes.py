"""Several processes train as one does; here two on the CPU, with gloo."""

import numpy as np
import pytest

import isomargin as im
from isomargin.training.embed import embed
from training.runs import TINY, command, metrics, run, tiny

# BatchNorm in training mode takes its statistics from each process's own images; that is the one thing that may differ.
FROZEN = {"freeze_batch_norm": "statistics"}
RECIPES = {
    "proxies": tiny(model=FROZEN, schedule={"warm_up_epochs": 0.4}, optimizer={"clip_norm": 1.0}),
    "chunks": tiny(
        model=FROZEN,
        loss={"base": {"name": "smooth_ap", "temperature": 0.1}, "regularizer": {"name": "class_alignment"}},
        optimizer={"learning_rate": 1e-4},  # the steps of a larger one grow out of any rounding
        batch={"classes": 7, "chunk": 3},  # 4 classes in one process, 3 in the other
    ),
}


@pytest.mark.parametrize(("name", "launcher"), [("proxies", "devices"), ("proxies", "torchrun"), ("chunks", "devices")])
def test_two_processes_give_the_losses_of_one(name, launcher, tmp_path):
    recipe = RECIPES[name]
    recipe.save(tmp_path / "recipe.yaml")
    run(tmp_path / "one", recipe)
    arguments = ("train", tmp_path / "recipe.yaml", "--output", tmp_path / "two", "--accelerator", "cpu")
    if launcher == "devices":
        process = command(*arguments, "--devices", 2, "--workers", 0)
    else:
        start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "isomargin")
        process = command(*arguments, "--workers", 0, start=start)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert out.count("images, classes") == 1, "the table was printed by more than one process"
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert set(one) == set(two)
        for column in list(one)[: list(one).index("recall@1")]:  # scores are steps: rounding may move a pair over one
            assert two[column] == pytest.approx(one[column], rel=1e-5, abs=1e-6), column
    vectors = [im.EmbeddingSet.load(tmp_path / each / "embeddings.npz").vectors for each in ("one", "two")]
    np.testing.assert_allclose(*vectors, atol=1e-4)
    # Either may be gone on with by any number of processes.
    assert run(tmp_path / "two", recipe, resume=True).images == 100


def test_what_is_wrong_with_the_recipe_is_told_once_before_processes_are_started(tmp_path):
    RECIPES["proxies"].save(tmp_path / "recipe.yaml")
    (tmp_path / "two").mkdir()
    (tmp_path / "two/mine").write_text("mine")
    process = command("train", tmp_path / "recipe.yaml", "--output", tmp_path / "two", "--devices", 2)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err.count("there already") == 1
    assert len(err.splitlines()) == 1


def test_processes_evaluate_the_model_that_is_kept(tmp_path):
    """Each has BatchNorm statistics of its own while it trains; the first one's are the model's."""
    recipe = tiny(evaluation={"every": 1})
    recipe.save(tmp_path / "recipe.yaml")
    process = command(
        "train", tmp_path / "recipe.yaml", "--output", tmp_path / "two", "--devices", 2, "--accelerator", "cpu"
    )
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    kept = im.EmbeddingSet.load(tmp_path / "two/embeddings.npz")
    again = embed(im.open_run(tmp_path / "two")[1].channels_last(), im.load_data(**TINY["data"]).test)
    np.testing.assert_allclose(kept.vectors, again, atol=1e-5)


def test_a_missing_root_is_told_once(tmp_path):
    tiny(data={"root": "no/such/folder"}).save(tmp_path / "recipe.yaml")
    process = command("train", tmp_path / "recipe.yaml", "--output", tmp_path / "two", "--devices", 2)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert len(err.splitlines()) == 1
