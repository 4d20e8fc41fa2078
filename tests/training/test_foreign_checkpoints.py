"""Checkpoints of foreign content: one sentence and exit code 2 from every command that opens them."""

import hashlib
import io
import pickle
import shutil

import pytest
import torch

import isomargin as im
from isomargin.training.checkpoint import find_checkpoints, read_checkpoint
from training import runs

MAGIC = b"isomargin checkpoint 1\n"


class Printer:
    """A pickle of it would print when it is read."""

    def __reduce__(self):
        return print, ("code was run",)


def saved(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def signed(payload):
    """Bytes with the first line and the checksum of a checkpoint."""
    return MAGIC + hashlib.sha256(payload).digest() + payload


def changed(good, **entries):
    return signed(saved({**good, **entries}))


WITHOUT_MODEL = {
    "text": lambda good: b"no checkpoint",
    "empty": lambda good: b"",
    "cut short": lambda good: signed(saved(good))[:5000],
    "torch file": lambda good: saved({"weight": torch.ones(2)}),
    "pickle": lambda good: pickle.dumps(Printer()),
    "signed text": lambda good: signed(b"no checkpoint"),
    "signed pickle": lambda good: signed(pickle.dumps(Printer())),
    "signed code": lambda good: changed(good, model=Printer()),
    "signed list": lambda good: signed(saved([1, 2])),
    "signed other entries": lambda good: signed(saved({"weight": torch.ones(2)})),
    "no parameters": lambda good: changed(good, model=None),
    "other parameters": lambda good: changed(good, model={"weight": torch.ones(2)}),
    "other shapes": lambda good: changed(good, model={name: torch.ones(3, 2) for name in good["model"]}),
}
OTHER_STATE = {
    "no optimiser": lambda good: changed(good, optimizer={}),
    "another optimiser": lambda good: changed(good, optimizer={"state": {}, "param_groups": []}),
    "no proxies": lambda good: changed(good, loss={}),
    "history of numbers": lambda good: changed(good, history=[3]),
    "text as sums": lambda good: changed(good, sums={"loss": "low"}),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign") / "run"
    runs.run(folder, runs.tiny(epochs=0.4))
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def check_refused(code, out, err):
    assert (code, out) == (2, "")
    assert ".ckpt" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("kind", WITHOUT_MODEL)
def test_embed_refuses_a_model_of_foreign_content(run, copy, kind):
    path = copy / "checkpoints/model.ckpt"
    path.write_bytes(WITHOUT_MODEL[kind](read_checkpoint(path)))
    check_refused(*run("embed", copy, "--output", copy / "out.npz", "--workers", 0))
    with pytest.raises(im.InputError, match=r"model\.ckpt"):
        im.open_run(copy)


@pytest.mark.parametrize("kind", {**WITHOUT_MODEL, **OTHER_STATE})
def test_resume_refuses_a_checkpoint_of_foreign_content(run, copy, kind):
    (copy / "evaluation.json").unlink()
    (_, older), (_, path) = find_checkpoints(copy / "checkpoints")
    older.unlink()
    path.write_bytes({**WITHOUT_MODEL, **OTHER_STATE}[kind](read_checkpoint(path)))
    check_refused(*run("train", copy, "--resume", "--workers", 0))


def test_resume_takes_the_checkpoint_before_one_of_foreign_content(run, copy):
    (copy / "evaluation.json").unlink()
    find_checkpoints(copy / "checkpoints")[-1][1].write_bytes(signed(saved({"weight": torch.ones(2)})))
    code, _, err = run("train", copy, "--resume", "--workers", 0)
    assert code == 0, err
    assert "holds something else than a checkpoint (it has no model)" in err
    assert "the one of step 6 is used" in err
