"""Stationary kernels by torch's own convolution."""

import dataclasses
from typing import final

import torch.nn.functional as F
from torch import Tensor

from fredholm.evaluation.convolution.filtering import Filtering, FilterRoute, extend, with_constant
from fredholm.kernels import Stationary

CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


@final
@dataclasses.dataclass(frozen=True)
class NativeConvolution(FilterRoute[Stationary]):
    """For `Stationary` kernels between aligned regular grids with up to 3 axes: torch's convolution.

    Signals pass to it as channels-last images and back without a copy.
    """

    def filter_refusals(self, filtering: Filtering[Stationary], batch_size: int) -> list[str]:
        """Refuses more axes than torch has convolutions for."""
        axes = len(filtering.keys.shape)
        return [f"the grid has {axes} axes, and torch's convolution at most 3"] if axes > len(CONVOLUTIONS) else []

    def filtered(self, image: Tensor, filtering: Filtering[Stationary], bias: Tensor | None = None) -> Tensor:
        """See `FilterRoute.filtered`."""
        return (_transposed if filtering.geometry.transposed else _convolved)(image, filtering, bias)


def _convolved(image: Tensor, filtering: Filtering[Stationary], bias: Tensor | None) -> Tensor:
    geometry, cells = filtering.geometry, filtering.queries.shape
    within = [
        lo >= 0 and (n + 2 * lo - w) // r + 1 == m
        for n, m, w, r, (lo, _) in zip(
            image.shape[2:], cells, geometry.reach, geometry.stride, geometry.padding, strict=True
        )
    ]
    if geometry.mode == "zeros" and all(within):
        padding = tuple(lo for lo, _ in geometry.padding)
    else:
        image, padding = extend(image, geometry.padding, geometry.mode), 0
    convolve, weight = CONVOLUTIONS[len(cells) - 1], filtering.weight
    if len(weight) == 1:
        # by the strides of a lone output channel torch mistakes the layout, and its gradient then fails
        weight = weight.contiguous()
    return convolve(image, weight, bias, geometry.stride, padding, geometry.dilation, filtering.kernel.groups)


def _transposed(image: Tensor, filtering: Filtering[Stationary], bias: Tensor | None) -> Tensor:
    geometry, cells = filtering.geometry, filtering.queries.shape
    extra = tuple(lo - hi for lo, hi in geometry.padding)
    within = [
        lo >= 0 and 0 <= more < max(r, d)
        for (lo, _), more, r, d in zip(geometry.padding, extra, geometry.stride, geometry.dilation, strict=True)
    ]
    convolve, groups = TRANSPOSED[len(cells) - 1], filtering.kernel.groups
    if all(within):
        padding = tuple(lo for lo, _ in geometry.padding)
        return convolve(image, filtering.weight, bias, geometry.stride, padding, extra, groups, geometry.dilation)
    full = convolve(image, filtering.weight, None, geometry.stride, 0, 0, groups, geometry.dilation)
    return with_constant(extend(full, tuple((-lo, -hi) for lo, hi in geometry.padding), "zeros"), bias)
