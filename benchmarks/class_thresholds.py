"""What do class thresholds gain in open-set identification?

    python benchmarks/class_thresholds.py --clinc clinc150-wordllama256.npz --cub cub-lite0-160.npz \\
        --omniglot omniglot28.npz --draws 20

Ten items of each class are enrolled, others in each of the draws; mean templates; FPIR 5%.

- CLINC: enrolled from the training part, known probes the test part, unknown probes all out-of-scope requests.
- CUB: 150 classes enrolled, known probes the rest of their images, unknown probes the other 50 classes. The classes
  are redrawn too.
- Omniglot, 64 principal components of the pixels of the background classes: 440 of the 659 test classes enrolled,
  known probes the rest of their images, unknown probes the others. The classes are redrawn too.

`--unknowns` names the settings of `ClassThresholds`; "given" is the mix ¼ q99.8(negatives) + ¼ mean(positives), neither
chosen nor refused; "equalized" is "both" beside an equalizer of the probes, which subtracts a part of the mean
similarity of a probe to some of its nearest templates (`EQUALIZERS`). The probes have no part in fitting. The threshold
of each method is set on the unknown probes, at the largest acceptance whose FPIR does not exceed 5%. FNIR is the share
of known probes whose own class is not accepted or not first. "Worst tenth" is the mean FNIR of the tenth of the classes
in which it is highest, for each method its own. "Used" counts the draws in which the fit did not refuse; in the others
the offsets are 0. "Realised FPIR" is that of the probes at `threshold_`, which is chosen from the gallery alone, and
without the equalizer.
Intervals are 95%, over draws (t distribution); those of CLINC are over enrolments, with the same probes.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import isomargin as im

FPIR = 0.05
ENROLLED = 10
EQUALIZERS: dict[str, dict[str, Any]] = {
    "clinc": {"neighbours": 124, "skip": 1, "weight": 0.5},  # these two by probe_equalizers.py
    "cub": {"neighbours": 9, "skip": 1, "weight": 0.2},
    "omniglot": {"neighbours": 8, "skip": 2, "weight": 0.3},
}
"""The equalizers of the probes."""


class Draw(NamedTuple):
    """One enrolment."""

    gallery: Any
    labels: Any
    known: Any
    known_labels: Any
    unknown: Any


class Rates(NamedTuple):
    """What one set of offsets does."""

    fnir: float
    worst: float
    """Mean FNIR of the worst tenth of the classes."""
    level: float
    """The similarity that must be exceeded."""


def units(vectors: Any) -> Any:
    """Scale rows to length one."""
    vectors = np.asarray(vectors, np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def enrol(labels: Any, classes: Any, generator: np.random.Generator) -> tuple[Any, Any]:
    """Draw the rows to enrol; return them and the other rows of the classes."""
    rows = [generator.permutation(np.flatnonzero(labels == name)) for name in classes]
    return np.concatenate([row[:ENROLLED] for row in rows]), np.concatenate([row[ENROLLED:] for row in rows])


def clinc(path: str, draws: int, first: int = 0) -> Iterator[Draw]:
    """Yield enrolments of CLINC's training part."""
    data = np.load(path)
    vectors, labels, part = units(data["embeddings"]), data["labels"], data["part"]
    train, test, unknown = part == "train", part == "test", np.char.startswith(part, "oos")
    for draw in range(first, first + draws):
        rows, _ = enrol(np.where(train, labels, ""), np.unique(labels[train]), np.random.default_rng(draw))
        yield Draw(vectors[rows], labels[rows], vectors[test], labels[test], vectors[unknown])


def classes_apart(vectors: Any, labels: Any, enrolled: int, draws: int, first: int = 0) -> Iterator[Draw]:
    """Yield enrolments of random classes; the others are unknown."""
    for draw in range(first, first + draws):
        generator = np.random.default_rng(draw)
        classes = generator.permutation(np.unique(labels))
        rows, rest = enrol(labels, classes[:enrolled], generator)
        unknown = np.isin(labels, classes[enrolled:])
        yield Draw(vectors[rows], labels[rows], vectors[rest], labels[rest], vectors[unknown])


def cub(path: str, draws: int, first: int = 0) -> Iterator[Draw]:
    """Yield enrolments of CUB."""
    data = np.load(path)
    return classes_apart(units(data["embeddings"]), data["labels"], 150, draws, first)


