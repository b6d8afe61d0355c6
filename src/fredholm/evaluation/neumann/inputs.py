"""What a hop, or a series of hops, is made of."""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Domain, preceding_counts
from fredholm.kernels import FrobeniusNorm, HopNorm, Neumann, RowNorm
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.neumann.neumann import HopActivation, HopForm

ACTIVATIONS: tuple[HopActivation, ...] = ("relu", "gelu", "abs", "identity")
NORMS: tuple[type[HopNorm], ...] = (FrobeniusNorm, RowNorm)
"""The norms that tiles know; an operator of PyTorch is told one by its place here."""


class HopInputs(NamedTuple):
    """Everything that the integral depends on; what is not there is an empty tensor. B' and H' are 1, or B and H."""

    query: Tensor  # q, times the scale: (B, H, Nq, d)
    own: Tensor  # q at the points, where the queries are others: (B, H, N, d)
    key: Tensor  # (B, H, N, d)
    value: Tensor  # v; of points before a chunk v + y, or v where κ is one hop: (B, H, N, d_v)
    gamma: Tensor  # γ: (H,); empty: κ is one hop
    before: Tensor  # c of the points before a chunk: (B, H)
    mass: Tensor  # ω: (B', N)
    pairs: Tensor  # m: (B', H', Nq, N)
    seen: Tensor  # how many leading points each query sees, int64: (B', Nq)
    own_seen: Tensor  # the same of the points, where the queries are others: (B', N)

    @property
    def working_dtype(self) -> torch.dtype:
        """What scores, norms and sums are computed in."""
        return torch.promote_types(self.query.dtype, torch.float32)


class HopPlan(NamedTuple):
    """How the integral is computed: places in `ACTIVATIONS` and `NORMS`, a solver of `solvers.py`, what it needs."""

    activation: int
    norm: int
    solver: int = 0
    tolerance: float = 0.0  # of the iteration: a residual; of the truncated series: a remainder
    limit: int = 0  # of the iteration: hops at most; of the truncated series: hops, or 0 where the tolerance says
    restart: int = 0  # of the iteration: directions kept at a time

    def encoded(self) -> list[float]:
        """As an operator of PyTorch takes it."""
        return [float(number) for number in self]

    @classmethod
    def decoded(cls, code: list[float]) -> "HopPlan":
        """The plan that `encoded` was given."""
        activation, norm, solver, tolerance, limit, restart = code
        return cls(int(activation), int(norm), int(solver), tolerance, int(limit), int(restart))

    @property
    def has_one_norm(self) -> bool:
        """Whether the norm is a number of all points, or of all so far, and not of a row by itself."""
        return NORMS[self.norm] is FrobeniusNorm


def gathered(kernel: Neumann, form: HopForm, domain: Domain, query_domain: Domain) -> HopInputs:
    """Keys and values for every head, and of masses, pair weights and order what is not all ones."""
    kernel.check_pair_weights(domain)
    batch, heads = len(form.value), form.query.shape[1]
    nothing = form.query.new_empty(0)
    elsewhere, causal, pairs = form.own is not None, kernel.is_causal, domain.pair_weights
    mass = nothing if domain.is_even and domain.mask is None else torch.atleast_2d(kernel.measure(domain))
    factor = range_factor(kernel, form, mass)
    return HopInputs(
        query=(form.query * factor).expand(batch, -1, -1, -1),
        own=nothing if form.own is None else form.own * factor,
        key=each_query_head(form.key, heads),
        value=each_query_head(form.value, heads),
        gamma=nothing if kernel.discount is None else kernel.discount(),
        before=nothing,
        mass=mass,
        pairs=nothing if pairs is None else pairs,
        seen=preceding_counts(query_domain, domain) if causal else nothing.long(),
        own_seen=preceding_counts(domain, domain) if causal and elsewhere else nothing.long(),
    )


def continued(kernel: Neumann, form: HopForm, keys: Tensor, values: Tensor, norm: Tensor) -> tuple[HopInputs, Tensor]:
    """A chunk of a causal sequence, which goes on after others; and what its norms are to be multiplied by.

    Args:
        kernel: a causal kernel.
        form: the chunk's.
        keys, values: those of earlier points and of the chunk; of earlier ones v + y, where κ is a series.
        norm: c of the last point before, `(B, H)`.
    """
    heads, nothing = kernel.num_heads, form.query.new_empty(0)
    total, count = keys.shape[2], form.query.shape[2]
    factor = range_factor(kernel, form._replace(key=keys), nothing)
    inputs = HopInputs(
        query=form.query * factor,
        own=nothing,
        key=each_query_head(keys, heads),
        value=each_query_head(values, heads),
        gamma=nothing if kernel.discount is None else kernel.discount(),
        before=norm * factor if isinstance(kernel.norm, FrobeniusNorm) else nothing,
        mass=nothing,
        pairs=nothing,
        seen=torch.arange(total - count + 1, total + 1, device=keys.device)[None],
        own_seen=nothing.long(),
    )
    return inputs, 1 / factor


def range_factor(kernel: Neumann, form: HopForm, mass: Tensor) -> Tensor:
    """A power of two for the queries, which cancels in a hop, so that squares of scores stay within floating range.

    Points without mass, `(B', N)` or empty, have no say in it: their scores are in no norm and no sum.
    """
    dtype = torch.promote_types(form.query.dtype, torch.float32)
    points = form.query if form.own is None else form.own
    if kernel.activation == "gelu" or min(points.numel(), form.key.numel()) == 0:
        return torch.ones((), dtype=dtype, device=points.device)
    sizes = [part.detach().abs() for part in (points, form.key)]
    if mass.numel():
        sizes = [size.where(mass[:, None, :, None] > 0, 0.0) for size in sizes]
    largest = sizes[0].amax().to(dtype) * sizes[1].amax().to(dtype)
    exponent = torch.frexp(torch.where((largest > 0) & largest.isfinite(), largest, 1.0)).exponent
    return torch.ldexp(torch.ones_like(largest), -exponent)
