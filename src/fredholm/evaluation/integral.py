"""The integral as a value: a kernel, a signal and where it lives, and where the result is wanted."""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

import torch
from torch import Tensor

from fredholm.domains import Domain, Points, order_times, past_mass
from fredholm.kernels import Kernel, MultiHead

K = TypeVar("K", bound=Kernel, covariant=True)
Answer = TypeVar("Answer")


@final
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Integral(Generic[K]):
    """∫ κ(x, y, u(x), u(y)) u(y) dμ(y) at every query x, with all defaults resolved.

    Whether the queries are the points is decided here, once, by what they are: nobody else compares them.

    Args:
        kernel: κ, with d_in input and d_out output channels.
        u: signal at the keys, `(B, N, d_in)`; 0 at points that do not exist.
        domain: where u lives, N points; `kernel.measure` says what they weigh.
        query: signal at the queries, `(B, Nq, query_dim)`; None: u, where the queries are the points.
        query_domain: where the queries lie, Nq points; None: `domain`.

    Attributes:
        query: zeros, which nobody reads, where the queries lie elsewhere and their signal was not given.
        has_query_signal: whether u(x) is known.
        at_points: whether the queries lie at the points: the same positions, times and masks, in one order.
        own_queries: whether, besides, u(x) is the signal itself, or is not read.

    Raises:
        ValueError: where the kernel reads u(x) at queries whose signal was not given.
    """

    kernel: K
    u: Tensor
    domain: Domain
    query: Tensor
    query_domain: Domain
    has_query_signal: bool
    at_points: bool
    own_queries: bool
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
        own = at_points and (query is None or query is u or not kernel.reads_query)
        if query is None:
            shape = (u.shape[0], query_domain.num_points, kernel.query_dim)
            query = u if at_points else u.new_zeros(()).expand(shape)
        vars(self).update(  # a frozen dataclass refuses the plain form
            kernel=kernel,
            u=u,
            domain=domain,
            query=query,
            query_domain=query_domain,
            has_query_signal=known,
            at_points=at_points,
            own_queries=own,
            _answers={},
        )

    @property
    def arguments(self) -> tuple[Tensor, Domain, Tensor | None, Domain | None]:
        """What a kernel's functions take: u, domain, query and query domain, None where they are the points' own."""
        query = None if self.own_queries and self.own_positions else self.query
        return self.u, self.domain, query, None if self.own_positions else self.query_domain

    @property
    def own_positions(self) -> bool:
        """Whether the queries lie at the points, and no gradient tells their positions from those of the points."""
        asked, pos = self.query_domain.pos, self.domain.pos
        return self.at_points and (asked is pos or not (asked.requires_grad or pos.requires_grad))

    @property
    def working_dtype(self) -> torch.dtype:
        """The dtype of products: that of autocast where it is on, else that of the signal."""
        kind = self.u.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.u.dtype

    @property
    def num_queries(self) -> int:
        """Nq."""
        return self.query_domain.num_points

    @property
    def num_heads(self) -> int:
        """Heads that can be taken apart, each with an equal share of the channels; 1: none."""
        return self.kernel.num_heads if isinstance(self.kernel, MultiHead) else 1

    def once(self, question: Callable[["Integral[K]"], Answer]) -> Answer:
        """What a function says of this integral, computed at most once however many routes ask."""
        if question not in self._answers:
            self._answers[question] = question(self)
        return self._answers[question]

    def of(self, kernel: Kernel) -> "Integral[Kernel]":
        """The integral of another kernel on the same channels."""
        return Integral(kernel, self.u, self.domain, *self.arguments[2:])

    def head(self, index: int) -> "Integral[Kernel]":
        """The integral of one of `num_heads` heads, on its share of the channels."""
        if not isinstance(self.kernel, MultiHead):
            return self
        u, domain, query, query_domain = self.arguments
        heads = self.num_heads
        query = None if query is None else share(query, index, heads)
        return Integral(self.kernel.head(index), share(u, index, heads), domain, query, query_domain)


def share(signal: Tensor, head: int, num_heads: int) -> Tensor:
    """The channels of one head, `(B, N, C / H)`."""
    size = signal.shape[-1] // num_heads
    return signal[..., head * size : (head + 1) * size]


def ordered_queries(integral: Integral[Any]) -> tuple[Domain, Tensor | None]:
    """The queries' domain and the points' times, `(1 or B, N)`, by which nodes keep their order; None: no order.

    Of a causal kernel the queries also keep the mass of their past, which nodes alone do not tell.
    """
    queries = integral.query_domain
    if not integral.kernel.is_causal:
        return queries, None
    asked, times = order_times(queries, integral.domain)
    past = past_mass(queries, integral.domain)
    pos = queries.pos if queries.pos.ndim == 3 else queries.pos[None]
    batch = max(len(pos), len(asked))
    pos, asked = pos.expand(batch, -1, -1), asked.expand(batch, -1)
    return Points.derived(queries, pos, pos.new_ones(pos.shape[:2]), asked, past), times
