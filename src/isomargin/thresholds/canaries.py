"""Canaries: a few hundred items whose embeddings are kept, to be embedded again later.

If the embeddings of the same items have moved, the model or its preprocessing has changed. If they have not, but
production differs from the card, the data have.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, check_file, reading
from isomargin.core.labels import as_ids
from isomargin.measure.evaluate import EqualizesSimilarity
from isomargin.measure.pairs.axis import similarity_of
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.inputs import as_float64, as_matrix
from isomargin.measure.settings import COMPARED
from isomargin.thresholds.card import ThresholdCard
from isomargin.thresholds.reference import chosen_units

CANARIES = 300  # items that are kept
FEWEST = 20  # canaries that a comparison needs
TOLERANCE = 1e-3  # a canary has moved if its cosine to its former embedding is further from one than this
MOVED_SHARE = 0.01  # up to this share of moved canaries, the model counts as unchanged
SCALED = 0.01  # lengths that changed by more than this share count as changed
FORMAT = "isomargin canaries"


@dataclass(frozen=True)
class CanaryComparison:
    """How far the canaries have moved since the card was made."""

    canaries: int
    """Number of canaries that were embedded again."""
    missing: int
    """Number of canaries that were not."""
    dimensions: tuple[int, int]
    """Number of dimensions, then and now."""
    moved_share: float | None
    """Share of canaries whose embedding has moved beyond the tolerance; None if the dimensions differ."""
    median_cosine: float | None
    """Median cosine between the embedding then and now."""
    lowest_cosine: float | None
    """Lowest cosine between the embedding then and now."""
    length_ratio: float
    """Median length now, divided by the median length then."""
    flipped_share: float | None
    """Share of pairs of canaries that the threshold accepted then and rejects now, or the reverse; None for the card of
    a gallery, whose threshold is not for pairs of items."""
    tolerance: float
    """How far from one the cosine of a canary that has not moved may be."""

    @property
    def changed(self) -> bool:
        """Whether the model or its preprocessing has changed."""
        return self.moved_share is None or self.moved_share > MOVED_SHARE or abs(self.length_ratio - 1) > SCALED

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self) | {"dimensions": list(self.dimensions), "changed": self.changed}


@dataclass(frozen=True, eq=False)
class Canaries:
    """Items with their embeddings at the time of a card.

    >>> import isomargin as im
    >>> labels = np.repeat(np.arange(30), 10)
    >>> generator = np.random.default_rng(0)
    >>> embeddings = generator.normal(size=(30, 8))[labels] + 0.5 * generator.normal(size=(300, 8))
    >>> evaluation = im.evaluate(embeddings, labels)
    >>> card = im.make_card(im.choose_threshold(evaluation, far=0.05), evaluation)
    >>> kept = Canaries.choose(card, embeddings, number=50)
    >>> kept.compare(card, embeddings[kept.ids] + 1e-6, kept.ids).changed
    False
    >>> kept.compare(card, embeddings[kept.ids][:, ::-1], kept.ids).changed
    True
    """

    vectors: NDArray[Any]
    """(n, d) embeddings, as they were given."""
    ids: NDArray[Any]
    """(n,) names of the items; numbers of rows if they had none."""
    card: str
    """SHA-256 of the card."""

    @classmethod
    def choose(
        cls, card: ThresholdCard, embeddings: Any, ids: Any = None, number: int = CANARIES, seed: int = 0
    ) -> "Canaries":
        """Draw items at random from those on which the card was measured."""
        if card.comparison == "trials":
            raise InputError(
                f"the card is for {COMPARED['trials']}, which cannot be checked, so it needs no canaries: give a card "
                "of embeddings"
            )
        matrix = as_matrix(embeddings)
        checks.whole(number, "number", FEWEST)
        if len(matrix) < FEWEST:
            raise InputError(f"embeddings has {len(matrix)} rows: at least {FEWEST} canaries are needed")
        dimensions = (card.reference or {}).get("dimensions")
        if dimensions is not None and dimensions != matrix.shape[1]:
            raise InputError(
                f"embeddings has {matrix.shape[1]} dimensions, but the card was measured on {dimensions}: "
                "give the embeddings of the card"
            )
        names = np.arange(len(matrix)) if ids is None else as_ids(ids, len(matrix))
        if len(np.unique(names)) < len(names):
            raise InputError("ids are not distinct: canaries are recognised by their ids, so each item needs its own")
        rows = np.sort(np.random.default_rng(seed).permutation(len(matrix))[:number])
        chosen_units(matrix, rows)  # refuses rows without a direction
        return cls(as_float64(matrix[rows]).astype(np.float32), names[rows], card.sha256)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .npz file, atomically."""
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez(file, embeddings=self.vectors, ids=self.ids, card=np.array(self.card), format=np.array(FORMAT))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Canaries":
        """Read a file that ``save`` wrote."""
        source = Path(path)
        check_file(source)
        with reading(source), np.load(source, allow_pickle=False) as archive:
            if "format" not in archive.files or str(archive["format"]) != FORMAT:
                raise InputError(f"{source} was not written by `isomargin canaries`: give the file beside the card")
            return cls(archive["embeddings"], archive["ids"], str(archive["card"]))

    def compare(
        self,
        card: ThresholdCard,
        embeddings: Any,
        ids: Any = None,
        tolerance: float = TOLERANCE,
        equalizer: EqualizesSimilarity | None = None,
    ) -> CanaryComparison:
        """Compare the canaries with their embeddings of today.

        Args:
            card: the card that they belong to.
            embeddings: (m, d) the canaries, embedded again.
            ids: (m,) their ids; without them, the rows are taken to be in the order of the canaries.
            tolerance: how far from one the cosine of a canary that has not moved may be. The default allows for
                float16 and other hardware.
            equalizer: the equalizer of the card, if it has one.
        """
        checks.above_zero(tolerance, "tolerance")
        if self.card != card.sha256:
            raise InputError("the canaries belong to another card: give those that were written with this card")
        matrix = as_matrix(embeddings)
        then_rows, now_rows = self._matched(matrix, ids)
        then, then_lengths = chosen_units(self.vectors, then_rows)
        now, now_lengths = chosen_units(matrix, now_rows)
        ratio = float(np.median(now_lengths) / np.median(then_lengths))
        sizes = (self.vectors.shape[1], int(matrix.shape[1]))
        missing = len(self.ids) - len(then_rows)
        if sizes[0] != sizes[1]:
            return CanaryComparison(len(then_rows), missing, sizes, None, None, None, ratio, None, tolerance)
        cosines = np.einsum("ij,ij->i", then, now)
        flipped = None
        if card.gallery is None:
            before, after = (accepted_pairs(card, vectors, equalizer) for vectors in (then, now))
            flipped = float((before != after).mean())
        return CanaryComparison(
            canaries=len(then_rows),
            missing=missing,
            dimensions=sizes,
            moved_share=float((cosines < 1 - tolerance).mean()),
            median_cosine=float(np.median(cosines)),
            lowest_cosine=float(cosines.min()),
            length_ratio=ratio,
            flipped_share=flipped,
            tolerance=tolerance,
        )

    def _matched(self, matrix: Any, ids: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of the canaries that are in both sets, and where each is in the new one."""
        if ids is None:
            if len(matrix) != len(self.ids):
                raise InputError(
                    f"the canaries embedded again have no ids and {len(matrix):,} rows, but there are "
                    f"{len(self.ids):,} canaries: give ids, or all of them in the same order"
                )
            return np.arange(len(matrix)), np.arange(len(matrix))
        names = as_ids(ids, len(matrix)).astype(str)
        place = {name: row for row, name in enumerate(self.ids.astype(str).tolist())}
        unknown = [name for name in names.tolist() if name not in place]
        if unknown:
            raise InputError(
                f"{len(unknown):,} ids are not among the canaries ({', '.join(map(repr, unknown[:3]))}"
                f"{', …' if len(unknown) > 3 else ''}): embed the items of the canaries again, under their ids"
            )
        if len(np.unique(names)) < max(len(names), FEWEST):
            raise InputError(
                f"{len(np.unique(names))} distinct canaries in {len(names)} rows were embedded again: "
                f"at least {FEWEST} are needed, each once"
            )
        return np.array([place[name] for name in names.tolist()]), np.arange(len(names))


def accepted_pairs(card: ThresholdCard, vectors: Floats, equalizer: EqualizesSimilarity | None) -> NDArray[np.bool_]:
    """(pairs,) whether the threshold of the card accepts each pair of these unit vectors."""
    similarity = vectors @ vectors.T
    if equalizer is not None:
        shifts = equalizer.shifts(vectors).values
        similarity += shifts[:, None] + shifts
    return np.asarray(similarity[np.triu_indices(len(vectors), 1)] >= similarity_of(card.distance))
