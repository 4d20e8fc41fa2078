"""`train --resume` where there is no run: refused, not started; what is left of a start that failed is no run."""

import pytest

import isomargin as im
from isomargin.training.locking import claim
from isomargin.training.run_folder import RunFolder
from training.runs import tiny


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny(epochs=0.1).save(tmp_path / "tiny.yaml")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tiny.yaml"], "there is no run in runs/tiny to resume: leave --resume out to start one there"),
        (["tiny.yaml", "--output", "elsewhere"], "there is no run in elsewhere to resume"),
        (["tiny.yaml", "--output", "empty"], "there is no run in empty to resume"),
        (["glyphs"], "there is no run in runs/glyphs to resume"),
        (["runs/typo"], "runs/typo does not exist: --resume needs the folder of a run, or its recipe"),
        (["empty"], "empty/recipe.yaml does not exist"),
    ],
)
def test_resume_without_a_run_is_refused_with_the_folder_that_was_expected(run, work, arguments, told):
    code, out, err = run("train", *arguments, "--resume", "--workers", 0)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert sorted(path.name for path in work.rglob("*")) == ["empty", "tiny.yaml"]


@pytest.mark.parametrize("resume", [False, True])
def test_a_training_that_stopped_before_its_first_step_can_be_started_again(resume, tmp_path):
    """As torchrun and Slurm do, with --resume-or-start: processes that stop leave a sentence in the folder."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.stopped.write_text("photos does not exist\n")
    (folder.path / ".tmp-recipe.yaml").touch()
    claim(folder, tiny(), resume)
    assert list(folder.path.iterdir()) == []
    folder.stopped.write_text("photos does not exist\n")
    folder.metrics.touch()
    with pytest.raises(im.InputError, match="already exists"):
        claim(folder, tiny(), resume)
    assert folder.stopped.exists()
