"""The command ``demo``: trains three small models and explains the result to a reader who is new to the project."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isomargin.cli.common import print_renderable, writing
from isomargin.cli.training import resumable, write_page
from isomargin.core.extras import import_or_explain
from isomargin.core.text import percent, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from isomargin.measure.comparison import Comparison, Difference
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.settings import Settings

SHOWN = ("opis", "epsilon_opis", "recall@1", "eer", "frr")  # the scores of the table
EQUALIZED_SCORES = ("opis", "recall@1", "frr")  # the scores of the second table
TESTED = ("opis", "frr", "recall@1")  # the scores whose changes are put into words
WIDTH = 19  # columns of a model's title and the space after it
BEGIN = """\
Training three small networks, one after the other, on about 200 letters
rendered in 16 typefaces. That takes 3 to 4 minutes on two free cores."""
READ = """\
Look at OPIS first: how much the letters differ in how well the one threshold
suits them. 10%-OPIS compares the best tenth of the letters with the worst tenth.
FAR is the share of negative pairs (two different letters) that the threshold
accepts, FRR the share of positive pairs that it rejects. Lower is better for
all of these; higher is better for recall@1."""
NEXT = """\
Next, with your own embeddings, a file with the arrays embeddings and labels:
  isomargin evaluate your.npz --report report.html  # how consistent are they?
  isomargin equalize your.npz -o equalizer.json     # can that be mended as they are?
  isomargin threshold your.npz --far 0.01           # choose the one threshold"""
EQUALIZED = """\
The same models, equalized: every similarity is corrected for how crowded the
surroundings of its two letters are. No labels, no training, a few seconds."""


