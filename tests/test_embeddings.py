"""EmbeddingSet and its files: what is saved comes back, and what cannot be used is told in one sentence."""

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write
from isomargin.io.embedding_set import EmbeddingSet

SUFFIXES = [".npz", ".npy", ".parquet", ".pt", ".safetensors"]
ROWS = 6
VECTORS = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32)
INTEGERS = np.array([3, -1, 3, 0, 7, 7])
LABELS = {
    "int64": INTEGERS,
    "int32": INTEGERS.astype(np.int32),
    "uint8": np.array([0, 255, 3, 3, 3, 1], dtype=np.uint8),
    "uint64": np.array([0, 2**64 - 1, 3, 3, 2**63, 1], dtype=np.uint64),
    "text": np.array(["owl", "wren", "owl", "a b", "007", ""]),
    "non-ascii": np.array(["žluna", "文鳥", "🦉", "žluna", "é", "e\u0301"]),
    "line breaks": np.array(["a\nb", "a\r", "\u2028", '"', "\\", ","]),
    "very long": np.array(["x" * 50_000, "x" * 50_001, "y", "y", "z", "z"]),
}


def message(path: Path, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        EmbeddingSet.load(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def message_of(vectors: object, labels: object) -> str:
    with pytest.raises(InputError) as caught:
        EmbeddingSet(vectors, labels)
    return str(caught.value)


def same_labels(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip_keeps_labels(tmp_path, suffix, kind):
    path = tmp_path / f"set{suffix}"
    EmbeddingSet(VECTORS, LABELS[kind]).save(path)
    loaded = EmbeddingSet.load(path)
    same_labels(loaded.labels, LABELS[kind])
    np.testing.assert_array_equal(np.asarray(loaded.vectors), VECTORS)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int64"])
@pytest.mark.parametrize("as_torch", [False, True])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip_keeps_values_and_dtype_of_vectors(tmp_path, suffix, as_torch, dtype):
    array = (VECTORS * 10).astype(np.int8).astype(dtype) if "int" in dtype else VECTORS.astype(dtype)
    path = tmp_path / f"set{suffix}"
    EmbeddingSet(torch.from_numpy(array) if as_torch else array, INTEGERS).save(path)
    vectors = np.asarray(EmbeddingSet.load(path).vectors)
    assert vectors.dtype == array.dtype
    np.testing.assert_array_equal(vectors, array)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bfloat16_is_kept_by_pt_and_widened_elsewhere_without_a_change_of_value(tmp_path, suffix):
    vectors = torch.from_numpy(VECTORS).bfloat16()
    path = tmp_path / f"set{suffix}"
    EmbeddingSet(vectors, INTEGERS).save(path)
    loaded = torch.as_tensor(np.array(v) if isinstance(v := EmbeddingSet.load(path).vectors, np.ndarray) else v)
    assert loaded.dtype == (torch.bfloat16 if suffix == ".pt" else torch.float32)
    assert torch.equal(loaded.float(), vectors.float())


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "vectors",
    [
        VECTORS.T.copy().T,
        VECTORS.astype(">f4"),
        torch.from_numpy(VECTORS).repeat(1, 2)[:, 1:5],
        torch.from_numpy(VECTORS).clone().requires_grad_(),
    ],
    ids=["fortran order", "big-endian", "view", "requires grad"],
)
def test_unusual_memory_layouts_are_saved(tmp_path, suffix, vectors):
    path = tmp_path / f"set{suffix}"
    EmbeddingSet(vectors, INTEGERS).save(path)
    expected = vectors.detach().numpy() if isinstance(vectors, torch.Tensor) else vectors
    np.testing.assert_array_equal(np.asarray(EmbeddingSet.load(path).vectors), expected)


def test_npy_is_memory_mapped_and_can_be_saved_onto_itself(tmp_path):
    path = tmp_path / "set.npy"
    EmbeddingSet(VECTORS, INTEGERS).save(path)
    loaded = EmbeddingSet.load(path)
    assert isinstance(loaded.vectors, np.memmap)
    loaded.save(path)
    for suffix in SUFFIXES:
        loaded.save(tmp_path / f"copy{suffix}")
        np.testing.assert_array_equal(np.asarray(EmbeddingSet.load(tmp_path / f"copy{suffix}").vectors), VECTORS)


def test_suffix_is_read_in_either_case(tmp_path):
    EmbeddingSet(VECTORS, INTEGERS).save(tmp_path / "set.NPZ")
    same_labels(EmbeddingSet.load(str(tmp_path / "set.NPZ")).labels, INTEGERS)


def test_keys_can_be_named(tmp_path):
    content = {"features": torch.from_numpy(VECTORS), "targets": torch.from_numpy(INTEGERS)}
    np.savez(tmp_path / "a.npz", **{key: value.numpy() for key, value in content.items()})
    torch.save(content, tmp_path / "a.pt")
    save_file(content, tmp_path / "a.safetensors")
    pq.write_table(pa.table({"features": list(VECTORS), "targets": INTEGERS}), tmp_path / "a.parquet")
    for suffix in (".npz", ".pt", ".safetensors", ".parquet"):
        path = tmp_path / f"a{suffix}"
        loaded = EmbeddingSet.load(path, embeddings_key="features", labels_key="targets")
        same_labels(loaded.labels, INTEGERS)
        assert "'features', 'targets'" in message(path, labels_key="targets")
        assert "no 'labels'" in (text := message(path, embeddings_key="features"))
        assert "'targets'" in text
        assert "labels_key=" in text


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_labels_file_takes_the_place_of_the_labels_inside(tmp_path, suffix):
    EmbeddingSet(VECTORS, INTEGERS).save(tmp_path / f"set{suffix}")
    (tmp_path / "names.txt").write_text("ä\nb\nc\nd\ne\nf", encoding="utf-8")
    loaded = EmbeddingSet.load(tmp_path / f"set{suffix}", labels=tmp_path / "names.txt")
    assert loaded.labels.tolist() == list("äbcdef")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1\n-2\n0\n", np.array([1, -2, 0])),
        ("1\r\n-2\r\n0\r\n", np.array([1, -2, 0])),
        ("\ufeff1\n2\n3", np.array([1, 2, 3])),
        ("1\n007\n3", np.array(["1", "007", "3"])),
        ("1\n-0\n3", np.array(["1", "-0", "3"])),
        ("1\n+2\n3", np.array(["1", "+2", "3"])),
        ("1\n1_0\n3", np.array(["1", "1_0", "3"])),
        ("1\n٣\n3", np.array(["1", "٣", "3"])),
        ("1\n2 \n3", np.array(["1", "2 ", "3"])),
        ("18446744073709551615\n1\n2", np.array([2**64 - 1, 1, 2], dtype=np.uint64)),
        ("18446744073709551616\n1\n2", np.array(["18446744073709551616", "1", "2"])),
        ("9223372036854775808\n-1\n2", np.array(["9223372036854775808", "-1", "2"])),
        ("9" * 5000 + "\n1\n2", np.array(["9" * 5000, "1", "2"])),
        ("a\u2028b\nc\x0bd\ne", np.array(["a\u2028b", "c\x0bd", "e"])),
    ],
)
def test_text_labels_are_integers_only_when_every_line_is_one(tmp_path, text, expected):
    np.save(tmp_path / "set.npy", VECTORS[:3])
    (tmp_path / "set.labels.txt").write_bytes(text.encode())
    same_labels(EmbeddingSet.load(tmp_path / "set.npy").labels, expected)


