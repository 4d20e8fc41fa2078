"""CSV files: every name stays in its field, and no spreadsheet runs one as a formula."""

import csv
import io

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from isomargin.core.csv_files import csv_field, write_csv

FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\rx", "\nx", " =1+1", "＝1", "\x00=1", "-inf"]
BROKEN = ["a\rb", "a\r\nb", 'a"b', "a,b", "a;=1", "'", ""]
CLASSES, ITEMS, WIDTH = 12, 8, 16
READING = {"dtype": {"class": str}, "keep_default_na": False}
if Version(pandas.__version__) < Version("3.1"):
    READING["float_precision"] = "round_trip"  # later versions always read so


def read_rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, strict=True))


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_that_a_spreadsheet_would_run_becomes_text(tmp_path, name):
    write_csv(pandas.DataFrame({name: [name, "cat"], "far": [0.25, np.nan]}), tmp_path / "table.csv")
    assert read_rows(tmp_path / "table.csv") == [[f"'{name}", "far"], [f"'{name}", "0.25"], ["cat", ""]]


@pytest.mark.parametrize("name", [*BROKEN, "-12.5", "+1e5", "007", "class 1"])
def test_any_other_name_is_read_back_as_it_was(tmp_path, name):
    write_csv(pandas.DataFrame({"class": [name, "cat"], "far": [0.1 + 0.2, 1e-300]}), tmp_path / "table.csv")
    assert [row[0] for row in read_rows(tmp_path / "table.csv")] == ["class", name, "cat"]
    loaded = pandas.read_csv(tmp_path / "table.csv", **READING)
    assert loaded["class"].tolist() == [name, "cat"]
    assert loaded["far"].tolist() == [0.1 + 0.2, 1e-300]


@given(st.text(alphabet="'=+-@\t\r a1", max_size=5), st.text(alphabet="'=+-@\t\r a1", max_size=5))
def test_two_names_never_become_the_same_text(one, other):
    assert (csv_field(one) == csv_field(other)) == (one == other)


def test_labels_come_back_from_pandas_as_the_documentation_says(tmp_path):
    names = [*FORMULAS, *BROKEN, "'=1", "''=1", "'tis", "NaN"]
    if pandas.read_csv(io.StringIO('class\n"\0=1"\n'), **READING)["class"][0] != "\0=1":  # up to pandas 3.0
        names.remove("\0=1")
    write_csv(pandas.DataFrame({"class": names}), tmp_path / "classes.csv")
    table = pandas.read_csv(tmp_path / "classes.csv", **READING)
    labels = table["class"].str.replace(r"^'(?='*([\s\0]*[=+\-@＝＋－＠]|[\t\r\n\0]))", "", regex=True)
    assert labels.tolist() == names


@pytest.mark.parametrize("command", ["evaluate", "transfer", "compare"])
def test_no_command_writes_a_formula_or_a_broken_row(run, tmp_path, command):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), ITEMS)
    classes = np.array([f"class {index}" for index in range(CLASSES - 2)] + ["=1+1", "a\rb"])
    vectors = generator.normal(size=(CLASSES, WIDTH))[labels] + generator.normal(size=(len(labels), WIDTH))
    files = [tmp_path / "=first.npz", tmp_path / "=other\r.npz"]
    for file in files:
        np.savez(file, embeddings=vectors, labels=classes[labels])
    table = tmp_path / "table.csv"
    if command == "evaluate":
        code, _, _ = run("evaluate", files[0], "--per-class", table)
    else:
        code, _, _ = run(command, *files, "--output", table)
    assert code == 0
    rows = read_rows(table)
    assert len({len(row) for row in rows}) == 1
    assert not any(cell.startswith(("=", "\r")) for row in rows for cell in row)
    pandas.testing.assert_index_equal(pandas.read_csv(table).columns, pandas.Index(rows[0]))
    assert len(pandas.read_csv(table)) == len(rows) - 1
