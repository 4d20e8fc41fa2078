"""The command: what it prints and writes, and that nothing in a file can break what it prints."""

import csv
import io
import json
import os
import pty
import select
import subprocess
import sys

import numpy as np
import pandas
import pytest
from rich.cells import cell_len

import isomargin as im
import isomargin.core.progress
from isomargin.cli import app as cli
from isomargin.core.text import printable

CLASSES, IMAGES, WIDTH = 12, 10, 16

HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m",
    "clear the screen": "\x1b[2J\x1b[H",
    "other controls": "a\x00b\x07\x08\x9b31mc",
    "title of the window": "\x1b]0;pwned\x07",
    "markup": "[red]x[/red]",
    "broken markup": "[/nothing][[bold",
    "link": "[link=https://example.com]x[/link]",
    "newlines": "one\ntwo\r\nthree\rfour\u2028five\u2029six\x85seven",
    "tab": "a\tb",
    "very long": "x" * 10_000,
    "right to left": "שלום עולם",
    "direction override": "\u202egpj.exe\u2066",
    "emoji": "🦉👩‍👩‍👧‍👦" * 30,
    "wide": "文鳥" * 60,
    "combining": "e" + "\u0301" * 5_000,
    "empty": "",
}


def make_data(seed=0, classes=CLASSES, images=IMAGES):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    centres = generator.normal(size=(classes, WIDTH))
    spread = np.linspace(0.3, 1.7, classes)  # so different that OPIS is more than the noise of ten images
    vectors = centres[labels] + spread[labels, None] * generator.normal(size=(len(labels), WIDTH))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


VECTORS, LABELS = make_data()
NAMES = np.array([f"class {i}" for i in range(CLASSES)])[LABELS]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, embeddings=VECTORS, labels=NAMES)
    return path


def strict_json(text):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def assert_same(one, other):
    """Equal in every score, table, curve and setting, bit for bit, NaN being equal to NaN."""
    assert one.scores() == other.scores()
    assert one.settings == other.settings
    assert (one.method, one.notes) == (other.method, other.notes)
    assert one.names.dtype.kind == other.names.dtype.kind
    pandas.testing.assert_frame_equal(one.per_class, other.per_class, check_exact=True, check_dtype=True)
    for name in ("classes", "distances", "sensitivity", "specificity", "precision", "utility", "mean_utility"):
        np.testing.assert_array_equal(getattr(one.curves, name), getattr(other.curves, name))
    for name in ("pooled_far", "pooled_frr"):
        np.testing.assert_array_equal(getattr(one.curves, name), getattr(other.curves, name))
    for distance in (0.5, 1.0, 1.3):
        np.testing.assert_array_equal(one.at(distance).class_far, other.at(distance).class_far)


# --- what is printed --------------------------------------------------------------------------------------------------


def test_table_shows_the_scores_and_the_worst_classes(file, run):
    code, out, err = run("evaluate", file, "--k", "1,5", "--worst", "3")
    assert (code, err) == (0, "")
    expected = im.evaluate(VECTORS, NAMES, k=(1, 5))
    lines = {" ".join(line.split()[:-1]): line.split()[-1] for line in out.splitlines() if line.strip()}
    assert lines["OPIS"] == f"{expected.opis:.4g}"
    assert lines["10%-OPIS"] == f"{expected.epsilon_opis:.4g}"
    assert lines["recall@1"] == f"{expected.recall_at_k[1]:.2%}"
    assert lines["recall@5"] == f"{expected.recall_at_k[5]:.2%}"
    assert lines["equal error rate"] == f"{expected.eer:.2%}"
    assert lines["ROC AUC"] == f"{expected.auc:.4f}"
    assert lines["MAP@R"] == f"{expected.map_at_r:.2%}"
    shown = [line[: line.index("  ")] for line in out.splitlines() if line.startswith("class ")]
    assert shown[1:] == list(expected.worst_classes(3)["class"])