def demo(
    output: Annotated[Path, typer.Option(help="Folder in which the three runs are saved.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the three runs.")] = 0,
    report: Annotated[
        bool, typer.Option(help="Write an HTML report that compares the three models, report.html in that folder.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Train three small models on rendered letters and compare them, without a download, in about 4 minutes.

    They are a loss alone, the same loss with TCM, and the same loss with class alignment. The letters come from the
    fonts that matplotlib ships. The models are evaluated on letters they were not trained on.
    """
    from isomargin.cli.tables import as_values
    from isomargin.measure.comparison import compare
    from isomargin.training.demo import MODELS, equalize_run, run_demo

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    import_or_explain("isomargin.training.loop")  # report a missing package before anything else
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    say(BEGIN)
    with resumable("the same command, from the beginning"):
        evaluations = run_demo(output, seed, report=say)
    comparison = compare(evaluations)
    equalized = {name: equalize_run(output / name) for name in evaluations}
    for note in comparison.notes:
        say(printable(f"note: {note}"))
    if as_json:
        values = {
            "models": {name: as_values(evaluation) for name, evaluation in evaluations.items()},
            "comparison": comparison.as_values(),
            "equalized": {name: as_values(evaluation) for name, evaluation in equalized.items()},
        }
        print(json.dumps(values, allow_nan=False, indent=1))
    else:
        print_result(evaluations, comparison, equalized)
    if report:
        write_page({model.title: output / name for name, model in MODELS.items()}, output / "report.html")
    say(f"the runs: {', '.join(str(output / name) for name in MODELS)}")


def print_result(
    evaluations: "Mapping[str, Evaluation]", comparison: "Comparison", equalized: "Mapping[str, Evaluation]"
) -> None:
    """Print what was trained, the tables of scores, what they mean and what to do next, in lines of 80 columns."""
    from rich.text import Text

    from isomargin.training.demo import MODELS

    base = evaluations[comparison.first]
    trained = [f"  {model.title:{WIDTH}}{model.about}" for model in MODELS.values()]
    found = [finding(MODELS[name].title, rows, base.settings) for name, rows in comparison.others.items()]
    below = (
        "Below a score: the change from base, in points of the rates, and in brackets its\n"
        f"{comparison.confidence:.0%} confidence interval over letters. Other seeds give other numbers.\n"
        f"* of 9 letters in 10, at the one threshold for FAR {percent(base.settings.target_far, 6)}"
    )
    print_renderable(
        Text("\n".join(["\nThree models, trained alike except for the regularizer:", *trained]) + "\n"),
        Text(f"{base.items:,} images of {base.class_count:,} letters that were not trained on:\n", style="bold"),
        demo_table(evaluations, comparison),
        Text(below, style="dim"),
        Text("\n".join([f"\nWhat changed from base, tested at the {1 - comparison.confidence:.0%} level:", *found])),
        Text(f"\n{READ}\n\n{EQUALIZED}\n"),
        equalized_table(evaluations, equalized),
        Text("\n".join(["\nWhat changed from base by equalizing:", equalizing(evaluations, equalized)])),
        Text(f"\n{NEXT}\n"),
    )


def equalized_table(evaluations: "Mapping[str, Evaluation]", equalized: "Mapping[str, Evaluation]") -> "RenderableType":
    """Return a table of each model's scores before and after equalizing."""
    import numpy as np
    from rich.table import Table

    from isomargin.measure.scores.registry import find_score
    from isomargin.training.demo import MODELS

    settings = next(iter(evaluations.values())).settings
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("")
    for name in evaluations:
        table.add_column(MODELS[name].title, no_wrap=True)
    for score in map(find_score, EQUALIZED_SCORES):
        pairs = ((score.read(evaluation), score.read(equalized[name])) for name, evaluation in evaluations.items())
        title = score.title_for(settings)
        table.add_row(title, *(f"{score.text(before)} → {score.text(after)}" for before, after in pairs))
    far = [
        [np.nanquantile(part[name].target.class_far, 0.95) for part in (evaluations, equalized)] for name in evaluations
    ]
    table.add_row("1 letter in 20: FAR over", *(f"{before:.1%} → {after:.1%}" for before, after in far))
    return table


def equalizing(evaluations: "Mapping[str, Evaluation]", equalized: "Mapping[str, Evaluation]") -> str:
    """Say how equalizing changes the main scores of the first model, and whether that is significant."""
    from isomargin.measure.comparison import compare
    from isomargin.training.demo import BASE

    compared = compare({"raw": evaluations[BASE], "equalized": equalized[BASE]})
    return finding("base, equalized", compared.others["equalized"], evaluations[BASE].settings)


def demo_table(evaluations: "Mapping[str, Evaluation]", comparison: "Comparison") -> "RenderableType":
    """Return a table with one row per score and one column per model, and the changes from the first model."""
    import numpy as np
    from rich.table import Table

    from isomargin.measure.scores.registry import find_score
    from isomargin.training.demo import MODELS

    settings = evaluations[comparison.first].settings
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("")
    for name in evaluations:
        table.add_column(MODELS[name].title, no_wrap=True)
    by_score = {name: {row.score: row for row in rows} for name, rows in comparison.others.items()}
    for score in map(find_score, SHOWN):
        rows = [differences[score.name] for differences in by_score.values()]
        cells = [f"{score.text(row.other)}\n{change(row)}" for row in rows]
        table.add_row(score.title_for(settings), score.text(rows[0].first), *cells)
    for title, rates in (("FAR of a letter *", "class_far"), ("FRR of a letter *", "class_frr")):
        quantiles = [
            np.nanquantile(getattr(evaluation.target, rates), (0.05, 0.95)) for evaluation in evaluations.values()
        ]
        table.add_row(title, *(f"{low:.1%} to {high:.1%}" for low, high in quantiles))
    return table


def change(row: "Difference") -> str:
    """Format the change from the first model, in percent for OPIS and in points for rates, with its interval."""
    if row.change is not None:
        return f"{row.change.value:+.0%} ({row.change.low:+.0%} to {row.change.high:+.0%})"
    scale, form = (
        (1, "+.1e") if row.score.endswith("opis") else (100, "+.2f")
    )  # OPIS comes here only if the first model's is 0
    value, low, high = (scale * part for part in (row.difference.value, row.difference.low, row.difference.high))
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def finding(title: str, rows: "tuple[Difference, ...]", settings: "Settings") -> str:
    """Say how a model's main scores differ from the first model's, and whether that is significant."""
    from isomargin.measure.scores.registry import find_score

    by_score = {row.score: row for row in rows}
    lines = []
    for score in map(find_score, TESTED):
        row = by_score[score.name]
        size = abs(row.difference.value if row.change is None else row.change.value)
        amount = f"{100 * size:.2f} points" if row.change is None else f"{size:.0%}"
        direction = "lower" if row.difference.value < 0 else "higher"
        chance = "statistically significant" if row.certain else "NOT statistically significant"
        lines.append(f"{score.title_for(settings)} is {amount} {direction}: {chance}")
    return "\n".join(f"  {name:{WIDTH}}{line}" for name, line in zip((title, "", ""), lines, strict=True))
