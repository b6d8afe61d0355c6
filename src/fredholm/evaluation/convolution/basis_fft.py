"""Kernels of a few basis functions of the displacement, on regular grids, by the fast Fourier transform.

Legend, along an axis
    n, k      points of the signal, taps of the filter
    S         points of a block, S >= k - 1

    v(x) = Σ_t Ψ(t) u(x + t), x = 1 - k ... n - 1, is a sum over blocks. Block j gives x - j S = 1 - k ... S - 1, of
    which it shares k - 1 places with the block before it and as many with the block after it, none with other blocks.
"""

import dataclasses
import math
from typing import NamedTuple, Self, final

from torch import Tensor
from torch.nn.functional import pad

from fredholm._precision import at_least_float32, without_autocast
from fredholm.evaluation.convolution.fft import direct_operations
from fredholm.evaluation.convolution.filtering import (
    Filtering,
    FilterRoute,
    dearer,
    extend,
    fast_length,
    thinned,
    with_constant,
)
from fredholm.evaluation.convolution.spectra import FilterInputs, basis_convolution
from fredholm.kernels import BasisFilter

LEAST_LENGTH = 256
"""Smallest number of points of a block along an axis for which cutting pays."""


class Axis(NamedTuple):
    """Sizes of a filtering along one axis."""

    signal: int  # n
    taps: int  # k
    first: int  # x of the first result
    results: int

    @property
    def length(self) -> int:
        """Smallest number of points of a transform without wrap-round in the requested results."""
        n, k, x, m = self
        return fast_length(max(n, k, m, n - x, x + m - 1 + k))

    def block(self, length: int) -> "Axis":
        """The block whose transform has this many points, with all its results."""
        step = length - self.taps + 1
        return Axis(step, self.taps, 1 - self.taps, length)


