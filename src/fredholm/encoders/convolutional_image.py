"""Images as signals on a grid of patches, by convolutions through finer grids.

Legend
    P = r_1 ... r_m     side of a patch in pixels, as its prime factors, the smallest first
    u_i                 the signal on the grid of stage i, whose cells are r_1 ... r_i pixels wide
    N                   norm over the points and channels of a signal together:  N u = γ (u - m) / (v + ε)^½ + β
                        with m = mean_c ∫ u_c dμ,  v = mean_c ∫ (u_c - m)² dμ,  μ(all) = 1
    φ                   GELU of N
    K                   a stencil, κ(x, y) = Σ_t W_t 1[y = x + h (t - c)], h the spacing of the grid it reads, whose
                        filters have mean 0 and a norm of their own (`kernels.Convolution`, standardised)

    u_1 = K pixels + b,   u_{i+1} = K φ(u_i) + b, at the centres of squares of r_{i+1} cells a side
    within a stage, `depth` times:   u <- u + K φ(u) + b,   K of 3 cells a side
    signal(x) = u_m(x) + P γ(x),   γ Fourier features of the place; P starts small

Source: Xiao et al., Early convolutions help transformers see better (arXiv 2106.14881): strided stencils in
place of patches that are cut out; He et al. (arXiv 1603.05027) for residuals behind norm and nonlinearity. Deviations:
windows are centred on the patches, so that the signal is aligned with them; standardised filters and N in place of
batch norm (Qiao et al., arXiv 1903.10520), so that no image changes the signal of another. N is group norm of one group
(Wu and He, arXiv 1803.08494): a norm at each point amplifies noise in empty regions to the size of the content.
"""

import abc
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fredholm._settings import check_count
from fredholm.domains import Domain, Grid
from fredholm.encoders.encoder import Encoder
from fredholm.encoders.image import Image
from fredholm.kernels import Convolution
from fredholm.kernels.fourier_features import fourier_features, sample_frequencies
from fredholm.operators import IntegralOperator

LEAST_CHANNELS = 8


class StageNorm(nn.Module, abc.ABC):
    """A norm of signals on cells of one size, with γ and β per channel, computed in at least float32.

    Attributes:
        axes: those of a signal `(B, N, channels)` over which mean and variance are taken.

    Args:
        channels: number of channels of the signal.
        epsilon: added to variances.
    """

    axes: ClassVar[tuple[int, ...]]

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    @final
    def forward(self, u: Tensor, exists: Tensor | None = None) -> Tensor:
        """Normalises a signal `(B, N, channels)`, over the points that exist `(N,)` or `(B, N)`; None: all do."""
        wide = u if u.dtype == torch.float64 else u.float()
        unit = self.standardised(wide) if exists is None else self._of_existing(wide, exists[..., None])
        return (unit * self.weight + self.bias).to(u.dtype)

    @abc.abstractmethod
    def standardised(self, u: Tensor) -> Tensor:
        """The signal with mean 0 and variance 1 over the axes of the norm."""

    def _of_existing(self, u: Tensor, exists: Tensor) -> Tensor:
        count = exists.expand(u.shape).sum(self.axes, keepdim=True).clamp_min(1)
        centred = u - torch.where(exists, u, 0.0).sum(self.axes, keepdim=True) / count
        variance = torch.where(exists, centred, 0.0).square().sum(self.axes, keepdim=True) / count
        return centred * (variance + self.epsilon).rsqrt()


@final
class SignalNorm(StageNorm):
    """N of the legend."""

    axes = (1, 2)

    def standardised(self, u: Tensor) -> Tensor:
        """See `StageNorm.standardised`: over the points and channels together."""
        return F.layer_norm(u, u.shape[1:], eps=self.epsilon)


