"""``python -m lab.intents``: run the experiment, or continue it, and write results/intents."""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isomargin.cli.running import run_app
from isomargin.equalize.equalizer import Equalizer
from isomargin.measure.evaluation import Evaluation
from lab.files import write_csv
from lab.intents.texts import Parts, Texts, packaged_files, read_parts, static_model
from lab.intents.training import MORE, RATES_AND_EPOCHS, Settings, choose, embed, measure, temperatures, train
from lab.remarks.heads import DRAWS, SCORES, changes, means, plain_values, scored

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
EQUALIZERS = tuple((neighbours, skip) for neighbours in (30, 100) for skip in (0, 30, 60))
"""Neighbours and skipped neighbours; as many as there are settings of a regularizer."""

Files = tuple[Path, Path]


@app.command()
def run(
    data: Annotated[Path, typer.Option(help="Lines of part, intent and text: clinc150.tsv.gz.")],
    seeds: Annotated[int, typer.Option(min=2, help="Number of seeds of the runs that are tested.")] = 3,
    weights: Annotated[Path | None, typer.Option(help="Weights, a safetensors file; by default WordLlama's.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Its tokenizer; by default WordLlama's.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of what has been computed.")] = Path("runs/intents"),
    results: Annotated[Path, typer.Option(help="Folder of the tables.")] = Path("results/intents"),
) -> None:
    """Fine-tune a text model on some intents and measure one threshold on others. The same command again continues."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    files = (weights, tokenizer) if weights and tokenizer else packaged_files()
    parts = read_parts(data)
    output.mkdir(parents=True, exist_ok=True)
    results.mkdir(parents=True, exist_ok=True)
    chosen, tried = choose_settings(parts, files, output)
    write_csv(results / "tuning.csv", tried)
    runs = tested_runs(parts, files, chosen, seeds, output)
    write_csv(
        results / "runs.csv",
        [
            {**dict(zip(("training", "similarity", "seed"), key, strict=True)), **plain_values(values)}
            for key, values in runs.items()
        ],
    )
    write_csv(results / "table.csv", table(runs, seeds))


def vectors_of(settings: Settings | None, seed: int, texts: Texts, test: Texts, files: Files, place: Path) -> Any:
    """(n, d) embeddings of the test texts; trained, unless that has been done or the model is raw."""
    if not place.is_file():
        model = static_model(*files)
        if settings is not None:
            train(model, texts, settings, seed)
        vectors = embed(model, test)
        with place.with_suffix(".tmp").open("wb") as file:
            np.save(file, vectors)
        place.with_suffix(".tmp").replace(place)
        print(f"{place.stem}: OPIS {measure(vectors, test).opis:.4g}", file=sys.stderr, flush=True)
    return np.load(place)


def choose_settings(parts: Parts, files: Files, output: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the settings of every method, chosen on held-out training intents, and everything that was tried."""
    rows: list[dict[str, Any]] = []

    def look(settings: Settings) -> Evaluation:
        place = output / f"tuning-{settings.stem}.npy"
        return measure(vectors_of(settings, 0, parts.fitting, parts.held_out, files, place), parts.held_out)

    common = {settings: look(settings) for settings in RATES_AND_EPOCHS}
    best_recall = max(evaluation.recall_at_k[1] for evaluation in common.values())
    common |= {settings: look(settings) for settings in temperatures(choose(common, best_recall))}
    best_recall = max(evaluation.recall_at_k[1] for evaluation in common.values())
    start = choose(common, best_recall)
    chosen: dict[str, Any] = {}
    for method, more in MORE.items():
        found = common | {settings: look(settings) for settings in more(start)}
        of_method = {settings: found[settings] for settings in found if settings.method == method}
        chosen[method] = choose(of_method, best_recall)
        rows += [tried(method, asdict(key), found[key], key == chosen[method]) for key in of_method]
    place = output / f"tuning-{chosen['plain'].stem}.npy"
    vectors = vectors_of(chosen["plain"], 0, parts.fitting, parts.held_out, files, place)
    equalized = {ranks: measure(vectors, parts.held_out, make_equalizer(ranks).fit(vectors)) for ranks in EQUALIZERS}
    chosen["equalizer"] = choose(equalized, best_recall)
    for ranks, evaluation in equalized.items():
        values = dict(zip(("neighbours", "skip"), ranks, strict=True))
        rows.append(tried("equalizer", values, evaluation, ranks == chosen["equalizer"]))
    return chosen, rows


def make_equalizer(ranks: tuple[int, int]) -> Equalizer:
    """Return an equalizer that averages so many neighbours after skipping so many."""
    return Equalizer(neighbours=ranks[0], skip=ranks[1], threads=1)


def tried(method: str, settings: dict[str, Any], evaluation: Evaluation, is_chosen: bool) -> dict[str, Any]:
    """Return one setting and its scores on held-out intents."""
    scores = {"recall@1": evaluation.recall_at_k[1], "opis": evaluation.opis, "frr": evaluation.target.frr}
    return {**settings, "method": method, **scores, "chosen": int(is_chosen)}


def tested_runs(parts: Parts, files: Files, chosen: dict[str, Any], seeds: int, output: Path) -> dict[Any, Any]:
    """Train on all training intents and measure on the test intents, by training, similarity and seed."""
    _, classes = np.unique(parts.test.classes, return_inverse=True)
    test = Texts(parts.test.texts, classes.astype(np.int64))
    count, generator = int(classes.max()) + 1, np.random.default_rng(12345)
    weights = np.stack(
        [np.bincount(generator.integers(count, size=count), minlength=count) for _ in range(DRAWS)]
    ).astype(np.uint16)
    runs: dict[Any, Any] = {}
    for training in ("raw", *MORE):
        for seed in range(seeds):
            settings = chosen.get(training)
            stem = "test-raw" if settings is None else f"test-{settings.stem}-{seed}"
            vectors = vectors_of(settings, seed, parts.training, test, files, output / f"{stem}.npy")
            for similarity in ("cosine", "equalized"):
                equalizer = None if similarity == "cosine" else make_equalizer(chosen["equalizer"]).fit(vectors)
                evaluation = measure(vectors, test, equalizer)
                more = {"far_within_two": evaluation.far_within_two.share}
                runs[training, similarity, seed] = {**scored(evaluation, weights), **more}
    return runs


def table(runs: dict[Any, Any], seeds: int) -> list[dict[str, Any]]:
    """Return one row per training and similarity: means over seeds, and changes from plain training with cosines."""
    rows = []
    plain = [runs["plain", "cosine", seed] for seed in range(seeds)]
    for training, similarity in dict.fromkeys(key[:2] for key in runs):
        here = [runs[training, similarity, seed] for seed in range(seeds)]
        row = {"training": training, "similarity": similarity, "seeds": seeds}
        row |= means(here, (*SCORES, "far_within_two"))
        if (training, similarity) != ("plain", "cosine"):
            row |= changes(plain, here)
        rows.append(row)
    return rows


if __name__ == "__main__":
    run_app(app, "lab.intents", sys.argv[1:] or ["--help"])
