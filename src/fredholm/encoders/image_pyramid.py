"""Images as functions of position, by convolutions down to the grid of patches and up again.

Legend
    P = r_1 ... r_m     side of a patch in pixels, as its prime factors, the smallest first
    u_i                 on the way down: the signal on the grid of stage i, whose cells are r_1 ... r_i pixels wide;
                        u_0 on that of the pixels
    v_i                 on the way up
    N                   norm of each channel over the image:  N u = γ (u - ∫ u dμ) / (∫ (u - ∫ u dμ)² dμ + ε)^½ + β
    K                   a stencil with standardised filters, of 3 cells a side where its grid stays, as in
                        `convolutional_image.py`; φ is GELU of N
    f|(x)               f interpolated bilinearly between the centres of its cells, constant beyond the outermost ones

    u_0 = K pixels,   u_{i+1} = K φ(u_i), at the centres of squares of r_{i+1} cells a side
    within a stage, `depth` times:   u <- u + K φ(u)
    v_m = u_m,   v_i = w + K φ(w)   with   w = u_i + D_i v_{i+1}|;   no constants, which N would remove
    p_i                 means of the pixels in the cells of stage i, which keep the colour that N removes

    signal(x) = Σ_i [W_i φ(v_i) + C_i p_i]|(x) + b + Q γ(x),   γ Fourier features of the place; Q starts small

Source: Ronneberger, Fischer and Brox, U-Net (arXiv 1505.04597), for the way down and up; Lin et al., Feature pyramid
networks (arXiv 1612.03144), for sums in place of joined channels; Hariharan et al., Hypercolumns (arXiv 1411.5752), for
the reading of all stages at a place; Ulyanov, Vedaldi and Lempitsky (arXiv 1607.08022) for N, by which no image changes
the signal of another. Deviations: standardised filters; p_i; the signal is evaluated at any position, not at pixels
alone.
"""

import functools
import itertools
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fredholm._settings import check_count
from fredholm.domains import Domain, Grid
from fredholm.encoders.convolutional_image import (
    StageNorm,
    grids,
    recoloured,
    stages_of,
    stencil,
    strides_of,
    widths_of,
)
from fredholm.encoders.encoder import FieldEncoder, check_places
from fredholm.encoders.image import Image, windows
from fredholm.kernels.fourier_features import fourier_features, sample_frequencies

LEAST_CHANNELS = 16
EQUAL_STAGES, MOST_WIDENED = 3, 2
"""Stages up to which the last has `embed_dim` channels, and the largest number of doublings by further ones."""


@final
class ImageNorm(StageNorm):
    """N of the legend."""

    def standardised(self, u: Tensor) -> Tensor:
        """See `StageNorm.standardised`: over the points, each channel by itself."""
        # unlike `F.group_norm` it takes a single point, whose result is 0
        return torch.group_norm(u.mT, u.shape[2], eps=self.epsilon).mT


