"""One integral of hops, ready to be computed: its tiles, and the numbers that both directions share."""

from typing import final

from torch import Tensor

from fredholm.evaluation.neumann.inputs import HopInputs, HopPlan
from fredholm.evaluation.neumann.norms import BlockNorm, Order, reciprocal
from fredholm.evaluation.neumann.series import num_terms
from fredholm.evaluation.neumann.solvers import SERIES
from fredholm.evaluation.neumann.system import System
from fredholm.evaluation.neumann.tiles import HopTiles


@final
class Problem:
    """Heads of a batch in a row, G = B·H, in the working dtype.

    Args:
        tensors: the fields of `HopInputs`.
        plan: see `HopPlan`.
        elements: pairs in a tile, about; None: as `HopTiles` has it.

    Attributes:
        asked, points: scores of the queries, and of the points themselves, which are the same tiles where those are
            the queries.
        is_elsewhere: whether the queries are others than the points.
        start: points before the first row, where a chunk goes on after others.
        value: v, `(G, N, c)`.
        gamma: γ, `(G, 1, 1)`; None: κ is one hop.
    """

    def __init__(self, tensors: list[Tensor], plan: HopPlan, elements: int | None) -> None:
        own = self.inputs = HopInputs(*tensors)
        if plan.solver == SERIES and not plan.limit and own.gamma.numel():
            plan = plan._replace(limit=num_terms(float(own.gamma.max()), plan.tolerance))
        self.plan = plan
        place = (own.key, own.mass, own.pairs)
        self.asked = HopTiles(own.query, *place, own.seen, plan.activation, elements)
        self.is_elsewhere = own.own.ndim == 4
        self.points = self.asked
        if self.is_elsewhere:
            self.points = HopTiles(own.own, *place, own.own_seen, plan.activation, elements)
        self.start = own.key.shape[2] - self.points.num_queries
        self.dtype = self.asked.dtype
        self.value = own.value.flatten(0, 1).to(self.dtype).contiguous()
        self.gamma = None
        if own.gamma.numel():
            self.gamma = own.gamma.to(self.dtype).repeat(self.asked.batch)[:, None, None]

    @property
    def num_heads(self) -> int:
        """G."""
        return len(self.value)

    def norm(self, rows: Tensor) -> BlockNorm:
        """The norm of a block, from what was measured of the points' rows."""
        before = self.inputs.before
        return BlockNorm(rows, self.point_mass(), before.flatten() if before.ndim == 2 else None)

    def point_mass(self) -> Tensor | None:
        """ω, `(G, N)`; None: all 1."""
        mass = self.points.mass
        if mass is None:
            return None
        return mass.expand(self.points.batch, -1).repeat_interleave(self.points.num_heads, 0)

    def order(self, tiles: HopTiles) -> Order | None:
        """Which rows count in the norms of these queries; None: all."""
        if tiles.order is None:
            return None
        seen = tiles.order.expand(tiles.batch, -1).repeat_interleave(tiles.num_heads, 0)
        return Order(seen, self.start)

    def weight(self, norm: Tensor) -> Tensor:
        """γ / c, or 1 / c, `(G, Nq, 1)`."""
        inverse = reciprocal(norm, self.dtype)[..., None]
        return inverse if self.gamma is None else self.gamma * inverse

    def system(self, heads: slice, weight: Tensor) -> System:
        """The equation of the series on some heads."""
        return System(self.points, heads, weight[heads])