class Plan(NamedTuple):
    """A filtering, and the cut of its signal into blocks."""

    batch: int
    in_dim: int
    out_dim: int
    groups: int
    num_basis: int
    axes: tuple[Axis, ...]
    blocks: tuple[Axis, ...]
    """One block along each axis; the axis itself where it is not cut."""

    @classmethod
    def of(cls, filtering: Filtering[BasisFilter], batch_size: int) -> Self:
        """The cheapest plan; filters in a basis are never transposed and have no boundary mode."""
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
        whole = cls(batch_size, kernel.in_dim, kernel.out_dim, kernel.groups, kernel.num_basis, axes, axes)
        return whole.cheapest()

    @property
    def is_cut(self) -> bool:
        """Whether the signal is cut into blocks along some axis."""
        return self.blocks != self.axes

    @property
    def cost(self) -> float:
        """Floating-point operations: 2.5 L (log2 L + m) per real transform of L points, 8 per complex product and sum.

        m counts the passes over memory: 10, and 13 where the signal is cut into blocks (measured on processors).
        """
        points = math.prod([block.length for block in self.blocks])
        cuts = math.prod([-(-axis.signal // block.signal) for axis, block in zip(self.axes, self.blocks, strict=True)])
        pairs = self.in_dim * self.out_dim // self.groups
        transforms = self.batch * cuts * (self.in_dim + self.out_dim) + self.num_basis
        products = (8 * self.batch * cuts + 4 * self.num_basis) * pairs
        passes = 13 if self.is_cut else 10
        return transforms * 2.5 * points * (math.log2(max(points, 2)) + passes) + products * points / 2

    def cheapest(self) -> Self:
        """The cheapest plan with transforms of 2^k or 3·2^k points along each axis."""
        best = self
        for place, axis in enumerate(self.axes):
            power = LEAST_LENGTH
            while power < axis.length:
                for length in (power, 3 * power // 2):
                    if 2 * axis.taps <= length < axis.length:
                        blocks = (*best.blocks[:place], axis.block(length), *best.blocks[place + 1 :])
                        other = best._replace(blocks=blocks)
                        best = other if other.cost < best.cost else best
                power *= 2
        return best


@final
@dataclasses.dataclass(frozen=True)
class BasisFFT(FilterRoute[BasisFilter]):
    """For `BasisFilter` kernels between aligned regular grids: transforms the basis, never the filters.

    κ has w basis functions and d_out·d_in entries. Signal, basis and result are transformed, O(N (d_in + d_out + w))
    memory; the filters' spectrum is combined from that of the basis a few frequencies at a time, forward and backward.
    Where the filter is short compared with the signal, the signal is cut into blocks (overlap-add). Below float32, and
    under autocast, it computes in float32. Where the formula gives exactly 0 next to nonzero values, this route gives 0
    up to rounding.

    Args:
        min_gain: refuses where the direct sum costs less than this many times as much as this route, in floating-point
            operations (see `FFT.min_gain` and `Plan.cost`), and where each group has one channel and the signal is not
            cut: then the filter's own spectrum, which `FFT` uses, is small. 0 never refuses for cost.
        chunk_elements: entries of the filters' spectrum that exist at one time; None: 2^18 on a CPU, which its cache
            can hold, 2^24 elsewhere.
    """

    marker = BasisFilter
    needs_fixed_sizes = True
    min_gain: float = 0.0
    chunk_elements: int | None = None

    def filter_refusals(self, filtering: Filtering[BasisFilter], batch_size: int) -> list[str]:
        """Refuses filters too small to pay."""
        if self.min_gain == 0:
            return []
        plan = Plan.of(filtering, batch_size)
        kernel, direct, spectral = filtering.kernel, batch_size * direct_operations(filtering), plan.cost
        if direct < self.min_gain * spectral:
            return [dearer(direct, spectral, self.min_gain)]
        if kernel.groups == kernel.in_dim and not plan.is_cut:
            return ["each group has one channel, so that the filter's own spectrum is no larger than the signal's"]
        return []

    def filtered(self, image: Tensor, filtering: Filtering[BasisFilter], bias: Tensor | None = None) -> Tensor:
        """See `FilterRoute.filtered`."""
        kernel, dtype = filtering.kernel, image.dtype
        plan = Plan.of(filtering, image.shape[0])
        elements = self.chunk_elements or (1 << 18 if image.device.type == "cpu" else 1 << 24)
        with without_autocast(image):
            image = at_least_float32(image)
            basis = kernel.lattice_basis(filtering.keys, filtering.queries).movedim(-1, 0).to(image.dtype)
            out = filtered(image, basis, kernel.basis_weight().to(image.dtype), plan, elements)
        return with_constant(thinned(out, filtering.geometry.stride).to(dtype), bias)


def filtered(image: Tensor, basis: Tensor, weight: Tensor, plan: Plan, elements: int) -> Tensor:
    """v at the requested points, `(B, d_out, *results)`; tensors and `elements` as in `basis_convolution`."""
    for place, (axis, block) in enumerate(zip(plan.axes, plan.blocks, strict=True), start=2):
        if block != axis:
            image = _cut(image, place, block.signal)
    (out,) = basis_convolution(
        FilterInputs(image, basis, weight),
        [block.first for block in plan.blocks],
        [block.results for block in plan.blocks],
        [block.length for block in plan.blocks],
        elements,
    )
    # the axis cut last is innermost in the batch
    for place, (axis, block) in reversed(list(enumerate(zip(plan.axes, plan.blocks, strict=True), start=2))):
        if block != axis:
            out = _joined(out, place, axis, block)
    return out


def _cut(image: Tensor, place: int, step: int) -> Tensor:
    """Cuts one axis into blocks of `step` points, as entries of the batch."""
    lacking = -image.shape[place] % step
    image = pad(image, (0, 0) * (image.ndim - 1 - place) + (0, lacking)).unflatten(place, (-1, step))
    return image.movedim(place, 1).flatten(0, 1)


def _joined(values: Tensor, place: int, axis: Axis, block: Axis) -> Tensor:
    """Overlap-adds the results of the blocks along one axis, at the requested points."""
    step, overlap = block.signal, block.taps - 1
    parts = values.unflatten(0, (-1, -(-axis.signal // step)))
    parts = parts.movedim((1, place + 1), (-2, -1))  # (B, d_out, *other axes, blocks, S + k - 1)
    own, beyond = parts.split([step, overlap], dim=-1)
    later = pad(beyond, (0, step - overlap)).flatten(-2)
    total = pad(own.flatten(-2), (0, step)) + pad(later, (step, 0))
    ahead = axis.first + overlap
    total = extend(total, (*((0, 0),) * (total.ndim - 3), (-ahead, ahead + axis.results - total.shape[-1])), "zeros")
    return total.movedim(-1, place)
