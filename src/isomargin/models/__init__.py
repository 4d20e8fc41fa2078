"""Models that turn images into embeddings: a backbone, its pooling and a small head.

Backbones are those of timm, by name, and small ones for 28 × 28 images, which need neither timm nor torchvision.

>>> import torch
>>> from isomargin.models import make_model
>>> model = make_model({"backbone": "small_conv", "dimensions": 64})
>>> model(torch.rand(2, 1, 28, 28)).shape
torch.Size([2, 64])
"""

from isomargin.core.extras import require

require("torch")

from isomargin.models.embedder import Embedder, make_model
from isomargin.models.small_networks import SMALL
from isomargin.models.torchvision_shim import import_torchvision
from isomargin.models.weights import InputStatistics

__all__ = ["SMALL", "Embedder", "InputStatistics", "import_torchvision", "make_model"]
