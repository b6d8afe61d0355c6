"""Stationary kernels by the fast Fourier transform."""

import dataclasses
import math
from typing import final

import torch
from torch import Tensor

from fredholm._precision import at_least_float32
from fredholm.evaluation.convolution.filtering import (
    Filtering,
    FilterRoute,
    dearer,
    extend,
    fast_length,
    thinned,
    with_constant,
)
from fredholm.kernels import Stationary


@final
@dataclasses.dataclass(frozen=True)
class FFT(FilterRoute[Stationary]):
    """For `Stationary` kernels between aligned regular grids: a product of spectra, for filters of any size.

    Signal and filter are transformed at a size at which the result does not wrap round onto itself; on a torus, at the
    size of the grid. Below float32, and under autocast, it computes in float32. Where the formula gives exactly 0 next
    to nonzero values, this route gives 0 up to rounding.

    Args:
        min_gain: refuses where the direct sum costs less than this many times as much as the transforms, in
            floating-point operations: 2.5 L log2 L for a real transform of L points, 8 for a complex product and sum.
            An operation of a depthwise direct sum, which is no matrix product, counts 4 times (measured on CPUs). 0
            never refuses for cost.
    """

    needs_fixed_sizes = True
    min_gain: float = 0.0

    def filter_refusals(self, filtering: Filtering[Stationary], batch_size: int) -> list[str]:
        """Refuses windows that lie wholly outside the signal, and filters too small to pay."""
        if _misses(filtering):
            return ["no window of the filter meets a key, and this route would give 0 only to rounding"]
        if self.min_gain == 0:
            return []
        direct, spectral = batch_size * direct_operations(filtering), _spectral_cost(filtering, batch_size)
        if direct < self.min_gain * spectral:
            return [dearer(direct, spectral, self.min_gain)]
        return []

    def filtered(self, image: Tensor, filtering: Filtering[Stationary], bias: Tensor | None = None) -> Tensor:
        """See `FilterRoute.filtered`."""
        geometry, groups, dtype = filtering.geometry, filtering.kernel.groups, image.dtype
        image = at_least_float32(image)
        weight = at_least_float32(filtering.weight)
        padding, lengths = _lengths(filtering)
        if geometry.transposed:
            image = _stuffed(image, geometry.stride)
            weight = weight.unflatten(0, (groups, -1)).transpose(1, 2)
        else:
            if padding != geometry.padding:
                image = extend(image, geometry.padding, geometry.mode)
            weight = weight.unflatten(0, (groups, -1))
        taps = [
            (torch.arange(k, device=image.device) * d - lo) % length
            for k, d, (lo, _), length in zip(geometry.size, geometry.dilation, padding, lengths, strict=True)
        ]
        axes = tuple(range(-len(lengths), 0))
        spectrum = torch.fft.rfftn(image, lengths, axes).unflatten(1, (groups, -1))
        response = torch.fft.rfftn(_placed(weight, taps, lengths), lengths, axes)
        product = _mixed(spectrum, response if geometry.transposed else response.conj())
        out = torch.fft.irfftn(product, lengths, axes).flatten(1, 2)
        step = (1,) * len(lengths) if geometry.transposed else geometry.stride
        for axis, (m, r) in enumerate(zip(filtering.queries.shape, step, strict=True), start=2):
            out = out.narrow(axis, 0, (m - 1) * r + 1)
        return with_constant(thinned(out, step).to(dtype), bias)


def _lengths(filtering: Filtering[Stationary]) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """The shift of the filter's taps (padding that `extend` does not add), and the points of each transform."""
    geometry, keys, queries = filtering.geometry, filtering.keys.shape, filtering.queries.shape
    padding, lengths = geometry.padding, []
    wraps = geometry.mode == "circular" and all(
        (m - 1) * r < n for m, r, n in zip(queries, geometry.stride, keys, strict=True)
    )
    if wraps:
        return padding, keys
    if geometry.mode != "zeros":
        keys = tuple(n + lo + hi for n, (lo, hi) in zip(keys, padding, strict=True))
        padding = ((0, 0),) * len(keys)
    for n, m, w, r, (lo, hi) in zip(keys, queries, geometry.reach, geometry.stride, padding, strict=True):
        if geometry.transposed:
            stuffed = (n - 1) * r + 1
            least = max(stuffed, w, m, m + lo, stuffed + w - 1 - lo)
        else:
            least = max(n, w, n + lo, n + hi, (m - 1) * r + 1)
        lengths.append(fast_length(least))
    return padding, tuple(lengths)


