"""Unicom's vision transformer (An et al., 2023), which timm does not have, for its published files of weights.

It is timm's with other parts: no class token, no biases of queries, keys and values, ReLU6, and two linear layers with
BatchNorm on all patch tokens together in place of a pooling.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from isomargin.models.torchvision_shim import import_torchvision
from isomargin.models.weights import InputStatistics

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
UNICOM = {"unicom_vit_b16": {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}}
"""Backbones by name, with their sizes. Names of parameters are those of the authors' file FP16-ViT-B-16.pt."""


class UnicomTransformer(nn.Module):
    """A backbone whose output is one vector per image, from all of its patch tokens.

    >>> import torch
    >>> UnicomTransformer(32, patch_size=16, embed_dim=24, depth=1, num_heads=3)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 24])
    """

    def __init__(self, size: int, embed_dim: int, patch_size: int, depth: int, num_heads: int) -> None:
        super().__init__()
        import_torchvision()
        from timm.models.vision_transformer import VisionTransformer

        parts: Any = VisionTransformer(
            img_size=size,
            embed_dim=embed_dim,
            class_token=False,
            global_pool="",
            num_classes=0,
            qkv_bias=False,
            drop_path_rate=0.1,
            norm_layer=partial(nn.LayerNorm, eps=1e-5),
            act_layer=nn.ReLU6,
            patch_size=patch_size,
            depth=depth,
            num_heads=num_heads,
        )
        self.patch_embed, self.pos_embed = parts.patch_embed, parts.pos_embed
        self.blocks, self.norm = parts.blocks, parts.norm
        self.num_features = embed_dim
        self.feature = nn.Sequential(
            nn.Linear(embed_dim * parts.patch_embed.num_patches, embed_dim, bias=False),
            nn.BatchNorm1d(embed_dim, eps=2e-5),
            nn.Linear(embed_dim, embed_dim, bias=False),
            nn.BatchNorm1d(embed_dim, eps=2e-5),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, size, size) to (n, embed_dim)."""
        tokens = self.norm(self.blocks(self.patch_embed(images) + self.pos_embed))  # (n, patches, embed_dim)
        vectors: Tensor = self.feature(tokens.flatten(1))
        return vectors


def make_unicom(name: str, size: int = 224) -> tuple[nn.Module, InputStatistics]:
    """Create Unicom's backbone for images of `size` pixels, with random weights; take it with the pooling "none"."""
    return UnicomTransformer(size, **UNICOM[name]), InputStatistics(CLIP_MEAN, CLIP_STD, size)
