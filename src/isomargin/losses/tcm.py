"""The Threshold-Consistent Margin regularizer: it pulls hard pairs back behind two cosine margins."""

from __future__ import annotations

import torch

from isomargin.core import checks
from isomargin.losses._base import Records
from isomargin.losses._pairs import Pairs
from isomargin.losses._sides import MarginLoss, Sides


class TCMLoss(MarginLoss):
    """The Threshold-Consistent Margin, to be added to a base loss.

    With S⁺ and S⁻ the similarities of positive and negative pairs, m⁺ and m⁻ the margins, λ⁺ and λ⁻ the weights:

        λ⁺ · Σ_{s ∈ S⁺, s ≤ m⁺} (m⁺ − s) / #{s ∈ S⁺: s ≤ m⁺}  +  λ⁻ · Σ_{s ∈ S⁻, s ≥ m⁻} (s − m⁻) / #{s ∈ S⁻: s ≥ m⁻}

    A side without hard pairs contributes 0. After a call `values` has `hard_positives` and `hard_negatives`, each pair
    of the batch counted once; with `ref_emb` or `indices_tuple`, each pair that these list.

    Parameters
    ----------
    positive_margin, negative_margin: m⁺ and m⁻. About 0.9 and 0.5 for backbones pretrained on ImageNet; for others
        choose them on held-out training classes. As distances they are √(2 − 2m).
    positive_weight, negative_weight: λ⁺ and λ⁻; one of them 0 gives the paper's TCM⁻ and TCM⁺.
    hard_only: False sums over all pairs of a side and still divides by the number of hard ones: the paper's TCM′, which
        it shows to be worse.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> loss = TCMLoss()
    >>> round(float(loss(torch.eye(3), torch.tensor([0, 0, 1]))), 4)  # orthogonal: 0.9 below m⁺, no hard negative
    0.9
    >>> int(loss.values["hard_positives"]), int(loss.values["hard_negatives"])
    (1, 0)
    """

    name = "tcm"
    margin_is_hard = True

    def __init__(
        self,
        positive_margin: float = 0.9,
        negative_margin: float = 0.5,
        positive_weight: float = 1.0,
        negative_weight: float = 1.0,
        hard_only: bool = True,
        check_finite: bool = False,
    ) -> None:
        super().__init__(positive_margin, negative_margin, "violating", check_finite)
        self.positive_weight = checks.at_least_zero(positive_weight, "positive_weight")
        self.negative_weight = checks.at_least_zero(negative_weight, "negative_weight")
        self.needs_positive_pairs = self.positive_weight > 0
        self.hard_only = checks.truth(hard_only, "hard_only")

    def records(self, pairs: Pairs, state: Sides) -> Records:
        """Return how many hard pairs each side had."""
        times = 2 if pairs.counted_from_both_ends else 1
        counts = zip(("hard_positives", "hard_negatives"), state.violations, strict=True)
        return {name: torch.full((), round(count / times), device=pairs.device) for name, count in counts}
