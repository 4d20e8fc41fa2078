"""Losses for metric learning: the Threshold-Consistent Margin, the losses it regularizes and those it is compared with.

Each is a `torch.nn.Module` that is called as `loss(embeddings, labels, ref_emb=None, ref_labels=None)`, the convention
of pytorch-metric-learning. Losses can be added, weighted, and created by name (`make_loss`).

>>> import torch
>>> from isomargin.losses import SmoothAPLoss, TCMLoss
>>> loss = SmoothAPLoss() + TCMLoss(positive_margin=0.9, negative_margin=0.5)
>>> embeddings = torch.eye(4, requires_grad=True)
>>> loss(embeddings, torch.tensor([0, 0, 1, 1])).backward()
>>> round(float(loss.values["tcm"]), 2)
0.9
"""

from isomargin.core.extras import require

require("torch")

from isomargin.losses._base import MetricLoss
from isomargin.losses.arcface import ArcFaceLoss, SubCenterArcFaceLoss
from isomargin.losses.calibration import CalibrationLoss
from isomargin.losses.class_alignment import ClassAlignmentLoss
from isomargin.losses.composition import WeightedSum, share
from isomargin.losses.contrastive import ContrastiveLoss
from isomargin.losses.gather import gather
from isomargin.losses.proxy_anchor import ProxyAnchorLoss
from isomargin.losses.proxy_nca import ProxyNCALoss, ProxyNCAPlusPlusLoss
from isomargin.losses.recall_at_k import RecallAtKLoss
from isomargin.losses.registry import loss_names, make_loss
from isomargin.losses.roadmap import RoadmapLoss
from isomargin.losses.smooth_ap import SmoothAPLoss
from isomargin.losses.soft_triple import SoftTripleLoss
from isomargin.losses.sup_ap import SupAPLoss
from isomargin.losses.tcm import TCMLoss
from isomargin.losses.threshold_penalty import ThresholdPenaltyLoss
from isomargin.losses.triplet import TripletLoss
from isomargin.losses.wrappers import CrossBatchMemory, SelfSupervisedLoss

__all__ = [
    "ArcFaceLoss",
    "CalibrationLoss",
    "ClassAlignmentLoss",
    "ContrastiveLoss",
    "CrossBatchMemory",
    "MetricLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "ProxyNCAPlusPlusLoss",
    "RecallAtKLoss",
    "RoadmapLoss",
    "SelfSupervisedLoss",
    "SmoothAPLoss",
    "SoftTripleLoss",
    "SubCenterArcFaceLoss",
    "SupAPLoss",
    "TCMLoss",
    "ThresholdPenaltyLoss",
    "TripletLoss",
    "WeightedSum",
    "gather",
    "loss_names",
    "make_loss",
    "share",
]
