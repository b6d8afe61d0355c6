"""A vision transformer in plain PyTorch, with attention through `scaled_dot_product_attention`."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@final
class _Block(nn.Module):
    """``z = u + attention(norm(u))``, then ``z + mlp(norm(z))``."""

    def __init__(self, embed_dim: int, num_heads: int, expansion: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(embed_dim)
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.projection = nn.Linear(embed_dim, embed_dim)
        self.mlp_norm = nn.LayerNorm(embed_dim)
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim, expansion * embed_dim), nn.GELU(), nn.Linear(expansion * embed_dim, embed_dim)
        )

    def forward(self, u: Tensor) -> Tensor:
        """``(B, N, embed_dim)`` to the same shape."""
        qkv = self.qkv(self.attention_norm(u)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        z = u + self.projection(mixed)
        return z + self.mlp(self.mlp_norm(z))


@final
class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, ``depth`` pre-norm blocks, a norm and a linear head; no dropout.

    With the defaults it is ViT-B/16: 86,567,656 parameters, as in the published model. Weights keep PyTorch's
    initialisation, since only the time matters.
    """

    def __init__(
        self,
        *,
        image_size: int = 224,
        patch_size: int = 16,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        expansion: int = 4,
        num_outputs: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, embed_dim, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (image_size // patch_size) ** 2, embed_dim))
        self.blocks = nn.Sequential(*(_Block(embed_dim, num_heads, expansion) for _ in range(depth)))
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(B, 3, H, W)`` to ``(B, num_outputs)``."""
        u = self.patches(images).flatten(2).transpose(1, 2)
        u = torch.cat([self.cls_token.to(u.dtype).expand(len(u), -1, -1), u], dim=1) + self.positions
        return self.head(self.norm(self.blocks(u))[:, 0])
