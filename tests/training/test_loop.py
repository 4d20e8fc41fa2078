import math

import numpy as np
import pytest
import torch

import isomargin as im
from isomargin.core.errors import DivergedError, InputError
from isomargin.data.registry import load_data
from isomargin.models import Embedder, make_model
from isomargin.training import loop
from isomargin.training.checkpoint import find_checkpoints, read_checkpoint
from isomargin.training.devices import leave_out_idle
from isomargin.training.embed import embed
from isomargin.training.run import open_run
from isomargin.training.run_folder import RunFolder
from isomargin.training.setup import make_recipe_model, open_data
from training.runs import TINY, metrics, run, tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with everything at its tiny default, and its evaluation."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, run(folder)


def test_a_run_leaves_the_files_that_every_command_knows(finished):
    folder, evaluation = finished
    names = {"recipe.yaml", "metrics.csv", "checkpoints", "tensorboard", "embeddings.npz", "evaluation.json"}
    assert {each.name for each in folder.iterdir()} == names
    assert im.Evaluation.load(folder / "evaluation.json").scores() == evaluation.scores()
    kept = im.EmbeddingSet.load(folder / "embeddings.npz")
    assert im.evaluate(kept.vectors, kept.labels, far=(0.05, 0.2), target_far=0.05).scores() == evaluation.scores()


def test_metrics_hold_the_losses_parts_the_hard_pairs_and_the_scores(finished):
    rows = metrics(finished[0])
    assert [row["step"] for row in rows] == [6, 12, 18, 21]
    for row in rows:
        assert row["loss"] == pytest.approx(row["proxy_nca"] + 2 * row["tcm"], rel=1e-6)
        assert row["tcm.hard_negatives"] + row["tcm.hard_positives"] > 0
        assert {"recall@1", "recall@32", "opis", "epsilon_opis", "map_at_r", "eer"} <= set(row)
    assert rows[-1]["opis"] == pytest.approx(finished[1].opis)
    assert rows[-1]["recall@1"] == pytest.approx(finished[1].recall_at_k[1])


def test_tensorboard_has_a_curve_for_each_column(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished[0] / "tensorboard"))
    events.Reload()
    names = {name.replace("@", "_at_") for name in metrics(finished[0])[0]} - {"step"}
    assert names == set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("opis")] == [6, 12, 18, 21]


def test_the_chosen_model_makes_the_same_embeddings_again(finished):
    recipe, model = open_run(finished[0])
    assert recipe == tiny()
    vectors = embed(model.channels_last(), load_data(**TINY["data"]).test)
    np.testing.assert_array_equal(vectors, im.EmbeddingSet.load(finished[0] / "embeddings.npz").vectors)


def test_the_same_recipe_gives_the_same_numbers_and_another_seed_others(finished, tmp_path):
    run(tmp_path / "again")
    assert (tmp_path / "again/metrics.csv").read_bytes() == (finished[0] / "metrics.csv").read_bytes()
    run(tmp_path / "other", tiny(seed=1))
    assert metrics(tmp_path / "other")[0]["loss"] != metrics(finished[0])[0]["loss"]