@final
class ImagePyramid(FieldEncoder):
    """Features of a point's surroundings at all scales, by stencils, and Fourier features of its position.

    The formulas are at the head of `image_pyramid.py`. The scales range from a pixel to the whole image. The signal is
    on the grid of patches and has a value at any point. Of up to three stages the last has `embed_dim` channels, of
    four twice as many, of more four times. Each earlier stage has half as many as the next, at least 16.

    Args:
        config: the images, as for `encoders.Image`.
        embed_dim: channels of the signal.
        depth: residual stencils on each grid on the way down; 0 or more.

    Raises:
        ValueError: on a depth below 0.
    """

    def __init__(self, config: Image.Config, embed_dim: int, *, depth: int = 1) -> None:
        super().__init__()
        check_count("encoders.ImagePyramid", "depth", depth, 0)
        self.config, self.embed_dim, self.pos_dim = config, embed_dim, 2
        strides = [(1, 1), *(stride for stride in strides_of(config.patch) if stride != (1, 1))]
        doublings = min(max(0, len(strides) - EQUAL_STAGES), MOST_WIDENED)
        widths = widths_of(len(strides), embed_dim << doublings, LEAST_CHANNELS)
        self.stages = stages_of([config.channels, *widths], strides, depth, ImageNorm, bias=False)
        self.joints = nn.ModuleList(_Joint(below, above) for above, below in itertools.pairwise(widths))
        self.norms = nn.ModuleList(map(ImageNorm, widths))
        self.maps = nn.ModuleList(nn.Linear(width, embed_dim, bias=False) for width in widths)
        self.colours = nn.ModuleList(nn.Linear(config.channels, embed_dim, bias=False) for _ in widths)
        self.bias = nn.Parameter(torch.zeros(embed_dim))
        self.register_buffer("frequencies", sample_frequencies(config.num_frequencies, 2, config.sigma))
        self.frequencies: Tensor
        self.position_weight = nn.Parameter(0.02 * torch.randn(embed_dim, 2 * config.num_frequencies))

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Number of patches along height and width of images of `image_size`."""
        return self.config.grid_shape

    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Images `(B, channels, H, W)`, float, to the signal `(B, N, embed_dim)` and its grid of N patches."""
        u, domain, _ = self.field(inputs)
        return u, domain

    def at(self, inputs: Tensor, places: Domain) -> Tensor:
        """The signal at any points of the plane; see `FieldEncoder.at`."""
        return self.field(inputs)[2](places)

    def field(self, inputs: Tensor) -> tuple[Tensor, Domain, Callable[[Domain], Tensor]]:
        """See `FieldEncoder.field`: all grids are computed once."""
        self.config.check_images("encoders.ImagePyramid", inputs)
        levels = list[Tensor]()
        for (v, grid), norm in zip(self._levels(inputs), self.norms, strict=True):
            cells = tuple(side // count for side, count in zip(inputs.shape[2:], grid.shape, strict=True))
            levels.append(
                torch.cat([F.gelu(norm(v)).mT.unflatten(2, grid.shape), F.avg_pool2d(inputs, cells).to(v)], dim=1)
            )
        patch = self.config.patch
        shape = (side // each for side, each in zip(inputs.shape[2:], patch, strict=True))
        grid = Grid(*shape, device=inputs.device)
        value = functools.partial(self._value, levels)
        return value(grid), grid, value

    def resampled(self, other: "ImagePyramid") -> dict[str, Tensor]:
        """The other encoder's maps of pixels, converted to this number of channels; see `recoloured`."""
        channels = self.config.channels
        if channels == other.config.channels:
            return {}
        colours = {
            f"colours.{name}": (weight.sum(1, keepdim=True) / channels).expand(-1, channels).contiguous()
            for name, weight in other.colours.state_dict().items()
        }
        return recoloured(other.stages[0], channels) | colours

    def _levels(self, images: Tensor) -> list[tuple[Tensor, Grid]]:
        """v_i and its grid, the finest first."""
        found = list(grids(self.stages, images))
        for finer in reversed(range(len(self.joints))):
            (u, grid), (coarse, coarse_grid) = found[finer], found[finer + 1]
            found[finer] = self.joints[finer](u, grid, coarse, coarse_grid), grid
        return found

    def _value(self, levels: list[Tensor], places: Domain) -> Tensor:
        """The signal at places, of φ(v_i) and p_i joined as images `(B, C_i + channels, H_i, W_i)`."""
        check_places("encoders.ImagePyramid", self.pos_dim, places)
        features = fourier_features(places.pos, self.frequencies).to(levels[0].dtype)
        total = F.linear(features, self.position_weight, self.bias)
        for level, *own in zip(levels, self.maps, self.colours, strict=True):
            weight = torch.cat([each.get_parameter("weight") for each in own], dim=1)
            total = total + F.linear(windows(level, places.pos, (1, 1)), weight)
        return total


@final
class _Joint(nn.Module):
    """The upward step from u_i and v_{i+1} to v_i."""

    def __init__(self, coarse: int, fine: int) -> None:
        super().__init__()
        self.map = nn.Linear(coarse, fine, bias=False)
        self.norm = ImageNorm(fine)
        self.stencil = stencil(fine, fine, (3, 3), 1.0, bias=False)

    def forward(self, u: Tensor, grid: Grid, coarse: Tensor, coarse_grid: Grid) -> Tensor:
        image = self.map(coarse).mT.unflatten(2, coarse_grid.shape)
        joined = u + F.interpolate(image, grid.shape, mode="bilinear").flatten(2).mT
        return joined + self.stencil(F.gelu(self.norm(joined)), grid)