@pytest.mark.parametrize("columns", ["20", "88", "300"])
def test_nothing_of_the_table_is_cut_when_piped(tmp_path, run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    path, names = tmp_path / "set.npz", np.char.add(NAMES, "文" * 40)
    np.savez(path, embeddings=VECTORS, labels=names)
    options = ("--worst", "20", "--target-far", "0.0123456789", "--epsilon", "0.123456789")
    code, out, _ = run("evaluate", path, *options)
    assert code == 0
    assert "…" not in out
    assert all(header in out for header in ("items", "FAR", "FRR", "own threshold", "mean utility", "of OPIS"))
    assert all(name in out for name in names)
    assert "12.3457%-OPIS" in out


def test_numbers_of_the_table_are_never_cut_by_long_names(tmp_path, run):
    path = tmp_path / "set.npz"
    np.savez(path, embeddings=VECTORS, labels=np.char.add(NAMES, "x" * 100))
    _, out, _ = run("evaluate", path, "--worst", "2")
    rows = [line for line in out.splitlines() if line.startswith("class ") and "…" in line]
    assert len(rows) == 2
    for row in rows:
        images, far, frr, own, mean_utility, share, eer = row.split("…")[1].split()
        assert images == str(IMAGES)
        assert [far[-1], frr[-1], share[-1], eer[-1]] == ["%", "%", "%", "%"]
        assert min(float(own), float(mean_utility)) > 0


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_class_names_cannot_break_the_output(tmp_path, run, kind):
    names = NAMES.astype(object)
    names[LABELS == 0] = HOSTILE[kind]
    path, written, table = tmp_path / "set.npz", tmp_path / "evaluation.json", tmp_path / "classes.csv"
    np.savez(path, embeddings=VECTORS, labels=names.astype(str))
    code, out, err = run("evaluate", path, "--worst", "20", "--output", written, "--per-class", table)
    assert (code, err) == (0, "")
    lines = out.split("\n")
    assert all(line.isprintable() for line in lines), "a control character came through"
    assert max(map(cell_len, lines)) <= 200
    rows = lines[next(i for i, line in enumerate(lines) if line.startswith("class  ")) + 1 :]
    rows = rows[: rows.index("diagnosis")]
    assert len(rows) == CLASSES + 3  # the classes, all of them together, the explanation, an empty line
    assert sum(row.startswith("class ") for row in rows) == CLASSES - 1
    loaded = im.Evaluation.load(written)
    assert HOSTILE[kind] in loaded.names.tolist()
    with table.open(encoding="utf-8", newline="") as file:
        saved = [row["class"] for row in csv.DictReader(file, strict=True)]
    assert len(saved) == CLASSES
    assert HOSTILE[kind] in saved
    code, out, _ = run("evaluate", path, "--worst", "20", "--json")
    assert HOSTILE[kind] in [each["class"] for each in strict_json(out)["worst_classes"]]


def test_markup_in_names_is_shown_as_it_is_written(tmp_path, run):
    path = tmp_path / "set.npz"
    np.savez(path, embeddings=VECTORS, labels=np.char.add("[red]x[/red]", NAMES))
    assert "[red]x[/red]class" in run("evaluate", path)[1]


def test_printable_text_stays_and_all_else_is_escaped():
    assert printable("žluna 文鳥 🦉") == "žluna 文鳥 🦉"
    for number in [*range(0xA0), 0x200E, 0x202E, 0x2028, 0xD800, 0xFEFF]:
        assert printable(chr(number)).isprintable()


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_names_are_escaped_where_the_output_cannot_encode_them(tmp_path, monkeypatch, form):
    path = tmp_path / "set.npz"
    np.savez(path, embeddings=VECTORS, labels=np.char.add("文鳥", NAMES))
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["isomargin", "evaluate", str(path), *form])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    out.flush()
    text = out.buffer.getvalue().decode("ascii")
    if form:
        assert strict_json(text)["worst_classes"][0]["class"].startswith("文鳥")
    else:
        assert "\\u6587\\u9ce5" in text


def test_table_of_worst_classes_can_be_left_out(file, run):
    _, out, _ = run("evaluate", file, "--worst", "0")
    assert "OPIS" in out
    assert "own threshold" not in out


@pytest.mark.parametrize("by", ["mean_utility", "opis_contribution", "far", "frr", "eer"])
def test_worst_classes_are_chosen_by_any_column(file, run, by):
    _, out, _ = run("evaluate", file, "--worst", "2", "--worst-by", by, "--json")
    expected = im.evaluate(VECTORS, NAMES).worst_classes(2, by)["class"].tolist()
    assert [each["class"] for each in strict_json(out)["worst_classes"]] == expected


# --- JSON and files ---------------------------------------------------------------------------------------------------


def test_json_holds_all_scores_and_settings(file, run):
    code, out, err = run("evaluate", file, "--json", "--grid", "51", "--k", "3,1")
    assert (code, err) == (0, "")
    values = strict_json(out)
    expected = im.evaluate(VECTORS, NAMES, grid=51, k=(1, 3))
    assert values["scores"] == expected.scores()
    for name in ("opis", "epsilon_opis", "relative_opis", "mean_utility", "eer", "eer_distance", "auc", "map_at_r"):
        assert values["scores"][name] == getattr(expected, name)
    assert values["scores"]["recall_at_k"] == {"1": expected.recall_at_k[1], "3": expected.recall_at_k[3]}
    assert values["settings"]["grid"] == 51
    assert values["settings"]["k"] == [1, 3]
    assert values["method"] == "exact"


