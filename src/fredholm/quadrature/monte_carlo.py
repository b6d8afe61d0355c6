"""Monte Carlo integration with importance weights. Legend: `quadrature.py`.

    (K̂ u)(x_i) = Σ_m ω_{j_m} / (M p_{j_m}) κ(x_i, y_{j_m}) u(y_{j_m}),   j_m drawn from p = (1 - ε) p_φ + ε ω / Σω

is unbiased, and its variance falls as 1 / M. Gradients in κ and u take nodes and weights as constants; φ learns from
an auxiliary loss of its own (`Nodes.proposal_loss`), which an operator hands to the training loop.

Source: ITNet (arXiv 2606.19538), 3.2 and H.11, eq. 13-14 and 207-210. Deviations: p is a probability over the points,
so that a node weighs ω / p (eq. 13 has 1 / p); the uniform share follows the measure; and eq. 14 lacks the importance
weights without which p_φ collapses (`pairs.cross_entropy`).
"""

import math
import warnings
from typing import Any, Literal, final

import torch
from torch import Tensor

from fredholm._settings import check_count, check_number, refuse_idle
from fredholm.evaluation import Integral
from fredholm.quadrature.anchors import Anchors
from fredholm.quadrature.nodes import NodesPerQuery, SharedNodes
from fredholm.quadrature.pairs import Learning, Past, batched, past_of, take
from fredholm.quadrature.proposal import KeyProposal, PairProposal
from fredholm.quadrature.quadrature import Nodes, Quadrature, mass_of

Draw = Literal["independent", "stratified", "quasi_random"]
PROPOSED_PAIRS = 1 << 22
"""Number of query-point probabilities held in memory at once."""