def test_a_plain_loop_written_out_gives_the_same_losses(finished):
    """The loop against torch alone: same sampler and distortions, everything else by hand."""
    from isomargin.data.augment import RandomAffine
    from isomargin.data.feeding import training_batches
    from isomargin.data.sampler import ClassBatchSampler
    from isomargin.losses import ProxyNCALoss, TCMLoss

    images = load_data(**TINY["data"]).train
    torch.manual_seed(0)
    model = make_model({"backbone": "small_conv", "dimensions": 16})
    torch.manual_seed(0)
    base, regularizer = ProxyNCALoss(len(images.class_names), 16), TCMLoss()
    optimizer = torch.optim.Adam(
        [{"params": model.parameters()}, {"params": base.parameters(), "lr": 1e-2}], lr=1e-3, weight_decay=4e-4
    )
    sampler = ClassBatchSampler(images.labels, 8, 2)
    losses = []
    for batch, labels in training_batches(images, sampler, range(6), 28, 1, RandomAffine()):
        embeddings = model(batch)
        loss = base(embeddings, labels) + 2 * regularizer(embeddings, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert metrics(finished[0])[0]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_chunks_change_nothing_where_batch_norm_is_frozen(tmp_path):
    frozen = {"freeze_batch_norm": "statistics"}
    run(tmp_path / "whole", tiny(model=frozen))
    run(tmp_path / "chunks", tiny(model=frozen, batch={"chunk": 5}))
    for whole, chunked in zip(metrics(tmp_path / "whole"), metrics(tmp_path / "chunks"), strict=True):
        assert chunked["loss"] == pytest.approx(whole["loss"], rel=1e-5)


def test_held_out_classes_are_trained_on_by_nobody_and_the_test_classes_left_alone(tmp_path):
    recipe = tiny(evaluation={"held_out": 0.1, "test": False, "every": 1})
    data = open_data(recipe)
    everything = load_data(**TINY["data"])
    names = set(data.train.class_names), set(data.unseen.class_names)
    assert names[0] | names[1] == set(everything.train.class_names)
    assert not names[0] & names[1]
    assert len(names[1]) == round(0.1 * len(everything.train.class_names))
    evaluation = run(tmp_path / "run", recipe)
    assert set(evaluation.names) == names[1]
    evaluation = run(tmp_path / "tested", tiny(evaluation={"held_out": 0.1, "every": 1}))
    assert set(evaluation.names) == set(everything.test.class_names)


@pytest.mark.parametrize(("score", "sign"), [("opis", -1), ("recall@1", 1)])
def test_the_best_model_is_that_of_the_named_score(tmp_path, score, sign):
    evaluation = run(tmp_path / "run", tiny(evaluation={"best_by": score}, optimizer={"learning_rate": 3e-2}))
    rows = metrics(tmp_path / "run")
    best = max(rows, key=lambda row: sign * row[score])
    assert read_checkpoint(RunFolder(tmp_path / "run").model)["row"]["step"] == best["step"]
    assert evaluation.opis == pytest.approx(best["opis"])


def test_in_its_warm_up_the_backbone_stays_as_it_was(tmp_path):
    recipe = tiny(schedule={"warm_up_epochs": 2})
    run(tmp_path / "run", recipe)
    start = make_recipe_model(recipe, load_data(**TINY["data"]).train).state_dict()
    end = open_run(tmp_path / "run")[1].state_dict()
    for name, value in start.items():
        assert torch.equal(value, end[name]) == name.startswith("backbone."), name


def test_learning_rates_follow_the_schedule(tmp_path):
    run(tmp_path / "run", tiny(schedule={"name": "multi_step", "at": [0.5, 0.9], "factor": 0.5}))
    assert [row["learning_rate"] for row in metrics(tmp_path / "run")] == pytest.approx([1e-3, 5e-4, 2.5e-4, 2.5e-4])
    run(tmp_path / "plateau", tiny(schedule={"name": "plateau", "patience": 0, "factor": 0.1}))
    rates = [row["learning_rate"] for row in metrics(tmp_path / "plateau")]
    recalls = [row["recall@1"] for row in metrics(tmp_path / "plateau")]
    for number in range(1, len(rates)):
        lowered = sum(recalls[each] <= max(recalls[:each]) for each in range(1, number))
        assert rates[number] == pytest.approx(1e-3 * 0.1**lowered)


def test_a_warm_up_needs_a_head(tmp_path):
    with pytest.raises(InputError, match="no head that could train"):
        run(tmp_path / "run", tiny(schedule={"warm_up_epochs": 1}, model={"dimensions": None}))


def test_a_model_that_has_collapsed_is_told_as_such(tmp_path, monkeypatch):
    same = torch.nn.functional.normalize(torch.ones(1, 16))
    monkeypatch.setattr(Embedder, "forward", lambda self, images: same.expand(len(images), 16) + 0 * self.linear.bias)
    with pytest.raises(DivergedError, match="have collapsed"):
        run(tmp_path / "run")


def test_a_score_that_is_no_number_still_leaves_a_model(tmp_path, monkeypatch):
    scores = loop.score
    monkeypatch.setattr(loop, "score", lambda *arguments: {**scores(*arguments), "opis": math.nan})
    run(tmp_path / "run", tiny(evaluation={"best_by": "opis"}))
    assert read_checkpoint(RunFolder(tmp_path / "run").model)["row"]["step"] == 6


def test_layers_that_embeddings_do_not_depend_on_are_not_trained(tmp_path):
    """So that a run may go on with another number of processes, which would wait for their gradients for ever."""
    model = make_model({"backbone": "mobilenetv3_small_050", "dimensions": 8, "image_size": 32})
    idle = [name for name, _ in model.named_parameters() if "conv_head" in name]
    leave_out_idle(model)
    assert idle
    assert [name for name, each in model.named_parameters() if not each.requires_grad] == idle


def test_a_loss_that_is_no_number_ends_the_run_before_anything_is_kept(tmp_path):
    recipe = tiny(optimizer={"name": "sgd", "learning_rate": 1e30}, model={"normalise": False})
    with pytest.raises(InputError, match=r"lower optimizer\.learning_rate"):
        run(tmp_path / "run", recipe)
    assert not find_checkpoints(tmp_path / "run/checkpoints")


def test_clipping_bounds_what_a_step_changes(tmp_path):
    def largest_change(**settings):
        recipe = tiny(optimizer={"name": "sgd", "learning_rate": 1.0, "weight_decay": 0, "momentum": 0, **settings})
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        run(folder, recipe.model_copy(update={"epochs": 1 / 18}))
        start = make_recipe_model(recipe, load_data(**TINY["data"]).train).state_dict()
        end = open_run(folder)[1]
        return max(float((value - start[name]).detach().abs().max()) for name, value in end.named_parameters())

    free = largest_change()
    assert largest_change(clip_value=free / 10) == pytest.approx(free / 10, rel=1e-4)
    assert largest_change(clip_norm=free / 10) <= free / 10


def test_a_folder_in_use_and_another_recipe_are_refused(finished, tmp_path):
    with pytest.raises(InputError, match="--resume"):
        run(finished[0])
    with pytest.raises(InputError, match="another optimizer"):
        run(finished[0], tiny(optimizer={"learning_rate": 2e-3}), resume=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file: choose another"):
        run(tmp_path / "file")


def test_going_on_with_a_finished_run_gives_its_evaluation(finished):
    assert run(finished[0], resume=True).scores() == finished[1].scores()


def test_vectors_train_a_head(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    noise = generator.normal(size=(200, 24))
    vectors = np.concatenate([generator.normal(size=(20, 8))[labels] + 0.3 * noise[:, :8], 3 * noise[:, 8:]], axis=1)
    im.EmbeddingSet(vectors.astype(np.float32), labels).save(tmp_path / "features.npz")
    recipe = tiny(
        data={"name": "embeddings", "root": str(tmp_path / "features.npz")},
        model={"backbone": "vectors", "dimensions": 8},
        loss={"base": "smooth_ap", "regularizer": None},
        batch={"classes": 10, "images_per_class": 5},
        optimizer={"learning_rate": 3e-2},
        epochs=30,
        evaluation={"every": 30},
    )
    evaluation = run(tmp_path / "run", recipe)
    test = load_data("embeddings", tmp_path / "features.npz").test
    before = im.evaluate(test.vectors, test.labels)
    assert evaluation.recall_at_k[1] > before.recall_at_k[1] + 0.1
    assert open_run(tmp_path / "run")[1].input_statistics.size == 24
    assert math.isfinite(evaluation.opis)
