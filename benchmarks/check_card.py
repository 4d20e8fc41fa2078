"""Does `isomargin check` keep its level, and what does it notice? Measured on made data and on files of embeddings.

    python benchmarks/check_card.py                                          # made data, whose truth is known
    python benchmarks/check_card.py clinc150.npz --without oos               # any file of embeddings
    python benchmarks/check_card.py --omniglot omniglot28.npz                # 64 principal components of the pixels

Each repetition redraws the set of a card and a later set. For the null hypothesis "same classes", items of the same
classes are divided between the two; for "new classes", the classes are. Dividing a finite population at random leaves
a difference that varies as that between two independent draws, so false alarms can be counted on real data too. The
items of the later set are spread over its classes at random, as in a random sample. Then the later set is changed in
known ways, and alarms are counted again.
"""

import argparse
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

import isomargin as im
from isomargin.thresholds.drift import NULLS

FAR = 0.01


class Population(Protocol):
    """Something that sets can be drawn from."""

    def card_set(self, generator: np.random.Generator, classes: int, items: int) -> "Drawn":
        """Draw classes, and items of each."""

    def later_set(self, generator: np.random.Generator, drawn: "Drawn", null: str, items: int, mix: float) -> "Drawn":
        """Draw a later set. ``mix`` is the deviation of the logarithms of the classes' shares; 0: the same mix."""


@dataclass(frozen=True)
class Drawn:
    """A set, and what is needed to draw another from the same classes."""

    vectors: np.ndarray
    labels: np.ndarray
    origin: object


class Made:
    """Gaussian classes of random centres, spreads and sizes: the truth is known, and there is no end of classes."""

    dimensions = 16

    def parameters(self, generator: np.random.Generator, classes: int) -> tuple[np.ndarray, ...]:
        """Draw the centres, the spreads and the shares of classes."""
        centres = generator.normal(size=(classes, self.dimensions)) * np.exp(0.3 * generator.normal(size=(classes, 1)))
        return centres, 0.8 * np.exp(0.25 * generator.normal(size=classes)), generator.dirichlet(np.full(classes, 3.0))

    def rows(self, generator: np.random.Generator, parameters: tuple, labels: np.ndarray) -> np.ndarray:
        """Draw items of these classes."""
        centres, spreads, _ = parameters
        return centres[labels] + spreads[labels, None] * generator.normal(size=(len(labels), self.dimensions))

    def card_set(self, generator: np.random.Generator, classes: int, items: int) -> Drawn:
        """Draw classes, and items of each."""
        centres, spreads, shares = self.parameters(generator, classes)
        sizes = np.maximum(np.round(shares * classes * items).astype(int), 2)
        labels = np.repeat(np.arange(classes), sizes)
        parameters = (centres, spreads, sizes / sizes.sum())
        return Drawn(self.rows(generator, parameters, labels), labels, parameters)

    def later_set(self, generator: np.random.Generator, drawn: Drawn, null: str, items: int, mix: float) -> Drawn:
        """Draw a later set from the same classes or from others."""
        parameters = drawn.origin
        if null == "new_classes":
            parameters = self.parameters(generator, len(drawn.origin[0]))
        labels = generator.choice(len(parameters[0]), items, p=shifted(generator, parameters[2], mix))
        return Drawn(self.rows(generator, parameters, labels), labels, parameters)


class Finite:
    """A file of embeddings: classes or items are divided between the two sets."""

    def __init__(self, vectors: np.ndarray, labels: np.ndarray) -> None:
        self.vectors = vectors
        self.members = [np.flatnonzero(labels == name) for name in np.unique(labels)]

    def card_set(self, generator: np.random.Generator, classes: int, items: int) -> Drawn:
        """Draw classes, and items of each."""
        order = generator.permutation(len(self.members))
        rest = {}
        rows = []
        for c in order[:classes].tolist():
            members = generator.permutation(self.members[c])
            rows.append(members[:items])
            rest[c] = members[items:]
        return Drawn(self.vectors[np.concatenate(rows)], np.repeat(np.arange(classes), items), (rest, order[classes:]))

    def later_set(self, generator: np.random.Generator, drawn: Drawn, null: str, items: int, mix: float) -> Drawn:
        """Draw a later set from the same classes or from others."""
        rest, others = drawn.origin
        if null == "new_classes":
            rest = {c: self.members[c] for c in generator.permutation(others)[: len(rest)].tolist()}
        shares = shifted(generator, np.full(len(rest), 1 / len(rest)), mix)
        rows, labels = [], []
        numbers = generator.multinomial(items, shares)
        for label, (members, wanted) in enumerate(zip(rest.values(), numbers, strict=True)):
            rows.append(generator.permutation(members)[:wanted])
            labels.append(np.full(len(rows[-1]), label))
        return Drawn(self.vectors[np.concatenate(rows)], np.concatenate(labels), None)


