"""The command ``equalize``, which makes one threshold hold for more classes without retraining."""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from isomargin.cli.common import check_writable, print_renderable, writing
from isomargin.cli.equalizing_parts import NOT_JUDGED, equalize_in_parts, notes
from isomargin.cli.opening import EmbeddingsKey, Labels, LabelsKey, ReadOptions, kind_of, open_embeddings, read_options
from isomargin.cli.parts import Memory, Part, PartOptions, Parts, Ray, Work
from isomargin.core.errors import InputError
from isomargin.core.text import printable
from isomargin.io.stores.address import as_path

if TYPE_CHECKING:
    from isomargin.equalize.cross_validation import EqualizerCV
    from isomargin.equalize.equalizer import Equalizer
    from isomargin.measure.comparison import Comparison

NEXT = """\
Next:
  isomargin evaluate {file} --equalizer {output}
  isomargin threshold {file} --equalizer {output} --far {far:g} --output card.json
docs/equalize-serving.md says how to serve it in a vector engine."""
KEEP = """\
Next:
  isomargin threshold {file} --far {far:g} --output card.json
The equalizer was written all the same."""
UNLABELLED = (
    "Without labels nothing was judged: evaluate a labelled sample with and without --equalizer before you rely on it."
)
DEFAULTS = {"objective": "far", "new_classes": True, "recall_loss": 0.3, "target_far": None, "seed": 0}
"""Of the options that only cross-validation uses."""