def test_npy_needs_labels_and_says_how_to_give_them(tmp_path):
    np.save(tmp_path / "set.npy", VECTORS)
    text = message(tmp_path / "set.npy")
    assert "labels=" in text
    assert "--labels" in text
    assert "set.labels.npy or set.labels.txt" in text
    np.save(tmp_path / "set.labels.npy", INTEGERS)
    same_labels(EmbeddingSet.load(tmp_path / "set.npy").labels, INTEGERS)
    (tmp_path / "set.labels.txt").write_text("1\n" * ROWS)
    assert "both" in message(tmp_path / "set.npy")
    assert EmbeddingSet.load(tmp_path / "set.npy", labels=tmp_path / "set.labels.txt").labels.tolist() == [1] * ROWS


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("l.csv", b"1\n", "one label per line"),
        ("l", b"1\n", "no suffix"),
        ("l.txt", b"", "0 bytes"),
        ("l.txt", b"a\n\nb\nc\nd\ne\n", "line 2"),
        ("l.txt", "ä".encode("latin-1"), "UTF-8"),
        ("l.npy", b"nonsense", "not a .npy file"),
    ],
)
def test_unusable_labels_files_are_refused(tmp_path, name, content, words):
    np.save(tmp_path / "set.npy", VECTORS)
    (tmp_path / name).write_bytes(content)
    assert words in message(tmp_path / "set.npy", labels=tmp_path / name)
    assert "does not exist" in message(tmp_path / "set.npy", labels=tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([True, False], np.array([1, 0])),
        (np.array([True, False]), np.array([1, 0])),
        (torch.tensor([4, 5]), np.array([4, 5])),
        (torch.tensor([True, False]), np.array([1, 0])),
        (np.array([1.0, -2.0], dtype=np.float32), np.array([1, -2])),
        ([1, 2.0], np.array([1, 2])),
        (np.array(["a", "bc"], dtype=object), np.array(["a", "bc"])),
        (np.array([1, 2**63], dtype=object), np.array([1, 2**63], dtype=np.uint64)),
        (("a", "b"), np.array(["a", "b"])),
        ([np.str_("a"), "b"], np.array(["a", "b"])),
        (np.array(["é".encode(), b"b"]), np.array(["é", "b"])),
        (np.array([1, 2], dtype=">i4"), np.array([1, 2], dtype=np.int32)),
    ],
)
def test_labels_of_many_kinds_become_integers_or_text(given, expected):
    same_labels(EmbeddingSet(VECTORS[:2], given).labels, expected)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.array([1.0, np.nan]), r"labels[1] is nan"),
        (np.array([1.0, np.inf]), r"labels[1] is inf"),
        (np.array([0.5, 1.0]), "whole numbers"),
        (np.array([1, 2**24 + 2], dtype=np.float32), "whole numbers below 16777216"),
        ([1, "1"], "mixes int and str"),
        (["a", None], r"labels[1] is None"),
        (["a", float("nan")], r"labels[1] is nan"),
        ([-1, 2**63], "neither int64 nor uint64"),
        ([{}, {}], "objects of type dict"),
        (np.array([1 + 0j, 2]), "complex"),
        (np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"), "datetime64"),
        (torch.tensor([1.0, 2.0]).bfloat16(), "bfloat16"),
        (np.array([b"\xff", b"a"]), "UTF-8"),
        (np.ma.array([1, 2], mask=[True, False]), "masked"),
        (np.zeros((2, 1), dtype=int), "shape (2, 1)"),
        ([[1], [2]], "shape (2, 1)"),
        ("ab", "shape ()"),
    ],
)
def test_labels_that_would_merge_split_or_lose_classes_are_refused(given, words):
    assert words in message_of(VECTORS[:2], given)