@final
class MonteCarlo(Quadrature):
    """Draws M new points at every call, shared by all queries or separately for each.

    With shared nodes the sum stays a dense matrix product, of N / M times less work than the exact sum. Separate nodes
    for each query are more accurate where κ is local, at the price of gathering them.

    Args:
        num_samples: M >= 1. A domain of M points or fewer is summed whole, with a warning.
        proposal: p_φ; None draws points by their mass. A `KeyProposal` is for shared nodes, a `PairProposal` for nodes
            of each query.
        per_query: whether every query has nodes of its own; None: as the proposal needs, shared without a proposal.
            Shared nodes differ between heads where the kernel splits into heads.
        draw: "independent"; "stratified", one node in each of M runs of equal probability along a curve through the
            points; or "quasi_random", a lattice on that curve with a random shift. The curve of a causal kernel is the
            order of its points.
        uniform_share: ε, in (0, 1), of a proposal.
        at_evaluation: the quadrature in eval mode: another quadrature, "draws" as in training, or "anchors" as in the
            paper, `Anchors(num_samples)`; all points instead of anchors where the kernel is causal or reads an order.
        loss_weight: λ >= 0, the weight of the proposal's loss relative to the task's. The proposal's loss sees one pair
            at a time: for a kernel that is a quotient, such as attention, it sees the values and not the scores.
        num_targets: number of queries per batch entry in that loss, >= 1.

    Raises:
        ValueError, TypeError: on numbers out of range, a proposal for the other kind of nodes, or settings of a
            proposal without a proposal.
    """

    def __init__(
        self,
        num_samples: int,
        proposal: KeyProposal | PairProposal | None = None,
        *,
        per_query: bool | None = None,
        draw: Draw = "independent",
        uniform_share: float = 0.01,
        at_evaluation: Quadrature | Literal["anchors", "draws"] = "anchors",
        loss_weight: float = 0.1,
        num_targets: int = 8,
    ) -> None:
        super().__init__()
        _check_options(num_samples, draw, uniform_share, loss_weight, num_targets)
        _refuse_without_learning(proposal is not None, uniform_share, loss_weight, num_targets)
        self.per_query = _checked_kind(proposal, per_query)
        self.num_samples, self.uniform_share = num_samples, uniform_share
        self.draw: Draw = draw
        self.learning = Learning(loss_weight, num_targets)
        self.proposal = proposal
        if at_evaluation not in ("anchors", "draws") and not isinstance(at_evaluation, Quadrature):
            raise TypeError(
                f"quadrature.MonteCarlo: at_evaluation is a quadrature, 'anchors' or 'draws'; got {at_evaluation!r}"
            )
        self.at_evaluation = Anchors(num_samples) if at_evaluation == "anchors" else at_evaluation

    def nodes(self, integral: Integral[Any]) -> Nodes | None:
        """See `Quadrature.nodes`."""
        num_points = integral.domain.num_points
        if not self.training and isinstance(self.at_evaluation, Quadrature):
            # anchors are means of neighbours, which would let a causal kernel look ahead, and have no place in an order
            anchors, kernel = isinstance(self.at_evaluation, Anchors), integral.kernel
            in_order = kernel.is_causal or kernel.reads_order
            return None if anchors and in_order else self.at_evaluation.nodes(integral)
        if self.num_samples >= num_points:
            if not torch.compiler.is_compiling():
                warnings.warn(
                    f"quadrature.MonteCarlo: {self.num_samples} samples of a domain of {num_points} points; "
                    "all points are summed instead",
                    stacklevel=3,
                )
            return None
        return self._per_query(integral) if self.per_query else self._shared(integral)

    def describe(self, num_points: int) -> str:
        """See `Quadrature.describe`."""
        if not self.training and isinstance(self.at_evaluation, Quadrature):
            return f"in eval mode {self.at_evaluation.describe(num_points)}"
        if self.num_samples >= num_points:
            return f"all {num_points} points, because {self.num_samples} samples are no fewer"
        whose = "of each query's own" if self.per_query else "that all queries share"
        by = "mass" if self.proposal is None else type(self.proposal).__name__
        return f"{self.num_samples} of {num_points} points {whose}, drawn by {by} ({self.draw})"

    def _shared(self, integral: Integral[Any]) -> SharedNodes:
        u, domain, heads = integral.u, integral.domain, integral.num_heads
        shape = (u.shape[0], heads, domain.num_points)
        proposal, mass = self.proposal, mass_of(integral).detach()
        if not isinstance(proposal, KeyProposal):
            return SharedNodes(*self._drawn(mass[:, None].double().expand(shape), mass, self._order(integral)))
        if proposal.num_heads not in (1, heads):
            which = f"can differ between {heads}; build it with num_heads={heads}, or 1"
            if heads == 1:
                which = "are the same for all heads; build it with num_heads=1"
            message = f"the proposal has {proposal.num_heads} heads but the nodes of this kernel {which}"
            raise ValueError(f"quadrature.MonteCarlo: {message}")

        def log_probability() -> Tensor:
            return log_mixture(proposal.logits(u, domain), mass[:, None], self.uniform_share).expand(shape)

        with torch.no_grad():
            index, weights = self._drawn(log_probability().double().exp(), mass, self._order(integral))
        return SharedNodes(index, weights, lambda: log_probability().gather(2, index), self.learning)

    def _per_query(self, integral: Integral[Any]) -> NodesPerQuery:
        domain, query_domain = integral.domain, integral.query_domain
        past, mass, order = past_of(integral), mass_of(integral).detach(), self._order(integral)
        order = order if past is None or past.order is None else past.order
        proposal = self.proposal
        if not isinstance(proposal, PairProposal):
            return self._by_mass(integral, mass, None if past is None else past.counts, order)
        batch, num_queries = integral.u.shape[0], query_domain.num_points
        query = integral.query
        if not integral.has_query_signal:
            raise ValueError("quadrature.MonteCarlo: a PairProposal reads the signal at the queries; pass query=")

        def log_probability(rows: Tensor) -> Tensor:
            return log_mixture(
                proposal.logits(integral.u, domain, query, query_domain, rows),
                _visible(mass, past, rows),
                self.uniform_share,
            ).expand(batch, -1, -1)

        size = max(1, PROPOSED_PAIRS // max(1, batch * domain.num_points))
        pieces = []
        with torch.no_grad():
            for rows in torch.arange(num_queries, device=mass.device).split(size):
                share = log_probability(rows).double().exp() * (_visible(mass, past, rows) > 0)
                pieces.append(self._drawn(share, mass, order))
        index, weights = (torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True))
        return NodesPerQuery(
            index, weights, lambda rows: log_probability(rows).gather(2, index[:, rows]), self.learning
        )

    def _order(self, integral: Integral[Any]) -> Tensor | None:
        """Order of the points along the curve on which draws are spread, `(1 or B, N)`; None: that of the indices."""
        if self.draw == "independent" or integral.kernel.is_causal:
            return None
        domain = integral.domain
        return domain.cached(curve_order, lambda: curve_order(batched(domain.pos)))

    def _drawn(self, share: Tensor, mass: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
        """Nodes along the curve and their weights ω / (M p), `(B, R, M)`, from p `(B, R, N)` up to a factor."""
        curve = None if order is None else order[:, None].expand_as(share)
        running = (share if curve is None else share.gather(2, curve)).cumsum(-1)
        total = running[..., -1:]
        level = levels(*share.shape[:2], num_samples=self.num_samples, draw=self.draw, device=share.device)
        index = invert(running, level, total)
        if curve is not None:
            index = curve.gather(2, index)
        drawn = share.gather(2, index)
        weights = torch.where(drawn > 0, take(mass, index) * total / (self.num_samples * drawn), 0.0)
        return index, weights.to(mass.dtype)

    def _by_mass(
        self, integral: Integral[Any], mass: Tensor, seen: Tensor | None, order: Tensor | None
    ) -> NodesPerQuery:
        """Nodes drawn by mass: one running sum serves all queries, each up to the last point that it sees."""
        batch, num_queries = integral.u.shape[0], integral.query_domain.num_points
        along = mass
        if order is not None:
            entries = max(mass.shape[0], order.shape[0])
            along = mass.expand(entries, -1).gather(1, order.expand(entries, -1))
        running = along.double().cumsum(-1).expand(batch, -1)
        last = integral.domain.num_points if seen is None else seen.expand(batch, -1)
        before = torch.nn.functional.pad(running, (1, 0))
        total = before[:, last, None] if isinstance(last, int) else before.gather(1, last)
        total = total.expand(batch, num_queries)[..., None]
        level = levels(batch, num_queries, num_samples=self.num_samples, draw=self.draw, device=mass.device)
        index = invert(running, level, total)
        if order is not None:
            index = take(order, index)
        weights = torch.where(total > 0, total / self.num_samples, 0.0).expand(index.shape)
        return NodesPerQuery(index, weights.to(mass.dtype))


def _visible(mass: Tensor, past: Past | None, rows: Tensor) -> Tensor:
    """ω where a query sees a point, else 0: `(1 or B, n or 1, N)`."""
    if past is None:
        return mass[:, None]
    return mass[:, None] * (past.places(mass.shape[1])[:, None] < past.counts[:, rows, None])


def _check_options(num_samples: int, draw: str, uniform_share: float, loss_weight: float, num_targets: int) -> None:
    for what, count in (("num_samples", num_samples), ("num_targets", num_targets)):
        check_count("quadrature.MonteCarlo", what, count)
    for what, number in (("uniform_share", uniform_share), ("loss_weight", loss_weight)):
        check_number("quadrature.MonteCarlo", what, number)
    if draw not in ("independent", "stratified", "quasi_random"):
        raise ValueError(f"quadrature.MonteCarlo: draw is 'independent', 'stratified' or 'quasi_random'; got {draw!r}")
    if not 0 < uniform_share < 1:
        raise ValueError(
            f"quadrature.MonteCarlo: uniform_share must be in (0, 1), so that every point can be drawn; got "
            f"{uniform_share}; to draw by mass, leave the proposal out"
        )
    if not 0 <= loss_weight < float("inf"):
        raise ValueError(f"quadrature.MonteCarlo: loss_weight must be >= 0 and finite; got {loss_weight}")


def _refuse_without_learning(has_proposal: bool, uniform_share: float, loss_weight: float, num_targets: int) -> None:
    """Raises ValueError on settings of a proposal that have no effect."""
    name = "quadrature.MonteCarlo"
    if not has_proposal:
        refuse_idle(
            name,
            MonteCarlo,
            "proposal=None, which draws by mass",
            "give a proposal",
            uniform_share=uniform_share,
            loss_weight=loss_weight,
            num_targets=num_targets,
        )
    elif loss_weight == 0:
        refuse_idle(name, MonteCarlo, "loss_weight=0", "give the loss a weight", num_targets=num_targets)


def _checked_kind(proposal: KeyProposal | PairProposal | None, per_query: bool | None) -> bool:
    """Checks the proposal against `per_query`; returns whether every query has nodes of its own."""
    if proposal is None:
        return bool(per_query)
    if not isinstance(proposal, KeyProposal | PairProposal):
        raise TypeError(
            f"quadrature.MonteCarlo: proposal is a KeyProposal, a PairProposal or None; got {type(proposal).__name__}"
        )
    fits = isinstance(proposal, PairProposal)
    if per_query is not None and per_query != fits:
        other = "PairProposal" if per_query else "KeyProposal"
        raise ValueError(
            f"quadrature.MonteCarlo: per_query={per_query} needs a {other}; got a {type(proposal).__name__}"
        )
    return fits


def log_mixture(logits: Tensor, mass: Tensor, uniform_share: float) -> Tensor:
    """log p with p = (1 - ε) softmax(ℓ + log ω) + ε ω / Σω, in at least float32, along the last axis.

    For all logits ω / p <= Σω / ε. Points of mass 0 get a log p that is very low, and finite, so that its gradient is 0
    and not NaN.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    floor = torch.finfo(dtype).min / 8
    log_mass = torch.where(mass > 0, mass, 1.0).log().to(dtype)
    log_mass = torch.where(mass > 0, log_mass, floor)
    measure = torch.log_softmax(log_mass, dim=-1) + math.log(uniform_share)
    proposed = torch.log_softmax((logits.to(dtype) + log_mass).clamp_min(floor), dim=-1) + math.log1p(-uniform_share)
    return torch.logaddexp(proposed, measure)


def levels(*rows: int, num_samples: int, draw: Draw, device: torch.device) -> Tensor:
    """M ascending numbers in [0, 1) per row, `(*rows, M)` float64, with uniform mean density for every `draw`.

    "independent" draws M independent numbers; "stratified" one in each of M equal intervals; "quasi_random" the lattice
    (m + U) / M with one random shift U per row.
    """
    if draw == "independent":
        return torch.rand(*rows, num_samples, dtype=torch.float64, device=device).sort(dim=-1).values
    jitter = torch.rand(*rows, num_samples if draw == "stratified" else 1, dtype=torch.float64, device=device)
    return (torch.arange(num_samples, dtype=torch.float64, device=device) + jitter) / num_samples


def invert(running: Tensor, level: Tensor, total: Tensor) -> Tensor:
    """The points at which a running sum of masses passes `level` times `total`; ascending where the levels are.

    Args:
        running: `(*rows, N)` float64, a cumulative sum of masses >= 0.
        level: `(*rows, *sets, M)` in [0, 1).
        total: the mass that a level of 1 stands for, `(*rows, *sets, 1)`: the running sum at the last point allowed.

    Returns:
        int64, of the shape of `level`; never a point of mass 0, or beyond the last allowed, where the total is
        positive.
    """
    # the largest number below the total, so that rounding never passes the last point of positive mass
    below = torch.nextafter(total, torch.zeros_like(total))
    at = torch.minimum(level * total, below).flatten(running.ndim - 1)
    index = torch.searchsorted(running.contiguous(), at.contiguous(), right=True)
    return index.clamp_max(running.shape[-1] - 1).view(level.shape)


def curve_order(pos: Tensor) -> Tensor:
    """The order of points `(B, N, s)` along a Morton curve through their bounding box: `(B, N)` int64.

    Neighbours on the curve are near in space, so that runs of it are strata.
    """
    dims = pos.shape[-1]
    bits = max(1, min(16, 62 // dims))
    low, high = pos.amin(-2, keepdim=True), pos.amax(-2, keepdim=True)
    extent = torch.where(high > low, high - low, 1.0)
    cell = ((pos - low) / extent * (2**bits - 1)).round().long()
    code = torch.zeros_like(cell[..., 0])
    for bit in range(bits):
        # int64 has no bits left for coordinates beyond 62
        for axis in range(min(dims, 62)):
            code |= ((cell[..., axis] >> bit) & 1) << (bit * min(dims, 62) + axis)
    return code.argsort(dim=-1, stable=True)
