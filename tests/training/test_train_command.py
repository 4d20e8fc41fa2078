"""The commands train and embed, as a user types them."""

import numpy as np
import pytest
import yaml

import isomargin as im
from training.runs import metrics, photographs, run, tiny


@pytest.fixture
def recipe(tmp_path):
    tiny().save(tmp_path / "tiny.yaml")
    return tmp_path / "tiny.yaml"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run(folder, tiny(epochs=0.05))
    return folder


FOLDER = ("data.name=folder", "data.order=5", "batch.classes=3", "batch.images_per_class=2", "epochs=1")


def test_train_makes_a_run_by_the_recipes_name_and_prints_its_evaluation(typed, recipe, tmp_path):
    code, out, err = typed("train", recipe, "name=mine", "epochs=0.5", "--workers", 0)
    assert code == 0
    assert "recall@1" in out
    assert "OPIS" in out
    assert "mine: epoch" in err
    assert "left" in err, "the time left is not told"
    assert "published are" in err, "the notes on the data are not told"
    kept = yaml.safe_load((tmp_path / "runs/mine/recipe.yaml").read_text())
    assert kept["epochs"] == 0.5
    assert kept["schedule"]["name"] == "constant", "defaults are not written out"


def test_train_writes_a_page_into_the_run_if_asked(typed, recipe, tmp_path):
    code, _, err = typed("train", recipe, "epochs=0.3", "--report")
    assert code == 0, err
    assert '"name":"tiny"' in (tmp_path / "runs/tiny/report.html").read_text(encoding="utf-8")


def test_a_dry_run_prints_everything_and_writes_nothing(typed, recipe, tmp_path):
    code, out, _ = typed("train", recipe, "loss.regularizer.negative_margin=0.4", "--dry-run")
    assert code == 0
    assert "negative_margin: 0.4" in out
    assert "300 items in 30 classes" in out
    assert "100 items in 10 classes" in out
    assert "21 of 16 items, 18 per epoch" in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["optimiser.learning_rate=1"], "did you mean 'optimizer'"),
        (["optimizer.learning_rat=1"], "did you mean 'learning_rate'"),
        (["optimizer.learning_rate=fast"], "optimizer.learning_rate is 'fast'"),
        (["model.poolin=max"], "did you mean 'pooling'"),
        (["loss.regularizer.negative_margn=0.4"], "did you mean 'negative_margin'"),
        (["loss.base=smoothap2"], "there is no loss 'smoothap2'"),
        (["data.name=omniglott"], "did you mean 'omniglot'"),
        (["data.root=no/such/folder"], "no/such/folder does not exist"),
        (["data.root=null"], "add data.root=FOLDER"),
        (["batch.classes=31"], "batch.classes is 31, and there are 30 classes"),
        (["augmentation.name=crop"], "crop, which is for image files"),
        (["evaluation.held_out=0.99"], "at least 2 must be held out, and 2 must be left"),
        (["evaluation.far=[0.0001,0.1]"], "far asks for a false accept rate of 0.0001"),
        (["schedule.name=every"], "schedule.epochs is not set"),
        (["nonsense"], "section.setting=value is needed"),
        (["loss.base=5"], "loss.base is 5"),
        (["data.root=2018"], "2018 does not exist"),
        (["evaluation.test=false"], "nothing is held out"),
        (["optimizer.clip_norm=1", "optimizer.clip_value=1"], "clip_value and clip_norm are given: give one of them"),
        (["precision=16-mixed", "batch.chunk=4"], "take bf16-mixed"),
        (["schedule.warm_up_epochs=1", "model.dimensions=null"], "no head that could train"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_what_is_wrong_is_told_before_anything_is_written(typed, recipe, tmp_path, changes, complaint, dry):
    code, out, err = typed("train", recipe, *changes, *(["--dry-run"] if dry else []))
    assert (code, out) == (2, "")
    assert complaint in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.glob("runs/*/*"))


def test_recipes_are_found_by_their_names_and_others_are_told(typed):
    code, _, err = typed("train", "photograph", "--dry-run")
    assert code == 2
    assert "did you mean 'photographs" in err
    code, _, err = typed("train", "photographs", "--dry-run")
    assert code == 2
    assert "add data.root=FOLDER" in err
    code, _, err = typed("train", "no/such.yaml")
    assert code == 2
    assert "no/such.yaml does not exist" in err


def test_a_run_is_trained_again_only_with_resume(typed, recipe, tmp_path):
    assert typed("train", recipe, "epochs=0.2", "--workers", 0)[0] == 0
    code, _, err = typed("train", recipe, "epochs=0.2")
    assert code == 2
    assert "isomargin train runs/tiny --resume" in err
    assert typed("train", "runs/tiny")[0] == 2
    code, out, _ = typed("train", "runs/tiny", "--resume")
    assert code == 0
    assert "recall@1" in out


