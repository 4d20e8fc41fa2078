"""Shards: labels of any kind over all files, formats read in blocks, and the commands that count and merge parts."""

import errno
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import isomargin as im
from isomargin.cli import app as cli
from isomargin.core.memory import map_new_array
from isomargin.io.shards import open_shards
from isomargin.measure.pairs import tiles

GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 9, 240)
VECTORS = (GENERATOR.normal(size=(9, 6))[LABELS] + GENERATOR.normal(size=(240, 6))).astype(np.float32)
RATES = ["--far", "0.05", "0.2", "--target-far", "0.05"]


def write(folder, suffix, labels=LABELS, vectors=VECTORS, parts=3):
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(vectors)), parts)):
        im.EmbeddingSet(vectors[rows], labels[rows]).save(folder / f"{number}{suffix}")
    return folder


def message(*arguments, **options):
    with pytest.raises(im.InputError) as caught:
        open_shards(*arguments, **options).read_labels()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".safetensors"])
@pytest.mark.parametrize("kind", [str, np.int32, np.uint64, bool])
def test_shards_of_any_format_give_rows_and_classes_in_order(suffix, kind, tmp_path):
    labels = LABELS.astype(kind)
    shards = open_shards(write(tmp_path / "shards", suffix, labels))
    names, codes = shards.read_labels()
    expected, inverse = np.unique(im.EmbeddingSet(VECTORS, labels).labels, return_inverse=True)
    assert names.tolist() == expected.tolist()
    np.testing.assert_array_equal(codes, inverse)
    blocks = [block for shard in shards.files for block in shard.blocks(7)]
    assert max(map(len, blocks)) == 7
    np.testing.assert_array_equal(np.concatenate(blocks), VECTORS)


def test_bfloat16_is_read_in_blocks_with_the_same_values(tmp_path):
    rows = torch.from_numpy(VECTORS).bfloat16()
    im.EmbeddingSet(rows, LABELS).save(tmp_path / "items.safetensors")
    (shard,) = open_shards(tmp_path / "items.safetensors").files
    np.testing.assert_array_equal(np.concatenate(list(shard.blocks(50))), rows.float().numpy())


def test_lines_are_text_in_all_shards_if_they_are_in_one(tmp_path):
    for number, lines in enumerate(["7\n12\n", "007\n7\n"]):
        np.save(tmp_path / f"{number}.npy", VECTORS[:2])
        (tmp_path / f"{number}.labels.txt").write_text(lines)
    names, codes = open_shards(tmp_path).read_labels()
    assert names.tolist() == ["007", "12", "7"]
    assert codes.tolist() == [2, 1, 0, 2]


def test_signed_and_unsigned_labels_are_not_rounded(tmp_path):
    np.save(tmp_path / "a.npy", VECTORS[:2])
    np.save(tmp_path / "a.labels.npy", np.array([2**63 - 1, 2**63 - 2]))
    np.save(tmp_path / "b.npy", VECTORS[:2])
    np.save(tmp_path / "b.labels.npy", np.array([2**63 - 1, 5], np.uint64))
    names, codes = open_shards(tmp_path).read_labels()
    assert names.tolist() == [5, 2**63 - 2, 2**63 - 1]
    assert codes.tolist() == [2, 1, 2, 0]


def test_shards_that_do_not_belong_together_are_refused(tmp_path):
    first = write(tmp_path / "mixed", ".parquet")
    im.EmbeddingSet(VECTORS, LABELS.astype(str)).save(first / "9.parquet")
    assert "has integers as labels and" in message(first)
    im.EmbeddingSet(VECTORS[:, :4], LABELS).save(first / "9.parquet")
    assert "9.parquet has embeddings of 4 numbers and" in message(first)
    im.EmbeddingSet(VECTORS, LABELS).save(first / "9.npy")
    assert "has .npy and .parquet files" in message(first)
    assert "matches no file" in message(tmp_path / "*.parquet")
    (tmp_path / "empty").mkdir()
    assert "has no shards" in message(tmp_path / "empty")
    assert "nowhere does not exist" in message(tmp_path / "nowhere")
    (tmp_path / "items.npz").write_bytes(b"items")
    assert "items.npz is not a shard" in message([tmp_path / "items.npz"])
    assert "the list of shards is empty" in message([])
    (first / "9.labels.npy").unlink()
    assert "9.npy has no labels" in message(first / "9.npy")
    np.save(first / "9.labels.npy", LABELS[:5])
    assert "9.npy: labels has 5 entries, embeddings has 240 rows" in message(first / "9.npy")
    assert "has no 'vectors'" in message(first / "0.parquet", "vectors")
    assert "has no 'names'" in message(first / "0.parquet", labels_key="names")
    np.save(first / "9.npy", VECTORS[0])
    assert "two dimensions are needed" in message(first / "9.npy")


