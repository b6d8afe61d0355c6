"""The routes of hops, on whole signals or along a sequence in chunks. Legend: `hops.py`."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm.domains.checks import values_can_be_read
from fredholm.evaluation.evaluation import StatefulRoute, cache_refusals
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.neumann.hops import HopInputs, hops
from fredholm.evaluation.neumann.solvers import Solver, Substitution
from fredholm.evaluation.pair_tiles import measured
from fredholm.kernels import FrobeniusNorm, Neumann, RowNorm, State, Stateful
from fredholm.kernels.heads import each_query_head
from fredholm.kernels.kernel import stateful
from fredholm.kernels.neumann.infinite_attention import HopForm, over_own_power


@final
@dataclasses.dataclass(frozen=True)
class HopTiled(StatefulRoute[Neumann]):
    """For `Neumann` kernels of one hop: scores, norms and sums tile by tile, in memory that grows with N.

    Cost per pair and head 2(d + d_v) flops forward and five such products backward. Scores, norms and sums are in at
    least float32, or in float64 where masses lie far apart (`FAR_APART`).

    Args:
        tile_elements: pairs in a tile; None: 2^17 a thread on a CPU, which its cache can hold, 2^24 elsewhere.
    """

    marker = Neumann
    weighs_pairs = True
    tile_elements: int | None = None

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses series, and custom norms; see `Route.refusals`."""
        series = integral.kernel.discount is not None
        return [*(["the kernel is a series of hops, not one"] if series else []), *_refusals(integral)]

    def compute(self, integral: Integral[Neumann]) -> Tensor:
        """See `Route.compute`."""
        return _integrate(integral, None, self.tile_elements)

    def run_refusals(self, integral: Integral[Neumann], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses resets, masks and weights, which a cache of keys does not keep."""
        return _run_refusals(integral, reset)

    def advance(
        self, integral: Integral[Neumann], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`; the state is all keys and values so far, and the norm."""
        return _continue(integral, state, None, self.tile_elements)


@final
@dataclasses.dataclass(frozen=True)
class HopSeries(StatefulRoute[Neumann]):
    """For `Neumann` series: y = B (v + y) by a solver, hops in tiles, in memory O(N·d) plus that of the solver.

    The backward pass solves the transposed system in the same way, then equals that of one hop. Scores, norms and sums
    are in at least float32, or in float64 where masses are far apart (`FAR_APART`).

    Args:
        solver: `Substitution()` for causal series, `Factorisation()`, `Iteration()`, or `Truncation()`, an
            approximation.
        tile_elements: as in `HopTiled`.
    """

    marker = Neumann
    weighs_pairs = True
    solver: Solver = dataclasses.field(default_factory=Substitution)
    tile_elements: int | None = None

    @property
    def name(self) -> str:
        """The route's name, and its solver's."""
        return f"HopSeries({type(self.solver).__name__})"

    def refusals(self, integral: Integral[Neumann]) -> list[str]:
        """Refuses single hops, custom norms, and what the solver refuses."""
        reasons = ["the kernel is one hop, not a series"] if integral.kernel.discount is None else []
        return reasons + self.solver.refusals(integral) + _refusals(integral)

    def compute(self, integral: Integral[Neumann]) -> Tensor:
        """See `Route.compute`."""
        return _integrate(integral, self.solver, self.tile_elements)

    def run_refusals(self, integral: Integral[Neumann], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses solvers of whole series, and resets, masks and weights, which a cache of keys does not keep."""
        whole = [] if self.solver.carries_state else [f"{type(self.solver).__name__} solves for all points at once"]
        return whole + _run_refusals(integral, reset)

    def advance(
        self, integral: Integral[Neumann], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`; the state is all keys and v + y so far, and the norm."""
        return _continue(integral, state, self.solver, self.tile_elements)


def _refusals(integral: Integral[Neumann]) -> list[str]:
    """Reasons why tiles do not support a kernel and its queries, a sentence each."""
    kernel = integral.kernel
    reasons = kernel.elsewhere(integral.domain, None if integral.at_points else integral.query_domain)
    if not isinstance(kernel.norm, FrobeniusNorm | RowNorm):
        reasons.append(f"tiles do not support the norm {type(kernel.norm).__name__}")
    return reasons + kernel.score.not_numbers()


def _run_refusals(integral: Integral[Neumann], reset: Tensor | None) -> list[str]:
    kernel = integral.kernel
    other = isinstance(kernel, Stateful) and not kernel.has_growing_state
    reasons = ["the kernel's state is not all points, and this route carries no other"] if other else []
    return reasons + cache_refusals(integral, reset)


def _integrate(integral: Integral[Neumann], solver: Solver | None, elements: int | None) -> Tensor:
    """The integral, `(B, Nq, H·d)`."""
    kernel, domain = integral.kernel, integral.domain
    form = kernel.hop_form(integral.u, None if integral.own_queries else integral.query)
    heads = form.query.shape[1]
    mass, pairs, seen = measured(kernel, domain, integral.query_domain)
    if mass is not None and mass.shape[1]:
        if not domain.is_uniform and _are_far_apart(mass):
            own = None if form.own is None else form.own.double()
            form = HopForm(form.query.double(), own, form.key.double(), form.value.double())
            mass = mass.double()
        # a factor of the masses cancels too; gradients divide by the square of the norm, which contains masses
        mass = over_own_power(mass)
    factor = _range_factor(kernel, form, mass)
    inputs = HopInputs(
        query=_scaled(kernel, form.query, factor).expand(form.value.shape[0], -1, -1, -1),
        own=None if form.own is None else _scaled(kernel, form.own, factor),
        key=each_query_head(form.key, heads),
        value=each_query_head(form.value, heads),
        gamma=None if kernel.discount is None else kernel.discount(),
        before=None,
        mass=mass,
        pairs=pairs,
        seen=seen,
        own_seen=None if form.own is None else measured(kernel, domain, domain)[2],
    )
    out, _ = _computed(kernel, inputs, solver, elements)
    return out.to(integral.working_dtype).transpose(1, 2).flatten(2)


FAR_APART = 2.0**20
"""Ratio of masses above which the gradients of norms, up to its square, leave the range of float32."""


def _are_far_apart(mass: Tensor) -> bool:
    """Whether masses differ by more than `FAR_APART`; False if they cannot be read. Masses of 0 are in no norm."""
    if not values_can_be_read(mass):
        return False
    least = torch.where(mass > 0, mass, torch.inf).amin()
    return bool(mass.amax().double() > FAR_APART * least.double())


def _continue(
    integral: Integral[Neumann], state: State | None, solver: Solver | None, elements: int | None
) -> tuple[Tensor, State]:
    """The integral along a sequence that continues from a state, as in `StatefulRoute.advance`."""
    kernel, u = integral.kernel, integral.u
    state = stateful(kernel).initial_state(u.shape[0]) if state is None else state
    if u.shape[1] == 0:
        return u.new_zeros(u.shape[0], 0, kernel.out_dim), state
    form, heads = kernel.hop_form(u, None), kernel.num_heads
    keys = torch.cat([state[0].to(form.key.dtype), form.key], dim=2)
    value = form.value.to(state[1].dtype)
    if kernel.discount is not None:
        value = each_query_head(value, heads)
    values = torch.cat([state[1], value], dim=2)
    total, count = keys.shape[2], form.query.shape[2]
    factor = _range_factor(kernel, form._replace(key=keys), None)
    inputs = HopInputs(
        query=form.query.to(factor.dtype) * factor,
        own=None,
        key=each_query_head(keys, heads),
        value=each_query_head(values, heads),
        gamma=None if kernel.discount is None else kernel.discount(),
        before=state[2] * factor if isinstance(kernel.norm, FrobeniusNorm) else None,
        mass=None,
        pairs=None,
        seen=torch.arange(total - count + 1, total + 1, device=keys.device)[None],
        own_seen=None,
    )
    out, norm = _computed(kernel, inputs, solver, elements)
    carried = value if kernel.discount is None else value + out
    state = keys, torch.cat([state[1], carried], dim=2), (norm[..., -1] / factor).to(state[2].dtype)
    return out.to(form.value.dtype).transpose(1, 2).flatten(2), state


def _range_factor(kernel: Neumann, form: HopForm, mass: Tensor | None) -> Tensor:
    """A power of two for the queries, which cancels in a hop, so that squares of scores stay within floating range.

    Points without mass, `(B', N)`, are ignored: their scores are in no norm and no sum.
    """
    dtype, points = wide_dtype(form.query), form.query if form.own is None else form.own
    if not kernel.score.is_homogeneous or min(points.numel(), form.key.numel()) == 0:
        return torch.ones((), dtype=dtype, device=points.device)
    sizes = [part.detach().abs() for part in (points, form.key)]
    if mass is not None:
        sizes = [size.where(mass[:, None, :, None] > 0, 0.0) for size in sizes]
    largest = sizes[0].max().to(dtype) * sizes[1].max().to(dtype)
    exponent = torch.frexp(torch.where((largest > 0) & largest.isfinite(), largest, 1.0)).exponent
    return torch.ldexp(torch.ones_like(largest), -exponent)


def _scaled(kernel: Neumann, query: Tensor, factor: Tensor) -> Tensor:
    """Queries times a power of two, in the dtype of the factor, because in 16 bits their gradient may overflow.

    Under row norms each query is divided by a power of its own instead, since all scores of a row may be tiny.
    """
    query = query.to(factor.dtype)
    has_own_powers = isinstance(kernel.norm, RowNorm) and kernel.score.is_homogeneous
    return over_own_power(query) if has_own_powers else query * factor


def _computed(kernel: Neumann, inputs: HopInputs, solver: Solver | None, elements: int | None) -> tuple[Tensor, Tensor]:
    """The integral `(B, H, Nq, c)` and the norms `(B, H, Nq)`."""
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    options = [] if solver is None else solver.options(inputs.query.dtype)
    found = hops(inputs, kernel.score.encoded(), isinstance(kernel.norm, FrobeniusNorm), options, elements, keep)
    return found.out, found.norm
