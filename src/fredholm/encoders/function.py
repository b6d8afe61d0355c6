"""Sampled functions as signals: values at any points, interpolated between them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count, check_positive, refuse_idle
from fredholm.domains import Domain, Points, nearest
from fredholm.domains.domain import wrapped
from fredholm.encoders.encoder import FieldEncoder, check_places
from fredholm.kernels.convolution.fourier_filter import half_lattice
from fredholm.kernels.fourier_features import fourier_features, sample_frequencies


@final
class FunctionBatch(NamedTuple):
    """Functions sampled at the points of a domain: `values (B, N, num_channels)`, finite where a point exists.

    Entries may have points of their own; masked points are ignored.
    """

    values: Tensor
    domain: Domain


@final
class Function(FieldEncoder):
    """u(x) = W_2 φ(W_1 [a(x) ; γ(x)] + b_1) + b_2, with the values a(x) and Fourier features γ of the position.

    At a sample a(x) is its value; elsewhere a mean of the K nearest samples, see `interpolate`. So the signal has a
    value at any x, and does not depend on the resolution, apart from details that were not sampled. On a periodic
    domain γ has whole numbers of waves. The papers of neural operators lift a(x) likewise, by one layer or two.

    Args:
        config: the functions.
        embed_dim: channels of the signal.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Values and coordinates of the functions."""

        num_channels: int
        """Values at a point."""
        pos_dim: int
        """Coordinates of a point; data lie in or about the unit box."""
        is_periodic: bool = False
        """Whether functions are periodic on the unit box."""
        num_frequencies: int = 16
        """Number L of Fourier frequencies of γ; 0: no position enters the signal. If periodic, the L lowest ones that
        fit into the box, of which k and -k count once."""
        sigma: float = 1.0
        """Standard deviation of the frequencies, in cycles per side of the unit box; refused where none are drawn."""
        num_neighbours: int | None = None
        """Number K of samples that interpolate a value; None: 2^s for s coordinates."""

        def __post_init__(self) -> None:
            name = "encoders.Function"
            for what, least in (("num_channels", 1), ("pos_dim", 1), ("num_frequencies", 0)):
                check_count(name, what, getattr(self, what), least=least)
            check_positive(name, "sigma", self.sigma)
            if self.num_neighbours is not None:
                check_count(name, "num_neighbours", self.num_neighbours)
            if self.num_frequencies == 0:
                refuse_idle(name, type(self), "num_frequencies=0", "give num_frequencies", sigma=self.sigma)
            elif self.is_periodic:
                refuse_idle(name, type(self), "is_periodic, which fixes the frequencies", "leave it", sigma=self.sigma)

    def __init__(self, config: Config, embed_dim: int) -> None:
        super().__init__()
        check_count("encoders.Function", "embed_dim", embed_dim)
        self.config, self.embed_dim, self.pos_dim = config, embed_dim, config.pos_dim
        if config.is_periodic:
            # a ball of this radius holds at least L frequencies
            reach = math.ceil(config.num_frequencies ** (1 / config.pos_dim)) + 1
            frequencies = half_lattice(reach, config.pos_dim)[1 : config.num_frequencies + 1]
        else:
            frequencies = sample_frequencies(config.num_frequencies, config.pos_dim, config.sigma)
        self.register_buffer("frequencies", frequencies)
        self.frequencies: Tensor
        self.lift = nn.Linear(config.num_channels + 2 * config.num_frequencies, 2 * embed_dim)
        self.projection = nn.Linear(2 * embed_dim, embed_dim)

    def columns(self, channels: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See `Encoder.columns`; features of the position come after the values."""
        features = 2 * self.config.num_frequencies
        return {"lift.weight": (*channels, *(f"feature {n} of {features} of the place" for n in range(features)))}

    def forward(self, inputs: FunctionBatch) -> tuple[Tensor, Domain]:
        """Values at the points of a domain to the signal `(B, N, embed_dim)` there, and the domain.

        Raises:
            ValueError, TypeError: inputs that are no batch, values of another shape or dtype, or another domain.
        """
        self._check(inputs)
        return self._signal(inputs.values, inputs.domain), inputs.domain

    def at(self, inputs: FunctionBatch, places: Domain) -> Tensor:
        """The signal at any points, of interpolated values; see `FieldEncoder.at`."""
        self._check(inputs)
        check_places("encoders.Function", self.pos_dim, places)
        return self._signal(interpolate(inputs, places, self.config.num_neighbours), places)

    def _signal(self, values: Tensor, where: Domain) -> Tensor:
        position = fourier_features(where.pos, self.frequencies).to(values.dtype)
        joined = torch.cat([values, position.expand(values.shape[0], -1, -1)], dim=-1)
        return self.projection(nn.functional.gelu(self.lift(joined)))

    def _check(self, inputs: FunctionBatch) -> None:
        if not isinstance(inputs, tuple) or len(inputs) != 2:
            raise TypeError(
                f"encoders.Function: expected a FunctionBatch(values, domain), as values need positions; "
                f"got {type(inputs).__name__}"
            )
        values, domain = inputs
        expected = f"(batch, points, {self.config.num_channels})"
        if values.ndim != 3 or values.shape[-1] != self.config.num_channels or not values.dtype.is_floating_point:
            raise ValueError(
                f"encoders.Function: expected float values {expected}; got {tuple(values.shape)}, {values.dtype}"
            )
        check_places("encoders.Function", self.pos_dim, domain)
        if domain.num_points != values.shape[1] or domain.batch_size not in (None, values.shape[0]):
            raise ValueError(f"encoders.Function: values {tuple(values.shape)} do not fit their domain, {domain!r}")
        if domain.is_periodic != self.config.is_periodic:
            raise ValueError(
                f"encoders.Function: is_periodic is {self.config.is_periodic}, but the domain is {domain!r}; make them "
                "agree"
            )