def _misses(filtering: Filtering[Stationary]) -> bool:
    """Whether all windows lie beyond the same end of an axis, where the signal continues with zeros."""
    geometry, keys, queries = filtering.geometry, filtering.keys.shape, filtering.queries.shape
    for n, m, w, r, (lo, _) in zip(keys, queries, geometry.reach, geometry.stride, geometry.padding, strict=True):
        # start of the first window, end of the last one, and extent of the signal
        first, last, end = (lo, lo + m, (n - 1) * r + w) if geometry.transposed else (-lo, (m - 1) * r - lo + w, n)
        if geometry.mode == "zeros" and (last <= 0 or first >= end):
            return True
    return not geometry.transposed and geometry.mode == "zeros" and _falls_between_taps(filtering)


def _falls_between_taps(filtering: Filtering[Stationary]) -> bool:
    """Whether along some axis all taps of dilated windows fall between keys."""
    geometry = filtering.geometry
    axes = zip(
        filtering.keys.shape,
        filtering.queries.shape,
        geometry.size,
        geometry.dilation,
        geometry.stride,
        geometry.padding,
        strict=True,
    )
    # query i reads the key at r i - lo + d t
    return any(
        d > 1 and not any(max(0, -((d * t - lo) // r)) <= min(m - 1, (n - 1 + lo - d * t) // r) for t in range(k))
        for n, m, k, d, r, (lo, _) in axes
    )


def direct_operations(filtering: Filtering[Stationary]) -> int:
    """Number of operations of the direct sum for one batch entry; see `FFT.min_gain`."""
    kernel, geometry = filtering.kernel, filtering.geometry
    windows = (filtering.keys if geometry.transposed else filtering.queries).num_points
    mixed = min(kernel.in_dim, kernel.out_dim) > kernel.groups
    return (2 if mixed else 8) * kernel.in_dim * (kernel.out_dim // kernel.groups) * math.prod(geometry.size) * windows


def _spectral_cost(filtering: Filtering[Stationary], batch_size: int) -> float:
    """Number of operations of the transforms and of the products between them."""
    kernel, (_, lengths) = filtering.kernel, _lengths(filtering)
    points = math.prod(lengths)
    pairs = kernel.in_dim * (kernel.out_dim // kernel.groups)
    transforms = batch_size * (kernel.in_dim + kernel.out_dim) + pairs
    return transforms * 2.5 * points * math.log2(max(points, 2)) + 8 * batch_size * pairs * points / 2


def _stuffed(image: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The signal on the finer lattice of a transposed convolution, with zeros between its values."""
    for axis, r in enumerate(stride, start=2):
        if r > 1:
            apart = torch.nn.functional.pad(image.unsqueeze(axis + 1), (0, 0) * (image.ndim - axis - 1) + (0, r - 1))
            image = apart.flatten(axis, axis + 1).narrow(axis, 0, (image.shape[axis] - 1) * r + 1)
    return image


def _placed(weight: Tensor, taps: list[Tensor], lengths: tuple[int, ...]) -> Tensor:
    """The filter on the points of the transform, `(g, out, in, *lengths)`; coinciding taps add up."""
    for axis, (places, length) in enumerate(zip(taps, lengths, strict=True), start=3):
        shape = [*weight.shape[:axis], length, *weight.shape[axis + 1 :]]
        weight = weight.new_zeros(shape).index_add(axis, places, weight)
    return weight


def _mixed(spectrum: Tensor, response: Tensor) -> Tensor:
    """Channel products of spectra: `(B, g, in, *F)` and `(g, out, in, *F)` to `(B, g, out, *F)`."""
    if response.shape[2] == 1:
        return spectrum * response[:, :, 0]
    return torch.einsum("bgi...,goi...->bgo...", spectrum, response)
