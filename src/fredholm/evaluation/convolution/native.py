"""Stationary kernels by torch's own convolution."""

import dataclasses
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm._precision import product_dtype, without_autocast
from fredholm.evaluation.convolution.filtering import Filtering, FilterRoute, extend, with_constant
from fredholm.kernels import Stationary

CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


@final
@dataclasses.dataclass(frozen=True)
class NativeConvolution(FilterRoute[Stationary]):
    """For `Stationary` kernels between aligned regular grids with up to 3 axes: torch's convolution.

    Signals are passed as channels-last images, without copies.
    """

    def filter_refusals(self, filtering: Filtering[Stationary], batch_size: int) -> list[str]:
        """Refuses more axes than torch has convolutions for."""
        axes = len(filtering.keys.shape)
        return [f"the grid has {axes} axes, and torch's convolution at most 3"] if axes > len(CONVOLUTIONS) else []

    def filtered(self, image: Tensor, filtering: Filtering[Stationary], bias: Tensor | None = None) -> Tensor:
        """See `FilterRoute.filtered`."""
        transposed, weight = filtering.geometry.transposed, filtering.weight
        convolve = _transposed if transposed else _convolved
        dtype = product_dtype(image)
        # on a CPU, some processors never return from a long depthwise one in float16; and in 16 bits the gradient of a
        # tap of a transposed one that meets no output is uninitialised memory
        if image.device.type == "cpu" and (dtype == torch.float16 or (transposed and dtype == torch.bfloat16)):
            with without_autocast(image):
                given = (image.float(), weight.float(), None if bias is None else bias.float())
                return convolve(*given, filtering).to(dtype)
        return convolve(image, weight, bias, filtering)


def _convolved(image: Tensor, weight: Tensor, bias: Tensor | None, filtering: Filtering[Stationary]) -> Tensor:
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
    convolve = CONVOLUTIONS[len(cells) - 1]
    if weight.shape[0] == 1:
        # with a single output channel torch misreads the layout from the strides, and its gradient fails
        weight = weight.contiguous()
    return convolve(image, weight, bias, geometry.stride, padding, geometry.dilation, filtering.kernel.groups)


def _transposed(image: Tensor, weight: Tensor, bias: Tensor | None, filtering: Filtering[Stationary]) -> Tensor:
    """Uses torch's own padding where it suffices, else crops the full result."""
    geometry, groups = filtering.geometry, filtering.kernel.groups
    convolve = TRANSPOSED[len(filtering.queries.shape) - 1]
    extra = tuple(lo - hi for lo, hi in geometry.padding)
    within = [
        lo >= 0 and 0 <= more < max(r, d)
        for (lo, _), more, r, d in zip(geometry.padding, extra, geometry.stride, geometry.dilation, strict=True)
    ]
    if all(within):
        padding = tuple(lo for lo, _ in geometry.padding)
        return convolve(image, weight, bias, geometry.stride, padding, extra, groups, geometry.dilation)
    full = convolve(image, weight, None, geometry.stride, 0, 0, groups, geometry.dilation)
    return with_constant(extend(full, tuple((-lo, -hi) for lo, hi in geometry.padding), "zeros"), bias)