def interpolate(samples: FunctionBatch, places: Domain, num_neighbours: int | None = None) -> Tensor:
    """Interpolates samples: a(x) = Σ w_k a_k / Σ w_k over the K nearest, w_k = ((R - d_k) / (R d_k))².

    d_k is the distance to sample k, and R that to the (K + 1)-th nearest sample, so that the weight of a sample is 0
    when another one replaces it among the K nearest. So a is continuous, and exact at samples (Shepard's interpolation
    with the weights of Franke and Little). Gradients reach values and places.

    Args:
        samples: the functions, `(B, N, m)`.
        places: Nq points.
        num_neighbours: K; None: 2^s for s coordinates.

    Returns:
        `(B, Nq, m)`; 0 for a function without samples.
    """
    values, domain = samples
    count = 2**domain.pos_dim if num_neighbours is None else num_neighbours
    if not domain.num_points:
        return values.new_zeros(values.shape[0], places.num_points, values.shape[-1])
    pos, query_pos = domain.pos.double(), places.pos.double()
    found = nearest(pos, query_pos, k=count + 1, mask=domain.mask, periodic=domain.is_periodic)
    batch = max([t.shape[0] for t in (pos, query_pos, found.points) if t.ndim == 3], default=1)
    index = found.points.expand(batch, -1, -1)
    entry = torch.arange(batch, device=index.device)[:, None, None]
    offset = query_pos.expand(batch, -1, -1)[:, :, None] - pos.expand(batch, -1, -1)[entry, index]
    squared = (wrapped(offset) if domain.is_periodic else offset).square().sum(-1)
    is_there = found.squared.isfinite().expand(batch, -1, -1)
    border = torch.where(is_there[..., count:], squared[..., count:], math.inf)
    if index.shape[-1] <= count:  # all samples are used, and none is replaced
        border = torch.full_like(squared[..., :1], math.inf)
    # where more than K samples coincide with the place, K of them share evenly
    border = torch.where(border > 0, border, 1.0).sqrt()
    taken, is_there = squared[..., :count], is_there[..., :count]
    # distances are softened by a factor of 1e-8, so that there is no division by 0 at a sample
    scale = torch.where(border.isfinite(), border, 1.0)
    distance = (taken + (1e-8 * scale).square()).sqrt()
    weight = torch.where(is_there, ((1 - distance / border).clamp(min=0) / distance).square(), 0.0)
    total = weight.sum(-1, keepdim=True)
    # samples that are all as far as the next one share their weight
    weight = torch.where(
        total > 0, weight / torch.where(total > 0, total, 1.0), is_there / is_there.sum(-1, keepdim=True).clamp(min=1)
    )
    index, weight = index[..., :count].expand(values.shape[0], -1, -1), weight.expand(values.shape[0], -1, -1)
    entry = torch.arange(values.shape[0], device=index.device)[:, None, None]
    return (weight.to(values.dtype)[..., None] * values[entry, index]).sum(2)


def fill_gaps(samples: FunctionBatch) -> Tensor:
    """Returns values `(B, N, m)` at all points of the domain; those at masked points are interpolated from the others.

    See `interpolate`; a function without samples is 0.
    """
    values, domain = samples
    if domain.mask is None:
        return values
    missing = ~domain.mask.expand(len(values), -1)
    # an equal number of points of each function, the largest number of missing ones; missing points come first
    index = missing.byte().topk(int(missing.sum(1).amax()), dim=1).indices[..., None]
    pos = domain.pos.expand(len(values), -1, -1).take_along_dim(index, 1)
    found = interpolate(samples, Points(pos, periodic=domain.is_periodic))
    return torch.where(missing[..., None], values.scatter(1, index.expand_as(found), found), values)
