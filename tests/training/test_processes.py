"""Several processes train as one does; here two on the CPU, with gloo."""

import socket

import numpy as np
import pytest

import isomargin as im
from isomargin.training.embed import embed
from processes import in_one_worker, run_together
from training.in_processes import train_as_torchrun_does
from training.runs import TINY, command, metrics, run, tiny

pytestmark = in_one_worker

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


def train_in_two(recipe, folder):
    """Train in two processes, as torchrun starts them."""
    recipe.save(folder / "recipe.yaml")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    run_together(train_as_torchrun_does, (2, port, folder / "recipe.yaml", folder / "two"), 2)


def train_with_devices(recipe, folder):
    """Train with the command's own way to start a second process."""
    recipe.save(folder / "recipe.yaml")
    where = ("--output", folder / "two", "--accelerator", "cpu", "--devices", 2, "--workers", 0)
    process = command("train", folder / "recipe.yaml", *where)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert out.count("items, classes") == 1, "the table was printed by more than one process"


@pytest.mark.parametrize(("name", "train"), [("proxies", train_in_two), ("chunks", train_with_devices)])
def test_two_processes_give_the_losses_of_one(name, train, tmp_path):
    recipe = RECIPES[name]
    run(tmp_path / "one", recipe)
    train(recipe, tmp_path)
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert set(one) == set(two)
        for column in list(one)[: list(one).index("recall@1")]:  # scores are steps: rounding may move a pair over one
            assert two[column] == pytest.approx(one[column], rel=1e-5, abs=1e-6), column
    vectors = [im.EmbeddingSet.load(tmp_path / each / "embeddings.npz").vectors for each in ("one", "two")]
    np.testing.assert_allclose(*vectors, atol=1e-4)
    # Either may be gone on with by any number of processes.
    assert run(tmp_path / "two", recipe, resume=True).images == 100


@pytest.fixture
def _no_others(monkeypatch):
    """Let no other process be started."""
    monkeypatch.setattr("isomargin.training.loop.launch", lambda *_: pytest.fail("processes were started"))


@pytest.mark.usefixtures("_no_others")
def test_what_is_wrong_with_the_folder_is_told_before_processes_are_started(typed, tmp_path):
    RECIPES["proxies"].save(tmp_path / "recipe.yaml")
    (tmp_path / "two").mkdir()
    (tmp_path / "two/mine").write_text("mine")
    code, out, err = typed("train", "recipe.yaml", "--output", "two", "--devices", 2)
    assert (code, out) == (2, "")
    assert err.count("already exists") == 1
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("_no_others")
def test_a_missing_root_is_told_before_processes_are_started(typed, tmp_path):
    tiny(data={"root": "no/such/folder"}).save(tmp_path / "recipe.yaml")
    code, _, err = typed("train", "recipe.yaml", "--output", "two", "--devices", 2)
    assert code == 2
    assert len(err.splitlines()) == 1


def test_processes_evaluate_the_model_that_is_kept(tmp_path):
    """Each has BatchNorm statistics of its own while it trains; the first one's are the model's."""
    train_in_two(tiny(evaluation={"every": 1}), tmp_path)
    kept = im.EmbeddingSet.load(tmp_path / "two/embeddings.npz")
    again = embed(im.open_run(tmp_path / "two")[1].channels_last(), im.load_data(**TINY["data"]).test)
    np.testing.assert_allclose(kept.vectors, again, atol=1e-5)
