"""The integral as a value: kernel, signal, domain and queries, with defaults resolved."""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

from fredholm._precision import product_dtype
from fredholm.domains import Domain, Points, order_times, past_mass
from fredholm.domains.checks import is_open
from fredholm.domains.order import check_order
from fredholm.kernels import Kernel, MultiHead, State
from fredholm.kernels.kernel import stateful

K = TypeVar("K", bound=Kernel, covariant=True)
Answer = TypeVar("Answer")


@final
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Integral(Generic[K]):
    """∫ κ(x, y, u(x), u(y)) u(y) dμ(y) at every query x, with all defaults resolved.

    Whether the queries are the points is decided here, by comparing the domains; no other code compares them.

    Args:
        kernel: κ, with d_in input and d_out output channels.
        u: signal at the keys, `(B, N, d_in)`; 0 at points that do not exist.
        domain: the N points of u; their masses are `kernel.measure(domain)`.
        query: signal at the queries, `(B, Nq, query_dim)`; None: u, where the queries are the points.
        query_domain: the Nq queries; None: `domain`.

    Attributes:
        query: zeros, which are not read, where the queries are other points without a signal.
        has_query_signal: whether u(x) is known.
        at_points: whether the queries lie at the points: the same positions, times and masks, in one order.
        own_queries: whether, in addition, u(x) is the signal itself, or is not read.
        differentiable_twice: whether second or forward-mode derivatives are needed.

    Raises:
        ValueError: where the kernel reads u(x) at queries whose signal was not given, or is not that of the points.
    """

    kernel: K
    u: Tensor
    domain: Domain
    query: Tensor
    query_domain: Domain
    has_query_signal: bool
    at_points: bool
    own_queries: bool
    differentiable_twice: bool
    _answers: dict[Any, Any]

    def __init__(
        self, kernel: K, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> None:
        at_points = query_domain is None or query_domain.has_points_of(domain)
        query_domain = domain if query_domain is None else query_domain
        known = query is not None or at_points
        if kernel.reads_query and not known:
            raise ValueError(
                f"{type(kernel).__name__} reads u(x), and the queries {query_domain!r} are not the points of u; "
                "give query=, the signal there"
            )
        if query is None and kernel.reads_query and kernel.query_dim != u.shape[-1]:
            raise ValueError(
                f"{type(kernel).__name__} reads u(x) with {kernel.query_dim} channels, and the signal at the points "
                f"has {u.shape[-1]}; give query=, the signal at the queries"
            )
        own = at_points and (query is None or query is u or not kernel.reads_query)
        if query is None:
            query = u
            if not at_points:
                query = u.new_zeros(()).expand(u.shape[0], query_domain.num_points, kernel.query_dim)
        found = {
            "kernel": kernel,
            "u": u,
            "domain": domain,
            "query": query,
            "query_domain": query_domain,
            "has_query_signal": known,
            "at_points": at_points,
            "own_queries": own,
            "differentiable_twice": False,
            "_answers": {},
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)  # plain assignment is refused by a frozen dataclass

    @property
    def arguments(self) -> tuple[Tensor, Domain, Tensor | None, Domain | None]:
        """Arguments of a kernel's functions: u, domain, query and query domain, None where they are the points' own."""
        query = None if self.own_queries and self.own_positions else self.query
        return self.u, self.domain, query, None if self.own_positions else self.query_domain

    @property
    def own_positions(self) -> bool:
        """Whether the queries are at the points, and their positions have no separate gradient."""
        query_pos, pos = self.query_domain.pos, self.domain.pos
        return self.at_points and (query_pos is pos or not (query_pos.requires_grad or pos.requires_grad))

    @property
    def working_dtype(self) -> torch.dtype:
        """The dtype of products and of the result: the signal's, or autocast's, which leaves float64 as it is."""
        return product_dtype(self.u)

    @property
    def is_empty(self) -> bool:
        """Whether there is no batch entry, no point, no query or no listed pair, so that the integral is `nothing`."""
        if self.has_no_points or self.num_queries == 0:
            return True
        pairs = None if self.domain.pair_list is None else self.domain.pair_list.num_pairs
        return pairs is not None and not is_open(pairs) and pairs == 0

    @property
    def has_no_points(self) -> bool:
        """Whether no batch entry has a point, so that a state does not change."""
        return 0 in (self.u.shape[0], self.domain.num_points)

    def state_after_nothing(self, state: State | None) -> State:
        """The state at the end of an empty sequence that continues from `state`; without batch entries only its sizes.

        Raises:
            TypeError: where the kernel carries no state.
        """
        kernel, (batch, length) = stateful(self.kernel), self.u.shape[:2]
        before = kernel.initial_state(batch) if state is None else state
        if not length or not kernel.has_growing_state:
            return before
        # every point adds as much to the state as the first, and there are no times
        _, after = kernel.step(self.u[:, 0], before, self.u.new_zeros(0, dtype=torch.float64))
        grown = [
            [size + length * (larger - size) for size, larger in zip(old.shape, new.shape, strict=True)]
            for old, new in zip(before, after, strict=True)
        ]
        return tuple(new.new_zeros(shape) for new, shape in zip(after, grown, strict=True))

    def nothing(self) -> Tensor:
        """0 at every query, `(B, Nq, d_out)`, connected to the inputs with gradient 0."""
        places = (self.domain.pos, self.domain.weights, self.query_domain.pos)
        parts = (self.u, self.query, *places, *self.kernel.parameters())
        # empty sums: their gradients exist, and are 0 even where a value is not finite
        zero = sum((part.flatten()[:0].sum().to(self.working_dtype) for part in parts), start=self.u.new_zeros(()))
        return zero.to(self.working_dtype).expand(self.u.shape[0], self.num_queries, self.kernel.out_dim)

    @property
    def is_shared(self) -> bool:
        """Whether other processes hold some of the points."""
        return self.domain.whole is not None

    @property
    def has_open_sizes(self) -> bool:
        """Whether the number of points or queries is symbolic in an exported graph."""
        return is_open(self.domain.num_points) or is_open(self.num_queries)

    @property
    def num_queries(self) -> int:
        """Nq."""
        return self.query_domain.num_points

    @property
    def num_heads(self) -> int:
        """Number of separable heads with equal groups of channels; 1: none."""
        return self.kernel.num_heads if isinstance(self.kernel, MultiHead) else 1

    def cached(self, compute: Callable[["Integral[K]"], Answer]) -> Answer:
        """The result of a function of this integral, computed once for all routes."""
        if compute not in self._answers:
            self._answers[compute] = compute(self)
        return self._answers[compute]

    def of(self, kernel: Kernel) -> "Integral[Kernel]":
        """The integral of another kernel on the same channels."""
        return Integral(kernel, self.u, self.domain, *self.arguments[2:]).differentiable_as(self)

    def twice_differentiable(self) -> "Integral[K]":
        """The same integral, with `differentiable_twice`."""
        other = object.__new__(Integral)
        vars(other).update(vars(self), differentiable_twice=True)
        return other

    def differentiable_as(self, whole: "Integral[Any]") -> "Integral[K]":
        """The same integral, with the `differentiable_twice` of the whole integral that it is a part of."""
        return self.twice_differentiable() if whole.differentiable_twice else self

    def head(self, index: int) -> "Integral[Kernel]":
        """The integral of one of `num_heads` heads, on its group of channels."""
        if not isinstance(self.kernel, MultiHead):
            return self
        u, domain, query, query_domain = self.arguments
        heads = self.num_heads
        query = None if query is None else share(query, index, heads)
        return Integral(self.kernel.head(index), share(u, index, heads), domain, query, query_domain).differentiable_as(
            self
        )


def share(signal: Tensor, head: int, num_heads: int) -> Tensor:
    """The channels of one head, `(B, N, C / H)`."""
    size = signal.shape[-1] // num_heads
    return signal[..., head * size : (head + 1) * size]


def order_read(kernel: Kernel, query_domain: Domain, domain: Domain) -> tuple[Tensor | None, Tensor | None]:
    """Times or indices of the queries and of the points, by which a kernel reads the order, `(1 or B, n)` each.

    None where the kernel does not read the order, and where there is no order, which the kernel then reports.

    Raises:
        ValueError: for a causal kernel; see `domains.preceding_counts`.
    """
    precedes = kernel.is_causal and not kernel.reads_past_by_position
    if kernel.reads_order and not (query_domain.is_ordered and domain.is_ordered):
        return None, None
    if precedes:
        check_order(query_domain, domain)
    return order_times(query_domain, domain) if precedes or kernel.reads_order else (None, None)


def ordered_queries(integral: Integral[Any]) -> tuple[Domain, Tensor | None]:
    """The queries' domain and the points' times, `(1 or B, N)`, by which nodes keep their order; None: no order.

    For a causal kernel the queries also keep the mass of their past, which does not follow from nodes.
    """
    queries, kernel = integral.query_domain, integral.kernel
    reads = kernel.is_causal or kernel.reads_order
    query_times, times = order_read(kernel, queries, integral.domain) if reads else (None, None)
    if query_times is None:
        return queries, None
    past = past_mass(queries, integral.domain) if kernel.is_causal else None
    pos = queries.pos if queries.pos.ndim == 3 else queries.pos[None]
    batch = max(pos.shape[0], query_times.shape[0])
    pos, query_times = pos.expand(batch, -1, -1), query_times.expand(batch, -1)
    return Points.derived(queries, pos, pos.new_ones(pos.shape[:2]), query_times, past), times
