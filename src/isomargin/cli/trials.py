"""What ``evaluate --trials`` does: find the two sides of each trial in a file of embeddings, or read their scores."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomargin.cli.opening import ReadOptions, equalizing, kind_of, open_embeddings, shifts_of, without_warnings
from isomargin.core.errors import InputError
from isomargin.core.text import printable, shortened

if TYPE_CHECKING:
    from isomargin.io._trials import TrialList
    from isomargin.io.embedding_set import EmbeddingSet
    from isomargin.measure.evaluation import Evaluation

Trials = Annotated[
    Path | None,
    typer.Option(
        help="Measure only the pairs of this list: .txt with `label enrol test`, or .csv, .tsv or .parquet with the "
        "columns sentence1, sentence2 and label, or unique_id_l, unique_id_r and clerical_match_score."
    ),
]
Groups = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN[,COLUMN]",
        help="With --trials: the column, or two columns, with the groups of a trial. By default group, or group_l and "
        "group_r, or else the labels of the embeddings.",
    ),
]
ScoreColumn = Annotated[
    str | None,
    typer.Option(help="With --trials: the column that holds the scores; no embeddings are needed then."),
]
LowerIsMoreSimilar = Annotated[
    bool, typer.Option("--lower-is-more-similar", help="With --score-column: scores are distances.")
]
MatchColumn = Annotated[
    str | None,
    typer.Option(help="With --trials: the column that says whether a pair matches. By default label or its like."),
]
MatchAt = Annotated[
    float | None, typer.Option(help="With --trials: the value from which a pair matches. By default 0.5.")
]
Prior = Annotated[float, typer.Option(help="With --trials: share of matching pairs to expect, for minDCF.")]
CostFalseAccept = Annotated[float, typer.Option(help="With --trials: cost of a false accept, for minDCF.")]
CostFalseReject = Annotated[float, typer.Option(help="With --trials: cost of a false reject, for minDCF.")]

SHOWN = 3  # missing names in an error message


@dataclass(frozen=True)
class TrialOptions:
    """The options of ``evaluate`` that concern trials."""

    trials: Path | None = None
    groups: str | None = None
    score_column: str | None = None
    lower_is_more_similar: bool = False
    match_column: str | None = None
    match_at: float | None = None
    prior: float = 0.01
    cost_false_accept: float = 1.0
    cost_false_reject: float = 1.0

    def check(self, file: Path | None, **refused: bool) -> None:
        """Refuse options that do not go together; ``refused`` are other options that do not concern trials."""
        if self.trials is None:
            if self != TrialOptions():
                raise InputError(
                    "options of trials were given without a list of them: give --trials, or leave them out"
                )
            if file is None:
                raise InputError("there is nothing to evaluate: give a file of embeddings, or --trials with scores")
            return
        for name, given in refused.items():
            if given:
                raise InputError(f"--{name.replace('_', '-')} does not apply to a list of trials: leave it out")
        if self.score_column is None and file is None:
            raise InputError("the trials have no scores: give a file of embeddings, or --score-column")
        if self.score_column is not None and file is not None:
            raise InputError("--score-column replaces the embeddings: give one of them")
        if self.lower_is_more_similar and self.score_column is None:
            raise InputError("--lower-is-more-similar concerns scores: give --score-column too")

    def check_scores(self, **refused: bool) -> None:
        """Refuse options that concern embeddings if there are scores instead."""
        for name, given in refused.items():
            if given and self.score_column is not None:
                raise InputError(f"--{name} concerns embeddings, but --score-column replaces them: leave it out")

    def check_kept(self, written: Path | None) -> None:
        """Refuse to write over the list."""
        if written is not None and self.trials is not None and written.resolve() == self.trials.resolve():
            raise InputError(f"{written} is the list of trials: choose another name for --per-class")

    def costs(self) -> dict[str, float]:
        """Return the arguments of minDCF."""
        return {
            "prior": self.prior,
            "cost_false_accept": self.cost_false_accept,
            "cost_false_reject": self.cost_false_reject,
        }

    def read(self) -> "TrialList":
        """Read the list."""
        from isomargin.io._trials import TrialColumns, read_trials

        assert self.trials is not None
        named = None if self.groups is None else tuple(name.strip() for name in self.groups.split(","))
        if named is not None and (len(named) > 2 or not all(named)):
            raise InputError(f"--groups is {self.groups!r}: one column is needed, or two separated by a comma")
        return read_trials(self.trials, TrialColumns(named, self.score_column, self.match_column, self.match_at))


def measure_trials(
    file: Path | None, options: ReadOptions, trial_options: TrialOptions, settings: dict[str, Any]
) -> "Evaluation":
    """Evaluate the trials of a list, by their scores or by the embeddings of their two sides."""
    from isomargin.measure.trials import evaluate_pairs, evaluate_trials

    trials = trial_options.read()
    if trials.scores is not None:
        higher = not trial_options.lower_is_more_similar
        plain = {name: value for name, value in settings.items() if name not in ("distances", "epsilon_form")}
        return without_warnings(
            evaluate_pairs,
            trials.scores,
            trials.same,
            trials.groups,
            higher_is_more_similar=higher,
            **plain,
            **trial_options.costs(),
        )
    assert file is not None
    embeddings, labelled = open_named(file, options)
    rows = find_rows(file, trial_options.trials, trials.sides, embeddings)
    groups = trials.groups if trials.groups is not None or not labelled else embeddings.labels[rows]
    known = equalizing(options, shifts_of(file, embeddings, options))
    return without_warnings(
        evaluate_trials,
        embeddings.vectors,
        rows,
        trials.same,
        groups,
        equalizer=known.get("equalizer"),
        **settings,
        **trial_options.costs(),
    )


def open_named(file: Path, options: ReadOptions) -> tuple["EmbeddingSet", bool]:
    """Read embeddings with ids, and whether they have labels, which trials do not need."""
    from isomargin.io.embedding_set import EmbeddingSet
    from isomargin.io.formats import read_vectors

    labelled = True
    try:
        embeddings = open_embeddings(file, options)
    except InputError:
        if kind_of(file) != "embeddings" or options.labels is not None or options.labels_key != "labels":
            raise
        vectors, ids = read_vectors(file, options.embeddings_key)
        embeddings, labelled = EmbeddingSet(vectors, [0] * len(vectors), ids), False
    if embeddings.ids is None:
        raise InputError(
            f"{file} has no ids, by which trials name their items: save it with `ids` (EmbeddingSet(vectors, labels, "
            "ids).save)"
        )
    return embeddings, labelled


def find_rows(file: Path, path: Path | None, sides: Any, embeddings: "EmbeddingSet") -> Any:
    """(trials, 2) the row of each side; names that are missing or ambiguous are refused."""
    import numpy as np

    names = np.asarray(embeddings.ids).astype(str)
    known, first, row_of_id = np.unique(names, return_index=True, return_inverse=True)
    wanted, place = np.unique(sides.reshape(-1).astype(str), return_inverse=True)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    if (missing := wanted[known[at] != wanted]).size:
        order = [name for name in dict.fromkeys(sides.reshape(-1).tolist()) if name in set(missing.tolist())]
        shown = ", ".join(repr(shortened(name)) for name in order[:SHOWN])
        raise InputError(
            printable(
                f"{path} names {missing.size:,} ids that {file} does not have, such as {shown}: embed these items"
            )
        )
    check_repeated(file, embeddings.vectors, first[row_of_id], np.isin(row_of_id, at), names)
    return first[at][place].reshape(sides.shape)


def check_repeated(file: Path, vectors: Any, first: Any, used: Any, names: Any) -> None:
    """Refuse ids that name several rows with different embeddings; ``first`` is the first row with the id of a row."""
    import numpy as np

    for row in np.flatnonzero((first != np.arange(len(first))) & used).tolist():
        if not bool((np.asarray(vectors[row]) == np.asarray(vectors[first[row]])).all()):
            raise InputError(
                printable(
                    f"{file} has different embeddings in rows {first[row]} and {row} (from 0) with the id "
                    f"{shortened(str(names[row]))!r}, so its trials are ambiguous: give each row an id of its own"
                )
            )
