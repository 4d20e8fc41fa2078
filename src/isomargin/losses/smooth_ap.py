"""Smooth-AP: average precision, with sigmoids in place of the steps of the ranks."""

from __future__ import annotations

from isomargin.losses._ranks import RankLoss


class SmoothAPLoss(RankLoss):
    """Brown et al. (2020), the paper's main base loss.

    For a query and each of its positives j, with σ the sigmoid:

        R⁺_j = 1 + Σ_{positives k ≠ j} σ((s_k − s_j)/τ),    R_j = R⁺_j + Σ_{negatives k} σ((s_k − s_j)/τ)
        loss = 1 − mean over queries of mean over j of R⁺_j / R_j

    Queries without a positive are left out of the mean.

    Parameters
    ----------
    temperature: τ.
    include_query: count the query itself among its positives, as the authors' code does.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> import torch
    >>> loss = SmoothAPLoss()
    >>> round(float(loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))), 4)  # all are equally far
    0.5
    """

    name = "smooth_ap"

    def __init__(self, temperature: float = 0.01, include_query: bool = False, check_finite: bool = False) -> None:
        super().__init__(temperature, include_query, check_finite)
