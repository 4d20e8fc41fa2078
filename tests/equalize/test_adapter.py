"""Adapter: what it computes, its files, and that it needs no torch."""

import json
import subprocess
import sys

import numpy as np
import pytest

import isomargin as im

GENERATOR = np.random.default_rng(0)
MATRIX, BIAS = GENERATOR.normal(size=(6, 4)), GENERATOR.normal(size=4)
EMBEDDINGS = GENERATOR.normal(size=(200, 6)) * 7


@pytest.fixture
def adapter():
    plain = im.Adapter(MATRIX, BIAS)
    equalizer = im.Equalizer(neighbours=20, skip=5).fit(plain.transform(EMBEDDINGS))
    return im.Adapter(MATRIX, BIAS, equalizer, {"rows": 200, "settings": {"margins": (0.6, 0.4)}})


def test_transform_scales_multiplies_and_scales_again():
    unit = EMBEDDINGS / np.linalg.norm(EMBEDDINGS, axis=1, keepdims=True)
    product = unit @ MATRIX + BIAS
    expected = product / np.linalg.norm(product, axis=1, keepdims=True)
    found = im.Adapter(MATRIX, BIAS).transform(EMBEDDINGS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_weights_cannot_be_changed(adapter):
    with pytest.raises(ValueError, match="read-only"):
        adapter.matrix[0, 0] = 1
    with pytest.raises(AttributeError):
        adapter.bias = BIAS


def test_what_was_saved_loads_without_loss(adapter, tmp_path):
    adapter.save(tmp_path / "new" / "folder")
    loaded = im.Adapter.load(tmp_path / "new" / "folder")
    np.testing.assert_array_equal(loaded.transform(EMBEDDINGS), adapter.transform(EMBEDDINGS))
    np.testing.assert_array_equal(loaded.equalizer.offsets_, adapter.equalizer.offsets_)
    assert loaded.record == {"rows": 200, "settings": {"margins": [0.6, 0.4]}}
    names = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert names == {"adapter.json", "adapter.safetensors", "equalizer.json", "equalizer.safetensors"}


def test_saving_without_an_equalizer_removes_that_of_an_earlier_adapter(adapter, tmp_path):
    adapter.save(tmp_path)
    im.Adapter(MATRIX, BIAS).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"adapter.json", "adapter.safetensors"}
    assert im.Adapter.load(tmp_path).equalizer is None


def test_a_changed_record_is_refused(adapter, tmp_path):
    adapter.save(tmp_path)
    file = tmp_path / "adapter.json"
    values = json.loads(file.read_text())
    values["record"]["rows"] = 300
    file.write_text(json.dumps(values))
    with pytest.raises(im.InputError, match="was changed after it was written"):
        im.Adapter.load(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        ["adapter.safetensors"],
        ["equalizer.json"],
        ["equalizer.safetensors"],
        ["equalizer.json", "equalizer.safetensors"],  # which belong together
    ],
)
def test_files_of_another_adapter_are_refused(adapter, tmp_path, files):
    adapter.save(tmp_path / "a")
    other = im.Equalizer(neighbours=10, skip=5).fit(adapter.transform(EMBEDDINGS))
    im.Adapter(2 * MATRIX, BIAS, other).save(tmp_path / "b")
    for name in files:
        (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(im.InputError, match="does not belong to"):
        im.Adapter.load(tmp_path / "a")


def test_a_failed_save_leaves_the_earlier_files(adapter, tmp_path, monkeypatch):
    adapter.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr("isomargin.equalize.tensor_files.write", fail)
    with pytest.raises(OSError, match="full"):
        im.Adapter(2 * MATRIX, BIAS).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bias": np.zeros(3)}, r"matrix has shape \(6, 4\) and bias \(3,\)"),
        ({"matrix": np.zeros(4)}, r"matrix has shape \(4,\)"),
        ({"matrix": np.full((6, 4), np.nan)}, "matrix has entries that are NaN or infinite"),
        ({"bias": ["a", "b"]}, "bias cannot be converted"),
        ({"record": {"score": float("nan")}}, "record cannot be written as JSON"),
        ({"equalizer": im.Equalizer(5, 1).fit(EMBEDDINGS)}, "vectors of 6 dimensions, the adapter returns 4"),
    ],
)
def test_bad_parts_are_refused(values, message):
    with pytest.raises(im.InputError, match=message):
        im.Adapter(**{"matrix": MATRIX, "bias": BIAS, **values})


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (np.ones((3, 5)), "has 5 dimensions, the adapter needs 6"),
        (np.full((3, 6), np.nan), "are NaN or infinite"),
        (np.zeros((3, 6)), "are zero vectors"),
        (np.ones(6), "two dimensions are needed"),
    ],
)
def test_bad_embeddings_are_refused(adapter, embeddings, message):
    with pytest.raises(im.InputError, match=message):
        adapter.transform(embeddings)


def test_a_folder_without_an_adapter_is_refused(tmp_path):
    with pytest.raises(im.InputError, match=r"has no adapter.json"):
        im.Adapter.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(im.InputError, match="is a file: give a folder"):
        im.Adapter(MATRIX, BIAS).save(tmp_path / "file")


def test_loading_and_transforming_import_no_torch(adapter, tmp_path):
    adapter.save(tmp_path)
    script = (
        "import sys, numpy, isomargin as im\n"
        "im.Adapter.load(sys.argv[1]).transform(numpy.eye(6))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