def shifted(generator: np.random.Generator, shares: np.ndarray, mix: float) -> np.ndarray:
    """Return the shares of the classes in another mix."""
    weights = shares * np.exp(mix * generator.normal(size=len(shares)))
    return weights / weights.sum()


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_card(drawn: Drawn) -> im.ThresholdCard:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluation = im.evaluate(drawn.vectors, drawn.labels, k=(1,), map_at_r=False, grid=10, progress=None)
        choice = im.choose_threshold(evaluation, far=FAR)
        return im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(drawn.vectors, drawn.labels))


def sets(
    population: Population, null: str, arguments: argparse.Namespace, cards: int, mix: float = 0.0
) -> Iterator[tuple[im.ThresholdCard, Drawn, Drawn, np.random.Generator]]:
    """Yield cards and later sets, a few for each card."""
    for number in range(cards):
        generator = np.random.default_rng([arguments.seed, number])
        drawn = population.card_set(generator, arguments.classes, arguments.items)
        card = make_card(drawn)
        for _ in range(arguments.sets):
            yield card, drawn, population.later_set(generator, drawn, null, arguments.later, mix), generator


def count_false_alarms(population: Population, arguments: argparse.Namespace) -> None:
    """Print the share of alarms where nothing has changed."""
    for null in NULLS:
        alarms: dict[str, list[bool]] = defaultdict(list)
        for number, (card, _, later, _) in enumerate(sets(population, null, arguments, arguments.cards)):
            check = im.check_card(card, later.vectors, against=null)
            (result,) = [result for result in check.drift if result.null == null]
            alarms["any"].append(not check.holds)
            for test in result.tests:
                alarms[test.name].append(test.p_value < 0.05)
            alarms["either"].append(all(result.failed for result in check.drift))
            if number % arguments.sets == 0:
                with_labels = im.check_card(card, later.vectors, later.labels)
                alarms["with labels"].append(not with_labels.holds)
        print(f"{null:<14}" + "  ".join(f"{name} {np.mean(found):.1%}" for name, found in alarms.items()), flush=True)


def alarms_of(check: im.CardCheck) -> list[float]:
    """Return whether the check alarms if each null hypothesis decides, then whether the accept rate alone does."""
    alarms = [float(bool(check.facts or result.failed)) for result in check.drift]
    return alarms + [float(result.tests[0].p_value < result.level / len(result.tests)) for result in check.drift]


def changes() -> dict[str, tuple[float, Callable[..., np.ndarray]]]:
    """Return the shift of the mix of each change, and what it does to the vectors of the later set."""

    def rotated(later: np.ndarray, drawn: Drawn, card: im.ThresholdCard, square: np.ndarray) -> np.ndarray:
        return later @ np.linalg.qr(square)[0]

    def projected(later: np.ndarray, drawn: Drawn, card: im.ThresholdCard, square: np.ndarray) -> np.ndarray:
        return later @ square / np.sqrt(len(square))

    def scaled(later: np.ndarray, drawn: Drawn, card: im.ThresholdCard, square: np.ndarray) -> np.ndarray:
        return 1.25 * later

    def doubled(later: np.ndarray, drawn: Drawn, card: im.ThresholdCard, square: np.ndarray) -> np.ndarray:
        lengths = np.linalg.norm(later, axis=1, keepdims=True)
        moved = unit(later) + common_part(drawn, card.distance, 2 * FAR)
        return unit(moved) * lengths

    def same(later: np.ndarray, drawn: Drawn, card: im.ThresholdCard, square: np.ndarray) -> np.ndarray:
        return later

    return {
        "model swapped: rotated space": (0.0, rotated),
        "model swapped: random projection": (0.0, projected),
        "vectors 1.25 times as long": (0.0, scaled),
        "mix of classes shifted": (1.0, same),
        "FAR doubled": (0.0, doubled),
    }