NULS = ["a", "", "b\0c", "a", "\0", "b"]
CATEGORIES = pandas.Series(NULS).astype("category")  # before pandas 3, what follows a NUL is not compared


def write_nuls(path: Path) -> None:
    """Write text labels of which row 4 is a NUL character, with the format's own library."""
    codes = torch.arange(ROWS)
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.table({"embeddings": list(VECTORS), "labels": NULS}), path)
        case ".pt":
            torch.save({"embeddings": torch.from_numpy(VECTORS), "labels": NULS}, path)
        case ".safetensors":
            names = {"labels.names": json.dumps(NULS)}
            save_file({"embeddings": torch.from_numpy(VECTORS), "labels": codes}, path, metadata=names)
        case ".npy":
            np.save(path, VECTORS)
            path.with_suffix(".labels.txt").write_text("\n".join(["x" if name == "" else name for name in NULS]))


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".pt", ".safetensors"])
def test_a_label_that_ends_with_a_nul_is_refused_with_its_row_in_every_file(tmp_path, suffix):
    path = tmp_path / f"set{suffix}"
    write_nuls(path)
    assert rf"{path}: labels[4] is '\x00', which ends with a NUL" in message(path)


@pytest.mark.parametrize(
    "given",
    [
        NULS,
        np.array(NULS, dtype=object),
        [name.encode() for name in NULS],
        pandas.Series(NULS),
        *([CATEGORIES] if CATEGORIES.tolist() == NULS else []),
        *([np.array(NULS, dtype=np.dtypes.StringDType())] if hasattr(np.dtypes, "StringDType") else []),
    ],
    ids=lambda given: type(given).__name__ + str(getattr(given, "dtype", "")),
)
def test_a_label_that_ends_with_a_nul_is_refused_with_its_row_in_memory(given):
    assert r"labels[4] is" in (text := message_of(VECTORS, given))
    assert r"'\x00', which ends with a NUL" in text


