"""Batches of every layout on which the losses are held against their definitions, and how a loss is made by name."""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from isomargin.losses import make_loss


def make(name, **settings):
    """The package's loss of this name."""
    return make_loss({"name": name, **settings})


class NoHalfProducts(TorchDispatchMode):
    """Fails where a matrix product is taken in half precision.

    It would be too coarse for any of the losses; and some processors end the program at one in bfloat16, so this has to
    come before it is tried.
    """

    PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "matmul", "linear", "einsum")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in self.PRODUCTS:
            for each in args:
                if isinstance(each, torch.Tensor) and each.dtype in (torch.float16, torch.bfloat16):
                    raise AssertionError(f"{func} was taken in {each.dtype}")
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Example:
    """What a loss is called with."""

    embeddings: Tensor
    """(n, d) float64"""
    labels: Tensor
    """(n,)"""
    references: Tensor | None = None
    """(m, d)"""
    reference_labels: Tensor | None = None
    """(m,)"""
    chosen: tuple[Tensor, ...] | None = None
    """4 index tensors or 3."""

    def similarities(self):
        """(n, m); nan on the diagonal where a row would meet itself."""
        rows = torch.nn.functional.normalize(self.embeddings, eps=1e-300)
        if self.references is not None:
            return rows @ torch.nn.functional.normalize(self.references, eps=1e-300).T
        return (rows @ rows.T).fill_diagonal_(float("nan"))


def generator(seed):
    return torch.Generator().manual_seed(seed)


def gaussian(count, dimensions, seed=0):
    """Rows of which no two similarities are the same."""
    return torch.randn(count, dimensions, generator=generator(seed), dtype=torch.float64)


def exact_rows(count, dimensions, seed=0):
    """Rows whose similarities are 0, ±1/2 or ±1 without any rounding, so that ties are ties in any order of summation.

    Entries of one size (in 4 dimensions) or a single entry that is not 0, of lengths that are powers of two.
    """
    source = generator(seed)
    axes = torch.randint(dimensions, (count,), generator=source)
    rows = torch.nn.functional.one_hot(axes, dimensions).double() if count else torch.zeros(0, dimensions).double()
    signs = torch.randint(2, (count, dimensions), generator=source) * 2.0 - 1
    if dimensions == 4:
        full = torch.rand(count, 1, generator=source) < 0.5
        rows = torch.where(full, torch.ones_like(rows), rows)
    lengths = 2.0 ** torch.randint(-3, 4, (count, 1), generator=source)
    return (rows * signs * lengths).double()


def clustered(labels, dimensions=4, seed=0, spread=0.5):
    """Rows that lie around a centre for each class, so that both margins have pairs on both of their sides."""
    labels = torch.as_tensor(labels)
    names, classes = torch.unique(labels, return_inverse=True)
    centres = gaussian(len(names), dimensions, seed)
    return centres[classes] + spread * gaussian(len(labels), dimensions, seed + 1000), labels


def duplicates_within():
    rows, labels = clustered([0, 0, 0, 0, 1, 1, 1, 2, 2], seed=11)
    rows[1] = rows[0]
    rows[3] = rows[0]
    rows[5] = rows[4]
    return rows, labels


def duplicates_across():
    rows, labels = clustered([0, 0, 0, 1, 1, 1, 2, 2], seed=12)
    rows[3] = rows[0]
    rows[6] = rows[0]
    rows[7] = rows[4]
    return rows, labels


def with_zero_rows():
    rows, labels = clustered([0, 0, 1, 1, 1, 2, 2, 3], seed=13)
    rows[2] = 0
    rows[7] = 0
    return rows, labels


def of_many_lengths():
    rows, labels = clustered([0, 0, 0, 1, 1, 2, 2, 2], seed=14)
    return rows * torch.logspace(-3, 3, len(rows), dtype=torch.float64)[:, None], labels


