"""ViT and the models that share its stack: DeiT, DeiT III, DINOv2."""

import dataclasses
import functools
import math
from typing import Literal, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive, check_rate, check_whole, filled
from fredholm.blocks.feed_forward import Activation, FeedForward, activation_module
from fredholm.blocks.residual import ResidualBlock
from fredholm.blocks.stochastic_depth import linear_schedule
from fredholm.domains import Domain, Grid, Union
from fredholm.domains.points import centre
from fredholm.kernels import Attention
from fredholm.kernels.heads import check_heads
from fredholm.models.images.image_model import ImageModelConfig, ImageReading, Room, check_unset
from fredholm.models.saved_model import SavedModel
from fredholm.operators import IntegralOperator


@final
class ViT(SavedModel):
    """A patch embedding with learned positions, leading tokens, L pre-norm attention blocks, and a head.

    The model of A. Dosovitskiy et al., "An Image is Worth 16x16 Words" (arXiv 2010.11929), with additions of its
    successors: a distillation token (DeiT, arXiv 2012.12877), scaled branches and positions of patches alone (DeiT III,
    arXiv 2204.07118), registers (arXiv 2309.16588). The signal lives on the grid of patches; leading tokens lie in its
    centre. Weights start normal with deviation 0.02, cut off at two; biases at 0. Deviation: no dropout of attention
    weights.

    Args:
        config: the model.

    Raises:
        ValueError: sizes below 1 or that do not divide, numbers out of range, settings without effect.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ImageModelConfig):
        """The model; the defaults are ViT-B/16's."""

        image_size: tuple[int, int] = (224, 224)
        """Height and width in pixels."""
        patch_size: tuple[int, int] = (16, 16)
        channels: int = 3
        embed_dim: int = 768
        depth: int = 12
        """Number of blocks L."""
        num_heads: int = 12
        expansion: float = 4
        """Hidden width of the feed-forward networks, in multiples of embed_dim."""
        num_classes: int = 1000
        """Number of outputs of the head; 0: no head, the output is the pooled channels."""
        class_token: bool = True
        distillation_token: bool = False
        distillation_head: bool = False
        """Whether the output is the mean of the class token's head and of a head on the distillation token."""
        num_registers: int = 0
        """Number of register tokens, which no head reads."""
        placed_tokens: bool = True
        """Whether leading tokens have learned positions too."""
        pool: Literal["cls", "mean"] = "cls"
        """Pooling before the output: the class token, or the mean over patches."""
        norm_after_pooling: bool = False
        """Whether the last norm is applied to the pooled channels instead of the signal."""
        norm_before_blocks: bool = False
        """Whether the signal is normed before the first block too."""
        branch_scale: float | None = None
        """Initial value of a learned factor per channel of each branch; None: no such factors."""
        attention_bias: bool = True
        """Whether queries, keys and values have biases."""
        patch_bias: bool = True
        """Whether the patch embedding has a bias."""
        activation: Activation = "gelu"
        norm_epsilon: float = 1e-6
        """Added to variances in norms."""
        dropout: float = 0.0
        """Dropout rate after the embedding and on each branch's output."""
        drop_path: float = 0.0
        """Probability of skipping a branch of the last block in training; rises linearly from the first."""

        def __post_init__(self) -> None:
            name = "models.ViT"
            for what in ("channels", "embed_dim", "depth", "num_heads"):
                check_count(name, what, getattr(self, what))
            for what in ("num_classes", "num_registers"):
                check_count(name, what, getattr(self, what), least=0)
            for what in ("expansion", "norm_epsilon"):
                check_positive(name, what, getattr(self, what))
            for what in ("dropout", "drop_path"):
                check_rate(name, what, getattr(self, what))
            check_heads(name, self.embed_dim, self.num_heads, self.num_heads)
            activation_module(self.activation)
            for what in ("patch_size", "image_size"):
                sides = getattr(self, what)
                if not isinstance(sides, tuple) or len(sides) != 2:
                    raise TypeError(f"{name}: {what} is (height, width) in pixels; got {sides!r}")
                for side in sides:
                    check_whole(name, f"each of {what}", side)
            if min(self.patch_size) < 1 or any(n % p for n, p in zip(self.image_size, self.patch_size, strict=True)):
                raise ValueError(f"{name}: patches of {self.patch_size} pixels must divide images of {self.image_size}")
            if self.pool not in ("cls", "mean"):
                raise ValueError(f"{name}: pool is 'cls' or 'mean'; got {self.pool!r}")
            if self.pool == "cls" and not self.class_token:
                raise ValueError(f"{name}: pool='cls' needs class_token=True")
            if self.norm_after_pooling and self.pool == "cls":
                raise ValueError(f"{name}: norm_after_pooling=True has no effect with pool='cls'; leave it out")
            if self.distillation_head and not (self.distillation_token and self.num_classes and self.pool == "cls"):
                raise ValueError(f"{name}: distillation_head needs a distillation token, classes and pool='cls'")

        @property
        def grid_shape(self) -> tuple[int, int]:
            """Numbers of patches along height and width."""
            return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

        @property
        def num_leading(self) -> int:
            """Number of tokens before the patches."""
            return self.class_token + self.distillation_token + self.num_registers

        @classmethod
        def base(cls) -> Self:
            """ViT-B/16: 86,567,656 parameters."""
            return cls()

        def build(self) -> "ViT":
            """Builds the model; see `ViT`."""
            return ViT(self)

        @property
        def rated_width(self) -> int:
            """See `ModelSettings.rated_width`."""
            return self.embed_dim

        def at_size(self, image_size: tuple[int, int]) -> Self:
            """See `ImageModelConfig.at_size`."""
            return dataclasses.replace(self, image_size=image_size)

        def sized_for(self, room: Room, default: ImageModelConfig) -> Self:
            """See `ImageModelConfig.sized_for`."""
            usual = type(self)()
            patch = (room.patch, room.patch)
            images = {"image_size": room.image_size, "patch_size": patch, "channels": room.channels}
            # all at once, since a mix of old and new sizes need not be valid
            sizes = images | {"embed_dim": room.width, "depth": room.depth}
            left = {name: size for name, size in sizes.items() if getattr(self, name) == getattr(usual, name)}
            heads = math.gcd(left.get("embed_dim", self.embed_dim), 2 ** round(math.log2(room.width / 16)))
            return filled(self, [usual], num_heads=heads, **left)

        def build_for(self, reading: ImageReading, num_outputs: int) -> "ViT":
            """See `ImageModelConfig.build_for`."""
            reading.check_channels("models.ViT", self.channels)
            check_unset("models.ViT", self.num_classes, type(self)().num_classes)
            if reading.image_size != self.image_size:
                own, theirs = (f"{height} {width}" for height, width in (self.image_size, reading.image_size))
                raise ValueError(
                    f"models.ViT: image_size={own}, and the images have {theirs}; pass the same to both image_size and "
                    "model.image_size"
                )
            return dataclasses.replace(self, num_classes=num_outputs).build()

        def block(self, layer: int) -> ResidualBlock:
            """Builds the block of layer 1 … L."""
            return ResidualBlock(
                IntegralOperator(Attention(self.embed_dim, self.num_heads, bias=self.attention_bias), residual=False),
                FeedForward(self.embed_dim, self.expansion, activation=self.activation),
                norm=functools.partial(nn.LayerNorm, eps=self.norm_epsilon),
                branch_scale=self.branch_scale,
                dropout=self.dropout,
                feed_forward_dropout=self.dropout,
                drop_path=linear_schedule(layer, self.depth, self.drop_path),
            )

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        dim, (rows, columns) = config.embed_dim, config.grid_shape
        self.patches = nn.Conv2d(
            config.channels, dim, config.patch_size, stride=config.patch_size, bias=config.patch_bias
        )
        self.leading = nn.Parameter(torch.zeros(config.num_leading, dim)) if config.num_leading else None
        placed = rows * columns + (config.num_leading if config.placed_tokens else 0)
        self.positions = nn.Parameter(torch.empty(placed, dim))
        self.dropout = nn.Dropout(config.dropout)
        norm = functools.partial(nn.LayerNorm, dim, eps=config.norm_epsilon)
        self.first_norm = norm() if config.norm_before_blocks else nn.Identity()
        self.blocks = nn.ModuleList(config.block(layer) for layer in range(1, config.depth + 1))
        self.norm = norm()
        self.head = nn.Linear(dim, config.num_classes) if config.num_classes else None
        self.distillation_head = nn.Linear(dim, config.num_classes) if config.distillation_head else None
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def positions_from(self, positions: Tensor, grid_shape: tuple[int, int]) -> Tensor:
        """Resamples the positions of another ViT with the same leading tokens, on a grid of `grid_shape`, to this grid.

        Positions of patches are interpolated bicubically, as in `transformers` (`interpolate_pos_encoding`); those of
        leading tokens stay.
        """
        if grid_shape == self.config.grid_shape:
            return positions
        first = len(positions) - math.prod(grid_shape)
        grid = positions[first:].unflatten(0, grid_shape).movedim(-1, 0)[None]
        scaled = F.interpolate(grid, self.config.grid_shape, mode="bicubic", align_corners=False)
        return torch.cat([positions[:first], scaled[0].flatten(1).mT])

    def forward(self, images: Tensor) -> Tensor:
        """Maps images `(B, channels, *image_size)` to logits `(B, num_classes)` or pooled channels `(B, embed_dim)`.

        Raises:
            ValueError: on another shape.
        """
        expected = (self.config.channels, *self.config.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(f"models.ViT: images must be (batch, {str(expected)[1:]}; got {tuple(images.shape)}")
        u, domain = self.signal(images)
        for block in self.blocks:
            u = block(u, domain)
        return self._result(u)

    def signal(self, images: Tensor) -> tuple[Tensor, Domain]:
        """The input of the first block, `(B, N, embed_dim)`, and its domain: leading tokens, then patches."""
        u = self.patches(images).flatten(2).mT
        grid = Grid(*self.config.grid_shape, device=images.device)
        leading, positions = self.leading, self.positions
        if leading is None:
            return self.first_norm(self.dropout(u + positions)), grid
        tokens = leading.to(u.dtype).expand(u.shape[0], -1, -1)
        if self.config.placed_tokens:
            u = torch.cat([tokens, u], dim=1) + positions
        else:
            u = torch.cat([tokens, u + positions], dim=1)
        return self.first_norm(self.dropout(u)), Union(centre(grid, len(leading)), grid)

    def _result(self, u: Tensor) -> Tensor:
        config = self.config
        if not config.norm_after_pooling:
            u = self.norm(u)
        pooled = u[:, 0] if config.pool == "cls" else u[:, config.num_leading :].mean(1)
        if config.norm_after_pooling:
            pooled = self.norm(pooled)
        if self.head is None:
            return pooled
        logits = self.head(pooled)
        if self.distillation_head is None:
            return logits
        return (logits + self.distillation_head(u[:, 1])) / 2
