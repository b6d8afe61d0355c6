"""The continuous kernel convolution.

Legend
    x, y       query and key position, s coordinates       S       longest extent in training, per axis
    δ          x - y relative to the range of training     h       the network's last hidden layer, n units
    Δ          spacing in training                         η       spacing of the grid, r = ⌈Δ / η⌉

    κ(x, y) = ψ(δ),  ψ(δ) = W h(δ) + b             basis φ = [h; 1], M = [W, b], w = n + 1
    δ = (x - y) / S in [-1, 1]                     centred
    δ = 2 (x - y) / S - 1 in [-1, 1]               causal: κ = 0 where y comes after x

Training does not constrain a kernel between the samples. On a finer grid, averaging over one spacing to either side
removes that part: h becomes Σ_t G_t h(δ + t), per axis with

    G_t ∝ exp(-(t η / Δ)² / 2σ²),  t = -r … r,  Σ_t G_t = 1,  σ = 0.5;  1 at t = 0 where η ≥ Δ

Source: CKConv (arXiv 2102.02611), eq. 4, 4.2 and E.1-E.3. Deviations: the sum counts samples, so that at the rate of
training it is the paper's; at another rate, or at irregular times, the domain's weights in units of the spacing in
training (Δτ / Δ) replace the paper's factor sr1 / sr2. The output layer starts so that the integral of white noise has
variance 1. The paper (E.3: length 2r + 1, σ = 0.5) names no unit for σ; here it is Δ, so that the window ends at 2σ at
every rate and the smoothed kernel has a limit as η → 0. In units of η it would hardly smooth at all, and the less the
finer the grid.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Self, final

import torch
from torch import Tensor, nn

from fredholm._precision import at_least_float32, wide_dtype, without_autocast
from fredholm._settings import check_rate, is_count
from fredholm.domains import Domain, GridBlock, whole_grid
from fredholm.domains.checks import values_can_be_read
from fredholm.domains.sequence import SPACING
from fredholm.kernels.convolution.basis_filter import BasisFilter
from fredholm.kernels.convolution.kernel_network import KernelActivation, KernelNetwork, WeightNormalised
from fredholm.kernels.convolution.stationary import check_channels
from fredholm.kernels.kernel import State, Stateful

SIGMA = 0.5
RATE_TOLERANCE = 1e-3
"""Relative difference of spacings from which a grid counts as finer than in training."""


def smoothing_taps(trained: Sequence[float], spacing: Sequence[float]) -> list[tuple[tuple[float, ...], float]]:
    """(offset in the unit of the positions, weight G) of each tap, over all axes together; one tap where η ≥ Δ.

    Args:
        trained: Δ of each axis.
        spacing: η of each axis.
    """
    axes = [_axis_taps(*pair) for pair in zip(trained, spacing, strict=True)]
    return [
        (tuple(offset for offset, _ in taps), math.prod([weight for _, weight in taps]))
        for taps in itertools.product(*axes)
    ]


def _axis_taps(trained: float, spacing: float) -> list[tuple[float, float]]:
    if trained / spacing <= 1 + RATE_TOLERANCE:
        return [(0.0, 1.0)]
    reach = math.ceil(trained / spacing - RATE_TOLERANCE)
    offsets = [t * spacing for t in range(-reach, reach + 1)]
    weights = [math.exp(-((offset / trained) ** 2) / (2 * SIGMA**2)) for offset in offsets]
    total = math.fsum(weights)
    return [(offset, weight / total) for offset, weight in zip(offsets, weights, strict=True)]


def lengths_per_axis(name: str, value: float | Sequence[float], axes: int) -> tuple[float, ...]:
    """One length > 0 for each axis."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * axes
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < math.inf for v in values)
    if len(values) != axes or not numbers:
        wanted = "a finite number > 0" + (f", or one for each of the {axes} axes" if axes > 1 else "")
        raise ValueError(f"kernels.ContinuousConvolution: {name} must be {wanted}; got {value!r}")
    return tuple(float(v) for v in values)


def trained_sampling(
    reach: tuple[float, ...], spacing: float | Sequence[float] | None, num_samples: int | None
) -> tuple[tuple[float, ...], int]:
    """Distance between neighbouring samples along each axis, and their number within `reach`.

    See `ContinuousConvolution` for the defaults.

    Raises:
        ValueError: on numbers out of range, or fewer samples than lie within `reach` at that distance.
    """
    if num_samples is not None and not is_count(num_samples):
        raise ValueError(f"kernels.ContinuousConvolution: num_samples must be an integer >= 1; got {num_samples!r}")
    if spacing is None and num_samples is None and len(reach) == 1:
        spacing = SPACING
    if spacing is None:
        count = 100 if num_samples is None else num_samples
        return tuple(length / count for length in reach), count
    apart = lengths_per_axis("spacing", spacing, len(reach))
    held = max(1, *(math.ceil(length / h - 1e-6) for length, h in zip(reach, apart, strict=True)))
    if num_samples is not None and num_samples < held:
        raise ValueError(
            f"kernels.ContinuousConvolution: {held} samples {apart} apart lie within {reach}; got num_samples "
            f"{num_samples}; leave it out, or give at least as many"
        )
    return apart, held if num_samples is None else num_samples


