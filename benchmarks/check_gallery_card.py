"""Does `isomargin check --gallery` keep its level, and what does it notice? Measured on made data and on CLINC.

    python benchmarks/check_gallery_card.py                                  # made data, whose truth is known
    python benchmarks/check_gallery_card.py clinc150.npz                     # with `part`: train is enrolled

Each repetition redraws the probes of a card and later probes; the gallery is fixed. For the null hypothesis "same
classes", both are random samples of the same probes (or of the same distribution). For "new classes", the known probes
of the card are of one half of the enrolled classes and the later ones of the other half, and unknown probes are of
other unknown classes. Then the later probes are changed in known ways, and alarms are counted again.
"""

import argparse
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

import isomargin as im
from isomargin.thresholds.drift import NULLS

FPIR = 0.05
UNKNOWN = -1  # label of unknown probes on CLINC, where each is taken as a class of its own


@dataclass(frozen=True)
class Probes:
    """Probes with their labels; those below zero are unknown."""

    vectors: np.ndarray
    labels: np.ndarray


class Made:
    """Gaussian classes of random centres and spreads, of which half are enrolled."""

    dimensions, enrolled, asked, unknown = 16, 100, 50, 40

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.centres, self.spreads = self.classes(self.enrolled)
        labels = np.repeat(np.arange(self.enrolled), 10)
        vectors = self.items(self.centres[labels], self.spreads[labels])
        self.gallery = im.EmbeddingSet(vectors, labels)

    def classes(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the centres and spreads of classes."""
        centres = self.generator.normal(size=(number, self.dimensions)) + 0.5
        return centres, 0.6 * np.exp(0.25 * self.generator.normal(size=number))

    def items(self, centres: np.ndarray, spreads: np.ndarray) -> np.ndarray:
        """Draw one item for each row."""
        return centres + spreads[:, None] * self.generator.normal(size=centres.shape)

    def traffic(self, first: bool) -> "MadeTraffic":
        """Return probes of one half of the enrolled classes, or of the other, and of new unknown classes."""
        half = slice(0, self.asked) if first else slice(self.asked, None)
        centres, spreads = self.classes(self.unknown)
        return MadeTraffic(self, np.arange(self.enrolled)[half], centres, spreads)


class MadeTraffic:
    """A stream of probes in a certain mix of known and unknown classes."""

    def __init__(self, made: Made, known: np.ndarray, centres: np.ndarray, spreads: np.ndarray) -> None:
        self.made, self.known = made, known
        self.labels = np.concatenate([known, -1 - np.arange(len(centres))])
        self.centres = np.concatenate([made.centres[known], centres])
        self.spreads = np.concatenate([made.spreads[known], spreads])
        self.shares = [made.generator.dirichlet(np.full(len(part), 3.0)) for part in (known, spreads)]

    def draw(self, number: int, unknown: float, mix: float) -> Probes:
        """Draw probes; ``mix`` is the deviation of the logarithms of the classes' shares from the usual mix."""
        generator = self.made.generator
        known, other = (shifted(generator, shares, mix) for shares in self.shares)
        places = generator.choice(len(self.labels), number, p=np.concatenate([(1 - unknown) * known, unknown * other]))
        return Probes(self.made.items(self.centres[places], self.spreads[places]), self.labels[places])


@cache
def load(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the embeddings, the labels as numbers and the parts of CLINC."""
    with np.load(path) as file:
        vectors, names, part = file["embeddings"].astype(np.float64), file["labels"], file["part"]
    labels = np.unique(names, return_inverse=True)[1]
    labels[names == "oos"] = UNKNOWN
    return vectors, labels, part


@cache
def enrol(path: str) -> im.EmbeddingSet:
    """Return the mean templates of the training part as the gallery; it is read faster than all enrolled items."""
    vectors, labels, part = load(path)
    return im.EmbeddingSet(*im.make_templates(vectors[part == "train"], labels[part == "train"]))


class Finite:
    """A file with the parts of CLINC: train is enrolled, test and oos_test are probes."""

    def __init__(self, path: str, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        vectors, labels, part = load(path)
        self.vectors, self.labels = vectors, labels
        probes = np.isin(part, ["test", "oos_test"])
        self.gallery = enrol(path)
        self.probes = self.generator.permutation(np.flatnonzero(probes))
        self.halves = np.array_split(self.generator.permutation(self.gallery.labels), 2)
        self.unknown = np.array_split(self.probes[labels[self.probes] == UNKNOWN], 2)

    def traffic(self, first: bool | None) -> "FiniteTraffic":
        """Return probes of one half of the classes, of the other, or all."""
        if first is None:
            return FiniteTraffic(self, self.probes)
        of_half = self.probes[np.isin(self.labels[self.probes], self.halves[0 if first else 1])]
        return FiniteTraffic(self, np.concatenate([of_half, self.unknown[0 if first else 1]]))


class FiniteTraffic:
    """Probes that are drawn without replacement."""

    def __init__(self, finite: Finite, rows: np.ndarray) -> None:
        self.finite, self.left = finite, finite.generator.permutation(rows)

    def draw(self, number: int, unknown: float | None, mix: float, keep: bool = False) -> Probes:
        """Draw probes of those that are left; ``keep``: they are not used up."""
        generator, labels = self.finite.generator, self.finite.labels[self.left]
        weights = np.exp(mix * generator.normal(size=labels.max() + 2))[labels]
        if unknown is not None:
            usual = (labels == UNKNOWN).mean()
            weights *= np.where(labels == UNKNOWN, unknown / usual, (1 - unknown) / (1 - usual))
        order = np.argsort(generator.exponential(size=len(labels)) / weights)  # without replacement, by weight
        rows, rest = self.left[order[:number]], self.left[order[number:]]
        self.left = self.left if keep else rest
        return Probes(self.finite.vectors[rows], self.finite.labels[rows])


def shifted(generator: np.random.Generator, shares: np.ndarray, mix: float) -> np.ndarray:
    """Return the shares of the classes in another mix."""
    weights = shares * np.exp(mix * generator.normal(size=len(shares)))
    return weights / weights.sum()


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_card(gallery: im.EmbeddingSet, probes: Probes) -> im.ThresholdCard:
    evaluation = im.evaluate_gallery(
        gallery.vectors, gallery.labels, probes.vectors, probes.labels, k=(1,), grid=10, progress=None, threads=1
    )
    choice = im.choose_threshold(evaluation, fpir=FPIR, draws=200)
    return im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(*vars(probes).values()), gallery=gallery)


def sets(
    arguments: argparse.Namespace, null: str, cards: int, number: int, mix: float = 0.0, more_unknown: float = 1.0
) -> Iterator[tuple[im.EmbeddingSet, im.ThresholdCard, Probes, Probes, np.random.Generator]]:
    """Yield galleries, cards, their probes and later ones, a number of them for each card."""
    finite = arguments.file is not None
    usual = None if finite else 0.4
    for place in range(cards):
        seed = 1000 * arguments.seed + place
        population = Finite(arguments.file, seed) if finite else Made(seed)
        same = null == "same_classes"
        stream = population.traffic(None if finite and same else True)
        drawn = stream.draw(arguments.probes, usual, 0.0)
        card = make_card(population.gallery, drawn)
        wanted = usual if more_unknown == 1 else more_unknown * (drawn.labels < 0).mean()
        for _ in range(number):
            later = stream if same else population.traffic(False)
            options = {"keep": True} if finite else {}
            probes = later.draw(arguments.later, wanted, mix, **options)
            yield population.gallery, card, drawn, probes, population.generator


def count_false_alarms(arguments: argparse.Namespace) -> None:
    """Print the share of alarms where nothing has changed."""
    for null in NULLS:
        alarms: dict[str, list[bool]] = defaultdict(list)
        for number, (gallery, card, _, later, _) in enumerate(sets(arguments, null, arguments.cards, 1)):
            check = im.check_card(card, later.vectors, gallery=gallery, against=null)
            (result,) = [result for result in check.drift if result.null == null]
            alarms["any"].append(not check.holds)
            for test in result.tests:
                alarms[test.name].append(test.p_value < 0.05)
            alarms["either"].append(all(result.failed for result in check.drift))
            if number % 4 == 0:
                labelled = im.check_card(card, later.vectors, later.labels, gallery=gallery, draws=200)
                alarms["with labels"].append(not labelled.holds)
        print(f"{null:<14}" + "  ".join(f"{name} {np.mean(found):.1%}" for name, found in alarms.items()), flush=True)


def changes() -> dict[str, tuple[float, float, Callable[..., np.ndarray]]]:
    """Return the shift of the mix, the factor of unknown probes, and what each change does to the later vectors."""

    def rotated(later: np.ndarray, square: np.ndarray, *_: object) -> np.ndarray:
        return later @ np.linalg.qr(square)[0]

    def projected(later: np.ndarray, square: np.ndarray, *_: object) -> np.ndarray:
        return later @ square / np.sqrt(len(square))

    def scaled(later: np.ndarray, *_: object) -> np.ndarray:
        return 1.25 * later

    def doubled(later: np.ndarray, _: object, *known: object) -> np.ndarray:
        return unit(unit(later) + common_part(*known)) * np.linalg.norm(later, axis=1, keepdims=True)

    def same(later: np.ndarray, *_: object) -> np.ndarray:
        return later

    return {
        "model swapped: rotated space": (0.0, 1.0, rotated),
        "model swapped: random projection": (0.0, 1.0, projected),
        "vectors 1.25 times as long": (0.0, 1.0, scaled),
        "mix of classes shifted": (1.0, 1.0, same),
        "twice as many unknown probes": (0.0, 2.0, same),
        "FAR doubled": (0.0, 1.0, doubled),
    }


def common_part(gallery: im.EmbeddingSet, card: im.ThresholdCard, drawn: Probes) -> np.ndarray:
    """Return the vector that, added to all unit vectors of probes, doubles the FAR of the card's probes."""
    templates, names = im.make_templates(gallery.vectors, gallery.labels)
    direction = unit(templates.mean(axis=0, keepdims=True))
    vectors, negative = unit(drawn.vectors), drawn.labels[:, None] != names
    low, high = 0.0, 4.0
    for _ in range(20):
        middle = (low + high) / 2
        similarity = unit(vectors + middle * direction) @ templates.T
        found = (similarity >= card.threshold["cosine_similarity"])[negative].mean()
        low, high = (middle, high) if found < 2 * card.measured["far"]["value"] else (low, middle)
    return low * direction


def measure_power(arguments: argparse.Namespace) -> None:
    """Print the share of alarms for known changes."""
    print(f"{'':<50}by accepted probes alone")
    print(f"{'alarms after a change':<34}{'same':>8}{'new':>8}{'same':>8}{'new':>8}{'labels':>8}")
    for name, (mix, more_unknown, change) in changes().items():
        found = []
        drawn_sets = sets(arguments, "same_classes", arguments.power_cards, arguments.sets, mix, more_unknown)
        for number, (gallery, card, drawn, later, generator) in enumerate(drawn_sets):
            square = generator.normal(size=(later.vectors.shape[1],) * 2)
            vectors = change(later.vectors, square, gallery, card, drawn)
            check = im.check_card(card, vectors, gallery=gallery)
            row = [float(bool(check.facts or result.failed)) for result in check.drift]
            row += [float(result.tests[0].p_value < result.level / len(result.tests)) for result in check.drift]
            if number % arguments.sets == 0:
                row.append(not im.check_card(card, vectors, later.labels, gallery=gallery, draws=200).holds)
            else:
                row.append(np.nan)
            found.append(row)
        rates = np.nanmean(np.array(found, float), axis=0)
        print(f"{name:<34}" + "".join(f"{rate:>8.0%}" for rate in rates), flush=True)


def main() -> None:
    """Count false alarms, then alarms after known changes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", nargs="?", help="the packed CLINC file; by default made data")
    parser.add_argument("--probes", type=int, default=800, help="probes of the card")
    parser.add_argument("--later", type=int, default=400, help="later probes")
    parser.add_argument("--cards", type=int, default=500, help="cards for false alarms, with one later set each")
    parser.add_argument("--power-cards", type=int, default=25, help="cards for power")
    parser.add_argument("--sets", type=int, default=4, help="later sets per card for power")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        f"{arguments.file or 'made data'}: cards of {arguments.probes} probes at FPIR {FPIR:.0%}, later sets of "
        f"{arguments.later}; false alarms in {arguments.cards} repetitions, power in "
        f"{arguments.power_cards * arguments.sets} (with labels a quarter of them), level 5%"
    )
    count_false_alarms(arguments)
    if arguments.power_cards:
        measure_power(arguments)


if __name__ == "__main__":
    main()