def omniglot(path: str, draws: int) -> Iterator[Draw]:
    """Yield enrolments of Omniglot's test classes."""
    data = np.load(path)
    pixels = data["images"].reshape(len(data["images"]), -1).astype(np.float32) / 255
    background = data["background"][data["label"]]
    mean = pixels[background].mean(axis=0)
    _, axes = np.linalg.eigh((pixels[background] - mean).T @ (pixels[background] - mean))
    vectors = units((pixels[~background] - mean) @ axes[:, -64:])
    return classes_apart(vectors, data["label"][~background], 440, draws)


def rates(scores: Any, unknown_scores: Any, own: Any) -> Rates:
    """Compute FNIR at the FPIR by its definition, from (probes, classes) scores and the class of each known probe."""
    best = np.sort(unknown_scores.max(axis=1))[::-1]
    level = best[int(FPIR * len(best) + 1e-9)]  # accepted is what exceeds it
    mine = scores[np.arange(len(own)), own]
    missed = (mine <= level) | (mine < scores.max(axis=1))
    by_class = np.sort(np.bincount(own, missed) / np.bincount(own))
    return Rates(float(missed.mean()), float(by_class[-max(1, len(by_class) // 10) :].mean()), float(level))


def measure(draw: Draw, unknowns: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Fit one enrolment, and compare it with one threshold; the settings are those of the equalizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it refuses
        given = {"shrink": 0, "weights": (0.25, 0.25)} if unknowns == "given" else {}
        given |= {"unknowns": unknowns} if unknowns in ("random", "related") else {}
        fitted = im.ClassThresholds(**given).fit(draw.gallery, draw.labels)
    own = np.searchsorted(fitted.classes_, draw.known_labels)
    known, unknown = draw.known @ fitted.templates_.T, draw.unknown @ fitted.templates_.T
    one = rates(known, unknown, own)
    templates = fitted.augment()
    adjusted = fitted.augment_queries(draw.unknown) @ templates.T
    realised = float((adjusted.max(axis=1) >= fitted.threshold_).mean())
    mine = fitted.augment_queries(draw.known) @ templates.T
    if unknowns == "equalized":
        equalizer = im.Equalizer(**settings).fit(fitted.templates_)
        mine += equalizer.shifts(draw.known).values[:, None]
        adjusted += equalizer.shifts(draw.unknown).values[:, None]
    chosen = rates(mine, adjusted, own)
    return {
        "one": one,
        "chosen": chosen,
        "relative": 1 - chosen.fnir / one.fnir,
        "worst": one.worst - chosen.worst,
        "realised": realised,
        "used": bool(np.any(fitted.offsets_)),
    }


def interval(values: list[float]) -> str:
    """Return the mean in per cent with its interval over draws."""
    percent = 100 * np.array(values)
    half = stats.t.ppf(0.975, len(percent) - 1) * percent.std(ddof=1) / np.sqrt(len(percent))
    return f"{percent.mean():.1f} ({percent.mean() - half:.1f} to {percent.mean() + half:.1f})"


def main() -> None:
    """Print one row per data set and kind of unknowns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sources = {"clinc": clinc, "cub": cub, "omniglot": omniglot}
    for name in sources:
        parser.add_argument(f"--{name}", metavar="FILE")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--unknowns", nargs="+", default=["both", "equalized", "random", "related", "given"])
    options = parser.parse_args()
    print(
        "| data | unknowns | FNIR, one threshold | class thresholds | lower by, relative % | worst tenth, one | "
        "class thresholds | lower by, points | used | realised FPIR |\n" + 10 * "|---" + "|"
    )
    for name, source in sources.items():
        if getattr(options, name) is None:
            continue
        for unknowns in options.unknowns:
            draws = source(getattr(options, name), options.draws)
            found = [measure(draw, unknowns, EQUALIZERS[name]) for draw in draws]
            means = {
                (kind, part): 100 * np.mean([getattr(row[kind], part) for row in found])
                for kind in ("one", "chosen")
                for part in ("fnir", "worst")
            }
            print(
                f"| {name} | {unknowns} | {means['one', 'fnir']:.1f} | {means['chosen', 'fnir']:.1f} | "
                f"{interval([row['relative'] for row in found])} | {means['one', 'worst']:.1f} | "
                f"{means['chosen', 'worst']:.1f} | {interval([row['worst'] for row in found])} | "
                f"{sum(row['used'] for row in found)} of {len(found)} | "
                f"{interval([row['realised'] for row in found])} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
