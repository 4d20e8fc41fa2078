"""Unicom's vision transformer (An et al., 2023), which timm does not have, for its published files of weights.

It is timm's with other parts: no class token, no biases of queries, keys and values, ReLU6, and two linear layers with
BatchNorm on all patch tokens together in place of a pooling.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from isomargin.models.torchvision_shim import import_torchvision
from isomargin.models.weights import InputStatistics

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
UNICOM = {"unicom_vit_b16": {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}}
"""Backbones by name, with their sizes. Names of parameters are those of the authors' file FP16-ViT-B-16.pt."""


def make_unicom(name: str, size: int = 224) -> tuple[nn.Module, InputStatistics]:
    """Create Unicom's backbone for images of `size` pixels, with random weights; take it with the pooling "none".

    >>> backbone, statistics = make_unicom("unicom_vit_b16", 32)
    >>> backbone.num_features, statistics.size
    (768, 32)
    """
    import_torchvision()
    from timm.models.vision_transformer import VisionTransformer

    class UnicomTransformer(VisionTransformer):
        """A backbone whose output is one vector per image, from all of its patch tokens."""

        def __init__(self) -> None:
            super().__init__(
                img_size=size,
                class_token=False,
                global_pool="",
                num_classes=0,
                qkv_bias=False,
                drop_path_rate=0.1,
                norm_layer=partial(nn.LayerNorm, eps=1e-5),
                act_layer=nn.ReLU6,
                **UNICOM[name],
            )
            width = self.embed_dim
            self.feature = nn.Sequential(
                nn.Linear(width * self.patch_embed.num_patches, width, bias=False),
                nn.BatchNorm1d(width, eps=2e-5),
                nn.Linear(width, width, bias=False),
                nn.BatchNorm1d(width, eps=2e-5),
            )

        def forward(self, images: Tensor) -> Tensor:
            """(n, 3, size, size) to (n, width)."""
            vectors: Tensor = self.feature(self.forward_features(images).flatten(1))
            return vectors

    return UnicomTransformer(), InputStatistics(CLIP_MEAN, CLIP_STD, size)