def equalize(
    file: Annotated[
        Path,
        typer.Argument(
            parser=as_path,
            help="File of embeddings and labels, or a run's folder: what is searched, the index. Also a folder or "
            "quoted pattern of .parquet, .npy or .safetensors shards.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The .json file to write; a .safetensors file with the reference goes beside it."
        ),
    ] = Path("equalizer.json"),
    reference: Annotated[
        Path | None,
        typer.Option(
            parser=as_path,
            help="File of other embeddings, without labels, in which neighbours are searched instead: a cohort, for "
            "1:1 verification, where there is no index.",
        ),
    ] = None,
    unlabelled: Annotated[
        bool,
        typer.Option(
            "--unlabelled", help="There are no labels: use the default settings, or those given, without a judgement."
        ),
    ] = False,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What to improve: far, the FAR of each class at one threshold; or opis, the utility of each class.",
            show_default="far",
        ),
    ] = None,
    new_classes: Annotated[
        bool | None,
        typer.Option(
            "--new-classes/--no-new-classes",
            help="Judge classes also as if they were not in the index yet. Use --no-new-classes if every class will "
            "always be in it.",
            show_default="new-classes",
        ),
    ] = None,
    recall_loss: Annotated[
        float | None, typer.Option(help="How many points of recall@1 may be lost.", show_default="0.3")
    ] = None,
    target_far: Annotated[
        float | None,
        typer.Option(help="The false accept rate of the one threshold.", show_default="0.01, more for few items"),
    ] = None,
    neighbours: Annotated[
        int | None, typer.Option(min=1, help="Number of neighbours. By default chosen by cross-validation.")
    ] = None,
    skip: Annotated[
        int | None,
        typer.Option(min=0, help="Number of nearest neighbours to leave out. By default chosen by cross-validation."),
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="Weight of the correction. By default chosen by cross-validation.")
    ] = None,
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the division of classes into folds.", show_default="0")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads. By default one per core.")] = None,
    memory: Memory = None,
    part: Part = None,
    work: Work = None,
    ray: Ray = None,
    parts: Parts = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Correct similarities so that one threshold holds for more classes, without retraining.

    The settings are chosen by cross-validation over classes. The table compares raw with equalized similarities on
    classes that had no part in choosing, and a sentence says whether equalizing is worth it.

    Sets larger than memory (shards, --memory, --part, --ray) are fitted in parts, with the default settings or those
    given: nothing is chosen or judged.
    """
    given = {"neighbours": neighbours, "skip": skip, "weight": weight}
    judging = {
        "objective": objective,
        "new_classes": new_classes,
        "recall_loss": recall_loss,
        "target_far": target_far,
        "seed": seed,
    }
    part_options = PartOptions(reference or file, memory, part, work, ray, parts)
    if part_options.wanted:
        unused = {option_name(name): value is not None for name, value in judging.items()}
        part_options.check({"--labels": bool(labels), **unused})
        part_options.check_part({"--json": as_json})
        reading = ReadOptions(None, embeddings_key, labels_key)
        settings = chosen_settings(given, reference)
        in_parts = equalize_in_parts(part_options, reading, output, threads, settings)
        if in_parts is not None:
            report_unlabelled(in_parts, output, as_json, NOT_JUDGED)
        return
    check_place(output, [file, *([] if reference is None else [reference]), *(labels or [])])
    if unlabelled:
        refuse_unused({"labels": labels or None, **judging})
        equalizer = fit_unlabelled(reference or file, embeddings_key, chosen_settings(given, reference), threads)
        with writing(output):
            equalizer.save(output)
        report_unlabelled(equalizer, output, as_json, UNLABELLED)
        return
    from isomargin.equalize.cross_validation import TARGET_FAR, EqualizerCV

    (options,) = read_options([file], labels, embeddings_key, labels_key)
    embeddings = open_embeddings(file, options)
    tried = {name: (value,) for name, value in given.items() if value is not None}
    chosen = {name: DEFAULTS[name] if value is None else value for name, value in judging.items()}
    search = EqualizerCV(**cast(Any, chosen), **cast(Any, tried), threads=threads)
    others = None if reference is None else read_unlabelled(reference, embeddings_key)[0]
    ids = distinct(embeddings.ids) if reference is None else None
    search.fit(embeddings.vectors, embeddings.labels, ids, others)
    if target_far is None and search.target_far_ != TARGET_FAR:
        print(f"note: there are few pairs, so settings were judged at FAR {search.target_far_:.2g}", file=sys.stderr)
    with writing(output):
        search.equalizer_.save(output)
    report_search(search, options.words(file), output, as_json)


def refuse_unused(options: Mapping[str, Any]) -> None:
    """Refuse options that --unlabelled has no use for."""
    unused = [option_name(name) for name, value in options.items() if value is not None]
    if unused:
        raise InputError(f"{' and '.join(unused)} beside --unlabelled: without labels nothing is judged; leave out one")


def option_name(name: str) -> str:
    """Return the option of a setting."""
    return f"--{name.replace('_', '-')}"


def chosen_settings(given: Mapping[str, Any], reference: Path | None) -> dict[str, Any]:
    """Return the settings that were given, with those of a cohort if the reference is one."""
    settings = {name: value for name, value in given.items() if value is not None}
    return settings if reference is None else {"skip": 0, **settings, "method": "cohort"}


def check_place(output: Path, sources: list[Path]) -> None:
    """Refuse files that cannot be written, or that would take the place of others."""
    from isomargin.equalize import saving

    tensors = saving.beside(output)
    check_writable(output, ".json")
    check_writable(tensors, ".safetensors")
    for source in sources:
        kind_of(source)  # refuses a path that does not exist
        if source.resolve() in (output.resolve(), tensors.resolve()):
            raise InputError(f"{source} would be replaced by the equalizer: choose another name for --output")
    saving.check_place(output, "equalizer")


def read_unlabelled(path: Path, embeddings_key: str) -> tuple[Any, Any]:
    """Read vectors and ids of a file that need not have labels, or of a run; ids that do not name rows are left out."""
    from isomargin.core.labels import as_ids
    from isomargin.io.formats import read_vectors

    if kind_of(path) not in ("embeddings", "run"):
        raise InputError(f"{path} contains no embeddings: give a file of embeddings, or the folder of a run")
    if kind_of(path) == "run":
        found = open_embeddings(path)
        return found.vectors, distinct(found.ids)
    vectors, ids = read_vectors(path, embeddings_key)
    try:
        return vectors, None if ids is None else distinct(as_ids(ids, len(vectors)))
    except InputError:  # something else with this name
        return vectors, None


def distinct(ids: Any) -> Any:
    """Return ids if no two rows have the same, which names something else than rows; None otherwise."""
    import numpy as np

    return None if ids is None or len(np.unique(ids)) < len(ids) else ids


def fit_unlabelled(path: Path, embeddings_key: str, settings: dict[str, Any], threads: int | None) -> "Equalizer":
    """Fit an equalizer with the default settings, except for those given; notes go to standard error."""
    from isomargin.equalize.equalizer import Equalizer

    vectors, ids = read_unlabelled(path, embeddings_key)
    with notes():
        return Equalizer(**settings, threads=threads).fit(vectors, ids=ids)


def report_unlabelled(equalizer: "Equalizer", output: Path, as_json: bool, reason: str) -> None:
    """Print the settings of an equalizer that was not judged, and the reason."""
    if as_json:
        print(json.dumps({"equalizer": equalizer.record(), "verdict": None}, indent=1))
    else:
        first, last = equalizer.skip_ + 1, equalizer.skip_ + equalizer.neighbours_
        print(f"Equalized by neighbours {first} to {last}, weight {equalizer.weight_:g}. {reason}")
    print_written(output)


def print_written(output: Path) -> None:
    """Say which files were written."""
    from isomargin.equalize.saving import beside

    print(printable(f"written to {output} and {beside(output).name}"), file=sys.stderr)


def report_search(search: "EqualizerCV", file: str, output: Path, as_json: bool) -> None:
    """Print how raw and equalized similarities compare on held-out classes, the verdict, and what to do next.

    ``file`` is the file with the options to read it.
    """
    from dataclasses import asdict

    from rich.text import Text

    from isomargin.cli.tables import differences_table, paragraph

    comparison, rates = as_comparison(search), search.new_class_rates_
    if as_json:
        verdict = {
            **asdict(search.verdict_),
            "worth_it": search.verdict_.worth_it,
            "sentence": search.verdict_.sentence,
        }
        values = {
            "equalizer": search.equalizer_.record(),
            "verdict": verdict,
            "new_classes": None if rates is None else rates.summary(),
            "differences": [asdict(row) for row in comparison.others["equalized"]],
            "candidates": search.scores_.to_dict("records"),
        }
        print(json.dumps(values, allow_nan=False, indent=1))
    else:
        first, last = search.skip_ + 1, search.skip_ + search.neighbours_
        next_step = NEXT if search.verdict_.worth_it else KEEP
        below = (
            f"Means over {len(search.raw_)} parts of the classes; the settings for each were chosen on the others. "
            "Each part is compared with itself alone, so raw scores differ from those of isomargin evaluate."
        )
        print_renderable(
            differences_table(comparison, "equalized"),
            paragraph(below),
            Text(f"\nChosen: neighbours {first} to {last}, weight {search.weight_:g}."),
            Text(search.verdict_.sentence),
            *([] if rates is None else [Text(rates.sentence)]),
            Text("\n" + next_step.format(file=file, output=shlex.quote(str(output)), far=search.target_far_)),
        )
    print_written(output)


def as_comparison(search: "EqualizerCV") -> "Comparison":
    """Return the differences on held-out classes as a comparison of two models, for printing."""
    from isomargin.equalize.cross_validation import DRAWS
    from isomargin.measure.comparison import Comparison

    return Comparison(
        first="raw",
        others={"equalized": search.differences()},
        confidence=search.verdict_.gain.confidence,
        classes=search.verdict_.classes,
        least_p_value=1 / (DRAWS + 1),
    )