@final
class ContinuousConvolution(BasisFilter, Stateful):
    """κ(x, y) = ψ(x - y) with ψ a small network: a filter of any length that can be sampled anywhere.

    It counts samples: with the default measure every point weighs 1. Give weights in units of the spacing in training
    for another rate (`Sequence(n, spacing=Δτ, weights=torch.full((n,), Δτ / Δ))`) or for irregular times
    (`trapezoid_weights(times, total=None) / Δ`). Displacements beyond S are outside of [-1, 1], where ψ is untrained.

    Args:
        in_dim, out_dim: channels of the signal and of the result, multiples of `groups`.
        pos_dim: coordinates s of a position, 1, 2 or 3.
        groups: channel groups that do not mix; in_dim for a depthwise (separable) convolution.
        is_causal: whether κ = 0 where y comes after x; None: for s = 1. Needs s = 1.
        horizon: κ = 0 where a coordinate of x - y is as large as this, in the unit of the positions, > 0; None: the
            kernel is as long as the input.
        scale: S, the longest displacement in training along each axis, one number or one per axis, > 0; None: the
            horizon, else 1, the extent of `Sequence(n)` and `Grid(...)`. A buffer, kept in the checkpoint.
        spacing: Δ, the distance between neighbouring samples in training, one number or one per axis, > 0; None:
            horizon or S over `num_samples`; without `num_samples` either, on a line, the spacing of `Sequence(n)`.
        num_samples: samples along an axis within the horizon, or within S, in training; None: from `spacing`, else 100
            per axis in the plane and in space. The output layer starts from it, and with a horizon a state holds that
            many samples.
        width, activation, omega_0, learn_omega_0, spread_bias, layer_norm: see `KernelNetwork`.
        weight_dropout: share of M that is dropped in training, the rest scaled up; drawn anew for every integral. A
            step is an integral too: in training, processing step by step draws other masks than the whole sequence.
        smoothing: whether the kernel is smoothed (`smoothing_taps`) where the signal lives on one regular grid finer
            than Δ. It is smoothed before it is cut at the horizon and at 0, so that its ends are not dimmed. The kernel
            then depends on the grid, and cannot be integrated at other nodes.

    Attributes:
        scale: S, `(s,)`.
        spacing: Δ, a tuple.
        network: h.
        output_layer: W and b, weight-normalised; rows are pairs of channels, `(out_dim, in_dim / groups)` flattened.

    Two positions closer than 10⁻⁶ of the smallest Δ, or than the rounding error within S, count as one.

    Raises:
        ValueError: on sizes out of range, groups that do not divide the channels, an unknown activation, or a horizon,
            scale, spacing or ω0 that is not positive.
    """

    sees_simultaneous = True
    reads_time = True

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        pos_dim: int = 1,
        *,
        groups: int = 1,
        is_causal: bool | None = None,
        horizon: float | None = None,
        scale: float | Sequence[float] | None = None,
        spacing: float | Sequence[float] | None = None,
        num_samples: int | None = None,
        width: int = 32,
        activation: KernelActivation = "sine",
        omega_0: float = 30.0,
        learn_omega_0: bool = False,
        spread_bias: bool = True,
        layer_norm: bool | None = None,
        weight_dropout: float = 0.0,
        smoothing: bool = False,
    ) -> None:
        super().__init__()
        if not is_count(pos_dim) or pos_dim > 3:
            raise ValueError(f"kernels.ContinuousConvolution: pos_dim must be 1, 2 or 3; got {pos_dim!r}")
        check_channels("kernels.ContinuousConvolution", in_dim, out_dim, groups)
        self.in_dim, self.out_dim, self.pos_dim, self.groups = in_dim, out_dim, pos_dim, groups
        self.is_causal = pos_dim == 1 if is_causal is None else is_causal
        if self.is_causal and pos_dim != 1:
            raise ValueError(
                f"kernels.ContinuousConvolution: only a line has a past; got is_causal=True with pos_dim {pos_dim}"
            )
        self.horizon = None if horizon is None else lengths_per_axis("horizon", horizon, 1)[0]
        self.has_growing_state = horizon is None
        extent = lengths_per_axis("scale", (self.horizon or 1.0) if scale is None else scale, pos_dim)
        reach = extent if self.horizon is None else (self.horizon,) * pos_dim
        self.spacing, self.num_samples = trained_sampling(reach, spacing, num_samples)
        check_rate("kernels.ContinuousConvolution", "weight_dropout", weight_dropout)
        self.weight_dropout, self.smoothing = weight_dropout, smoothing
        self.is_pairwise = not smoothing
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(extent))
        self.network = KernelNetwork(
            pos_dim,
            width=width,
            activation=activation,
            omega_0=omega_0,
            learn_omega_0=learn_omega_0,
            spread_bias=spread_bias,
            layer_norm=layer_norm,
        )
        self.num_basis = width + 1
        self.output_layer = self._output_layer()

    def _output_layer(self) -> WeightNormalised:
        """W with which the integral of white noise over all samples in reach has variance 1, and b = 0."""
        seen = self.num_samples if self.is_causal or self.horizon is None else 2 * self.num_samples - 1
        inputs = self.in_dim // self.groups
        with torch.no_grad():
            energy = self.network(2 * torch.rand(1000, len(self.spacing)) - 1).square().sum(-1).mean()
        # the meta device has no numbers
        bound = torch.sqrt(3 / (seen ** len(self.spacing) * inputs * energy.clamp_min(1e-12)))
        weight = bound * torch.empty(self.out_dim * inputs, self.network.width).uniform_(-1, 1)
        return WeightNormalised(weight, torch.zeros(self.out_dim * inputs))

    def basis(self, displacement: Tensor) -> Tensor:
        """See `BasisFilter.basis`: φ = [h; 1], `(..., w)`, 0 where κ vanishes."""
        return self.basis_on(displacement, None)

    def basis_on(self, displacement: Tensor, keys: GridBlock | None) -> Tensor:
        """See `BasisFilter.basis_on`: with `smoothing`, Σ_t G_t h(δ + t) on a grid finer than in training."""
        wide = at_least_float32(displacement)
        reached = self._reaches(wide)[..., None]
        wide = torch.where(reached, wide, 0.0)  # so that displacements out of reach do not overflow
        if keys is None or not self.smoothing:
            hidden = self.network(self._place(wide))
        else:
            hidden = None
            for offset, weight in smoothing_taps(self.spacing, keys.spacing):
                there = torch.stack([x + by for x, by in zip(wide.unbind(-1), offset, strict=True)], dim=-1)
                moved = self.network(self._place(there))
                hidden = weight * moved if hidden is None else hidden + weight * moved
            assert hidden is not None
        return torch.where(reached, torch.cat([hidden, torch.ones_like(hidden[..., :1])], dim=-1), 0.0)

    def _place(self, displacement: Tensor) -> Tensor:
        """δ, in the parameters' precision, at least float32; differences are computed in that of the positions."""
        share = displacement / self.scale.to(displacement.dtype)
        place = 2 * share - 1 if self.is_causal else share
        return place.to(wide_dtype(self.output_layer.direction))

    def _reaches(self, displacement: Tensor) -> Tensor:
        """Mask of displacements where κ may differ from 0, `(...)` bool."""
        rounding = 4 * torch.finfo(displacement.dtype).eps * self.scale.to(displacement.dtype)
        tolerance = rounding + 1e-6 * min(self.spacing)
        within = displacement >= -tolerance if self.is_causal else torch.ones_like(displacement, dtype=torch.bool)
        if self.horizon is not None:
            within = within & (displacement.abs() < self.horizon - tolerance)
        return within.all(-1)

    def basis_weight(self) -> Tensor:
        """See `BasisFilter.basis_weight`: M = [W, b], `(w, d_out, d_in / groups)`, in at least float32."""
        layer = self.output_layer
        weight = torch.cat([layer.weight, layer.bias[:, None].to(layer.weight.dtype)], dim=1)
        weight = nn.functional.dropout(weight, self.weight_dropout, self.training)
        return weight.mT.unflatten(1, (self.out_dim, self.in_dim // self.groups))

    @property
    def is_drawn(self) -> bool:
        """See `Kernel.is_drawn`: with `weight_dropout`, in training."""
        return self.training and self.weight_dropout > 0

    def unsteppable(self, domain: Domain) -> list[str]:
        """See `Stateful.unsteppable`: with `smoothing`, times finer than Δ."""
        least = self._least_step(domain) if self.smoothing else math.inf
        if not least < self.spacing[0] * (1 - RATE_TOLERANCE):
            return []
        return [
            f"a step of {least:.4g} is finer than the spacing {self.spacing[0]:.4g} of training, where the "
            "kernel is smoothed over a grid that a step does not see; build it with smoothing=False"
        ]

    @staticmethod
    def _least_step(domain: Domain) -> float:
        """Smallest time step between points; on a grid its spacing; ∞ where no times can be read."""
        grid = whole_grid(domain)
        if grid is not None:
            return grid.spacing[0]
        if domain.times is None or not values_can_be_read(domain.times):
            return math.inf
        since = domain.times.diff(dim=-1)
        return since.min().item() if since.numel() else math.inf

    def initial_state(self, batch_size: int) -> State:
        """See `Stateful.initial_state`: samples in reach, `(B, K, d_in)`, and their times, `(B, K)` float64.

        K is `num_samples` with a horizon; without one it grows from 0.
        """
        held = 0 if self.horizon is None else self.num_samples
        like = self.output_layer.direction
        never = torch.full((batch_size, held), -math.inf, dtype=torch.float64, device=like.device)
        return like.new_zeros(batch_size, held, self.in_dim), never

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """See `Stateful.step`; without a `time` the point is Δ after the previous one.

        With `smoothing` the first step of a sequence, which has no spacing yet, assumes the spacing of training.

        Raises:
            ValueError: on a time that is not after the one before it, more samples within the horizon than a state
                holds, or, with `smoothing`, steps finer than Δ. Where times cannot be read, as in a compiled graph, a
                step leaves these checks out and refuses times with `smoothing`.
        """
        signal, times = state
        if time is not None:
            now = time.to(times.dtype)
            self._check_step(now, times)
        elif times.shape[1] == 0:
            now = times.new_zeros(u.shape[0])
        else:
            now = torch.where(times[:, -1] == -math.inf, 0.0, times[:, -1] + self.spacing[0])
        kept = slice(None) if self.horizon is None else slice(1, None)
        signal = torch.cat([signal[:, kept], u[:, None].to(signal.dtype)], dim=1)
        times = torch.cat([times[:, kept], now[:, None]], dim=1)
        basis, weight = self.basis((now[:, None] - times)[..., None]), self.basis_weight()
        with without_autocast(u):
            sums = torch.einsum("bkw,bki->bwi", basis, signal.to(basis.dtype)).unflatten(2, (self.groups, -1))
            out = torch.einsum("bwgi,wgoi->bgo", sums, weight.to(sums.dtype).unflatten(1, (self.groups, -1)))
        return out.flatten(1).to(u.dtype), (signal, times)

    def _check_step(self, now: Tensor, times: Tensor) -> None:
        """Raises ValueError where a step at these times would differ from the integral over the whole sequence."""
        name = "kernels.ContinuousConvolution.step"
        if not values_can_be_read(now, times):
            if self.smoothing:
                raise ValueError(
                    f"{name}: with smoothing a step takes no time where none can be read, as in a compiled graph; "
                    "leave it out, steps are Δ apart"
                )
            return
        since = now - (times[:, -1] if times.shape[1] else -math.inf)
        if not bool(((now.abs() < math.inf) & (since >= 0)).all()):
            raise ValueError(f"{name}: times must be finite and not decrease; got steps of {since.tolist()}")
        if bool(self._reaches(-since[:, None]).any()):
            raise ValueError(
                f"{name}: points that share a time see each other, but the previous one is computed already; got steps "
                f"of {since.tolist()}; call the operator on the whole sequence"
            )
        if self.smoothing and bool((since < self.spacing[0] * (1 - RATE_TOLERANCE)).any()):
            raise ValueError(
                f"{name}: a step of {since.min().item():.4g} is finer than the spacing {self.spacing[0]:.4g} of "
                "training, where the kernel is smoothed over a grid that a step does not see; use smoothing=False"
            )
        if self.horizon is not None and bool(self._reaches((now - times[:, 0])[:, None]).any()):
            raise ValueError(
                f"{name}: more than {self.num_samples} samples lie within the horizon {self.horizon}; build the kernel "
                "with as many num_samples as its densest signal has there"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        lengths = self.scale
        super()._apply(fn, recurse)
        # lengths stay in their precision: half precision would round every position, or overflow
        if self.scale.dtype in (torch.float16, torch.bfloat16):
            self.scale = lengths.to(self.scale.device)
        return self

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return (
            f"{self.in_dim}, {self.out_dim}, groups={self.groups}, is_causal={self.is_causal}, horizon={self.horizon}, "
            f"spacing={self.spacing}, num_samples={self.num_samples}, weight_dropout={self.weight_dropout}, "
            f"smoothing={self.smoothing}"
        )
