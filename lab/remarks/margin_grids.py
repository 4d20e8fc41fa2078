"""The experiment ``margins``: what the stored grids of TCM's margins say about two remarks of the paper.

No run is new. The grids are those of the experiments margins, margins-nets and margins-long: every point is a run with
TCM at a share of 0.3, evaluated on held-out training classes, and compared with the run of the same seed without TCM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.files import read_csv, write_csv
from lab.remarks.decomposition import (
    Floats,
    as_grid,
    bootstrap_mean,
    mean_step,
    noise_share,
    permutation_p,
    shares,
    sign_flip_p,
)

EXPERIMENTS = ("margins", "margins-nets", "margins-long")
NEAR_PAPER = (0.9, 0.45)  # the pair of all grids that is nearest to the paper's 0.9 and 0.5
Pair = tuple[float, float]


@dataclass(frozen=True)
class Grid:
    """The runs of one setting and loss."""

    experiment: str
    setting: str
    loss: str
    opis: dict[int, dict[Pair, float]]
    """By seed and margins: OPIS divided by that without TCM."""
    recall: dict[int, dict[Pair, float]]
    """By seed and margins: recall@1 minus that without TCM."""

    @property
    def kind(self) -> str:
        """Whether a head was trained or a network."""
        return "heads" if self.setting.endswith("-heads") else "networks"

    @property
    def pairs(self) -> list[Pair]:
        """The pairs of margins, in order."""
        return sorted(next(iter(self.opis.values())))

    def change(self, pair: Pair) -> float:
        """Return the relative change of OPIS at a pair: of the geometric mean over seeds."""
        return float(np.exp(np.mean([np.log(values[pair]) for values in self.opis.values()])) - 1)

    def recall_change(self, pair: Pair) -> float:
        """Return the change of recall@1 at a pair, averaged over seeds."""
        return float(np.mean([values[pair] for values in self.recall.values()]))

    def by_seed(self, score: str) -> Floats:
        """(seeds, positive, negative) log ratios of OPIS, or differences of recall@1."""
        if score == "opis":
            return np.log(np.stack([as_grid(values) for values in self.opis.values()]))
        return np.stack([as_grid(values) for values in self.recall.values()])


def read_grids(results: Path) -> Iterator[Grid]:
    """Read the grids of all experiments."""
    for experiment in EXPERIMENTS:
        rows = read_csv(results / experiment / "runs.csv")
        for row in rows:
            row["setting"] += ", long" if row.get("length") == "long" else ""
        for setting, loss in dict.fromkeys((row["setting"], row["loss"]) for row in rows):
            chosen = [row for row in rows if (row["setting"], row["loss"]) == (setting, loss)]
            plain = {int(row["seed"]): row for row in chosen if not row["positive_margin"]}
            opis: dict[int, dict[Pair, float]] = {}
            recall: dict[int, dict[Pair, float]] = {}
            for row in chosen:
                if not row["positive_margin"]:
                    continue
                seed, pair = int(row["seed"]), (float(row["positive_margin"]), float(row["negative_margin"]))
                before = plain[seed]
                opis.setdefault(seed, {})[pair] = float(row["opis"]) / float(before["opis"])
                recall.setdefault(seed, {})[pair] = float(row["recall_at_1"]) - float(before["recall_at_1"])
            yield Grid(experiment, setting, loss, opis, recall)


def point_rows(grid: Grid) -> Iterator[dict[str, Any]]:
    """Return every run of a grid, compared with the run without TCM."""
    for seed, values in grid.opis.items():
        for pair in grid.pairs:
            yield {
                "setting": grid.setting,
                "loss": grid.loss,
                "seed": seed,
                "positive margin": pair[0],
                "negative margin": pair[1],
                "opis change": values[pair] - 1,
                "recall@1 change": grid.recall[seed][pair],
            }


def count_row(grid: Grid) -> dict[str, Any]:
    """Return how many pairs of margins lower OPIS, the best and the worst, and the pair near the paper's."""
    changes = {pair: grid.change(pair) for pair in grid.pairs}
    best, worst = min(changes, key=changes.__getitem__), max(changes, key=changes.__getitem__)
    every = {pair: [values[pair] - 1 for values in grid.opis.values()] for pair in grid.pairs}
    near = every[NEAR_PAPER]
    return {
        "kind": grid.kind,
        "setting": grid.setting,
        "loss": grid.loss,
        "seeds": len(grid.opis),
        "pairs": len(changes),
        "lower": sum(change < 0 for change in changes.values()),
        "lower in every seed": sum(max(values) < 0 for values in every.values()),
        "higher in every seed": sum(min(values) > 0 for values in every.values()),
        "best": changes[best],
        "best positive margin": best[0],
        "best negative margin": best[1],
        "worst": changes[worst],
        "worst positive margin": worst[0],
        "worst negative margin": worst[1],
        "near the paper": changes[NEAR_PAPER],
        "near the paper lowest": min(near),
        "near the paper highest": max(near),
    }


