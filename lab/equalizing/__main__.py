"""``python -m lab.equalizing``: run the experiment, or continue it, and write results/equalize."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isomargin.cli.running import run_app
from isomargin.core.errors import InputError
from isomargin.equalize.rows import unit_vectors
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.seed_comparison import SeedScores
from isomargin.measure.statistics.resampling import Weights
from lab.equalizing.adapters import ADAPTERS
from lab.equalizing.methods import METHODS, SETTINGS, Split
from lab.equalizing.regimes import new_class_rates, regimes, within_two
from lab.files import read_csv, write_csv

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
DRAWS = 500
SCORES = ("recall@1", "map_at_r", "eer", "frr", "opis", "debiased_opis", "far_threshold_spread", "far_within_two")
MOST_ITEMS = 60  # of a class
REGIME_SPLITS = 3


@app.command()
def run(
    data: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FILE,…",
            help="Embeddings of classes the model was not trained on; may be repeated. Several files, separated by "
            "commas, are of networks trained with different seeds: each is one split, and no adapters are learned.",
        ),
    ],
    splits: Annotated[int, typer.Option(min=2, help="Number of random splits of the classes.")] = 10,
    output: Annotated[Path, typer.Option(help="Folder of what has been computed.")] = Path("runs/equalize"),
    results: Annotated[Path, typer.Option(help="Folder of the tables.")] = Path("results/equalize"),
    classes: Annotated[int, typer.Option(min=10, help="Most classes in each half of a split.")] = 400,
    threads: Annotated[int, typer.Option(min=1, help="Number of CPU threads.")] = 2,
) -> None:
    """Compare what makes one threshold hold for every class, on random splits of the classes.

    Settings are chosen on one half of the classes and every number is measured on the other. The same command again
    continues.
    """
    warnings.simplefilter("ignore", UserWarning)
    for entry in data:
        name, _, files = entry.partition("=")
        if not files:
            raise InputError(f"--data is {entry!r}: a name and a file are needed, such as cub=cub.npz")
        sets = [read_set(Path(file)) for file in files.split(",")]
        methods = METHODS if len(sets) > 1 else {**METHODS, **ADAPTERS}
        for number in range(len(sets) if len(sets) > 1 else splits):
            run_split(name, make_split(*sets[number % len(sets)], number, classes, threads), methods, output)
    results.mkdir(parents=True, exist_ok=True)
    write_tables(output, results)


def read_set(path: Path) -> tuple[Any, Any]:
    """Read unit vectors and labels, at most 60 items of a class, without rows that have no class."""
    found = EmbeddingSet.load(path)
    labels = found.labels
    rows = np.concatenate([np.flatnonzero(labels == name)[:MOST_ITEMS] for name in np.unique(labels) if name != "oos"])
    return unit_vectors(np.asarray(found.vectors)[rows]), labels[rows]


def run_split(
    name: str, drawn: tuple[Split, Weights], methods: dict[str, Callable[[Split], Evaluation]], output: Path
) -> None:
    """Compute what is missing of one split of a data set."""
    split, weights = drawn
    for method, evaluate in methods.items():
        place = output / name / f"{split.seed}-{file_stem(method)}.npz"
        if place.is_file():
            continue
        evaluation = evaluate(split)
        place.parent.mkdir(parents=True, exist_ok=True)
        np.savez(place, **scored(split, method, evaluation, weights))
        print(f"{name}, split {split.seed}, {method}: OPIS {evaluation.opis:.4g}", file=sys.stderr, flush=True)
    if split.seed < REGIME_SPLITS:
        run_regimes(split, output / name / f"{split.seed}-regimes.csv")


def file_stem(method: str) -> str:
    """Return a method's name as part of a file's name."""
    return method.replace(" ", "_").replace(",", "")


def make_split(vectors: Any, labels: Any, number: int, most: int, threads: int) -> tuple[Split, Weights]:
    """Divide the classes at random; return the split, and (draws, test classes) weights that all splits share."""
    names = np.unique(labels)
    order = np.random.default_rng(number).permutation(len(names))
    half = min((len(names) + 1) // 2, most)
    test, known = np.sort(order[:half]), np.sort(order[half : 2 * half])
    drawn = np.random.default_rng(12345)
    weights = np.stack(
        [np.bincount(drawn.integers(len(names), size=len(names)), minlength=len(names)) for _ in range(DRAWS)]
    )
    first, second = (np.isin(labels, names[chosen]) for chosen in (known, test))
    split = Split(vectors[first], labels[first], vectors[second], labels[second], number, threads)
    return split, weights[:, test].astype(np.uint16)


def scored(split: Split, method: str, evaluation: Evaluation, weights: Weights) -> dict[str, Any]:
    """Return the scores, and those of resampled classes, by name."""
    scores = SeedScores(evaluation, weights)
    found = {name: scores.values[name] for name in SCORES if name in scores.values}
    drawn = {f"drawn {name}": scores.drawn[name] for name in found if name in scores.drawn}
    far = evaluation.target.class_far
    more = {
        "within two": within_two(far),
        "over two": float((far > 2e-2).mean()),
        "under half": float((far < 5e-3).mean()),
    }
    if method in SETTINGS:
        setting = SETTINGS[method](split)
        new = new_class_rates(split, setting, threshold=evaluation.target.distance)
        more |= {"within two, new": within_two(new), "mean FAR, new": float(new.mean()), **setting._asdict()}
    return {**found, **more, **drawn}


def run_regimes(split: Split, place: Path) -> None:
    """Compute the other circumstances of one split, unless that has been done."""
    if place.is_file():
        return
    rows = [{"regime": regime, "method": method, **values} for regime, method, values in regimes(split)]
    write_csv(place, rows)


def write_tables(output: Path, results: Path) -> None:
    """Write runs.csv, table.csv and regimes.csv from everything that has been computed."""
    runs, table, other = [], [], []
    for folder in sorted(path for path in output.iterdir() if path.is_dir()):
        found = {method: load_method(folder, method) for method in (*METHODS, *ADAPTERS)}
        runs += [
            {"data": folder.name, "split": split, "method": method, **plain_values(values)}
            for method, by_split in found.items()
            for split, values in by_split.items()
        ]
        table += [row(folder.name, method, by_split, found["raw"]) for method, by_split in found.items() if by_split]
        other += regime_rows(folder)
    write_csv(results / "runs.csv", runs)
    write_csv(results / "table.csv", table)
    write_csv(results / "regimes.csv", other)


def load_method(folder: Path, method: str) -> dict[int, dict[str, Any]]:
    """Read a method's values by split."""
    stem = file_stem(method)
    return {
        int(path.name.split("-")[0]): dict(np.load(path))
        for path in sorted(folder.glob(f"*-{stem}.npz"))
        if path.name.split("-", 1)[1] == f"{stem}.npz"
    }


