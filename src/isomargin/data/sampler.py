"""Batches for losses of pairs: a few items of each of several classes, every item in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.labels import as_labels

SmallClasses = Literal["repeat", "drop"]
FIRST = 1e3  # added to a key: more than any two draws differ


class ClassBatchSampler(Sampler[list[int]]):
    """Draws batches of `images_per_class` items of each of `classes_per_batch` classes.

    In an epoch the items of each class are shuffled and cut into groups of `images_per_class`. A batch is one group of
    each of `classes_per_batch` classes, drawn in proportion to the groups that they have left. So every item occurs
    once per epoch, except for what does not fill a batch, and large classes occur more often. The order depends only on
    the seed and the epoch. For a `DataLoader` it is the `batch_sampler`.

    Parameters
    ----------
    labels: (n,) integers or text.
    classes_per_batch, images_per_class: c and m; a batch has c · m items.
    small_classes: what to do with the last group of a class if it has fewer than m items: "repeat" fills it with other
        items of the class, repeated where it has fewer than m in total; "drop" leaves it out.
    seed: of the order.
    rank, world_size: with several processes each takes its share of the classes of every batch, without overlap. All
        must have the same seed and the same epoch.
    families: (n,) integers or text, the family of each item's class, such as an alphabet or a category. Classes of one
        family are hard to tell apart.
    families_per_batch: draw the classes of a batch from this many families first, and from others where these have too
        few classes; 0 draws from all classes.

    >>> sampler = ClassBatchSampler([0, 0, 1, 1, 2, 2, 3, 3], classes_per_batch=2, images_per_class=2)
    >>> sorted(row for batch in sampler for row in batch)
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    def __init__(
        self,
        labels: Any,
        classes_per_batch: int,
        images_per_class: int = 4,
        small_classes: SmallClasses = "repeat",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        families: Any = None,
        families_per_batch: int = 0,
    ) -> None:
        self.classes_per_batch = checks.whole(classes_per_batch, "classes_per_batch")
        self.images_per_class = checks.whole(images_per_class, "images_per_class")
        self.small_classes = checks.one_of(small_classes, "small_classes", get_args(SmallClasses))
        self.seed = checks.whole(seed, "seed", least=0)
        self.world_size = checks.whole(world_size, "world_size")
        if not 0 <= rank < world_size:
            raise InputError(f"rank is {rank} of {world_size} processes: one from 0 to {world_size - 1} is needed")
        self.rank = rank
        self.epoch = 0
        _, first, classes, counts = np.unique(
            as_labels(labels), return_index=True, return_inverse=True, return_counts=True
        )
        self.families_per_batch = checks.whole(families_per_batch, "families_per_batch", least=0)
        if self.families_per_batch and families is None:
            raise InputError(f"families_per_batch is {families_per_batch}: the families of the items are needed too")
        if self.families_per_batch:
            _, self._family_of = np.unique(as_labels(families)[first], return_inverse=True)  # (classes,)
        self._rows = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
        full, rest = np.divmod(counts, self.images_per_class)
        self._groups: NDArray[np.int64] = full + ((rest > 0) & (small_classes == "repeat"))
        usable = int((self._groups > 0).sum())
        if usable < self.classes_per_batch:
            dropped = f" ({len(counts) - usable} with fewer items were dropped)" if usable < len(counts) else ""
            raise InputError(
                f"classes_per_batch is {classes_per_batch}, and there are {usable} classes{dropped}: "
                f"that many different classes are needed for a batch, so set it to {usable} or less"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = epoch

    @property
    def positions(self) -> NDArray[np.int64]:
        """Return the positions in the whole batch of the rows that this process draws.

        >>> ClassBatchSampler([0, 0, 1, 1], classes_per_batch=2, images_per_class=2, rank=1, world_size=2).positions
        array([2, 3])
        """
        return self._positions(self.rank)

    @property
    def batch_order(self) -> NDArray[np.int64]:
        """Return which row of the shares of all processes, in the order of their ranks, is each row of the whole batch.

        >>> ClassBatchSampler([0, 1, 2], classes_per_batch=3, images_per_class=1, world_size=2).batch_order
        array([0, 2, 1])
        """
        return np.argsort(np.concatenate([self._positions(rank) for rank in range(self.world_size)]))

    def _positions(self, rank: int) -> NDArray[np.int64]:
        everywhere = np.arange(self.classes_per_batch * self.images_per_class)
        return everywhere.reshape(-1, self.images_per_class)[rank :: self.world_size].ravel()

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return int(self._groups.sum()) // self.classes_per_batch

    def __iter__(self) -> Iterator[list[int]]:
        """Draw the batches of the epoch: the share of this process of each."""
        generator = np.random.default_rng([self.seed, self.epoch])
        decks = [self._shuffle(rows, generator) if groups else [] for rows, groups in zip(self._rows, self._groups)]  # noqa: B905
        left = self._groups.copy()  # (classes,)
        for batches_left in range(len(self), 0, -1):
            chosen = self._choose(left, batches_left, generator)
            groups = []
            for number in chosen:
                if not decks[number]:  # the other classes are used up: this one starts again
                    decks[number] = self._shuffle(self._rows[number], generator)
                    left[number] += len(decks[number])
                groups.append(decks[number].pop())
                left[number] -= 1
            yield [int(row) for group in groups[self.rank :: self.world_size] for row in group]

    def _choose(self, left: NDArray[np.int64], batches_left: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw different classes in proportion to the groups that they have left.

        Classes that must be in every remaining batch to be used up come first, classes with no groups left come last.
        """
        with np.errstate(divide="ignore"):
            keys = np.log(left) + generator.gumbel(size=len(left))  # the largest keys are such a draw
        if self.families_per_batch:
            keys[self._in_chosen_families(left, generator)] += FIRST
        keys[left == 0] = -1e9 + generator.random(int((left == 0).sum()))
        keys[self._groups == 0] = -np.inf
        keys[left >= batches_left] = np.inf
        return np.argpartition(-keys, self.classes_per_batch - 1)[: self.classes_per_batch]

    def _in_chosen_families(self, left: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.bool_]:
        """(classes,) whether a class is in one of the batch's families, drawn in proportion to their groups left."""
        groups = np.bincount(self._family_of, weights=left)
        number = min(self.families_per_batch, int((groups > 0).sum()))
        if number == 0:
            return np.zeros(len(left), np.bool_)
        chosen = generator.choice(len(groups), number, replace=False, p=groups / groups.sum())
        return np.isin(self._family_of, chosen)

    def _shuffle(self, rows: NDArray[np.int64], generator: np.random.Generator) -> list[NDArray[np.int64]]:
        """Shuffle the rows of a class and cut them into groups."""
        size = self.images_per_class
        rows = generator.permutation(rows)
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        missing = size - len(groups[-1])
        if missing and self.small_classes == "drop":
            return groups[:-1]
        if missing:
            others = rows[: len(rows) - len(groups[-1])]
            if len(others) >= missing:
                extra = generator.choice(others, missing, replace=False)
            else:
                extra = np.resize(generator.permutation(rows), missing)
            groups[-1] = np.concatenate([groups[-1], extra])
        return groups