@pytest.mark.parametrize("backbone", ["small_conv", "test_resnet"])
def test_a_folder_of_images_is_trained_on_and_embedded(typed, recipe, tmp_path, backbone):
    photographs(tmp_path / "photos")
    model = (f"model.backbone={backbone}", "model.dimensions=16", "model.image_size=32", "data.root=photos")
    code, _, err = typed("train", recipe, *FOLDER, *model, "--workers", 2)
    assert code == 0, err
    assert len(metrics(tmp_path / "runs/tiny")) == 3
    kept = im.EmbeddingSet.load(tmp_path / "runs/tiny/embeddings.npz")
    assert set(kept.labels) == {f"class {number}" for number in range(5, 10)}

    code, _, err = typed("embed", "runs/tiny", "--part", "test", "--output", "test.npz", "--workers", 0)
    assert code == 0, err
    np.testing.assert_array_equal(im.EmbeddingSet.load("test.npz").vectors, kept.vectors)
    assert typed("embed", "runs/tiny", "--images", "photos", "--output", "all.parquet", "--workers", 0)[0] == 0
    everything = im.EmbeddingSet.load("all.parquet")
    assert len(everything.labels) == 40
    np.testing.assert_allclose(np.asarray(everything.vectors)[20:], kept.vectors, atol=1e-5)
    assert typed("embed", "runs/tiny", "--output", "both.npz", "--workers", 0)[0] == 0
    both = im.EmbeddingSet.load("both.npz")
    np.testing.assert_array_equal(both.labels, everything.labels)


def test_loading_workers_change_nothing(typed, recipe, tmp_path):
    photographs(tmp_path / "photos")
    changes = (*FOLDER, "data.root=photos", "model.freeze_batch_norm=statistics")
    for workers in (0, 2):
        assert typed("train", recipe, *changes, f"name=with-{workers}", "--workers", workers)[0] == 0
    assert (tmp_path / "runs/with-0/metrics.csv").read_bytes() == (tmp_path / "runs/with-2/metrics.csv").read_bytes()


def test_unreadable_images_stop_the_run_with_their_list_or_are_left_out(typed, recipe, tmp_path):
    photographs(tmp_path / "photos")
    for bad in ("class 1/0.png", "class 7/2.png"):
        path = tmp_path / "photos" / bad
        path.write_bytes(path.read_bytes()[:200])
    arguments = ("train", recipe, *FOLDER, "data.root=photos", "--workers", 0)
    code, out, err = typed(*arguments)
    assert (code, out) == (2, "")
    first, *listed = err.splitlines()
    assert "2 images cannot be read" in first
    assert "--skip-bad-images" in first
    assert [line.split(":")[0].strip() for line in listed] == ["photos/class 1/0.png", "photos/class 7/2.png"]
    code, _, err = typed(*arguments, "--skip-bad-images")
    assert code == 0, err
    assert "1 of 20 training images could not be read and was left out" in err
    assert len(im.EmbeddingSet.load("runs/tiny/embeddings.npz").labels) == 19
    assert yaml.safe_load((tmp_path / "runs/tiny/recipe.yaml").read_text())["skip_bad_images"] is True


def test_what_a_worker_cannot_read_is_told_in_a_sentence(typed, recipe, tmp_path):
    photographs(tmp_path / "photos")
    (tmp_path / "photos/class 1/0.png").write_bytes(b"nothing")
    code, _, err = typed("train", recipe, *FOLDER, "data.root=photos", "--no-check-images", "--workers", 1)
    assert code == 2
    assert "photos/class 1/0.png could not be read" in err
    assert "Traceback" not in err


def test_a_run_that_skipped_images_skips_them_when_it_embeds(typed, recipe, tmp_path):
    photographs(tmp_path / "photos")
    (tmp_path / "photos/class 1/0.png").write_bytes(b"nothing")
    changes = (*FOLDER, "data.root=photos", "epochs=0.3")
    assert typed("train", recipe, *changes, "--skip-bad-images", "--workers", 0)[0] == 0
    assert typed("embed", "runs/tiny", "--part", "train", "--workers", 0)[0] == 0
    assert len(im.EmbeddingSet.load("embeddings.npz").labels) == 19


def test_a_stop_before_training_begins_gives_advice_that_works(typed, recipe, tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("isomargin.training.setup.open_data", stop)
        code, _, err = typed("train", recipe)
    assert code == 130
    assert "give the same command again" in err
    assert typed("train", recipe, "epochs=0.2", "--workers", 0)[0] == 0


def test_names_that_look_like_numbers_stay_names(typed, recipe, tmp_path):
    assert typed("train", recipe, "name='1e3'", "epochs=0.2", "--workers", 0)[0] == 0
    assert typed("train", "runs/1e3", "--resume")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("no/such/run",), "no/such/run is not a run"),
        (("unfinished",), "has no model yet"),
        (("runs/tiny", "--images", "no/such/folder"), "does not exist"),
        (("runs/tiny", "--images", "empty"), "holds no images"),
        (("runs/tiny", "--part", "some"), "one of 'test', 'train', 'all' is needed"),
        (("runs/tiny", "--output", "out.txt"), "has the suffix .txt"),
        (("runs/tiny", "data.rot=there"), "did you mean 'root'"),
    ],
)
def test_embed_says_what_is_wrong(typed, trained, tmp_path, arguments, complaint):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/tiny").symlink_to(trained)
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished").mkdir()
    tiny().save(tmp_path / "unfinished/recipe.yaml")
    code, out, err = typed("embed", *arguments)
    assert (code, out) == (2, "")
    assert complaint in err


def test_help_names_every_command(typed):
    out = typed("--help")[1]
    for command in ("demo", "train", "tune", "embed", "evaluate"):
        assert command in out
    assert "--resume" in typed("train", "--help")[1]