def plain_values(values: dict[str, Any]) -> dict[str, float]:
    """Return the values that are single numbers."""
    return {name: float(value) for name, value in values.items() if not name.startswith("drawn ")}


def row(name: str, method: str, by_split: dict[int, Any], raw: dict[int, Any]) -> dict[str, Any]:
    """Return means and deviations over splits, and the changes from raw with their intervals over classes."""
    common = sorted(set(by_split) & set(raw))
    values: dict[str, Any] = {"data": name, "method": method, "splits": len(common)}
    for score in plain_values(by_split[common[0]]):
        mine = np.array([float(by_split[split][score]) for split in common])
        values |= {score: mine.mean(), f"{score} deviation": mine.std()}
        drawn = f"drawn {score}"
        if drawn in by_split[common[0]] and method != "raw":
            one, two = (np.mean([runs[split][drawn] for split in common], axis=0) for runs in (raw, by_split))
            before = np.mean([float(raw[split][score]) for split in common])
            relative = score in ("opis", "debiased_opis", "far_threshold_spread")
            change, draws = (mine.mean() / before - 1, two / one - 1) if relative else (mine.mean() - before, two - one)
            low, high = np.quantile(draws, (0.025, 0.975))
            values |= {f"{score} change": change, f"{score} change low": low, f"{score} change high": high}
    return values


def regime_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the means over splits of the other circumstances."""
    by_key: dict[tuple[str, str], list[dict[str, str]]] = {}
    for path in sorted(folder.glob("*-regimes.csv")):
        for line in read_csv(path):
            by_key.setdefault((line["regime"], line["method"]), []).append(line)
    rows = []
    for (regime, method), found in by_key.items():
        scores = [name for name in found[0] if name not in ("regime", "method") and found[0][name]]
        means = {name: float(np.mean([float(values[name]) for values in found])) for name in scores}
        rows.append({"data": folder.name, "regime": regime, "method": method, "splits": len(found), **means})
    return rows


if __name__ == "__main__":
    run_app(app, "lab.equalizing", sys.argv[1:] or ["--help"])