def test_rows_without_a_direction_are_refused_by_file_and_row(tmp_path):
    vectors = VECTORS.copy()
    vectors[85] = 0
    folder = write(tmp_path / "shards", ".npy", vectors=vectors)
    with pytest.raises(im.InputError, match=r"1\.npy: rows 5 of embeddings are zero vectors"):
        im.prepare(folder, tmp_path / "prepared")
    assert not list(tmp_path.glob("*prepared*"))


def test_labels_that_are_missing_or_doubled_are_to_be_put_beside_the_shard(tmp_path):
    write(tmp_path, ".npy")
    (tmp_path / "1.labels.npy").rename(tmp_path / "1.npy.labels")
    assert message(tmp_path).endswith("has no 1.labels.npy or 1.labels.txt: write one of them")
    for suffix in ("npy", "txt"):
        (tmp_path / f"1.labels.{suffix}").touch()
    assert message(tmp_path).endswith("has both 1.labels.npy and 1.labels.txt: remove one of them")


# ----- commands


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setattr(tiles, "TILE_ROWS", 32)
    monkeypatch.setattr(tiles, "MOST_BINS", 1024)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["isomargin", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return call


def test_parts_counted_by_command_merge_to_the_evaluation_of_the_folder(run, tmp_path):
    shards, parts = write(tmp_path / "shards", ".parquet"), tmp_path / "parts"
    for number in (2, 3, 1):
        code, out, _ = run("evaluate", shards, *RATES, "--part", f"{number}/3", "--output", parts)
        assert (code, out.startswith(f"part {number} of 3: ")) == (0, True)
    code, out, err = run("evaluate", f"{shards}/*.parquet", *RATES, "--part", "2/3", "--output", parts)
    assert (code, out) == (0, "")
    assert "is there already" in err
    code, _, _ = run("merge", parts, "-o", tmp_path / "merged.json")
    assert code == 0
    code, out, _ = run("evaluate", shards, *RATES, "--json", "-o", tmp_path / "whole.json")
    assert code == 0
    merged, whole = (im.Evaluation.load(tmp_path / f"{name}.json") for name in ("merged", "whole"))
    assert merged.settings == whole.settings
    assert merged.opis == pytest.approx(whole.opis, rel=1e-6)  # the tiles are not the same
    assert merged.ranks.hits.tolist() == whole.ranks.hits.tolist()
    assert json.loads(out)["scores"]["opis"] == pytest.approx(whole.opis)


def test_a_prepared_folder_is_evaluated_and_a_large_file_within_memory(run, tmp_path):
    source = write(tmp_path / "one", ".npy", parts=1) / "0.npy"
    code, out, _ = run("prepare", source, tmp_path / "prepared", "--memory", "1GB")
    assert (code, out) == (0, f"{tmp_path / 'prepared'}: 240 items of 6 dimensions in 9 classes\n")
    code, by_folder, _ = run("evaluate", tmp_path / "prepared", *RATES, "--json")
    assert code == 0
    code, by_file, _ = run("evaluate", source, *RATES, "--json", "--memory", "1GB", "--work", tmp_path / "work")
    assert code == 0
    assert json.loads(by_file)["scores"] == json.loads(by_folder)["scores"]
    assert (tmp_path / "work" / "vectors.npy").is_file()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--part", "3/2", "--output", "parts"], "such as 3/64, counted from 1"),
        (["--part", "0/2", "--output", "parts"], "such as 3/64, counted from 1"),
        (["--part", "1/2"], "--part needs a folder for the parts"),
        (["--part", "1/2", "--output", "parts", "--intervals"], "--intervals needs all parts"),
        (["--part", "1/2", "--output", "parts", "--json"], "--json needs all parts"),
        (["--part", "1/2", "--output", "parts", "--work", "w"], "--work cannot be used with --part"),
        (["--memory", "much"], "a size such as 4GB or 500MB is needed"),
        (["--labels", "labels.npy"], "put the labels of X.npy beside it"),
        (["--gallery", "gallery.npz"], "gallery: gallery.npz does not exist: check the path"),
        (["--intervals", "--resample", "items"], "--resample items cannot be used with shards"),
        (["--exact"], "exact needs all embeddings in memory"),
        (["--device", "cpu"], "parts are counted on the CPU"),
        (["--far", "1e-9", "1e-8"], "far asks for a false accept rate"),
    ],
)
def test_options_that_parts_do_not_have_are_refused(run, options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shards = write(tmp_path / "shards", ".parquet")
    code, out, err = run("evaluate", shards, *options)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards"]


def test_changed_shards_are_not_mistaken_for_those_that_were_prepared(run, tmp_path):
    shards, parts = write(tmp_path / "shards", ".parquet"), tmp_path / "parts"
    assert run("evaluate", shards, *RATES, "--part", "1/3", "--output", parts)[0] == 0
    write(shards, ".parquet", vectors=VECTORS[::-1])
    code, _, err = run("evaluate", shards, *RATES, "--part", "2/3", "--output", parts)
    assert (code, "they have changed since" in err) == (2, True)
    code, _, err = run("evaluate", parts / "prepared", *RATES, "--part", "1/3", "--output", parts, "--grid", "50")
    assert (code, "belongs to another plan" in err) == (2, True)
    code, _, err = run("merge", parts)
    assert (code, "parts 2 and 3 of 3 are missing" in err) == (2, True)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system does not allocate files")
@pytest.mark.parametrize(
    "arguments",
    [
        ["prepare", "shards", "prepared"],
        ["evaluate", "shards", "--memory", "1GB", "--work", "work"],
        ["evaluate", "shards", *RATES, "--part", "1/3", "--output", "parts"],
        ["prepare", "shards", "prepared", "--gallery", "shards"],
    ],
)
def test_a_full_disk_ends_with_one_sentence_before_mapped_pages_are_written(arguments, run, tmp_path, monkeypatch):
    """A write to a mapped page for which the disk has no block would kill the process."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    write(tmp_path / "shards", ".parquet")
    monkeypatch.setattr(os, "posix_fallocate", full)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "cannot be written (No space left on device): choose another place" in err
    assert len(err.splitlines()) == 1
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".npy"]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system does not allocate files")
def test_a_mapped_file_has_its_space_on_the_disk_before_it_is_written(tmp_path):
    array = map_new_array(tmp_path / "array.npy", np.float32, (1000, 256))
    assert 512 * (tmp_path / "array.npy").stat().st_blocks >= array.nbytes
    array[:] = 1
    array.flush()
    assert np.load(tmp_path / "array.npy").sum() == array.size


@pytest.mark.parametrize("hidden", ["is_file", "iterdir"])  # a folder that cannot be entered, or not be listed
def test_a_folder_that_may_not_be_read_is_refused_by_its_own_name(hidden, run, tmp_path, monkeypatch):
    shards = write(tmp_path / "shards", ".parquet")
    usual = getattr(Path, hidden)

    def denied(path):
        if shards in (path, path.parent):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return usual(path)

    monkeypatch.setattr(Path, hidden, denied)
    for options in ([], ["--memory", "1GB"], ["--part", "1/2", "--output", tmp_path / "parts"]):
        code, out, err = run("evaluate", shards, *options)
        assert (code, out) == (2, "")
        assert err == f"isomargin: {shards} cannot be read by this user: change its permissions\n"
