"""Features at all scales of a regular grid of any dimension, by convolutions to coarser grids and back.

Legend
    r_1, r_2, ...       strides; cells of stage i are r_1 ... r_i cells of the finest grid wide, those of stage 0 one
    u_i                 on the way down: the signal on the grid of stage i
    v_i                 on the way up
    N                   norm, `StageNorm`: over the points that exist, or at each point
    K                   a stencil with standardised filters, of 3 cells a side where its grid stays, as in
                        `convolutional_image.py`; φ is GELU of N
    f|(x)               f interpolated linearly along each axis between the centres of its cells that exist, constant
                        beyond the outermost ones
    p_i                 means of the values in the cells of stage i

    u_0 = K values,   u_{i+1} = K φ(u_i), at the centres of boxes of r_{i+1} cells a side
    within a stage, `depth` times:   u <- u + K φ(u)
    v_m = u_m,   v_i = w + K φ(w)   with   w = u_i + D_i v_{i+1}|;   no constants, which a norm over points would remove
    level i = φ(v_i) and p_i, which keep the level that standardised filters remove

    signal(x) = Σ_i [W_i φ(v_i) + C_i p_i]|(x) + b

A cell of a coarser grid exists where some cell below it does; cells that do not exist count as 0 in K.

Source: Ronneberger, Fischer and Brox, U-Net (arXiv 1505.04597), for the way down and up; Lin et al., Feature pyramid
networks (arXiv 1612.03144), for sums in place of joined channels; Hariharan et al., Hypercolumns (arXiv 1411.5752), for
the reading of all stages at a place. Deviations: standardised filters; p_i.
"""

import itertools
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fredholm._settings import check_count
from fredholm.domains import Grid
from fredholm.encoders.convolutional_image import StageNorm, grids, stages_of, stencil, widths_of

LEAST_CHANNELS = 16
EQUAL_STAGES, MOST_WIDENED = 3, 2
"""Stages up to which the last has `embed_dim` channels, and the largest number of doublings by further ones."""
MODES = ("linear", "bilinear", "trilinear")
"""Torch's names of the interpolation f|, by the number of axes."""


@final
class PointsNorm(StageNorm):
    """N over the points, of each channel by itself."""

    axes = (1,)

    def standardised(self, u: Tensor) -> Tensor:
        """See `StageNorm.standardised`."""
        # unlike `F.group_norm` it takes a single point, whose result is 0
        return torch.group_norm(u.mT, u.shape[2], eps=self.epsilon).mT


