"""Lists of trials: pairs of names, whether they match, and perhaps groups and scores.

A `.txt` file is a list as VoxCeleb has it, `label enrol test`, without a header. A `.csv`, `.tsv` or `.parquet` file is
a table, whose columns are found by the names that sentence pairs and Splink give them, or named by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading
from isomargin.io._common import suffix_of

if TYPE_CHECKING:
    import pandas

SIDES = (
    ("sentence1", "sentence2"),
    ("unique_id_l", "unique_id_r"),
    ("enrol", "test"),
    ("enroll", "test"),
    ("id1", "id2"),
    ("id_l", "id_r"),
)
"""The columns of the two sides, in the order in which they are looked for."""
MATCHES = ("same", "label", "clerical_match_score", "score")
"""The columns that say whether a pair matches, in the order in which they are looked for."""
GROUPS = (("group_l", "group_r"), ("group1", "group2"), ("group",))
"""The columns of the groups, in the order in which they are looked for."""
WORDS = {"1": True, "0": False, "target": True, "nontarget": False, "imposter": False, "impostor": False}
MATCH_AT = 0.5


@dataclass(frozen=True)
class TrialList:
    """A list of trials as it is in a file."""

    same: npt.NDArray[np.bool_]
    """(trials,) whether the two sides match."""
    sides: npt.NDArray[Any] | None = None
    """(trials, 2) the names of the two sides, as text; None if the list has none."""
    groups: npt.NDArray[Any] | None = None
    """(trials,) or (trials, 2) the groups, as text; None if the list has none."""
    scores: npt.NDArray[np.float64] | None = None
    """(trials,) the scores, if they were asked for."""


@dataclass(frozen=True)
class TrialColumns:
    """The columns of a table that the caller names; those that are None are looked for."""

    groups: tuple[str, ...] | None = None
    """One column of groups, or two."""
    score: str | None = None
    """The column of scores."""
    match: str | None = None
    """The column that says whether a pair matches."""
    match_at: float | None = None
    """The value of that column from which a pair matches, 0.5 by default."""


def read_trials(path: Path, columns: TrialColumns = TrialColumns()) -> TrialList:  # noqa: B008
    """Read a list of trials.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "trials.txt").write_text("1 a b\\n0 a c\\n")
    ...     trials = read_trials(Path(folder) / "trials.txt")
    >>> trials.same.tolist(), trials.sides.tolist()
    ([True, False], [['a', 'b'], ['a', 'c']])
    """
    suffix = path.suffix.lower()
    if suffix not in (".txt", ".csv", ".tsv", ".parquet"):
        raise InputError(f"{path} has {suffix_of(path)}: a list of trials is .txt, .csv, .tsv or .parquet")
    check_file(path)
    with reading(path):
        if suffix == ".txt":
            return _read_lines(path, columns)
        return _from_table(path, _read_table(path, suffix), columns)


# ----- lines


def _read_lines(path: Path, columns: TrialColumns) -> TrialList:
    if columns != TrialColumns():
        raise InputError(f"{path} has no header to find columns by: give a .csv, .tsv or .parquet file for that")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(f"{path} has no trials: one line per trial is needed, such as `1 enrol.wav test.wav`")
    for number, words in lines:
        if len(words) != 3:
            raise InputError(f"{path} has {len(words)} words in line {number}: label, enrol and test are needed")
    place = next((place for place in (0, 2) if all(words[place].lower() in WORDS for _, words in lines)), None)
    if place is None:
        first = next(number for number, words in lines if words[0].lower() not in WORDS)
        raise InputError(f"{path} does not start with 1 or 0 in line {first}: label, enrol and test are needed")
    same = np.array([WORDS[words[place].lower()] for _, words in lines])
    sides = np.array([words[1:] if place == 0 else words[:2] for _, words in lines], dtype=object)
    return TrialList(same, sides)


# ----- tables


def _read_table(path: Path, suffix: str) -> pandas.DataFrame:
    import csv

    import pandas

    if suffix == ".parquet":
        return pandas.read_parquet(path)
    # Sentences in .tsv files have quotation marks that quote nothing, as GLUE has them.
    form: dict[str, Any] = {"sep": "\t", "quoting": csv.QUOTE_NONE} if suffix == ".tsv" else {}
    try:
        table: pandas.DataFrame = pandas.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig", **form)
        return table
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: save it as UTF-8") from error
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        raise InputError(f"{path} is not a table with a header and one row per trial: {error}") from error


def _from_table(path: Path, table: pandas.DataFrame, columns: TrialColumns) -> TrialList:
    if len(table) == 0:
        raise InputError(f"{path} has no trials: one row per trial is needed")
    sides = next((pair for pair in SIDES if set(pair) <= set(table.columns)), None)
    if sides is None and columns.score is None:
        known = ", or ".join(" and ".join(pair) for pair in SIDES[:3])
        raise InputError(f"{path} has no columns of names, {known}: {_has(table)}")
    named = columns.groups or next((group for group in GROUPS if set(group) <= set(table.columns)), None)
    groups = None
    if named is not None:
        texts = [_texts(path, table, name, "--groups") for name in named]
        groups = texts[0] if len(texts) == 1 else np.stack(texts, axis=1)
    return TrialList(
        same=_matches(path, table, columns),
        sides=None if sides is None else np.stack([_texts(path, table, name, "") for name in sides], axis=1),
        groups=groups,
        scores=None if columns.score is None else _numbers(path, table, columns.score, "--score-column"),
    )


def _matches(path: Path, table: pandas.DataFrame, columns: TrialColumns) -> npt.NDArray[np.bool_]:
    """(trials,) whether each row matches: at least 0.5, or what the caller says."""
    name = columns.match or next((name for name in MATCHES if name in table.columns and name != columns.score), None)
    if name is None:
        raise InputError(f"{path} has no column {', '.join(MATCHES)}: name the right one with --match-column")
    _check_column(path, table, name, "--match-column")
    words = {**WORDS, "true": True, "false": False}
    numbers = [words.get(str(value).strip().lower(), value) for value in table[name].tolist()]
    values = _numbers(path, table[[name]].assign(**{name: numbers}), name, "--match-column")
    if columns.match_at is None and not ((values >= 0) & (values <= 1)).all():
        raise InputError(
            f"{path} has {values.max():g} in column {name!r}, which is neither a label nor a share: say with "
            "--match-at from which value a pair matches"
        )
    return np.asarray(values >= (MATCH_AT if columns.match_at is None else columns.match_at))


def _texts(path: Path, table: pandas.DataFrame, name: str, option: str) -> npt.NDArray[Any]:
    """(trials,) a column as text; empty cells are refused."""
    _check_column(path, table, name, option)
    values = [None if _is_empty(value) else str(value) for value in table[name].tolist()]
    if None in values:
        raise InputError(f"{path} has no {name} in row {values.index(None) + 1}: fill it, or remove the row")
    return np.array(values, dtype=object)


def _numbers(path: Path, table: pandas.DataFrame, name: str, option: str) -> npt.NDArray[np.float64]:
    """(trials,) a column as finite numbers; anything else is refused."""
    import pandas

    _check_column(path, table, name, option)
    values = pandas.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if wrong := int((~np.isfinite(values)).sum()):
        row = int(np.argmax(~np.isfinite(values)))
        shown = repr(table[name].iloc[row])
        raise InputError(
            f"{path} has {wrong:,} rows without a finite number in column {name!r}, the first in row {row + 1} "
            f"({shown[:40]}): remove these rows or score them again"
        )
    return values


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value != value


def _check_column(path: Path, table: pandas.DataFrame, name: str, option: str) -> None:
    if name not in table.columns:
        raise InputError(f"{path} has no column {name!r}{f' for {option}' if option else ''}: {_has(table)}")


def _has(table: pandas.DataFrame) -> str:
    names = [str(name) for name in table.columns]
    return f"it has {', '.join(map(repr, names[:20]))}" + (", …" if len(names) > 20 else "")
