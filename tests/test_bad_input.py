"""Input of every kind: what can be used gives the same scores, what cannot is refused in one sentence."""

import json
import os
import sys
from dataclasses import fields

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

import isomargin as im
from isomargin.cli import app as cli
from isomargin.measure.saving import as_json_values, from_json_values

CLASSES, IMAGES, WIDTH = 8, 8, 12
GENERATOR = np.random.default_rng(0)
LABELS = np.repeat(np.arange(CLASSES), IMAGES)
VECTORS = GENERATOR.normal(size=(CLASSES, WIDTH))[LABELS] + GENERATOR.normal(size=(len(LABELS), WIDTH))
BASE = im.evaluate(VECTORS, LABELS)


def changed(rows, value):
    vectors = VECTORS.copy()
    vectors[rows] = value
    return vectors


def message(vectors=VECTORS, labels=LABELS, **options):
    """The one sentence with which Python refuses this."""
    with pytest.raises(im.InputError) as caught:
        im.evaluate(vectors, labels, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def refusal(monkeypatch, capsys, tmp_path):
    """Run the command, see that it refuses in one line and changes no file; give the sentence."""

    def call(*arguments):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        monkeypatch.setattr(sys, "argv", ["isomargin", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        assert ended.value.code == 2
        assert written.out == ""
        assert written.err.startswith("isomargin: ")
        assert written.err.endswith("\n")
        assert len(written.err.splitlines()) == 1
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return written.err.removeprefix("isomargin: ").removesuffix("\n")

    return call


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, embeddings=VECTORS, labels=LABELS)
    return path


# --- values that cannot be measured -----------------------------------------------------------------------------------

UNUSABLE = {
    "NaN": (changed([7, 3], np.nan), LABELS, "rows 3, 7 of embeddings are NaN or infinite"),
    "one NaN": (changed((5, 2), np.nan), LABELS, "rows 5 of embeddings are NaN or infinite"),
    "infinity": (changed((5, 2), np.inf), LABELS, "rows 5 of embeddings are NaN or infinite"),
    "minus infinity": (changed((5, 2), -np.inf), LABELS, "rows 5 of embeddings are NaN or infinite"),
    "NaN among large values": (
        changed((4, slice(1, 9)), [np.nan] + [1e300] * 7),
        LABELS,
        "rows 4 of embeddings are NaN",
    ),
    "many NaN": (changed(slice(0, 20), np.nan), LABELS, "rows 0, 1, 2, 3, 4 and 15 more of embeddings are NaN"),
    "zero vectors": (changed([9, 2], 0.0), LABELS, "rows 2, 9 of embeddings are zero vectors"),
    "all zero": (np.zeros_like(VECTORS), LABELS, "and 59 more of embeddings are zero vectors"),
    "fewer labels": (VECTORS, LABELS[:-1], "labels has 63 entries, embeddings has 64 rows"),
    "more labels": (VECTORS[:-1], LABELS, "labels has 64 entries, embeddings has 63 rows"),
    "no labels": (VECTORS, LABELS[:0], "labels has 0 entries, embeddings has 64 rows"),
    "no labels of text": (VECTORS, LABELS[:0].astype(str), "labels has 0 entries, embeddings has 64 rows"),
    "one class": (VECTORS, np.full(len(LABELS), 3), "all labels are 3: at least two classes are needed"),
    "one class of text": (VECTORS, np.full(len(LABELS), "owl"), "all labels are 'owl': at least two classes"),
    "no positive pair": (VECTORS, np.arange(len(LABELS)), "each of the 64 classes has a single item"),
    "no rows": (VECTORS[:0], LABELS[:0], "embeddings has shape (0, 12) and is empty"),
    "no columns": (VECTORS[:, :0], LABELS, "embeddings has shape (64, 0) and is empty"),
    "one dimension": (VECTORS[:, 0], LABELS, "embeddings has shape (64,): two dimensions are needed"),
    "three dimensions": (VECTORS[:, :, None], LABELS, "embeddings has shape (64, 12, 1)"),
    "complex numbers": (VECTORS.astype(complex), LABELS, "embeddings has dtype complex128: real numbers are needed"),
    "text": (VECTORS.astype(str), LABELS, "real numbers are needed"),
    "truth values": (VECTORS > 0, LABELS, "embeddings has dtype bool: real numbers are needed"),
    "labels in two dimensions": (VECTORS, LABELS[:, None], "labels has shape (64, 1): one dimension is needed"),
    "labels with fractions": (VECTORS, LABELS + 0.5, "labels[0] is 0.5"),
    "labels of NaN": (VECTORS, np.where(LABELS == 1, np.nan, LABELS), "labels[8] is nan"),
    "dates as labels": (VECTORS, LABELS.astype("datetime64[s]"), "integers or text are needed"),
    "half characters": (VECTORS, np.array(["a", "b\udce9"])[LABELS % 2], r"labels[8] is 'b\udce9'"),
    "equal distances": (np.eye(4)[np.arange(8) % 4], np.arange(8) % 4, "target_far asks for"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_values_are_refused_in_one_sentence(tmp_path, refusal, kind):
    vectors, labels, expected = UNUSABLE[kind]
    assert expected in message(vectors, labels)
    path = tmp_path / "set.npz"
    np.savez(path, embeddings=vectors, labels=labels)
    output, table = tmp_path / "evaluation.json", tmp_path / "classes.csv"
    for options in (("--output", output, "--per-class", table), ("--json",)):
        assert refusal("evaluate", path, *options).removeprefix(f"{path}: ") == message(vectors, labels)


OBJECTS = {
    "nothing": (None, LABELS, "embeddings has shape ()"),
    "ragged lists": ([[1.0, 2.0], [3.0]], [0, 1], "embeddings cannot be converted to one array of numbers"),
    "lists of text": ([["a", "b"]] * 4, [0, 0, 1, 1], "real numbers are needed"),
    "objects": (VECTORS.astype(object), LABELS, "embeddings has dtype object"),
    "tensor of truth values": (torch.from_numpy(VECTORS) > 0, LABELS, "embeddings has dtype torch.bool"),
    "tensor of complex numbers": (torch.from_numpy(VECTORS).to(torch.complex64), LABELS, "real numbers are needed"),
    "sparse matrix": (csr_array(VECTORS), LABELS, "a sparse matrix, which is not supported"),
    "sparse tensor": (torch.from_numpy(VECTORS).to_sparse(), LABELS, "a dense tensor is needed"),
    "tensor without values": (torch.from_numpy(VECTORS).to("meta"), LABELS, "a dense tensor is needed"),
    "tensor with NaN": (torch.from_numpy(changed(6, np.nan)).bfloat16(), LABELS, "rows 6 of embeddings are NaN"),
    "float16 that overflowed": (changed(6, np.inf).astype(np.float16), LABELS, "rows 6 of embeddings are NaN or inf"),
    "beyond float64": (VECTORS.astype(np.longdouble) * np.longdouble("1e4000"), LABELS, "are NaN or infinite"),
    "masked": (np.ma.array(VECTORS, mask=VECTORS > 1), LABELS, "embeddings is a masked array"),
    "labels that are nothing": (VECTORS, None, "labels has shape ()"),
    "labels of mixed kinds": (VECTORS, ["1", 1] * 32, "labels mixes int and str"),
    "missing labels": (VECTORS, pandas.Series([None, *["a", "b", "c"] * 21]), "give every row a label"),
    "bfloat16 labels": (VECTORS, torch.from_numpy(LABELS).bfloat16(), "use integers"),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_unusable_objects_are_refused_in_one_sentence(kind):
    vectors, labels, expected = OBJECTS[kind]
    assert expected in message(vectors, labels)


def test_a_label_in_a_sentence_is_kept_short():
    assert len(message(VECTORS, ["x" * 10_000] * len(LABELS))) < 200


@given(
    rows=st.sets(st.integers(0, len(LABELS) - 1), min_size=1, max_size=5),
    column=st.integers(0, WIDTH - 1),
    value=st.sampled_from([np.nan, np.inf, -np.inf, 0.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_unusable_rows_are_named_as_the_caller_numbers_them_whatever_their_classes(rows, column, value, seed):
    vectors = changed((sorted(rows), column) if value else sorted(rows), value)
    what = "are NaN or infinite" if value else "are zero vectors"
    labels = np.random.default_rng(seed).permutation(LABELS)
    expected = f"rows {', '.join(map(str, sorted(rows)))} of embeddings {what}"
    assert message(vectors, labels).startswith(expected)


# --- settings ---------------------------------------------------------------------------------------------------------

SETTINGS = {
    "far in the wrong order": (["--far", "0.1", "0.01"], {"far": (0.1, 0.01)}, "far is (0.1, 0.01)"),
    "far of no width": (["--far", "0.1", "0.1"], {"far": (0.1, 0.1)}, "far is (0.1, 0.1)"),
    "far of nothing": (["--far", "0", "0.1"], {"far": (0, 0.1)}, "0 < lower < upper < 1"),
    "far of all": (["--far", "0.1", "1"], {"far": (0.1, 1)}, "0 < lower < upper < 1"),
    "far of NaN": (["--far", "nan", "0.1"], {"far": (np.nan, 0.1)}, "far is (nan, 0.1)"),
    "far too small to resolve": (["--far", "1e-4", "0.1"], {"far": (1e-4, 0.1)}, "with 1,792 negative pairs"),
    "target far too small": (["--target-far", "1e-4"], {"target_far": 1e-4}, "target_far asks for"),
    "range that is empty": (["--frr", "1e-9"], {"frr": 1e-9}, "the calibration range is empty"),
    "frr": (["--frr", "1"], {"frr": 1.0}, "frr is 1.0: a number above 0 and below 1"),
    "target frr": (["--target-frr", "0"], {"target_frr": 0.0}, "target_frr is 0.0: a number above 0 and below 1"),
    "distances out of order": (["--distances", "1.5", "0.5"], {"distances": (1.5, 0.5)}, "the lower one first"),
    "distances equal": (["--distances", "1", "1"], {"distances": (1, 1)}, "distances is (1.0, 1.0)"),
    "distances below zero": (["--distances", "-1", "1"], {"distances": (-1, 1)}, "distances is (-1.0, 1.0)"),
    "distances too large": (["--distances", "1", "3"], {"distances": (1, 3)}, "distances is (1.0, 3.0)"),
    "epsilon of zero": (["--epsilon", "0"], {"epsilon": 0.0}, "epsilon is 0.0: a share of the classes is needed"),
    "epsilon above one": (["--epsilon", "1.01"], {"epsilon": 1.01}, "above 0 and at most 1"),
    "epsilon of NaN": (["--epsilon", "nan"], {"epsilon": np.nan}, "epsilon is nan"),
    "grid": (["--grid", "9"], {"grid": 9}, "grid is 9: a whole number from 10 to 1,000,000"),
    "grid beyond memory": (["--grid", "100000000000"], {"grid": 10**11}, "grid is 100000000000"),
    "c": (["--c", "0"], {"c": 0.0}, "c is 0.0: a number above 0"),
    "c of NaN": (["--c", "nan"], {"c": np.nan}, "c is nan: a finite number"),
    "c of infinity": (["--c", "inf"], {"c": np.inf}, "c is inf: a finite number"),
    "utility": (["--utility", "x"], {"utility": "x"}, "'specificity_sensitivity', 'precision_recall'"),
    "mean curve": (["--mean-curve", "x"], {"mean_curve": "x"}, "one of 'classes', 'pooled'"),
    "epsilon form": (["--epsilon-form", "x"], {"epsilon_form": "x"}, "one of 'f_score', 'printed'"),
    "pairs": (["--pairs", "x"], {"pairs": "x"}, "one of 'all', 'sampled'"),
    "k": (["--k", "0"], {"k": [0]}, "k is 0: a whole number of at least 1"),
    "negative k": (["--k", "1,-2"], {"k": [1, -2]}, "k is -2"),
    "no negatives": (["--negatives-per-positive", "0"], {"negatives_per_positive": 0}, "from 1 to"),
    "too many negatives": (
        ["--pairs", "sampled", "--negatives-per-positive", str(10**30)],
        {"pairs": "sampled", "negatives_per_positive": 10**30},
        "from 1 to 1,000,000",
    ),
    "seed": (["--seed", "-1"], {"seed": -1}, "seed is -1"),
    "no such device": (["--device", "cuda"], {"device": "cuda"}, "device='cuda' cannot be used"),
    "no device at all": (["--device", "toaster"], {"device": "toaster"}, "device='toaster' cannot be used"),
    "device without values": (["--device", "meta"], {"device": "meta"}, "device='meta' cannot be used"),
    "exact on a device": (
        ["--exact", "--device", "cuda"],
        {"exact": True, "device": "cuda"},
        "leave out device or exact",
    ),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_unusable_settings_are_refused_in_one_sentence(file, tmp_path, refusal, kind):
    if "cuda" in SETTINGS[kind][0] and torch.cuda.is_available():
        pytest.skip("there is such a device")
    arguments, options, expected = SETTINGS[kind]
    assert expected in message(**options)
    assert refusal("evaluate", file, "--output", tmp_path / "evaluation.json", *arguments) == message(**options)


WRONG_KINDS = [
    {"grid": "x"},
    {"grid": 50.5},
    {"grid": True},
    {"epsilon": "x"},
    {"epsilon": None},
    {"c": "x"},
    {"far": None},
    {"far": 0.1},
    {"far": "ab"},
    {"far": (0.1,)},
    {"distances": 1.0},
    {"frr": "x"},
    {"target_far": None},
    {"k": 5},
    {"k": "12"},
    {"k": [1.5]},
    {"k": [float("inf")]},
    {"k": [float("nan")]},
    {"k": None},
    {"utility": None},
    {"utility": []},
    {"seed": "x"},
    {"seed": 0.5},
    {"negatives_per_positive": 1.5},
    {"threads": 0},
    {"threads": -1},
    {"threads": "x"},
]


@pytest.mark.parametrize("options", WRONG_KINDS, ids=str)
def test_settings_of_the_wrong_kind_are_refused_by_name(options):
    (name,) = options
    assert message(**options).startswith(f"{name} is ")


@pytest.mark.parametrize("options", [{"k": (1.5,)}, {"k": [1]}, {"device": 3}, {"grid": "x"}, {"far": [1]}], ids=str)
def test_settings_made_directly_are_checked_too(options):
    with pytest.raises(im.InputError, match=f"^{next(iter(options))} is "):
        im.Settings(**options)


def test_k_may_be_anything_that_can_be_counted_through():
    for k in ((1, 5), [5, 1, 5], (each for each in (5, 1)), np.array([1, 5]), torch.tensor([1, 5]), {1: "", 5: ""}):
        assert im.evaluate(VECTORS, LABELS, k=k).recall_at_k.keys() == {1, 5}


BAD_OPTIONS = {
    "--grid": ["x"],
    "--far": ["x", "0.1"],
    "--distances": ["x", "1"],
    "--worst": ["-1"],
    "--threads": ["0"],
    "--worst-by": ["images"],
    "--k": ["1,x"],
    "--nonsense": [],
}


@pytest.mark.parametrize("option", BAD_OPTIONS)
def test_unusable_options_are_refused_in_one_line_that_names_them(file, refusal, option):
    assert option.lstrip("-").replace("-", " ") in refusal("evaluate", file, option, *BAD_OPTIONS[option]).replace(
        "-", " "
    )


def test_a_missing_argument_and_an_unknown_command_are_refused(refusal):
    assert "FILE" in refusal("evaluate").upper()
    assert "nonsense" in refusal("nonsense")


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_wrong_key_is_refused_with_the_keys_there_are(tmp_path, refusal):
    path = tmp_path / "set.npz"
    np.savez(path, features=VECTORS, targets=LABELS)
    assert "no 'embeddings': it has 'features', 'targets'" in refusal("evaluate", path)
    assert "no 'labels': it has 'features', 'targets'" in refusal("evaluate", path, "--embeddings-key", "features")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet", ".pt", ".safetensors"])
def test_damaged_files_are_refused(tmp_path, refusal, suffix):
    path = tmp_path / f"set{suffix}"
    im.EmbeddingSet(VECTORS, LABELS).save(path)
    whole = path.read_bytes()
    output = tmp_path / "evaluation.json"
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert str(path) in refusal("evaluate", path, "--output", output)
    path.write_bytes(b"this is something else entirely" * 10)
    assert str(path) in refusal("evaluate", path, "--output", output)


def test_files_that_are_none_are_refused(tmp_path, refusal):
    assert "is a folder" in refusal("evaluate", tmp_path)
    assert "does not exist" in refusal("evaluate", tmp_path / "nothing.npz")
    table = tmp_path / "set.csv"
    table.write_text("1,2")
    assert "has the suffix .csv" in refusal("evaluate", table)
    (tmp_path / "nothing").write_text("1,2")
    assert "no suffix" in refusal("evaluate", tmp_path / "nothing")
    (tmp_path / "folder.npz").mkdir()
    assert "is a folder" in refusal("evaluate", tmp_path / "folder.npz")
    assert refusal("evaluate", tmp_path / ("x" * 5000))
    assert refusal("evaluate", tmp_path / ("x" * 5000 + ".npz"))


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet", ".pt", ".safetensors"])
def test_a_pipe_in_place_of_embeddings_is_refused(pipe, refusal, suffix):
    assert "is a pipe, a socket or a device: give a regular file" in refusal("evaluate", pipe(f"set{suffix}"))


@pytest.mark.parametrize(
    "command",
    [
        ("threshold", "PIPE.json"),
        ("transfer", "PIPE.json", "SET"),
        ("transfer", "SET", "PIPE.json"),
        ("compare", "SET", "PIPE.json"),
        ("report", "PIPE.json"),
        ("evaluate", "SET", "--labels", "PIPE.txt"),
        ("evaluate", "SET", "--labels", "PIPE.npy"),
        ("train", "PIPE.yaml"),
    ],
    ids=" ".join,
)
def test_a_pipe_in_place_of_any_other_file_is_refused(file, pipe, refusal, command):
    np.savez(file, embeddings=unit(VECTORS), labels=LABELS)  # other lengths would be noted before the refusal
    arguments = [pipe(each) if each.startswith("PIPE") else file if each == "SET" else each for each in command]
    assert "is a pipe, a socket or a device: give a regular file" in refusal(*arguments)


def test_a_pipe_in_place_of_labels_beside_the_embeddings_is_refused(tmp_path, pipe, refusal):
    np.save(tmp_path / "set.npy", VECTORS)
    pipe("set.labels.txt")
    assert "is a pipe" in refusal("evaluate", tmp_path / "set.npy")


def test_a_pipe_is_not_replaced_by_what_is_written(file, pipe, refusal):
    output = pipe("evaluation.json")
    assert "is a pipe" in refusal("evaluate", file, "--output", output)
    assert output.is_fifo()


def test_control_characters_in_a_file_name_stay_on_one_line(tmp_path, refusal):
    assert refusal("evaluate", tmp_path / "a\nb\x1b[2J.npz").isprintable()


def test_labels_files_that_cannot_be_used_are_refused(file, tmp_path, refusal):
    labels = tmp_path / "labels.txt"
    for content, expected in {
        "": "is empty",
        "1\n\n2\n": "empty line 2",
        "1\n2\n": "labels has 2 entries",
    }.items():
        labels.write_text(content)
        assert expected in refusal("evaluate", file, "--labels", labels)
    assert "does not exist" in refusal("evaluate", file, "--labels", tmp_path / "nothing.npy")


def test_outputs_that_cannot_be_written_are_refused_before_any_work(file, tmp_path, refusal, monkeypatch):
    monkeypatch.setattr(
        "isomargin.io.embedding_set.EmbeddingSet.load", lambda *_, **__: pytest.fail("the file was read")
    )
    (tmp_path / "folder.json").mkdir()
    for option, name in (("--output", "x.json"), ("--per-class", "x.csv")):
        assert "there is no folder" in refusal("evaluate", file, option, tmp_path / "missing" / name)
        assert "there is no folder" in refusal("evaluate", file, option, file / name)
        assert "should end in" in refusal("evaluate", file, option, tmp_path / "x.txt")
        assert "cannot be written" in refusal("evaluate", file, option, tmp_path / ("y" * 5000 + name))
    assert "it is a folder" in refusal("evaluate", file, "--output", tmp_path / "folder.json")


def test_a_full_disk_is_told_in_one_line_and_leaves_the_older_file(file, tmp_path, refusal, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    output = tmp_path / "evaluation.json"
    output.write_text("older")
    monkeypatch.setattr(os, "replace", full)
    expected = f"{output} cannot be written (No space left on device)"
    assert refusal("evaluate", file, "--output", output).startswith(expected)
    assert refusal("evaluate", file, "--per-class", tmp_path / "classes.csv")


def test_too_little_memory_is_told_in_one_line(file, refusal, monkeypatch):
    def too_much(*_, **__):
        raise MemoryError("Unable to allocate 745. GiB")

    monkeypatch.setattr("isomargin.measure.evaluate.run", too_much)
    assert "not enough memory (Unable to allocate 745. GiB)" in refusal("evaluate", file)


# --- evaluations that were saved --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "evaluation.json"
    BASE.save(path)
    return path.read_text("utf-8")


def refused_to_load(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(im.InputError) as caught:
        im.Evaluation.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_evaluation_cut_short_is_refused_at_every_length(tmp_path, saved):
    path = tmp_path / "evaluation.json"
    for length in {*range(0, 300, 7), *np.linspace(0, len(saved) - 1, 40).astype(int).tolist()}:
        refused_to_load(path, saved[:length])


@pytest.mark.parametrize(
    "content", ["{}", "[]", "1", "null", '"x"', "NaN", "[" * 100_000, b"\xff\xfe\x00", b"\x00" * 100, '{"format": 3}']
)
def test_other_json_is_refused(tmp_path, content):
    refused_to_load(tmp_path / "evaluation.json", content)


def test_another_version_is_refused_by_its_number(tmp_path, saved):
    values = json.loads(saved)
    for version in (1, 0, "2", None):
        text = json.dumps({**values, "version": version})
        assert f"format version {version!r}" in refused_to_load(tmp_path / "evaluation.json", text)


def leaves(value, path=()):
    """Give the place of every value in a tree of dictionaries, of lists as a whole."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield (*path, key)
            yield from leaves(below, (*path, key))


def replaced(tree, place, change):
    first, *rest = place
    if rest:
        return {**tree, first: replaced(tree[first], rest, change)}
    return {**tree, first: change(tree[first])} if change else {key: tree[key] for key in tree if key != first}


def test_a_missing_or_strange_part_is_refused_or_leaves_a_usable_evaluation(tmp_path, saved):
    path, values = tmp_path / "evaluation.json", json.loads(saved)
    refused = 0
    for place in [each for each in leaves(values) if each[0] != "scores"]:
        for change in (
            None,
            lambda _: None,
            lambda _: "x",
            lambda _: [],
            lambda _: {},
            lambda _: -1,
            lambda _: [0] * 7,
        ):
            path.write_text(json.dumps(replaced(values, place, change)))
            try:
                loaded = im.Evaluation.load(path)
            except im.InputError:
                refused += 1
            else:
                assert loaded.class_count == len(loaded.per_class) == CLASSES
                assert loaded.scores().keys() == BASE.scores().keys()
    assert refused > 200


@given(position=st.floats(0, 1, exclude_max=True), character=st.sampled_from("ABCDEFGHabcdefgh01234567+/"))
@settings(max_examples=40, deadline=None)
def test_an_altered_character_of_packed_values_is_refused_or_changes_nothing(
    tmp_path_factory, saved, position, character
):
    values = json.loads(saved)
    packed = values["negatives"]["distances"]["zlib"]
    at = int(position * len(packed.rstrip("=")))
    altered = packed[:at] + character + packed[at + 1 :]
    path = tmp_path_factory.getbasetemp() / "altered.json"
    path.write_text(json.dumps(replaced(values, ("negatives", "distances", "zlib"), lambda _: altered)))
    try:
        loaded = im.Evaluation.load(path)
    except im.InputError:
        assert altered != packed
    else:
        np.testing.assert_array_equal(loaded.counts.negatives.distances, BASE.counts.negatives.distances)


def test_a_file_that_is_none_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.json"):
        with pytest.raises(im.InputError):
            im.Evaluation.load(path)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_embeddings_that_are_all_the_same_are_saved_and_loaded(tmp_path):
    evaluation = im.evaluate(np.ones((8, 2)), [0, 0, 0, 0, 1, 1, 1, 1], distances=(0.1, 1.9), target_far=0.5)
    evaluation.save(tmp_path / "evaluation.json")
    assert im.Evaluation.load(tmp_path / "evaluation.json").scores() == evaluation.scores()


# --- asking again -----------------------------------------------------------------------------------------------------

CHANGES = [
    {"far": (0.02, 0.3)},
    {"frr": 0.5},
    {"distances": (0.7, 1.2)},
    {"grid": 37},
    {"epsilon": 0.5},
    {"c": 3.0},
    {"utility": "precision_recall", "mean_curve": "pooled"},
    {"epsilon_form": "printed", "target_far": 0.1, "target_frr": 0.2},
]


@pytest.mark.parametrize("start", [{}, {"pairs": "sampled", "seed": 4}], ids=str)
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_settings_changed_afterwards_are_as_if_evaluated_anew(changes, start):
    first = im.evaluate(VECTORS, LABELS, **start)
    anew = im.evaluate(VECTORS, LABELS, **start, **changes)
    again = first.with_settings(**changes)
    assert again.scores() == anew.scores()
    assert again.settings == anew.settings
    assert again.method == anew.method
    pandas.testing.assert_frame_equal(again.per_class, anew.per_class, check_exact=True)


def test_rates_take_the_place_of_distances_given_before():
    start = im.evaluate(VECTORS, LABELS, distances=(0.5, 1.5))
    assert start.with_settings(far=(1e-2, 1e-1)).scores() == BASE.scores()
    assert start.with_settings(grid=20).calibration_range == (0.5, 1.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"k": (1,)},
        {"map_at_r": False},
        {"pairs": "sampled"},
        {"negatives_per_positive": 3},
        {"seed": 1},
        {"exact": True},
        {"device": "cpu"},
    ],
    ids=str,
)
def test_settings_that_need_the_pairs_again_are_refused(changes):
    with pytest.raises(im.InputError, match=f"^{next(iter(changes))} cannot be changed after the pairs were counted"):
        BASE.with_settings(**changes)


@pytest.mark.parametrize("changes", [{"grid": 9}, {"epsilon": 0}, {"far": (1e-4, 0.1)}, {"colour": "red"}], ids=str)
def test_unusable_changes_are_refused(changes):
    with pytest.raises(im.InputError, match=next(iter(changes))):
        BASE.with_settings(**changes)


def test_unusable_questions_are_refused():
    for distance in (-0.1, 2.1, np.nan):
        with pytest.raises(im.InputError, match=r"^distance is"):
            BASE.at(distance)
    with pytest.raises(im.InputError, match="choose from mean_utility"):
        BASE.worst_classes(3, "images")


# --- input of every kind that can be used -----------------------------------------------------------------------------


def flat(scores):
    """Every number of the scores, by its place."""
    found = {}
    for name, value in scores.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in flat(value).items()}
        elif isinstance(value, list):
            found |= {f"{name}.{i}": each for i, each in enumerate(value)}
        else:
            found[name] = value
    return found


def assert_close(evaluation, tolerance):
    actual, expected = flat(evaluation.scores()), flat(BASE.scores())
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:  # unknown, as shares of classes near a rate are where classes have few pairs
            assert actual[name] is None, name
        else:
            assert actual[name] == pytest.approx(value, abs=tolerance, rel=tolerance), name


def mapped(tmp_path):
    np.save(tmp_path / "vectors.npy", VECTORS)
    return np.load(tmp_path / "vectors.npy", mmap_mode="r")


def read_only(_):
    vectors = VECTORS.copy()
    vectors.flags.writeable = False
    return vectors


SAME_VECTORS = {
    "nested lists": lambda _: VECTORS.tolist(),
    "memory-mapped": mapped,
    "read-only": read_only,
    "Fortran order": lambda _: np.asfortranarray(VECTORS),
    "every second row and column": lambda _: np.repeat(np.repeat(VECTORS, 2, axis=0), 2, axis=1)[::2, ::2],
    "backwards in memory": lambda _: VECTORS[::-1, ::-1].copy()[::-1, ::-1],
    "big-endian": lambda _: VECTORS.astype(">f8"),
    "long double": lambda _: VECTORS.astype(np.longdouble),
    "data frame": lambda _: pandas.DataFrame(VECTORS),
    "masked array without masked entries": lambda _: np.ma.array(VECTORS),
    "torch float64": lambda _: torch.from_numpy(VECTORS),
    "torch with gradient": lambda _: torch.from_numpy(VECTORS).requires_grad_(),
    "torch transposed": lambda _: torch.from_numpy(VECTORS.T.copy()).T,
    "list of tensors": lambda _: list(torch.from_numpy(VECTORS)),
    "very small": lambda _: VECTORS * 2.0**-1000,
    "very large": lambda _: VECTORS * 2.0**1000,
}


@pytest.mark.parametrize("kind", SAME_VECTORS)
def test_the_same_numbers_give_the_same_scores_however_they_are_held(tmp_path, kind):
    vectors = SAME_VECTORS[kind](tmp_path)
    assert im.evaluate(vectors, LABELS).scores() == BASE.scores()


HALF = {
    "float16": lambda: VECTORS.astype(np.float16),
    "torch float16": lambda: torch.from_numpy(VECTORS).half(),
    "torch bfloat16": lambda: torch.from_numpy(VECTORS).bfloat16(),
    "float32": lambda: VECTORS.astype(np.float32),
    "torch float32": lambda: torch.from_numpy(VECTORS).float(),
}


@pytest.mark.parametrize("kind", HALF)
def test_rounded_numbers_are_measured_as_what_they_are(kind):
    vectors = HALF[kind]()
    widened = vectors.double().numpy() if isinstance(vectors, torch.Tensor) else vectors.astype(np.float64)
    evaluation = im.evaluate(vectors, LABELS)
    assert evaluation.scores() == im.evaluate(widened, LABELS).scores()
    # One pair of 224 positives or 1,792 negatives more or less, and distances off by the rounding.
    assert_close(evaluation, {"bfloat16": 0.02, "float16": 0.01, "float32": 1e-5}[kind.split()[-1]])


@given(st.lists(st.floats(1e-3, 1e3), min_size=len(LABELS), max_size=len(LABELS)))
@settings(max_examples=15, deadline=None)
def test_scaling_rows_changes_nothing(factors):
    assert_close(im.evaluate(VECTORS * np.array(factors)[:, None], LABELS), 1e-6)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_other_lengths_than_one_leave_a_note_that_is_saved_and_no_warning(tmp_path, recwarn):
    vectors = unit(VECTORS)
    vectors[3] *= 5
    vectors[9] /= 4
    evaluation = im.evaluate(vectors, LABELS)
    (note,) = evaluation.notes
    assert note.startswith("2 of 64 embeddings do not have length one (lengths from 0.25 to 5)")
    assert not any("length" in str(warning.message) for warning in recwarn)
    evaluation.save(tmp_path / "evaluation.json")
    assert im.Evaluation.load(tmp_path / "evaluation.json").notes == (note,)
    assert im.evaluate(vectors, LABELS, device="cpu").notes == (note,)


def test_other_lengths_than_one_are_told_by_the_command(file, run):
    assert "note: 64 of 64 embeddings do not have length one" in run("evaluate", file)[2]
    assert "do not have length one" in run("threshold", file)[1]


@pytest.mark.parametrize("kind", HALF)
def test_unit_vectors_that_were_rounded_leave_no_note(kind):
    wide = np.random.default_rng(0).normal(size=(len(LABELS), 64))
    vectors = torch.from_numpy(unit(wide))
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[kind.split()[-1]]
    assert im.evaluate(vectors.to(dtype), LABELS).notes == ()


TEXT = np.array([f"class {i}" for i in LABELS])
SAME_LABELS = {
    "list of integers": LABELS.tolist(),
    "tuple": tuple(LABELS.tolist()),
    "int8": LABELS.astype(np.int8),
    "uint64": LABELS.astype(np.uint64),
    "big-endian": LABELS.astype(">i4"),
    "whole floats": LABELS.astype(np.float32),
    "large integers": LABELS + 2**60,
    "negative integers": LABELS - 100,
    "torch": torch.from_numpy(LABELS),
    "series": pandas.Series(LABELS),
    "series with an index": pandas.Series(LABELS, index=LABELS[::-1]),
    "list of text": TEXT.tolist(),
    "text": TEXT,
    "objects": TEXT.astype(object),
    "bytes": TEXT.astype(bytes),
    "series of text": pandas.Series(TEXT),
    "categories": pandas.Series(TEXT).astype("category"),
    "strided": np.repeat(LABELS, 3)[::3],
}


@pytest.mark.parametrize("kind", SAME_LABELS)
def test_the_same_classes_give_the_same_scores_however_they_are_labelled(kind):
    evaluation = im.evaluate(VECTORS, SAME_LABELS[kind])
    assert evaluation.scores() == BASE.scores()
    values = SAME_LABELS[kind]
    first = values[0] if not isinstance(values, pandas.Series) else values.iloc[0]
    expected = first.decode() if isinstance(first, bytes) else first
    assert evaluation.per_class["class"].iloc[0] == expected


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(
    rows=st.lists(st.tuples(st.integers(-1, 1), st.integers(-1, 1), st.integers(0, 3)), min_size=2, max_size=24),
    device=st.sampled_from([None, "cpu"]),
    pairs=st.sampled_from(["all", "sampled"]),
)
@settings(max_examples=60, deadline=None)
def test_any_small_set_is_measured_or_refused_and_its_scores_are_json(rows, device, pairs):
    vectors, labels = np.array([row[:2] for row in rows], float), [row[2] for row in rows]
    try:
        evaluation = im.evaluate(vectors, labels, device=device, pairs=pairs, distances=(0.1, 1.9), target_far=0.5)
    except im.InputError:
        return
    parts = {field.name: getattr(evaluation, field.name) for field in fields(evaluation)}
    values = json.loads(json.dumps(as_json_values(parts, evaluation.scores()), allow_nan=False))
    assert values["scores"] == json.loads(json.dumps(evaluation.scores(), allow_nan=False))
    assert im.Evaluation(**from_json_values(values)).scores() == evaluation.scores()
    assert len(evaluation.per_class) == len(set(labels))