LAYOUTS = {
    "balanced sorted": lambda: clustered([0, 0, 0, 1, 1, 1, 2, 2, 2], seed=1),
    "shuffled": lambda: clustered([2, 0, 1, 2, 1, 0, 0, 2, 1, 1], seed=2),
    "unequal classes": lambda: clustered([0, 0, 0, 0, 0, 1, 1, 2, 2, 2], seed=3),
    "some single items": lambda: clustered([4, 0, 7, 0, 1, 1, 1, 9], seed=4),
    "one class": lambda: clustered([3] * 5, seed=5),
    "all single": lambda: clustered([5, 3, 1, 4, 2], seed=6, spread=0.1),
    "two rows of a class": lambda: clustered([1, 1], seed=7),
    "two rows of two classes": lambda: clustered([0, 1], seed=8),
    "one row": lambda: clustered([2], seed=9),
    "no rows": lambda: (torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.long)),
    "duplicates in a class": duplicates_within,
    "duplicates across classes": duplicates_across,
    "exact ties": lambda: (exact_rows(10, 4, seed=10), torch.tensor([0, 1, 0, 1, 2, 2, 0, 2, 1, 3])),
    "far labels": lambda: clustered([-5, 10**12, -5, 10**12, 0, 0, -(10**15)], seed=15),
    "zero rows": with_zero_rows,
    "lengths from 1e-3 to 1e3": of_many_lengths,
    "one dimension": lambda: (exact_rows(6, 1, seed=16), torch.tensor([0, 0, 1, 1, 1, 2])),
}


def layout(name):
    return Example(*LAYOUTS[name]())


def general(seed=21, dimensions=3):
    """Neither ties nor equal classes nor sorted ones, and hard and easy pairs on both sides."""
    return Example(*clustered([0, 1, 0, 2, 1, 0, 2, 3], dimensions, seed, spread=0.7))


def against_references(example, seed=0, count=7):
    """The same rows, compared with others: of their classes, and of one that no row has."""
    rows, dimensions = example.embeddings.shape
    known = torch.unique(example.labels)
    names = torch.cat([known, known.new_tensor([77])])
    labels = names[torch.randint(len(names), (count,), generator=generator(seed + 50))]
    references = gaussian(count, dimensions, seed + 51)
    exact = rows and bool((example.similarities().nan_to_num() * 2 % 1 == 0).all())
    if exact:  # so that rows with exact ties have them here too
        references = exact_rows(count, dimensions, seed + 51)
    elif rows:
        references = references + example.embeddings[torch.arange(count) % rows] / 2
    return replace(example, references=references, reference_labels=labels)


def with_pairs(example, seed=0, share=0.6):
    """Some of the pairs, as a miner lists them: in any order, some of them twice."""
    positive, negative = masks(example)
    listed = []
    for number, mask in enumerate((positive, negative)):
        source = generator(seed + 60 + number)
        pairs = (mask & (torch.rand(mask.shape, generator=source) < share)).nonzero()
        pairs = torch.cat([pairs, pairs[:2]])
        pairs = pairs[torch.randperm(len(pairs), generator=source)]
        listed += [pairs[:, 0], pairs[:, 1]]
    return replace(example, chosen=tuple(listed))


def with_triplets(example, seed=0, share=0.15):
    """Some of the triplets, as a miner lists them."""
    positive, negative = masks(example)
    every = positive[:, :, None] & negative[:, None, :]
    kept = every & (torch.rand(every.shape, generator=generator(seed + 70)) < share)
    return replace(example, chosen=tuple(kept.nonzero().T))


def masks(example):
    """(n, m) which pairs are positive and which negative."""
    columns = example.labels if example.references is None else example.reference_labels
    same = example.labels[:, None] == columns[None]
    positive = same.clone()
    if example.references is None:
        positive.fill_diagonal_(False)
    return positive, ~same


PAIRINGS = {
    "all pairs": lambda example, seed=0: example,
    "references": against_references,
    "chosen pairs": with_pairs,
    "chosen triplets": with_triplets,
    "chosen pairs with references": lambda example, seed=0: with_pairs(against_references(example, seed), seed),
}


@st.composite
def examples(draw):
    """Any small batch. Vectors come from a seed: what matters is who is whose positive, and who equals whom."""
    rows = draw(st.integers(1, 14))
    dimensions = draw(st.integers(1, 6))
    names = draw(st.sampled_from([[0], [0, 1], [3, 1, 2], [-5, 10**12, 0, 7], list(range(20))]))
    labels = torch.tensor(draw(st.lists(st.sampled_from(names), min_size=rows, max_size=rows)))
    seed = draw(st.integers(0, 10**6))
    if dimensions == 1 or draw(st.booleans()):
        vectors = exact_rows(rows, dimensions, seed)  # in one dimension nothing but ties is there anyway
    else:
        vectors = gaussian(rows, dimensions, seed)
        for _ in range(draw(st.integers(0, 2))):
            source, target = draw(st.integers(0, rows - 1)), draw(st.integers(0, rows - 1))
            vectors[target] = vectors[source]
    if draw(st.integers(0, 5)) == 0:
        vectors[draw(st.integers(0, rows - 1))] = 0
    pairing = draw(st.sampled_from(sorted(PAIRINGS)))
    return PAIRINGS[pairing](Example(vectors, labels), seed)