def test_a_nul_within_a_label_is_kept():
    assert EmbeddingSet(VECTORS[:2], ["a\0b", "a\0c"]).labels.tolist() == ["a\0b", "a\0c"]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        (np.zeros(6), "shape (6,)"),
        (np.zeros((6, 2, 2)), "shape (6, 2, 2)"),
        (np.zeros((0, 4)), "empty"),
        (np.zeros((6, 0)), "empty"),
        (np.full((6, 2), "a"), "dtype <U1"),
        (np.full((6, 2), None), "dtype object"),
        (np.zeros((6, 2), dtype=complex), "dtype complex128"),
        (np.zeros((6, 2), dtype=bool), "dtype bool"),
        (torch.zeros((6, 2), dtype=torch.bool), "dtype torch.bool"),
        (torch.zeros((6, 2), dtype=torch.complex64), "dtype torch.complex64"),
        (torch.zeros(6), "shape (6,)"),
        ([[1.0, 2.0]] * 6, "numpy.asarray"),
    ],
)
def test_vectors_of_wrong_shape_or_type_are_refused(vectors, words):
    assert words in message_of(vectors, INTEGERS)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".pt", ".safetensors"])
def test_wrong_contents_are_refused_with_the_name_of_the_file(tmp_path, suffix):
    path, labels = tmp_path / f"set{suffix}", tmp_path / "l.npy"
    EmbeddingSet(VECTORS, INTEGERS).save(path)
    np.save(labels, np.arange(100))
    text = message(path, labels=labels)
    assert text == f"{path}: labels has 100 entries, embeddings has 6 rows: one label per row is needed"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_folder_and_empty_files_are_told_apart(tmp_path, suffix):
    assert "does not exist" in message(tmp_path / f"none{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    assert "is a folder" in message(tmp_path / f"folder{suffix}")
    (tmp_path / f"empty{suffix}").touch()
    assert "0 bytes" in message(tmp_path / f"empty{suffix}")
    assert "is a folder" in message(tmp_path)


def test_unknown_suffix_names_the_known_ones(tmp_path):
    for name in ("set.csv", "set"):
        (tmp_path / name).write_text("1")
        text = message(tmp_path / name)
        assert all(suffix in text for suffix in SUFFIXES)
        with pytest.raises(InputError, match=r"\.safetensors is needed"):
            EmbeddingSet(VECTORS, INTEGERS).save(tmp_path / name)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("labels", ["int64", "text"])
def test_a_truncated_file_is_always_an_input_error(tmp_path, suffix, labels):
    path = tmp_path / f"set{suffix}"
    EmbeddingSet(VECTORS, LABELS[labels]).save(path)
    whole = path.read_bytes()
    for length in sorted({1, 2, 3, 7, 8, 9, *range(16, len(whole), max(1, len(whole) // 60)), len(whole) - 1}):
        path.write_bytes(whole[:length])
        assert str(path) in message(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_another_format_is_an_input_error(tmp_path, suffix):
    path = tmp_path / f"set{suffix}"
    np.save(tmp_path / "set.labels.npy", INTEGERS)
    EmbeddingSet(VECTORS, INTEGERS).save(tmp_path / "other.npz")
    EmbeddingSet(VECTORS, INTEGERS).save(tmp_path / "other.parquet")
    for content in [b"{}", b"\x00" * 100, os.urandom(1000), (tmp_path / "other.parquet").read_bytes()]:
        if suffix != ".parquet":
            path.write_bytes(content)
            message(path)
    if suffix != ".npz":
        path.write_bytes((tmp_path / "other.npz").read_bytes())
        message(path)


def test_an_unreadable_file_is_an_input_error(tmp_path, monkeypatch):
    path = tmp_path / "set.npz"
    EmbeddingSet(VECTORS, INTEGERS).save(path)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "load", refuse)
    assert "permissions" in message(path)


# --- files that unpack to far more than they are --------------------------------------------------------------------

LARGE = 1 << 24  # bytes: far more than any header


def write_zeros(path: Path, shape: tuple[int, ...], labels: np.ndarray = INTEGERS) -> None:
    np.savez_compressed(path, embeddings=np.zeros(shape, np.float32), labels=labels)


def write_wrong_header(path: Path) -> None:
    """Write an archive whose embeddings have more bytes than their header says."""
    header = io.BytesIO()
    np.save(header, VECTORS)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embeddings.npy", header.getvalue() + bytes(LARGE))
        archive.writestr("labels.npy", header.getvalue())


def write_no_array(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embeddings", bytes(LARGE))
        archive.writestr("labels", bytes(LARGE))


BOMBS = {
    "one dimension": (lambda path: write_zeros(path, (LARGE // 4,)), "two dimensions are needed"),
    "more rows than labels": (lambda path: write_zeros(path, (LARGE // 8, 2)), "labels has 6 entries"),
    "many labels": (lambda path: write_zeros(path, (6, 2), np.zeros(LARGE // 8, int)), "one label per row is needed"),
    "labels in two dimensions": (
        lambda path: write_zeros(path, (6, 2), np.zeros((6, LARGE // 48), int)),
        "one dimension",
    ),
    "more bytes than the header says": (write_wrong_header, "it is damaged"),
    "no array": (write_no_array, "it is not an array"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_an_archive_that_cannot_be_used_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, kind):
    write, words = BOMBS[kind]
    path, unpacked = tmp_path / "set.npz", []
    write(path)
    read = zipfile.ZipExtFile.read

    def count(self: zipfile.ZipExtFile, *arguments: int) -> bytes:
        unpacked.append(len(content := read(self, *arguments)))
        return content

    monkeypatch.setattr(zipfile.ZipExtFile, "read", count)
    text = message(path)
    assert text.startswith(str(path))
    assert words in text
    assert sum(unpacked) < 10_000


def write_compressed_pt(path: Path, content: dict[str, torch.Tensor]) -> None:
    """Write a .pt file whose parts are compressed, which torch reads but never writes."""
    stored = io.BytesIO()
    torch.save(content, stored)
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".pt"])
def test_what_unpacks_to_more_than_the_memory_is_refused_and_else_read(tmp_path, monkeypatch, suffix):
    path, rows = tmp_path / f"set{suffix}", 100_000
    vectors, labels = np.ones((rows, 16), np.float32), np.arange(rows) % 7
    match suffix:
        case ".npz":
            np.savez_compressed(path, embeddings=vectors, labels=labels)
        case ".parquet":
            EmbeddingSet(vectors, labels).save(path)
        case ".pt":
            write_compressed_pt(path, {"embeddings": torch.from_numpy(vectors), "labels": torch.from_numpy(labels)})
    assert path.stat().st_size < vectors.nbytes / 4
    monkeypatch.setattr("isomargin.core.memory.available_memory", lambda: 2 * vectors.nbytes)
    np.testing.assert_array_equal(np.asarray(EmbeddingSet.load(path).vectors), vectors)
    monkeypatch.setattr("isomargin.core.memory.available_memory", lambda: vectors.nbytes - 1)
    assert "GB of memory is available: save the embeddings as .npy" in message(path)


# --- parquet ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 4), pa.list_(pa.int16())]
)
def test_parquet_lists_of_every_kind_are_read_over_many_row_groups(tmp_path, kind):
    array = np.arange(4000).reshape(1000, 4)
    labels = pa.array([f"class {row % 7}" for row in range(1000)]).dictionary_encode()
    table = pa.table({"labels": labels, "embeddings": pa.array(array.tolist(), type=kind), "other": labels})
    pq.write_table(table, tmp_path / "set.parquet", row_group_size=130)
    loaded = EmbeddingSet.load(tmp_path / "set.parquet")
    assert loaded.vectors.dtype == kind.value_type.to_pandas_dtype()
    np.testing.assert_array_equal(loaded.vectors, array)
    assert loaded.labels.tolist() == [f"class {row % 7}" for row in range(1000)]


@pytest.mark.parametrize(
    ("rows", "labels", "words"),
    [
        ([[1.0, 2.0], [1.0], [1.0, 2.0]], [1, 2, 3], "row 1"),
        ([[1.0, 2.0], [1.0, 2.0], None], [1, 2, 3], "row 2"),
        ([[1.0, 2.0], [1.0, None], [1.0, 2.0]], [1, 2, 3], "row 1"),
        ([[1.0], [1.0], [1.0]], [1, None, 3], "no label in row 1"),
        ([[1.0], [1.0], [1.0]], ["a", "b", None], "no label in row 2"),
        ([1.0, 2.0, 3.0], [1, 2, 3], "list of numbers"),
        ([["a"], ["b"], ["c"]], [1, 2, 3], "list of numbers"),
        ([[], [], []], [1, 2, 3], "list of numbers"),
    ],
)
@pytest.mark.parametrize("row_group_size", [1, 10])
def test_parquet_with_ragged_or_missing_values_is_refused_with_the_row(tmp_path, rows, labels, words, row_group_size):
    path = tmp_path / "set.parquet"
    pq.write_table(pa.table({"embeddings": rows, "labels": labels}), path, row_group_size=row_group_size)
    assert words in message(path)


def test_parquet_without_rows_or_dimensions_is_refused(tmp_path):
    path = tmp_path / "set.parquet"
    kind = pa.list_(pa.float32())
    for rows in ([], [[], []]):
        labels = pa.array(range(len(rows)), type=pa.int64())
        pq.write_table(pa.table({"embeddings": pa.array(rows, type=kind), "labels": labels}), path)
        assert "empty" in message(path)


# --- nothing is unpickled ---------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.marker),))


@pytest.fixture
def bomb(tmp_path):
    """An object that makes a folder when it is unpickled; the folder must not be there when the test ends."""
    marker = tmp_path / "marker"
    pickle.loads(pickle.dumps(Bomb(marker)))
    marker.rmdir()
    yield Bomb(marker)
    assert not marker.exists()


def test_pickles_in_npz_are_refused_and_not_run(tmp_path, bomb):
    objects = np.array([bomb] * ROWS, dtype=object)
    path = tmp_path / "set.npz"
    np.savez(path, embeddings=VECTORS, labels=objects)
    text = message(path)
    assert "run code" in text
    assert "save labels.astype(str)" in text
    np.savez(path, embeddings=objects, labels=INTEGERS)
    assert "numpy.stack" in message(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("embeddings.npy", pickle.dumps(bomb))
        archive.writestr("labels.npy", pickle.dumps(bomb))
    message(path)
    path.write_bytes(pickle.dumps(bomb))
    assert "is a pickle" in message(path)


def test_pickles_in_npy_are_refused_and_not_run(tmp_path, bomb):
    objects = np.array([bomb] * ROWS, dtype=object)
    np.save(tmp_path / "good.npy", VECTORS)
    np.save(tmp_path / "good.labels.npy", objects)
    assert "labels.astype(str)" in message(tmp_path / "good.npy")
    np.save(tmp_path / "set.npy", objects)
    np.save(tmp_path / "set.labels.npy", INTEGERS)
    assert "run code" in message(tmp_path / "set.npy")
    (tmp_path / "set.npy").write_bytes(pickle.dumps(bomb))
    assert "is a pickle" in message(tmp_path / "set.npy")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("new_format", [True, False])
def test_pickles_in_pt_are_refused_and_not_run(tmp_path, bomb, new_format):
    path = tmp_path / "set.pt"
    content = {"embeddings": torch.from_numpy(VECTORS), "labels": bomb}
    torch.save(content, path, _use_new_zipfile_serialization=new_format)
    assert "run code" in message(path)
    path.write_bytes(pickle.dumps(bomb))
    message(path)


def test_other_contents_of_pt_are_refused(tmp_path):
    path = tmp_path / "set.pt"
    torch.save({"embeddings": VECTORS, "labels": INTEGERS}, path)
    assert "torch.from_numpy" in message(path)
    torch.save(torch.from_numpy(VECTORS), path)
    assert "dictionary" in message(path)
    torch.save({"embeddings": VECTORS.tolist(), "labels": INTEGERS.tolist()}, path)
    assert "embeddings is a list" in message(path)


def test_safetensors_with_bad_class_names_is_refused(tmp_path):
    path = tmp_path / "set.safetensors"
    tensors = {"embeddings": torch.from_numpy(VECTORS), "labels": torch.tensor([0, 1, 2, 0, 1, 2])}
    for names in ("nonsense", "{}", "[1, 2, 3]", '["a", "b"]'):
        save_file(tensors, path, metadata={"labels.names": names})
        message(path)
    save_file(tensors, path, metadata={"labels.names": '["a", "b", "c"]'})
    assert EmbeddingSet.load(path).labels.tolist() == ["a", "b", "c"] * 2


# --- writing whole or not at all --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_crash_while_saving_leaves_the_old_file(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"set{suffix}"
    EmbeddingSet(VECTORS, LABELS["text"]).save(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def crash(*arguments: object, **options: object) -> None:
        for argument in arguments:
            if isinstance(argument, io.IOBase):
                argument.write(b"half")
            elif isinstance(argument, Path):
                argument.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    for target in ("numpy.savez", "numpy.save", "pyarrow.parquet.write_table", "torch.save"):
        monkeypatch.setattr(target, crash)
    monkeypatch.setattr("safetensors.numpy.save_file", crash)
    with pytest.raises(OSError, match="No space left"):
        EmbeddingSet(VECTORS * 2, INTEGERS).save(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_saving_into_a_missing_folder_or_onto_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        EmbeddingSet(VECTORS, INTEGERS).save(tmp_path / "none" / "set.npz")
    (tmp_path / "set.npz").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        EmbeddingSet(VECTORS, INTEGERS).save(tmp_path / "set.npz")


def test_atomic_write_follows_links_and_keeps_permissions(tmp_path):
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
        temporary.chmod(0o600)
        assert target.read_text() == "old"
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_saved_files_have_the_permissions_of_any_new_file(tmp_path, suffix):
    (tmp_path / "plain").touch()
    EmbeddingSet(VECTORS, INTEGERS).save(tmp_path / f"set{suffix}")
    assert (tmp_path / f"set{suffix}").stat().st_mode == (tmp_path / "plain").stat().st_mode


# --- the object -------------------------------------------------------------------------------------------------------


def test_the_set_is_frozen_and_keeps_the_vectors_as_given():
    vectors = torch.zeros((2, 3), dtype=torch.bfloat16)
    embedding_set = EmbeddingSet(vectors, ["a", "b"])
    assert embedding_set.vectors is vectors
    assert repr(embedding_set) == "EmbeddingSet(vectors: (2, 3) torch.bfloat16, labels: (2,) <U1)"
    with pytest.raises(AttributeError):
        embedding_set.labels = np.zeros(2)


def test_values_are_not_judged(tmp_path):
    EmbeddingSet(np.full((2, 2), np.nan), [0, 1]).save(tmp_path / "set.npz")
    assert np.isnan(EmbeddingSet.load(tmp_path / "set.npz").vectors).all()


def test_importing_is_light():
    heavy = "{'torch', 'pyarrow', 'safetensors', 'pandas'}"
    code = f"import sys, isomargin.io.embedding_set; print({heavy} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