@final
class ConvolutionalImage(Encoder):
    """Overlapping patches embedded by several stencils, and Fourier features of their centres.

    The formulas are at the head of `convolutional_image.py`. The last stage has `embed_dim` channels, each earlier one
    half as many, at least 8. Beyond the image pixels are 0.

    Args:
        config: the images, as for `encoders.Image`.
        embed_dim: channels of the signal.
        depth: number of residual stencils on each grid, >= 0; none on the pixel grid unless patches are single pixels.

    Raises:
        ValueError: on a depth below 0.
    """

    def __init__(self, config: Image.Config, embed_dim: int, *, depth: int = 1) -> None:
        super().__init__()
        check_count("encoders.ConvolutionalImage", "depth", depth, 0)
        self.config, self.embed_dim, self.pos_dim = config, embed_dim, 2
        strides = strides_of(config.patch)
        widths = [config.channels, *widths_of(len(strides), embed_dim, LEAST_CHANNELS)]
        self.stages = stages_of(widths, strides, depth, SignalNorm, bias=True)
        self.register_buffer("frequencies", sample_frequencies(config.num_frequencies, 2, config.sigma))
        self.frequencies: Tensor
        self.position_weight = nn.Parameter(0.02 * torch.randn(embed_dim, 2 * config.num_frequencies))

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Number of patches along height and width of images of `image_size`."""
        return self.config.grid_shape

    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Images `(B, channels, H, W)`, float, to the signal `(B, N, embed_dim)` and its grid of N patches."""
        self.config.check_images("encoders.ConvolutionalImage", inputs)
        *_, (u, domain) = grids(self.stages, inputs)
        places = fourier_features(domain.pos, self.frequencies).to(u.dtype)
        return u + F.linear(places, self.position_weight), domain

    def resampled(self, other: "ConvolutionalImage") -> dict[str, Tensor]:
        """The other encoder's first stencil, converted to this number of channels; see `Encoder.resampled`.

        A grey image in three equal channels gives the same result as in one channel, and vice versa. Patches of another
        size use other grids, from which nothing can be converted.
        """
        if self.config.channels == other.config.channels or self.config.patch != other.config.patch:
            return {}
        return recoloured(other.stages[0], self.config.channels, "stages.0")


@torch.no_grad()
def recoloured(first: nn.Module, channels: int, name: str) -> dict[str, Tensor]:
    """The first stencil of a first stage with this name, for another number of image channels, by tensor names.

    A grey image in equal channels gives the same result as in one channel, and vice versa.
    """
    (kernel, *_) = (part for part in first.modules() if isinstance(part, Convolution))
    filters = kernel.filters().sum(1, keepdim=True).expand(-1, channels, *kernel.weight.shape[2:]) / channels
    return {
        f"{name}.entry.kernel.weight": filters.contiguous(),
        f"{name}.entry.kernel.gain": filters.flatten(1).norm(dim=1),
    }