def test_json_has_null_where_there_is_no_number(tmp_path, run):
    path = tmp_path / "set.npz"
    np.savez(path, embeddings=VECTORS[: -IMAGES + 1], labels=LABELS[: -IMAGES + 1])
    code, out, err = run("evaluate", path, "--json", "--no-map-at-r", "--worst-by", "far", "--worst", "20")
    values = strict_json(out)
    assert code == 0
    assert values["scores"]["map_at_r"] is None
    assert values["scores"]["r_precision"] is None
    (single,) = [each for each in values["worst_classes"] if each["class"] == CLASSES - 1]
    assert single["frr"] is None
    assert len(values["notes"]) == 1
    assert err == f"note: {values['notes'][0]}\n"


def test_options_reach_the_evaluation(file, run):
    options = {
        "far": (0.02, 0.2),
        "frr": 0.3,
        "epsilon": 0.25,
        "c": 2.0,
        "utility": "precision_recall",
        "mean_curve": "pooled",
        "epsilon_form": "printed",
        "target_far": 0.05,
        "target_frr": 0.1,
        "pairs": "sampled",
        "negatives_per_positive": 5,
        "seed": 7,
    }
    arguments = []
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else (value,))]
    _, out, _ = run("evaluate", file, "--json", "--threads", "1", *arguments)
    values = strict_json(out)
    assert values["scores"] == im.evaluate(VECTORS, NAMES, **options).scores()
    assert {name: values["settings"][name] for name in options} == {**options, "far": [0.02, 0.2]}


def test_exact_and_distances_reach_the_evaluation(file, run):
    _, out, _ = run("evaluate", file, "--json", "--exact", "--distances", "0.5", "1.5")
    values = strict_json(out)
    assert values["scores"]["calibration_range"] == [0.5, 1.5]
    assert values["settings"]["exact"] is True


SAVED = {
    "text": (NAMES, {}),
    "int64": (LABELS, {}),
    "int16": (LABELS.astype(np.int16), {}),
    "uint64": (LABELS.astype(np.uint64) + np.uint64(2**64 - 20), {}),
    "truth values": (LABELS < 6, {}),
    "not ascii": (np.char.add("文鳥 ž \n", NAMES), {}),
    "a class of one image": (np.where(np.arange(len(LABELS)) == 5, 99, LABELS), {}),
    "no map@r": (LABELS, {"map_at_r": False, "k": ()}),
    "sampled": (LABELS, {"pairs": "sampled", "seed": 3}),
    "distances": (LABELS, {"distances": (0.5, 1.5)}),
    "binned": (LABELS, {"device": "cpu"}),
    "binned and sampled": (LABELS, {"device": "cpu", "pairs": "sampled"}),
    "pooled mean of precision and recall": (LABELS, {"mean_curve": "pooled", "utility": "precision_recall"}),
    "numbers of numpy": (LABELS, {"grid": np.int64(20), "epsilon": np.float32(0.2), "k": np.array([1, 2])}),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", SAVED)
def test_saved_evaluation_comes_back_bit_for_bit(tmp_path, kind):
    labels, options = SAVED[kind]
    evaluation = im.evaluate(VECTORS, labels, **options)
    path = tmp_path / "evaluation.json"
    evaluation.save(path)
    assert strict_json(path.read_text("utf-8"))["scores"] == evaluation.scores()
    loaded = im.Evaluation.load(path)
    assert_same(loaded, evaluation)
    assert loaded.names.tolist() == evaluation.names.tolist()
    assert_same(loaded.with_settings(far=(0.02, 0.3)), evaluation.with_settings(far=(0.02, 0.3)))
    assert list(tmp_path.iterdir()) == [path]


def test_exact_answers_are_saved_where_only_binned_counts_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("isomargin.measure.pairs.exact.LISTED_NEGATIVES", 0)
    evaluation = im.evaluate(VECTORS, LABELS)
    evaluation.save(tmp_path / "evaluation.json")
    loaded = im.Evaluation.load(tmp_path / "evaluation.json")
    assert_same(loaded, evaluation)
    assert loaded.scores() == loaded.with_settings(epsilon=0.1).scores()
    assert_same(loaded.with_settings(grid=20), evaluation.with_settings(grid=20))


def test_output_is_the_evaluation_that_python_makes(file, tmp_path, run):
    path = tmp_path / "evaluation.json"
    code, out, _ = run("evaluate", file, "--output", path)
    assert code == 0
    assert "OPIS" in out
    assert_same(im.Evaluation.load(path), im.evaluate(VECTORS, NAMES))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["evaluation.json", "set.npz"]


def test_per_class_writes_one_row_a_class(file, tmp_path, run):
    path = tmp_path / "classes.csv"
    assert run("evaluate", file, "--per-class", path)[0] == 0
    expected = im.evaluate(VECTORS, NAMES).per_class
    pandas.testing.assert_frame_equal(pandas.read_csv(path), expected, check_dtype=False, rtol=1e-15)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["classes.csv", "set.npz"]


def test_output_replaces_an_older_file(file, tmp_path, run):
    path = tmp_path / "evaluation.json"
    path.write_text("old")
    assert run("evaluate", file, "--output", path)[0] == 0
    assert im.Evaluation.load(path).class_count == CLASSES


def test_labels_file_takes_the_place_of_the_labels(file, tmp_path, run):
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"{i % 3}\n" for i in range(len(LABELS))))
    _, out, _ = run("evaluate", file, "--labels", labels, "--json")
    assert strict_json(out)["scores"]["classes"] == 3


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet", ".pt", ".safetensors"])
def test_every_format_gives_the_same_scores(tmp_path, run, suffix):
    path = tmp_path / f"set{suffix}"
    im.EmbeddingSet(VECTORS, NAMES).save(path)
    code, out, _ = run("evaluate", path, "--json")
    assert code == 0
    assert strict_json(out)["scores"] == im.evaluate(VECTORS, NAMES).scores()


