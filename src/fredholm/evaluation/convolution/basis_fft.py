"""Kernels of a few features of the displacement, on regular grids, by the fast Fourier transform."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.convolution.blocks import Axis, Plan, filtered
from fredholm.evaluation.convolution.fft import direct_operations
from fredholm.evaluation.convolution.filtering import Filtering, FilterRoute
from fredholm.kernels import BasisFilter
from fredholm.kernels.arithmetic import at_least_float32


@final
@dataclasses.dataclass(frozen=True)
class BasisFFT(FilterRoute[BasisFilter]):
    """For `BasisFilter` kernels between aligned regular grids: only the features are transformed, not the filter.

    κ has w features and d_out·d_in entries. Signal, features and result are transformed, O(N (d_in + d_out + w))
    memory; the filters' spectrum is put together from the features' a few frequencies at a time, forward and backward.
    Where the filter is short beside the signal, the signal goes in blocks (overlap and add). Below float32, and under
    autocast, it computes in float32. Where the formula gives exactly 0 next to values that are not, this route gives 0
    to rounding.

    Args:
        min_gain: refuses where the direct sum costs less than this many times what this route does, in floating-point
            operations (see `FFT.min_gain` and `Plan.cost`), and where each group has one channel and the signal goes
            whole: then the filter's own spectrum, which `FFT` uses, is small. 0 never refuses for cost.
        chunk_elements: entries of the filters' spectrum that exist at one time; None: 2^18 on a CPU, which its cache
            can hold, 2^24 elsewhere.
    """

    marker = BasisFilter
    min_gain: float = 0.0
    chunk_elements: int | None = None

    def filter_refusals(self, filtering: Filtering[BasisFilter], batch_size: int) -> list[str]:
        """Refuses filters too small to pay, and an empty batch."""
        if batch_size == 0:
            return ["the batch is empty, which transforms do not take"]
        if self.min_gain == 0:
            return []
        plan = plan_of(filtering, batch_size)
        kernel, direct, spectral = filtering.kernel, batch_size * direct_operations(filtering), plan.cost
        if direct < self.min_gain * spectral:
            return [f"the direct sum costs {direct}, less than {self.min_gain} times the {int(spectral)} of transforms"]
        if kernel.groups == kernel.in_dim and not plan.is_cut:
            return ["each group has one channel, so that the filter's own spectrum is no larger than the signal's"]
        return []

    def filtered(self, image: Tensor, filtering: Filtering[BasisFilter], bias: Tensor | None = None) -> Tensor:
        """See `FilterRoute.filtered`."""
        kernel, dtype = filtering.kernel, image.dtype
        plan = plan_of(filtering, len(image))
        elements = self.chunk_elements or (1 << 18 if image.device.type == "cpu" else 1 << 24)
        with torch.autocast(image.device.type, enabled=False):
            image = at_least_float32(image)
            features = kernel.lattice_features(filtering.keys, filtering.queries).movedim(-1, 0).to(image.dtype)
            out = filtered(image, features, kernel.feature_weight().to(image.dtype), plan, elements)
        for axis, r in enumerate(filtering.geometry.stride, start=2):
            out = out[(slice(None),) * axis + (slice(None, None, r),)] if r > 1 else out
        out = out.to(dtype)
        return out if bias is None else out + bias.unflatten(0, (-1, *(1,) * len(plan.axes)))


def plan_of(filtering: Filtering[BasisFilter], batch_size: int) -> Plan:
    """The cheapest way to cut this filtering; a filter of features is no transposed one and has no boundary mode."""
    kernel, geometry = filtering.kernel, filtering.geometry
    axes = tuple(
        Axis(n, k, -lo, (m - 1) * r + 1)
        for n, m, k, r, (lo, _) in zip(
            filtering.keys.shape,
            filtering.queries.shape,
            geometry.size,
            geometry.stride,
            geometry.padding,
            strict=True,
        )
    )
    whole = Plan(batch_size, kernel.in_dim, kernel.out_dim, kernel.groups, kernel.num_features, axes, axes)
    return whole.cheapest()