def recall_rows(grids: list[Grid]) -> Iterator[dict[str, Any]]:
    """Return, by kind and negative margin, how many points have a lower recall@1 than without TCM."""
    for kind in ("heads", "networks"):
        chosen = [grid for grid in grids if grid.kind == kind]
        for margin in sorted({pair[1] for grid in chosen for pair in grid.pairs}):
            points = [(grid, pair) for grid in chosen for pair in grid.pairs if pair[1] == margin]
            changes = np.array([grid.recall_change(pair) for grid, pair in points])
            opis = np.array([grid.change(pair) for grid, pair in points])
            yield {
                "kind": kind,
                "negative margin": margin,
                "points": len(changes),
                "recall@1 lower": int((changes < 0).sum()),
                "mean recall@1 change": changes.mean(),
                "lowest recall@1 change": changes.min(),
                "OPIS lower": int((opis < 0).sum()),
                "mean log OPIS change": np.log1p(opis).mean(),
            }


def share_rows(grid: Grid) -> Iterator[dict[str, Any]]:
    """Return the decomposition of one grid, for OPIS and for recall@1."""
    for score in ("opis", "recall@1"):
        by_seed = grid.by_seed(score)
        mean = by_seed.mean(axis=0)
        found = shares(mean)
        yield {
            "kind": grid.kind,
            "setting": grid.setting,
            "loss": grid.loss,
            "score": score,
            "values": f"{mean.shape[0]} × {mean.shape[1]}",
            "positive": found.positive,
            "negative": found.negative,
            "rest": found.rest,
            "noise": noise_share(by_seed),
            "positive p": permutation_p(mean, 0),
            "negative p": permutation_p(mean, 1),
            "positive step": mean_step(mean, 0),
            "negative step": mean_step(mean, 1),
        }


def summary_rows(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return, by score and kind, how often the negative margin matters more, and the test over grids."""
    for score in ("recall@1", "opis"):
        for kind in ("heads", "networks"):
            chosen = [row for row in rows if row["kind"] == kind and row["score"] == score]
            steps = np.array([(row["positive step"], row["negative step"]) for row in chosen])
            differences = steps[:, 1] - steps[:, 0]
            low, high = bootstrap_mean(differences)
            # Shares are comparable only where both margins have the same number of values.
            more = np.array([row["negative"] - row["positive"] for row in chosen if row["values"] == "3 × 3"])
            yield {
                "score": score,
                "kind": kind,
                "grids": len(chosen),
                "larger negative share": sum(row["negative"] > row["positive"] for row in chosen),
                "mean positive share": np.mean([row["positive"] for row in chosen]),
                "mean negative share": np.mean([row["negative"] for row in chosen]),
                "mean rest": np.mean([row["rest"] for row in chosen]),
                "larger negative step": int((differences > 0).sum()),
                "positive step": steps[:, 0].mean(),
                "negative step": steps[:, 1].mean(),
                "step difference": differences.mean(),
                "step difference low": low,
                "step difference high": high,
                "step p": sign_flip_p(differences),
                "share p": sign_flip_p(more) if len(more) else None,
            }


def run(results: Path) -> None:
    """Write the tables from the grids that are stored in the folder of all results."""
    grids = list(read_grids(results))
    place = results / "remarks"
    place.mkdir(parents=True, exist_ok=True)
    write_csv(place / "margins-runs.csv", [row for grid in grids for row in point_rows(grid)])
    write_csv(place / "margins.csv", [count_row(grid) for grid in grids])
    write_csv(place / "negative-margin.csv", list(recall_rows(grids)))
    decomposed = [row for grid in grids for row in share_rows(grid)]
    write_csv(place / "decomposition.csv", decomposed)
    write_csv(place / "decomposition-summary.csv", list(summary_rows(decomposed)))