def test_classes_of_one_image_are_noted_once_with_their_number(tmp_path, run, recwarn):
    labels = LABELS.copy()
    labels[[0, 10, 20]] = [97, 98, 99]
    path = tmp_path / "set.npz"
    np.savez(path, embeddings=VECTORS, labels=labels)
    code, out, err = run("evaluate", path)
    assert code == 0
    assert err.startswith("note: 3 of 15 classes have a single item")
    assert err.count("\n") == 1
    assert "note" not in out
    assert len(recwarn) == 0, "a warning would say it twice"
    with pytest.warns(UserWarning, match=r"^3 of 15 classes have a single item") as caught:
        im.evaluate(VECTORS, labels)
    assert len(caught) == 1


# --- progress ---------------------------------------------------------------------------------------------------------


def test_no_progress_bar_where_standard_error_is_no_terminal(file, run, monkeypatch):
    monkeypatch.setattr(isomargin.core.progress, "DELAY", -1.0)
    assert run("evaluate", file)[2] == ""


def on_a_terminal(delay, file, **environment):
    """Run the command with standard error on a terminal; give what it wrote to standard output and to the terminal."""
    script = (
        "import sys, isomargin.core.progress, isomargin.cli.app;"
        f"isomargin.core.progress.DELAY = {delay};"
        "sys.argv = ['isomargin', 'evaluate', sys.argv[1]]; isomargin.cli.app.main()"
    )
    here, there = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(file)],
        stdout=subprocess.PIPE,
        stderr=there,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment},
    )
    os.close(there)
    terminal = b""
    try:
        while select.select([here], [], [], 60)[0]:
            try:
                read = os.read(here, 65536)
            except OSError:  # the other end is closed
                break
            terminal += read
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(here)
    assert process.returncode == 0
    return out.decode(), terminal.decode()


def test_progress_bar_on_a_terminal_shows_and_goes_away(file):
    out, terminal = on_a_terminal(-1.0, file)
    assert "counting pairs" in terminal
    assert "%" in terminal
    # Drawn again over itself, erased at the end, and the cursor shown again.
    assert terminal.rstrip().endswith("\x1b[2K")
    assert terminal.rindex("\x1b[?25h") > terminal.rindex("\x1b[?25l")
    assert "counting" not in out
    assert "\x1b" not in out
    assert "OPIS" in out


def test_nothing_is_shown_on_a_terminal_before_the_delay(file):
    out, terminal = on_a_terminal(1000.0, file, TERM="dumb")
    assert terminal == ""
    assert "OPIS" in out


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_bar_leaves_standard_output_alone(monkeypatch):
    monkeypatch.setattr(isomargin.core.progress, "DELAY", -1.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    before = sys.stdout
    with isomargin.core.progress.progress_bar("counting") as report:
        report(0.5)
        assert sys.stdout is before


def test_progress_given_by_the_caller_rises_to_one(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    shares = []
    im.evaluate(VECTORS, LABELS, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] == pytest.approx(1)
    assert sys.stderr.getvalue() == ""


# --- the other commands -----------------------------------------------------------------------------------------------


def test_version_and_help(run):
    assert run("--version") == (0, f"isomargin {im.__version__}\n", "")
    for arguments in ((), ("--help",)):
        code, out, _ = run(*arguments)
        assert code == 0
        assert "evaluate" in out
        assert "demo" in out
    assert "--per-class" in run("evaluate", "--help")[1]