@final
class Pyramid(nn.Module):
    """The levels of `pyramid.py` of values on a grid of one to three axes, and the signal that they sum up to.

    Of up to three stages the last has `embed_dim` channels, of four twice as many, of more four times. Each earlier
    stage has half as many as the next, at least 16.

    Args:
        name: of the encoder, for messages.
        channels: of the values.
        embed_dim: channels of the signal.
        strides: of each stage after the first, a whole number for each axis; those of 1 along all axes are left out.
        depth: residual stencils on each grid on the way down; 0 or more.
        norm: N.

    Raises:
        ValueError: on a depth below 0.
    """

    def __init__(
        self,
        name: str,
        channels: int,
        embed_dim: int,
        strides: Sequence[tuple[int, ...]],
        depth: int,
        norm: type[StageNorm],
    ) -> None:
        super().__init__()
        check_count(name, "depth", depth, 0)
        ones = (1,) * len(strides[0])
        kept = [ones, *(stride for stride in strides if stride != ones)]
        doublings = min(max(0, len(kept) - EQUAL_STAGES), MOST_WIDENED)
        widths = widths_of(len(kept), embed_dim << doublings, LEAST_CHANNELS)
        self.stages = stages_of([channels, *widths], kept, depth, norm, bias=False)
        self.joints = nn.ModuleList(_Joint(below, above, norm, ones) for above, below in itertools.pairwise(widths))
        self.norms = nn.ModuleList(map(norm, widths))
        self.maps = nn.ModuleList(nn.Linear(width, embed_dim, bias=False) for width in widths)
        self.means = nn.ModuleList(nn.Linear(channels, embed_dim, bias=False) for _ in widths)
        self.bias = nn.Parameter(torch.zeros(embed_dim))

    def levels(self, values: Tensor, exists: Tensor | None = None) -> list[Tensor]:
        """Each level as an image, `(B, C_i + channels, *shape_i)`, the finest first; 0 at cells that do not exist.

        Args:
            values: `(B, channels, *shape)`; strides divide the shape, and values are 0 at cells that do not exist.
            exists: bool `(B, *shape)`; None: all cells do.
        """
        found = list(grids(self.stages, values, exists))
        for finer in reversed(range(len(self.joints))):
            (u, grid), (coarse, coarse_grid) = found[finer], found[finer + 1]
            found[finer] = self.joints[finer](u, grid, coarse, coarse_grid), grid
        levels = list[Tensor]()
        for (v, grid), norm in zip(found, self.norms, strict=True):
            image = image_of(F.gelu(norm(v, grid.mask)), grid)
            means = _cell_means(values, grid.shape)
            if exists is not None and grid.mask is not None:
                mask = image_of(grid.mask[..., None], grid)
                share = _cell_means(exists[:, None].to(values), grid.shape)
                means, image = means / torch.where(mask, share, 1.0), torch.where(mask, image, 0.0)
            levels.append(torch.cat([image, means.to(v)], 1))
        return levels

    def weights(self) -> list[Tensor]:
        """[W_i C_i] of each level, `(embed_dim, C_i + channels)`."""
        both = zip(self.maps, self.means, strict=True)
        return [torch.cat([each.get_parameter("weight") for each in own], dim=1) for own in both]

    def signal(self, values: Tensor, exists: Tensor | None = None) -> Tensor:
        """The signal at the centres of the finest cells, `(B, embed_dim, *shape)`, from values as for `levels`."""
        total, shape = self.bias.view(-1, *[1] * (values.ndim - 2)), values.shape[2:]
        for level, weight in zip(self.levels(values, exists), self.weights(), strict=True):
            read = F.linear(level.movedim(1, -1), weight).movedim(-1, 1)
            total = total + interpolated(read, shape, exists)
        return total


@final
class _Joint(nn.Module):
    """The upward step from u_i and v_{i+1} to v_i."""

    def __init__(self, coarse: int, fine: int, norm: type[StageNorm], ones: tuple[int, ...]) -> None:
        super().__init__()
        self.map = nn.Linear(coarse, fine, bias=False)
        self.norm = norm(fine)
        self.stencil = stencil(fine, fine, tuple(3 * n for n in ones), 1.0, bias=False)

    def forward(self, u: Tensor, grid: Grid, coarse: Tensor, coarse_grid: Grid) -> Tensor:
        exists = None if coarse_grid.mask is None else image_of(coarse_grid.mask[..., None], coarse_grid)[:, 0]
        image = interpolated(image_of(self.map(coarse), coarse_grid), grid.shape, exists)
        joined = u + image.flatten(2).mT
        return joined + self.stencil(F.gelu(self.norm(joined, grid.mask)), grid)


def image_of(u: Tensor, grid: Grid) -> Tensor:
    """A signal `(B, N, C)` on a grid as an image, `(B, C, *shape)`."""
    return u.mT.unflatten(2, grid.shape)


def interpolated(image: Tensor, shape: Sequence[int], exists: Tensor | None) -> Tensor:
    """f| at the centres of the cells of a finer grid.

    Args:
        image: f, `(B, C, *coarse)`.
        shape: of the finer grid.
        exists: bool, on a grid at least as fine as the coarse one; None: all cells exist.
    """
    mode, size = MODES[image.ndim - 3], list(shape)
    if exists is None:
        return F.interpolate(image, size, mode=mode)
    mass = (_cell_means(exists[:, None].to(image), image.shape[2:]) > 0).to(image)
    share = F.interpolate(mass, size, mode=mode)
    return F.interpolate(image * mass, size, mode=mode) / torch.where(share > 0, share, 1.0)


def _cell_means(image: Tensor, shape: Sequence[int]) -> Tensor:
    """Means over the cells of a coarser grid, `(B, C, *shape)`."""
    for axis, count in enumerate(shape, start=2):
        image = image.unflatten(axis, (count, -1)).mean(axis + 1)
    return image