@final
class Stage(nn.Module):
    """One stencil onto the grid of a stage, and residual stencils there.

    Args:
        before: channels of the input signal.
        after: channels of the output signal.
        stride: cells of the previous grid along a cell of this one, by axis.
        depth: number of residual stencils.
        norm: class of the norm before each nonlinearity, built from a number of channels.
        bias: whether stencils add a constant to each channel.
        reads_pixels: whether this is the first stage, whose input has no nonlinearity.
    """

    def __init__(
        self,
        before: int,
        after: int,
        stride: tuple[int, ...],
        depth: int,
        norm: type[StageNorm],
        *,
        bias: bool,
        reads_pixels: bool,
    ) -> None:
        super().__init__()
        beyond = tuple(max(1, r // 2) for r in stride)  # cells of a window on each side of the patch
        window = tuple(r + 2 * more for r, more in zip(stride, beyond, strict=True))
        self.norm = None if reads_pixels else norm(before)
        self.entry = stencil(before, after, window, 1.0 if reads_pixels else math.sqrt(2), stride, beyond, bias=bias)
        self.norms = nn.ModuleList(norm(after) for _ in range(depth))
        here = (3,) * len(stride)
        # keeps the variance of the residual stream independent of depth
        self.stencils = nn.ModuleList(
            stencil(after, after, here, 1 / math.sqrt(depth), bias=bias) for _ in range(depth)
        )

    def forward(self, u: Tensor, domain: Grid) -> tuple[Tensor, Grid]:
        """The signal `(B, N, before)` on the previous grid, to `(B, M, after)` on this one.

        A cell of this grid exists where some cell below it does.
        """
        u = self.entry(u if self.norm is None else F.gelu(self.norm(u, domain.mask)), domain)
        below = self.entry.kernel.output_domain(domain)
        assert isinstance(below, Grid)
        if domain.mask is not None:
            below = below.restrict(_some_exist(domain.mask, domain.shape, below.shape))
        for norm, each in zip(self.norms, self.stencils, strict=True):
            u = u + each(F.gelu(norm(u, below.mask)), below)
        return u, below


def stages_of(
    widths: list[int],
    strides: Sequence[tuple[int, ...]],
    depth: int,
    norm: type[StageNorm],
    *,
    bias: bool,
) -> nn.ModuleList:
    """The stages from the pixels down to the patches.

    Args:
        widths: channels of the pixels, and of the signal of each stage.
        strides: strides of each stage.
        depth, norm, bias: as for `Stage`.
    """
    return nn.ModuleList(
        Stage(before, after, stride, depth, norm, bias=bias, reads_pixels=stage == 0)
        for stage, ((before, after), stride) in enumerate(zip(itertools.pairwise(widths), strides, strict=True))
    )


def widths_of(count: int, embed_dim: int, least: int) -> list[int]:
    """Channels of `count` stages: `embed_dim` in the last, half as many in each earlier one, at least `least`."""
    return [max(least, embed_dim >> later) for later in reversed(range(1, count))] + [embed_dim]


def grids(stages: nn.ModuleList, images: Tensor, exists: Tensor | None = None) -> Iterator[tuple[Tensor, Grid]]:
    """Signal `(B, N, C)` and grid of each stage.

    Args:
        stages: see `stages_of`.
        images: `(B, C, *shape)`.
        exists: bool `(B, *shape)`, the cells that exist; None: all.
    """
    domain = Grid(*images.shape[2:], device=images.device).restrict(None if exists is None else exists.flatten(1))
    u = images.flatten(2).mT
    for stage in stages:
        u, domain = stage(u, domain)
        yield u, domain


def _some_exist(mask: Tensor, shape: tuple[int, ...], coarse: tuple[int, ...]) -> Tensor:
    """Whether each cell of a coarser grid has a cell that exists, `(B, M)`, for a mask `(B, N)`."""
    exists = mask.unflatten(1, shape)
    for axis, count in enumerate(coarse, start=1):
        exists = exists.unflatten(axis, (count, -1)).any(axis + 1)
    return exists.flatten(1)


def stencil(
    before: int,
    after: int,
    window: tuple[int, ...],
    norm: float,
    stride: int | tuple[int, ...] = 1,
    beyond: int | tuple[int, ...] = 1,
    *,
    bias: bool,
) -> IntegralOperator:
    """A convolution operator with standardised filters of initial norm `norm`."""
    kernel = Convolution(before, after, window, len(window), stride=stride, padding=beyond, standardised=True)
    assert kernel.gain is not None
    nn.init.constant_(kernel.gain, norm)
    return IntegralOperator(kernel, residual=False, bias=bias, output_projection=False)


def strides_of(patch: tuple[int, int]) -> list[tuple[int, int]]:
    """Strides of each stage along both axes, from the pixels on, for patches of this height and width."""
    down, right = (_prime_factors(side) for side in patch)
    longest = max(len(down), len(right), 1)
    # an axis with fewer factors is divided in the last stages
    down, right = ([1] * (longest - len(each)) + each for each in (down, right))
    return list(zip(down, right, strict=True))


def _prime_factors(n: int) -> list[int]:
    """Prime factors of n, the smallest first; none for 1."""
    least = next((p for p in range(2, math.isqrt(n) + 1) if n % p == 0), n)
    return [] if n == 1 else [least, *_prime_factors(n // least)]
