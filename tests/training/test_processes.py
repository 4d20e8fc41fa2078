"""Several processes train as one does; here two on the CPU, with gloo."""

from collections import Counter

import numpy as np
import pytest

import isomargin as im
from isomargin.training.agreement import lost_process
from isomargin.training.embed import embed
from isomargin.training.run_folder import RunFolder
from processes import in_one_worker, run_together
from training.in_processes import train_and_note_reads, train_as_torchrun_does, train_by_another_recipe
from training.nodes import free_port, largest_difference
from training.runs import TINY, command, metrics, photographs, run, tiny

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
    run_together(train_as_torchrun_does, ((2,), free_port(), folder / "recipe.yaml", folder / "two"), 2)


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


def test_nodes_of_two_and_one_process_give_the_parameters_of_one(tmp_path):
    """With 64 bits nothing is left but rounding in the last digits. SiMix depends on the order of the batch."""
    recipe = tiny(
        model={"backbone": "tiny_conv", **FROZEN},
        loss={
            "base": {"name": "recall_at_k", "k": [1, 2], "simix": True},
            "regularizer": [{"name": "proxy_anchor"}, {"name": "class_alignment", "share": 0.3}],
        },
        precision="64-true",
        epochs=20 / 18,
        evaluation={"every": 2},
    )
    recipe.save(tmp_path / "recipe.yaml")
    run_together(train_as_torchrun_does, ((2, 1), free_port(), tmp_path / "recipe.yaml", tmp_path / "nodes"), 3)
    run(tmp_path / "one", recipe)
    assert largest_difference(tmp_path / "one", tmp_path / "nodes") < 1e-10


def test_each_image_is_read_once_an_epoch_over_all_processes(tmp_path):
    """And once before, to find files that cannot be decoded; those of test classes once for each evaluation."""
    root = photographs(tmp_path / "photos", classes=12, images=4)
    bad = root / "class 0/bad.png"
    bad.write_bytes((root / "class 0/0.png").read_bytes()[:-40])
    sizes = {"classes": 3, "images_per_class": 2}
    recipe = tiny(
        data={"name": "folder", "root": str(root), "order": 6}, batch=sizes, epochs=2, skip_bad_images=True,
        model={"backbone": "tiny_conv", "image_size": 28}, evaluation={"every": 1, "far": [0.1, 0.2]},
    )  # fmt: skip
    recipe.save(tmp_path / "recipe.yaml")
    run_together(train_and_note_reads, ((1, 1), free_port(), tmp_path / "recipe.yaml", tmp_path / "run", root), 2)
    reads = [Counter((tmp_path / f"run.reads-{rank}").read_text().splitlines()) for rank in range(2)]
    assert min(reads[1].values()) > 0
    total = reads[0] + reads[1]
    assert total.pop(str(bad)) == 1
    train = [f"class {number}" for number in (0, 1, 10, 11, 2, 3)]
    expected = {
        str(path): 1 + 2 if path.parent.name in train else 1 + 2 + 1  # the chosen model is evaluated once more
        for path in root.rglob("*.png")
        if path != bad
    }
    assert total == expected


def test_processes_with_other_settings_are_refused_and_one_says_so(tmp_path):
    recipes = [tmp_path / "zero.yaml", tmp_path / "one.yaml"]
    for seed, path in enumerate(recipes):
        tiny(seed=seed).save(path)
    run_together(train_by_another_recipe, ((1, 1), free_port(), recipes, tmp_path / "run"), 2)
    first, second = ((tmp_path / f"run.error-{rank}").read_text() for rank in range(2))
    assert first.startswith("InputError: the settings of process 1 on ")
    assert second.startswith("StoppedElsewhereError: ")


def test_an_error_that_is_not_a_lost_connection_stays_what_it_is(tmp_path):
    assert lost_process(RuntimeError("shapes cannot be multiplied"), RunFolder(tmp_path), 4) is None


def test_tasks_of_srun_without_torchrun_are_refused(typed, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    tiny().save(tmp_path / "recipe.yaml")
    code, _, err = typed("train", "recipe.yaml", "--workers", 0)
    assert code == 2
    assert "srun started this command 8 times" in err


def test_the_same_command_starts_a_run_and_resumes_it(typed, tmp_path):
    tiny(epochs=0.2).save(tmp_path / "recipe.yaml")
    command = ("train", "recipe.yaml", "--output", "run", "--workers", 0, "--resume-or-start")
    assert typed(*command)[0] == 0
    kept = (tmp_path / "run/metrics.csv").read_bytes()
    (tmp_path / "run/evaluation.json").unlink()  # stopped before it was finished
    assert typed(*command)[0] == 0
    assert (tmp_path / "run/metrics.csv").read_bytes() == kept
    assert (tmp_path / "run/evaluation.json").is_file()


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
