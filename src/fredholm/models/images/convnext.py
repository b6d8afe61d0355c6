"""ConvNeXt: depthwise convolutions in residual blocks, at four resolutions."""

import dataclasses
from typing import Self, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive, check_rate, filled
from fredholm.blocks.feed_forward import Activation, FeedForward, activation_module
from fredholm.blocks.stochastic_depth import StochasticDepth, linear_schedule
from fredholm.domains import Domain, Grid
from fredholm.kernels import Convolution
from fredholm.models.images.image_model import ImageModelConfig, ImageReading, Room, check_unset
from fredholm.models.saved_model import SavedModel
from fredholm.operators import IntegralOperator


@final
class ConvNeXt(SavedModel):
    """A patch embedding, stages of blocks with downsampling between them, mean pooling, and a head.

    The model of Z. Liu et al., "A ConvNet for the 2020s" (arXiv 2201.03545). A block is u + s ⊙ F(N(K[u])), with a
    depthwise convolution for K. Weights start normal with deviation 0.02, cut off at two; biases at 0.

    Args:
        config: the model.

    Raises:
        ValueError: sizes below 1, numbers out of range.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ImageModelConfig):
        """The model; the defaults are ConvNeXt-T's."""

        channels: int = 3
        patch_size: int = 4
        """Side of a patch of the first map, in pixels."""
        depths: tuple[int, ...] = (3, 3, 9, 3)
        """Number of blocks of each stage."""
        dims: tuple[int, ...] = (96, 192, 384, 768)
        """Number of channels of each stage."""
        kernel_size: int = 7
        """Taps of the filters along each axis, an odd number."""
        expansion: float = 4
        """Hidden width of the feed-forward networks, in multiples of a stage's channels."""
        branch_scale: float | None = 1e-6
        """Initial value of a learned factor per channel of each branch; None: no such factors."""
        activation: Activation = "gelu"
        norm_epsilon: float = 1e-6
        """Added to variances in norms."""
        num_classes: int = 1000
        """Number of outputs of the head; 0: no head, the output is the normed mean."""
        drop_path: float = 0.0
        """Chance of skipping the branch of the last block in training; rises linearly from the first."""

        def __post_init__(self) -> None:
            name = "models.ConvNeXt"
            for what in ("channels", "patch_size", "kernel_size"):
                check_count(name, what, getattr(self, what))
            check_count(name, "num_classes", self.num_classes, least=0)
            for what in ("depths", "dims"):
                for size in getattr(self, what):
                    check_count(name, what, size)
            for what in ("expansion", "norm_epsilon"):
                check_positive(name, what, getattr(self, what))
            check_rate(name, "drop_path", self.drop_path)
            activation_module(self.activation)
            if len(self.depths) != len(self.dims) or not self.dims:
                raise ValueError(f"{name}: depths and dims need one number a stage; got {self.depths} and {self.dims}")
            if self.kernel_size % 2 == 0:
                raise ValueError(f"{name}: kernel_size must be odd; got {self.kernel_size}")

        @classmethod
        def tiny(cls) -> Self:
            """ConvNeXt-T: 28,589,128 parameters."""
            return cls()

        @property
        def min_side(self) -> int:
            """Fewest pixels of an image along each axis."""
            return self.patch_size * 2 ** (len(self.dims) - 1)

        def build(self) -> "ConvNeXt":
            """Builds the model; see `ConvNeXt`."""
            return ConvNeXt(self)

        @property
        def rated_width(self) -> int:
            """See `ModelSettings.rated_width`."""
            return self.dims[-1]

        def sized_for(self, room: Room, default: ImageModelConfig) -> Self:
            """See `ImageModelConfig.sized_for`: sets only the number of input channels; stages stay as configured."""
            return filled(self, [type(self)()], channels=room.channels)

        def build_for(self, reading: ImageReading, num_outputs: int) -> "ConvNeXt":
            """See `ImageModelConfig.build_for`."""
            reading.check_channels("models.ConvNeXt", self.channels)
            check_unset("models.ConvNeXt", self.num_classes, type(self)().num_classes)
            if min(reading.image_size) < self.min_side:
                height, width = reading.image_size
                raise ValueError(
                    f"models.ConvNeXt: images of {height} x {width} pixels are too small; pass an image_size of at "
                    f"least {self.min_side} along both sides"
                )
            return dataclasses.replace(self, num_classes=num_outputs).build()

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.patches = nn.Conv2d(config.channels, config.dims[0], config.patch_size, stride=config.patch_size)
        self.patch_norm = nn.LayerNorm(config.dims[0], eps=config.norm_epsilon)
        before = [None, *config.dims[:-1]]
        done = [sum(config.depths[:stage]) for stage in range(len(config.depths))]
        self.stages = nn.ModuleList(map(Stage, [config] * len(before), config.dims, before, config.depths, done))
        self.norm = nn.LayerNorm(config.dims[-1], eps=config.norm_epsilon)
        self.head = nn.Linear(config.dims[-1], config.num_classes) if config.num_classes else None
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images `(B, channels, H, W)` to logits `(B, num_classes)`, or to the normed mean `(B, dims[-1])`.

        Rows and columns that do not fill a stride are cut off, as in convolutions.

        Raises:
            ValueError: on another shape, or images too small for the stages.
        """
        least = self.config.min_side
        if images.ndim != 4 or images.shape[1] != self.config.channels or min(images.shape[2:]) < least:
            raise ValueError(
                f"models.ConvNeXt: images must be (batch, {self.config.channels}, at least {least}, at least {least}); "
                f"got {tuple(images.shape)}"
            )
        u = self.patches(images)
        shape = (u.shape[2], u.shape[3])
        u = self.patch_norm(u.flatten(2).mT)
        for stage in self.stages:
            u, shape = stage(u, shape)
        pooled = self.norm(u.mean(1))
        return pooled if self.head is None else self.head(pooled)


@final
class Stage(nn.Module):
    """Blocks at one resolution, after downsampling by 2 in all stages but the first.

    Args:
        config: configuration of the model.
        dim: channels of the stage.
        before: channels of the previous stage; None for the first stage.
        depth: number of blocks.
        done: number of blocks of the previous stages.
    """

    def __init__(self, config: ConvNeXt.Config, dim: int, before: int | None, depth: int, done: int) -> None:
        super().__init__()
        self.halving_norm = self.halving = None
        if before is not None:
            self.halving_norm = nn.LayerNorm(before, eps=config.norm_epsilon)
            self.halving = nn.Conv2d(before, dim, 2, stride=2)
        total = sum(config.depths)
        self.blocks = nn.ModuleList(
            ConvBlock(config, dim, linear_schedule(done + n, total, config.drop_path)) for n in range(1, depth + 1)
        )

    def forward(self, u: Tensor, shape: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
        """Maps a signal `(B, N, before)` on a grid of a shape to `(B, N', dim)` and the shape of its grid."""
        if self.halving is not None and self.halving_norm is not None:
            u = self.halving(self.halving_norm(u).mT.unflatten(2, shape))
            shape = (u.shape[2], u.shape[3])
            u = u.flatten(2).mT
        domain = Grid(*shape, device=u.device)
        for block in self.blocks:
            u = block(u, domain)
        return u, shape


@final
class ConvBlock(nn.Module):
    """u + s ⊙ F(N(K[u])) with a depthwise convolution for K.

    Args:
        config: configuration of the model.
        dim: number of channels.
        drop_path: probability that a sample skips the branch in training.
    """

    def __init__(self, config: ConvNeXt.Config, dim: int, drop_path: float) -> None:
        super().__init__()
        kernel = Convolution(dim, dim, config.kernel_size, pos_dim=2, padding="same", groups=dim)
        self.operator = IntegralOperator(kernel, residual=False, output_projection=False)
        self.norm = nn.LayerNorm(dim, eps=config.norm_epsilon)
        self.feed_forward = FeedForward(dim, config.expansion, activation=config.activation)
        self.scale = None if config.branch_scale is None else nn.Parameter(torch.full((dim,), config.branch_scale))
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, u: Tensor, domain: Domain) -> Tensor:
        """Maps `(B, N, dim)` on a grid to the same shape."""
        branch = self.feed_forward(self.norm(self.operator(u, domain)))
        return u + self.drop_path(branch if self.scale is None else branch * self.scale.to(branch.dtype))
