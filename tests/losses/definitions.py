"""Every loss as its formula reads: loops over rows, float64, gradients by torch's autograd. Nothing of the package.

Each is `loss(embeddings, labels, ref_emb=None, ref_labels=None, chosen=None, **settings)` and gives a scalar. `chosen`
is what a miner gives: 4 lists of indices (pairs) or 3 (triplets).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Query(NamedTuple):
    """One row and what it is compared with."""

    label: int
    positives: Tensor
    """Its similarities to its positives, a list."""
    negatives: Tensor
    """The same for its negatives."""
    itself: Tensor | None
    """Its similarity to itself; None where it is compared with references."""


def unit(row):
    """A row at length 1; a zero row stays zero, and moving it counts for nothing."""
    return row / row.norm() if row.norm() > 0 else row * 0


def queries(embeddings, labels, ref_emb=None, ref_labels=None, chosen=None):
    """One `Query` for each row."""
    rows = [unit(row) for row in embeddings.double()]
    columns = rows if ref_emb is None else [unit(row) for row in ref_emb.double()]
    labels = labels.tolist()
    column_labels = labels if ref_emb is None else ref_labels.tolist()
    if chosen is not None:
        chosen = [torch.as_tensor(each).tolist() for each in chosen]
        anchors, positives, others, negatives = chosen if len(chosen) == 4 else (chosen[0], chosen[1], *chosen[::2])
        positives = set(zip(anchors, positives, strict=True))  # a pair that is listed twice is still one pair
        negatives = set(zip(others, negatives, strict=True))
    found = []
    for i, row in enumerate(rows):
        sides = [], []
        for j, column in enumerate(columns):
            if chosen is not None:
                is_side = (i, j) in positives, (i, j) in negatives
            elif ref_emb is None and i == j:
                is_side = False, False
            else:
                is_side = labels[i] == column_labels[j], labels[i] != column_labels[j]
            for side, belongs in zip(sides, is_side, strict=True):
                if belongs:
                    side.append(row @ column)
        itself = row @ row if ref_emb is None else None
        found.append(Query(labels[i], *(listed(side, embeddings) for side in sides), itself))
    return found


def listed(values, embeddings):
    """A list of scalars as a tensor; an empty one too."""
    return torch.stack(values) if len(values) else embeddings.double().new_zeros(0)


def nothing(embeddings):
    """0, from which a gradient of zeros comes back."""
    return embeddings.double().sum() * 0


def all_pairs(found, embeddings):
    """The similarities of all positive pairs and of all negative ones."""
    empty = embeddings.double().new_zeros(0)
    return (
        torch.cat([empty, *(query.positives for query in found)]),
        torch.cat([empty, *(query.negatives for query in found)]),
    )


def without(values, j):
    """All but the j-th."""
    return torch.cat([values[:j], values[j + 1 :]])


def tcm(
    embeddings,
    labels,
    ref_emb=None,
    ref_labels=None,
    chosen=None,
    positive_margin=0.9,
    negative_margin=0.5,
    positive_weight=1.0,
    negative_weight=1.0,
    hard_only=True,
):
    positives, negatives = all_pairs(queries(embeddings, labels, ref_emb, ref_labels, chosen), embeddings)
    hard_positives = [s for s in positives if s <= positive_margin]
    hard_negatives = [s for s in negatives if s >= negative_margin]
    total = nothing(embeddings)
    if hard_positives:
        side = sum(positive_margin - s for s in (hard_positives if hard_only else positives))
        total = total + positive_weight * side / len(hard_positives)
    if hard_negatives:
        side = sum(s - negative_margin for s in (hard_negatives if hard_only else negatives))
        total = total + negative_weight * side / len(hard_negatives)
    return total


def hard_pairs(
    embeddings, labels, ref_emb=None, ref_labels=None, chosen=None, positive_margin=0.9, negative_margin=0.5
):
    """How many positive and negative pairs TCM finds hard: unordered ones, where the batch is all there is."""
    positives, negatives = all_pairs(queries(embeddings, labels, ref_emb, ref_labels, chosen), embeddings)
    times = 2 if ref_emb is None and chosen is None else 1
    return int((positives <= positive_margin).sum()) / times, int((negatives >= negative_margin).sum()) / times


def mean_over_queries(values, embeddings):
    """1 - the mean; 0 if no query has a positive."""
    return 1 - torch.stack(values).mean() if values else nothing(embeddings)


def smooth_ap(embeddings, labels, ref_emb=None, ref_labels=None, chosen=None, temperature=0.01, include_query=False):
    precisions = []
    for query in queries(embeddings, labels, ref_emb, ref_labels, chosen):
        if len(query.positives) == 0:
            continue
        positives = query.positives
        if include_query and query.itself is not None:
            positives = torch.cat([positives, query.itself[None]])
        ratios = []
        for j, s in enumerate(positives):
            positive_rank = 1 + torch.sigmoid((without(positives, j) - s) / temperature).sum()
            rank = positive_rank + torch.sigmoid((query.negatives - s) / temperature).sum()
            ratios.append(positive_rank / rank)
        precisions.append(sum(ratios) / len(ratios))
    return mean_over_queries(precisions, embeddings)


def recall_at_k(
    embeddings,
    labels,
    ref_emb=None,
    ref_labels=None,
    chosen=None,
    k=(1, 2, 4, 8, 16),
    temperature=0.01,
    rank_temperature=1.0,
    include_query=False,
    cap_k=False,
):
    recalls = []
    for query in queries(embeddings, labels, ref_emb, ref_labels, chosen):
        if len(query.positives) == 0:
            continue
        ranks = []
        for j, s in enumerate(query.positives):
            others = [without(query.positives, j), query.negatives]
            if include_query and query.itself is not None:
                others.append(query.itself[None])
            ranks.append(1 + torch.sigmoid((torch.cat(others) - s) / temperature).sum())
        for depth in [min(each, len(embeddings)) for each in k] if cap_k else k:
            within = sum(torch.sigmoid((depth - rank) / rank_temperature) for rank in ranks)
            recalls.append(within.clamp(max=depth) / min(depth, len(ranks)))
    return mean_over_queries(recalls, embeddings)


def sup_ap(
    embeddings,
    labels,
    ref_emb=None,
    ref_labels=None,
    chosen=None,
    temperature=0.01,
    slope=100.0,
    delta=0.05,
    offset=1.44,
    include_query=False,
    form="corrected",
):
    def step(x):
        if x <= 0:
            return torch.sigmoid(x / temperature)
        if x <= delta:
            return 0.5 + torch.sigmoid(x / temperature)
        return slope * (x - delta) + offset if form == "corrected" else slope * x + offset

    precisions = []
    for query in queries(embeddings, labels, ref_emb, ref_labels, chosen):
        if len(query.positives) == 0:
            continue
        positives = query.positives
        if include_query and query.itself is not None:
            positives = torch.cat([positives, query.itself[None]])
        ratios = []
        for j, s in enumerate(positives):
            positive_rank = 1 + int((without(positives, j) >= s).sum())
            rank = positive_rank + sum(step(negative - s) for negative in query.negatives)
            ratios.append(positive_rank / (rank + 0 * s))
        precisions.append(sum(ratios) / len(ratios))
    return mean_over_queries(precisions, embeddings)


def reduced(sides, reduction, embeddings):
    """The losses of positive and of negative pairs, or of triplets alone, made one number."""
    if reduction == "together":
        sides = [torch.cat(sides)]
    total = nothing(embeddings)
    for losses in sides:
        counted = int((losses > 0).sum()) if reduction == "violating" else len(losses)
        if counted:
            total = total + losses.sum() / counted
    return total


def calibration(
    embeddings,
    labels,
    ref_emb=None,
    ref_labels=None,
    chosen=None,
    positive_margin=0.9,
    negative_margin=0.6,
    reduction="violating",
):
    positives, negatives = all_pairs(queries(embeddings, labels, ref_emb, ref_labels, chosen), embeddings)
    sides = [torch.relu(positive_margin - positives), torch.relu(negatives - negative_margin)]
    return reduced(sides, reduction, embeddings)


def roadmap(
    embeddings,
    labels,
    ref_emb=None,
    ref_labels=None,
    chosen=None,
    positive_margin=0.9,
    negative_margin=0.6,
    reduction="violating",
    sup_ap_weight=1.0,
    calibration_weight=1.0,
    **ranking,
):
    batch = embeddings, labels, ref_emb, ref_labels, chosen
    calibrated = calibration(*batch, positive_margin, negative_margin, reduction)
    return sup_ap_weight * sup_ap(*batch, **ranking) + calibration_weight * calibrated


def contrastive(embeddings, labels, ref_emb=None, ref_labels=None, chosen=None, margin=1.0, reduction="all"):
    positives, negatives = all_pairs(queries(embeddings, labels, ref_emb, ref_labels, chosen), embeddings)
    distances = (2 - 2 * negatives).clamp(min=0).sqrt()  # rounding may take a similarity above 1
    return reduced([1 - positives, torch.relu(margin - distances) ** 2 / 2], reduction, embeddings)


def triplet(embeddings, labels, ref_emb=None, ref_labels=None, chosen=None, margin=0.2, reduction="violating"):
    losses = []
    if chosen is not None and len(chosen) == 3:  # these triplets and no others, each as often as it is listed
        rows = [unit(row) for row in embeddings.double()]
        columns = rows if ref_emb is None else [unit(row) for row in ref_emb.double()]
        for a, p, n in zip(*(each.tolist() for each in chosen), strict=True):
            losses.append(torch.relu((2 - 2 * rows[a] @ columns[p]) - (2 - 2 * rows[a] @ columns[n]) + margin))
        return reduced([listed(losses, embeddings)], reduction, embeddings)
    for query in queries(embeddings, labels, ref_emb, ref_labels, chosen):
        for positive in query.positives:
            for negative in query.negatives:
                losses.append(torch.relu((2 - 2 * positive) - (2 - 2 * negative) + margin))
    return reduced([listed(losses, embeddings)], reduction, embeddings)


def class_alignment(
    embeddings,
    labels,
    ref_emb=None,
    ref_labels=None,
    chosen=None,
    positive_weight=50.0,
    negative_weight=0.0,
    temperature=0.3,
    negative_temperature=None,
    scale_free=False,
):
    cold = temperature if negative_temperature is None else negative_temperature
    found = queries(embeddings, labels, ref_emb, ref_labels, chosen)
    hardest_positives, hardest_negatives = [], []
    for label in sorted(set(labels.tolist())):
        positives, negatives = all_pairs([query for query in found if query.label == label], embeddings)
        if len(positives) and len(negatives):
            hardest_positives.append(-temperature * torch.log(torch.exp(-positives / temperature).mean()))
            hardest_negatives.append(cold * torch.log(torch.exp(negatives / cold).mean()))
    if not hardest_positives:
        return nothing(embeddings)

    def mean(values):
        return sum(values) / len(values)

    def variance(values):
        return sum((value - mean(values)) ** 2 for value in values) / len(values)

    total = negative_weight * variance(hardest_negatives) + positive_weight * variance(hardest_positives)
    if scale_free:
        total = total / (mean(hardest_positives) - mean(hardest_negatives)).clamp(min=0.01) ** 2
    return total