def common_part(drawn: Drawn, distance: float, far: float) -> np.ndarray:
    """Return the vector that, added to all unit vectors, gives the card's set this FAR at its threshold."""
    vectors = unit(drawn.vectors)
    direction = unit(vectors.mean(axis=0, keepdims=True))
    negative = drawn.labels[:, None] != drawn.labels
    low, high = 0.0, 2.0
    for _ in range(20):
        middle = (low + high) / 2
        moved = unit(vectors + middle * direction)
        found = (moved @ moved.T >= 1 - distance**2 / 2)[negative].mean()
        low, high = (middle, high) if found < far else (low, middle)
    return low * direction


def measure_power(population: Population, arguments: argparse.Namespace) -> None:
    """Print the share of alarms for known changes."""
    print(f"{'':<50}by the accept rate alone")
    print(f"{'alarms after a change':<34}{'same':>8}{'new':>8}{'same':>8}{'new':>8}{'labels':>8}")
    for name, (mix, change) in changes().items():
        found = []
        for number, (card, drawn, later, generator) in enumerate(
            sets(population, "same_classes", arguments, arguments.power_cards, mix)
        ):
            vectors = change(later.vectors, drawn, card, generator.normal(size=(later.vectors.shape[1],) * 2))
            row = alarms_of(im.check_card(card, vectors))
            labelled = number % arguments.sets == 0
            row.append(not im.check_card(card, vectors, later.labels).holds if labelled else np.nan)
            found.append(row)
        rates = np.nanmean(np.array(found, float), axis=0)
        print(f"{name:<34}" + "".join(f"{rate:>8.0%}" for rate in rates), flush=True)
    count_not_normalised(population, arguments)


def count_not_normalised(population: Population, arguments: argparse.Namespace) -> None:
    """Print the share of alarms for cards of unit vectors, if later vectors are not normalised any more."""
    found = []
    for number in range(arguments.power_cards):
        generator = np.random.default_rng([arguments.seed, number])
        drawn = population.card_set(generator, arguments.classes, arguments.items)
        card = make_card(Drawn(unit(drawn.vectors), drawn.labels, None))
        later = population.later_set(generator, drawn, "same_classes", arguments.later, 0.0)
        found.append(alarms_of(im.check_card(card, later.vectors)))
    print(f"{'vectors not normalised':<34}" + "".join(f"{rate:>8.0%}" for rate in np.mean(found, axis=0)))


def omniglot(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return 64 principal components of the pixels, and the labels."""
    with np.load(path) as file:
        pixels, labels = file["images"].reshape(len(file["images"]), -1).astype(np.float32), file["label"]
    pixels -= pixels.mean(axis=0)
    _, directions = np.linalg.eigh(pixels.T @ pixels)
    return pixels @ directions[:, -64:], labels


def open_population(arguments: argparse.Namespace) -> tuple[str, Population]:
    if arguments.omniglot:
        return "Omniglot", Finite(*omniglot(arguments.omniglot))
    if not arguments.file:
        return "made data", Made()
    loaded = im.EmbeddingSet.load(arguments.file)
    kept = ~np.isin(loaded.labels, arguments.without)
    return arguments.file, Finite(np.asarray(loaded.vectors, np.float64)[kept], loaded.labels[kept])


def main() -> None:
    """Count false alarms, then alarms after known changes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", nargs="?", help="embeddings with labels; by default made data")
    parser.add_argument("--omniglot", help="the packed Omniglot file")
    parser.add_argument("--without", action="append", default=[], help="a label to leave out")
    parser.add_argument("--classes", type=int, default=75, help="classes of the card's set, and of the later set")
    parser.add_argument("--items", type=int, default=10, help="items per class of the card's set, on average")
    parser.add_argument("--later", type=int, default=400, help="items of the later set")
    parser.add_argument("--cards", type=int, default=125)
    parser.add_argument("--sets", type=int, default=4, help="later sets per card")
    parser.add_argument("--power-cards", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    name, population = open_population(arguments)
    print(
        f"{name}: cards of {arguments.classes} classes and {arguments.items} items each, later sets of "
        f"{arguments.later} items; false alarms in {arguments.cards * arguments.sets} repetitions, power in "
        f"{arguments.power_cards * arguments.sets} (with labels a quarter of them), level 5%"
    )
    count_false_alarms(population, arguments)
    measure_power(population, arguments)


if __name__ == "__main__":
    main()
