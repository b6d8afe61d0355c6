"""Predictions at nodes of one graph: a kernel machine and trees on local features, and kriging from known nodes.

Legend
    h_v         features of node v and the means of those of edges that end there; if more than MOST_FEATURES, their
                projections on the first NUM_DIRECTIONS right singular vectors over all nodes
    P           means over neighbours; see `neighbourhoods`
    x_v         spectral position of the node (`graph_positions.py`) in K coordinates, K = `num_positions` or a quarter
                of the known nodes; aligned to the known nodes' positions in the fit
    z_v         [h, P h, ..., P^H h, x](v),  H = `hops`
    r_v         (1 - ρ) Σ_k (ρ P)^k h at v,  ρ = SPREAD, with at most WALK terms: the mean of features at the end of a
                random walk that continues with probability ρ at each step
    κ_r         the kernel of a `KernelMachine` on r without learned relevances
    Y (n, c)    regression targets at the n known nodes, from a `Regressand`      Ȳ (c,)  its column means
    κ_x         the kernel of a `KernelMachine` on z, over the mean of the diagonal of the centred kernel
    κ_g         the kernel of `graph_kernel.py`, scaled likewise, with γ, p and q from REACHES
    s           one of SHARES, or 0;   K = (1 - s) κ_x + s κ_g between the known nodes;   λ > 0 the penalty

    β = (K + λI)⁻¹ (Y - Ȳ),     g(v) = s Σ_j κ_g(v, w_j) β_j,     w_j the known nodes
    outputs     f(z_v) + g(v),  f a kernel machine and trees (`table_machine.py`) fitted to Y_j - g_j, where g_j is the
                left-out prediction for node j;   or f(z_v) + e(v) + g(v), where κ_r takes the place of κ_x,
                e(v) = (1 - s) Σ_j κ_r(v, w_j) β_j, and f is fitted to Y_j - e_j - g_j

β belongs to a Gaussian process with two parts, one of features and one of the graph, where the second interpolates
between known nodes: kriging with a learned trend (Matheron, 1963; Rasmussen and Williams, 2006, 2.7; on graphs, correct
and smooth of Huang et al., arXiv 2010.13993, whose two steps are one system here, so that features do not explain the
graph's part). γ, p, q, s and λ minimise the mean square of left-out errors, exact for given relevances in κ_x, on at
most CHOSEN known nodes. These relevances depend on the left-out node. With few known nodes, or a turned metric, κ_x is
also learned without parts of them (`kernel_choice.py`), and the increase of its squared errors is added to those of
every s < 1. s and g are 0 unless these errors are significantly smaller than those of s = 0. x is used if left-out
errors of κ_x with it are significantly smaller than the best without it. κ_x learns relevances from Y, then again from
Y_j - g_j, and the latter are kept if left-out errors are smaller. With more known nodes than `num_centres` g uses a
random sample of that size.

Features of one node, such as the words of a text, may be less informative than those of many nodes around it: a network
would learn a map of h and propagate its outputs (Gasteiger et al., arXiv 1810.05997); here h itself is propagated. κ_r
takes the place of κ_x if left-out errors are then significantly smaller than all above. It reads r alone, since the
noise of h would cancel the gain, and learns no relevances, since few known nodes give wrong ones.

Where only walks of odd length reach much of the graph from known nodes, as when every second node of a ring is known,
left-out errors cannot judge kernels of even walks there, and neither q = 2 nor x of negative eigenvalues are used.

In a grown graph κ_g between known nodes changes, and β is solved for again, with f unchanged:

    (s κ_g' + λI) β' = s κ_g β + λ β

The neighbourhood features in f change too, and may no longer separate small groups as before. So outputs at known nodes
are kept: o'(v) + δ(v), with o' the outputs in the grown graph and δ kriging of o(w_j) - o'(w_j), at most CHOSEN of
them, by a κ_g of KEEPING and a λ with the smallest left-out errors.

In a graph without the known nodes g is 0, and x the mean of the known nodes.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.domains import Graph
from fredholm.encoders.graph import Graph as GraphEncoder
from fredholm.encoders.graph import GraphBatch
from fredholm.models.fitted.fitted_model import FittedModel, Solution
from fredholm.models.fitted.graphs.graph_kernel import GraphSteps, Reach
from fredholm.models.fitted.graphs.graph_positions import aligned, positions_of
from fredholm.models.fitted.graphs.neighbourhood_bank import means_around, neighbourhoods, read_graphs
from fredholm.models.fitted.kernel_fit import KernelFit, best_fit, best_fits, members_of
from fredholm.models.fitted.kernel_machine import KernelMachine
from fredholm.models.fitted.ridge_head import Losses, Readout, Regressand, is_surely_less, left_out_mean_shift
from fredholm.models.fitted.table_machine import NumbersMachine
from fredholm.models.graphs.graph_model import GraphReading
from fredholm.models.node_model import NodeModelConfig

MOST_FEATURES, NUM_DIRECTIONS = 64, 64
SPREAD, WALK = 0.9, 30
REACHES = (
    *(Reach(reach, smoothness) for reach in (-0.9, 0.5, 0.9, 0.97, 0.99) for smoothness in (1, 2, 4)),
    *(Reach(reach, smoothness, stride=2) for reach in (0.9, 0.97, 0.99) for smoothness in (1, 4)),
)
SHARES = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Candidates of s besides 0."""
PENALTIES = torch.logspace(-6, 3, 28, dtype=torch.float64)
REFINED = (1 / 3, 1.0, 3.0)
"""Multiples of λ that are candidates with all known nodes."""
CHOSEN = 500
"""Most known nodes on which choices of the graph's part are made."""
_SAME = 1e-9
"""Relative difference of the kernel's sums over known nodes up to which a graph counts as that of the fit."""
_ODD = 0.1
"""Share of even walks from known nodes below which only odd walks count as reaching a node, and share of such nodes
above which even walks are not used.
"""
_NARROW = 0.1
"""Deviation over the known nodes, relative to the size of a coordinate of x, below which it is not used."""
KEEPING = (Reach(0.9, 1), Reach(0.97, 4), Reach(0.97, 1, stride=2))
"""Candidates of κ_g in δ; the first detects a grown graph where s is 0."""
KEPT = 4
"""Number of REACHES that are candidates together with features."""


@final
class KnownNodes(NamedTuple):
    """A graph and the indices of its known nodes, which a model is fitted to.

    `graph` is one graph. `nodes (n,)`, int64, are indices of nodes; for a fitted model those of the nodes that it was
    fitted to, in the same order, -1 where one is not in the graph.
    """

    graph: GraphBatch
    nodes: Tensor


@final
class NodeMachine(FittedModel[KnownNodes]):
    """Predicts at each node of a graph by a kernel machine and trees on local features, and by kriging.

    Takes one graph, with features and weights of nodes and of edges. Positions are not read.

    Args:
        reading: description of the graphs.
        num_outputs: number of outputs, such as classes.
        num_known: number n of nodes that it is fitted to.
        config: sizes.

    Attributes:
        spread: the kernel on r, with (1 - s) β after the readout, 0 where r is not used; None where `hops` is 0.
        dual: float64 `(num_known, num_outputs)`, s β after the readout; 0 before a fit. A parameter, so that gradient
            steps may continue from the fit; predictions in a grown graph use the fit.
        aim: `(num_known, num_outputs)`, the right side of the system of a grown graph, likewise.
        crowd: `(num_known,)`, Σ_j κ(v, w_j) at known nodes v, which detects a grown graph; κ is κ_g, or where s is 0
            the first of KEEPING.
        answers: float64 `(num_known, num_outputs)`, o, the outputs at known nodes in the graph of the fit.
        reach: `(3,)`, γ, p and q of the last fit; 0, 1 and 1 before one, and where g is 0.
        share: s, a float64 scalar.
        noise: λ / s, in units of κ_g; a float64 scalar.
        signed: whether x of negative eigenvalues are used, a bool scalar.
        places: `(num_known, K)`, x of the known nodes in the graph of the fit.
        read_places: bool `(K,)`, mask of the coordinates of x that are used.

    Raises:
        ValueError: on sizes below 1.
    """

    reach: Tensor
    share: Tensor
    noise: Tensor
    aim: Tensor
    crowd: Tensor
    answers: Tensor
    directions: Tensor
    places: Tensor
    read_places: Tensor
    signed: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(NodeModelConfig):
        """Sizes."""

        learns_by_steps: ClassVar[bool] = False

        hops: int = 2
        """Radius of the neighbourhood features in edges; 0: the node itself, without propagation."""
        num_positions: int = 16
        """Number of coordinates of a spectral position, at most a quarter of the known nodes; 0: none."""
        num_centres: int = 4096
        """Most known nodes that are centres of the kernels; trees are fitted to all."""
        num_trees: int = 100
        """Most trees of each fold; 0: no trees."""

        def __post_init__(self) -> None:
            for name, least in (("hops", 0), ("num_positions", 0), ("num_centres", 2), ("num_trees", 0)):
                check_count("models.NodeMachine", name, getattr(self, name), least)

        def check_nodes(self) -> None:
            """See `NodeModelConfig.check_nodes`: there is nothing to check, as there are outputs at every node."""

        def build(self, reading: GraphReading, num_outputs: int, num_known: int) -> "NodeMachine":
            """Builds a model, with random numbers from the global torch seed."""
            return NodeMachine(reading, num_outputs, num_known, self)

    def __init__(self, reading: GraphReading, num_outputs: int, num_known: int, config: Config) -> None:
        super().__init__()
        check_count("models.NodeMachine", "num_known", num_known)
        self.config, self.reading = config, reading
        self.encoder = GraphEncoder(reading.features, None, reading.pos_dim, edge_dim=reading.edge_dim)
        width = reading.features + reading.edge_dim
        num_directions = NUM_DIRECTIONS if width > MOST_FEATURES else 0
        num_centres = min(config.num_centres, max(num_known, 1))
        num_positions = min(config.num_positions, num_known // 4)
        self.register_buffer("directions", torch.zeros(width, num_directions))
        self.register_buffer("signed", torch.ones((), dtype=torch.bool))
        self.register_buffer("places", torch.zeros(num_known, num_positions, dtype=torch.float64))
        self.register_buffer("read_places", torch.zeros(num_positions, dtype=torch.bool))
        self.machine = NumbersMachine(
            (config.hops + 1) * (num_directions or width) + num_positions,
            num_outputs,
            num_centres=num_centres,
            num_trees=config.num_trees,
        )
        self.spread = (
            KernelMachine(num_directions or width, num_outputs, num_centres, num_rounds=0) if config.hops else None
        )
        self.dual = nn.Parameter(torch.zeros(num_known, num_outputs, dtype=torch.float64))
        self.register_buffer("reach", torch.tensor(Reach(0.0, 1), dtype=torch.float64))
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))
        self.register_buffer("noise", torch.zeros((), dtype=torch.float64))
        self.register_buffer("aim", torch.zeros(num_known, num_outputs, dtype=torch.float64))
        self.register_buffer("crowd", torch.zeros(num_known, dtype=torch.float64))
        self.register_buffer("answers", torch.zeros(num_known, num_outputs, dtype=torch.float64))

    def forward(self, inputs: KnownNodes) -> Tensor:
        """Maps a graph to outputs at all nodes `(N, num_outputs)`, which are all equal before a fit.

        Raises:
            ValueError, TypeError: on graphs that `encoders.Graph` refuses, several graphs, or another number of known
                nodes.
        """
        u, domain = self._signal(inputs.graph)
        if inputs.nodes.shape != (len(self.dual),):
            raise ValueError(
                f"models.NodeMachine: known nodes are {tuple(inputs.nodes.shape)}; expected ({len(self.dual)},), those "
                "that it was fitted to, -1 where one is not in the graph"
            )
        with without_autocast(u):
            steps, is_there = _steps(domain, u.shape[1]), inputs.nodes >= 0
            outputs = self.machine(self._numbers(u, domain, self._positions(steps, inputs.nodes, is_there)))
            if self.spread is not None and bool(self.spread.dual.any()):
                outputs = outputs + self.spread(self._far(u, domain))
            there = is_there & (self.crowd != 0)
            if not bool(there.any()):
                return outputs
            nodes, coefficients = inputs.nodes[there], self._sight.coefficients()
            ones, crowd = torch.ones_like(nodes, dtype=torch.float64)[:, None], self.crowd[there]
            found = steps.sums(nodes, torch.cat([self.dual[there], ones], 1), coefficients)
            has_grown = bool((found[nodes, -1] - crowd).abs().amax() > _SAME * crowd.abs().amax())
            if not has_grown:
                return outputs + found[:, :-1].to(outputs.dtype)
            if float(self.share) > 0:
                outputs = outputs + self._solved_again(steps, nodes, there).to(outputs.dtype)
            change = self._change(steps, nodes, self.answers[there] - outputs.detach()[nodes])
            return outputs + change.to(outputs.dtype)

    @property
    def _sight(self) -> Reach:
        """Parameters of κ_g, or where s is 0 those of the first of KEEPING, which detects a grown graph."""
        reach = Reach(float(self.reach[0]), int(self.reach[1]), int(self.reach[2]))
        return reach if float(self.share) > 0 else KEEPING[0]

    @property
    def reads_known(self) -> bool:
        """Whether predictions depend on the known nodes of the graph."""
        return float(self.share) > 0 or bool(self.read_places.any())

    def _positions(self, steps: GraphSteps, nodes: Tensor, there: Tensor) -> Tensor:
        """x of all nodes `(N, K)`, aligned by the known nodes that exist, by the mask `there (num_known,)`."""
        count = self.places.shape[1]
        if int(there.sum()) < max(count, 1) or not bool(self.read_places.any()):
            return (self.places.mean(0) * self.read_places).expand(len(steps.root), -1)
        found = positions_of(steps, count, signed=bool(self.signed))
        return aligned(found, nodes[there], self.places[there].double(), self.read_places)

    def _learn_places(self, steps: GraphSteps, nodes: Tensor) -> Tensor:
        """Stores x of the known nodes and returns x of all nodes `(N, K)`, 0 in coordinates that are not used."""
        count = self.places.shape[1]
        if not count:
            return self.places.new_zeros(len(steps.root), 0)
        found = positions_of(steps, count, signed=bool(self.signed))
        spread = found[nodes].std(0, correction=0)
        self.places.copy_(found[nodes])
        self.read_places.copy_((spread > 0) & (spread >= _NARROW * found.square().mean(0).sqrt()))
        return found * self.read_places

    def _solved_again(self, steps: GraphSteps, nodes: Tensor, there: Tensor) -> Tensor:
        """g at all nodes `(N, num_outputs)` of a grown graph, solved anew with its existing known nodes."""
        system = steps.between(nodes, [self._sight])[0]
        system.diagonal().add_(self.noise)
        dual = torch.cholesky_solve(self.aim[there], torch.linalg.cholesky(system))
        return steps.sums(nodes, dual, self._sight.coefficients())

    @torch.no_grad()
    def _change(self, steps: GraphSteps, nodes: Tensor, wanted: Tensor) -> Tensor:
        """δ at all nodes `(N, num_outputs)`, from its values at known nodes `(n, num_outputs)`."""
        some = torch.arange(0, len(nodes), math.ceil(len(nodes) / CHOSEN), device=nodes.device)
        nodes, wanted = nodes[some], wanted[some].double()
        mean = wanted.mean(0)
        rest, best, chosen = wanted - mean, float((wanted - mean).square().mean()), None
        reaches = [reach for reach in KEEPING if self.signed or reach.stride == 1]
        for reach, between, unit in _apart(steps, nodes, reaches):
            fit = best_fit(between, rest, None, PENALTIES)
            if fit.error < best:
                best, chosen = fit.error, (reach, between, unit, fit.penalty)
        if chosen is None:
            return mean.expand(len(steps.root), -1)
        reach, system, unit, penalty = chosen
        system.diagonal().add_(penalty)
        dual = torch.cholesky_solve(rest, torch.linalg.cholesky(system)) / unit
        return mean + steps.sums(nodes, dual, reach.coefficients())

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[KnownNodes, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits both parts to the known nodes of one graph, the only batch; see `FittedModel.fit`."""
        if weights is not None:
            raise ValueError("models.NodeMachine: it takes no weights of examples; leave them out")
        if len(batches) != 1 or len(batches[0][1]) < 2:
            raise ValueError("models.NodeMachine: expected one graph with at least 2 known nodes to fit to")
        [(inputs, targets)] = batches
        if len(targets) != len(self.dual) or inputs.nodes.shape != (len(targets),) or bool((inputs.nodes < 0).any()):
            raise ValueError(
                f"models.NodeMachine: there are {len(targets)} targets of {len(inputs.nodes)} nodes; expected "
                f"{len(self.dual)} of each, all in the graph"
            )
        wanted, nodes = regressand.columns(targets), inputs.nodes
        u, domain = self._signal(inputs.graph)
        with without_autocast(u):
            self._learn_directions(u, domain)
            steps = _steps(domain, u.shape[1])
            drawn = torch.randperm(len(nodes))[: self.config.num_centres].sort().values.to(nodes.device)
            own = None if groups is None or len(groups[drawn].unique()) < 2 else groups[drawn]
            self.signed.fill_(_even_walks_reach(steps, nodes))
            losses = regressand.losses_of_scores(targets[drawn])
            near = _Near(steps, nodes[drawn], wanted[drawn], own, losses, reads_even=bool(self.signed))
            numbers, found = self._best_numbers(near, u, domain, self._learn_places(steps, nodes), nodes)
            far, of_far = self._far(u, domain), None
            if self.spread is not None and (other := self._found_far(near, far, self.spread)) is not None:
                of_far, found = other
            beside = torch.zeros_like(wanted)
            if found is not None:
                if len(drawn) < len(nodes):
                    beside = near.steps.sums(near.nodes, found.dual, found.reach.coefficients())[nodes]
                beside[drawn] = found.left_out
            if self.spread is not None and of_far is not None:
                if len(drawn) < len(nodes):
                    beside += self.spread.kernel(far[nodes].double(), self.spread.centres) @ of_far.weights
                beside[drawn] = of_far.left_out
            rest = _Beside(regressand, wanted, beside)
            self.machine.fit(numbers[nodes], targets, rest, groups=groups)
            self._keep(steps, near.nodes, drawn, rest.read, found, of_far)
            self.answers.copy_(self(inputs)[nodes])
        return rest.read(rest.scores)

    def _best_numbers(
        self, near: "_Near", u: Tensor, domain: Graph, positions: Tensor, nodes: Tensor
    ) -> tuple[Tensor, "_Graph | None"]:
        """Returns z `(N, numbers)`, with positions `(N, K)` where these help significantly, and the graph's part."""
        numbers = self._numbers(u, domain, torch.zeros_like(positions))
        found = self._found(near, numbers, self._of_features(near, numbers, nodes))
        if bool(self.read_places.any()):
            placed = self._numbers(u, domain, positions)
            features = self._of_features(near, placed, nodes)
            if is_surely_less(near.squares(features), near.errors, near.own_groups):
                return placed, self._found(near, placed, features)
            self.read_places.fill_(False)
        return numbers, found

    def _keep(
        self,
        steps: GraphSteps,
        nodes: Tensor,
        drawn: Tensor,
        read: Readout,
        found: "_Graph | None",
        of_far: Solution | None,
    ) -> None:
        """Stores g and e after the readout; `nodes` are the known nodes with the indices `drawn` among all of them."""
        for each in (self.share, self.noise, self.dual, self.aim, self.crowd):
            each.zero_()
        self.reach.copy_(torch.tensor(Reach(0.0, 1) if found is None else found.reach, dtype=torch.float64))
        if found is not None:
            self.share.fill_(found.share)
            self.noise.fill_(found.noise)
            self.dual[drawn] = read.gain * found.dual[:, read.column]
        if self.spread is not None:
            self.spread.dual.zero_()
            self.spread.bias.zero_()
            if of_far is not None:
                self.spread.dual[: len(drawn)] = read.gain * of_far.weights[:, read.column]
        values = torch.cat([self.dual[drawn], torch.ones_like(self.dual[drawn, :1])], 1)
        sums = steps.sums(nodes, values, self._sight.coefficients())[nodes]
        self.aim[drawn] = sums[:, :-1] + self.noise * self.dual[drawn]
        self.crowd[drawn] = sums[:, -1]

    def _of_features(self, near: "_Near", numbers: Tensor, nodes: Tensor) -> Tensor:
        """Left-out predictions of the kernel at known nodes, from features of all nodes `(N, numbers)`."""
        self.machine.measure(numbers[nodes])
        x = self.machine.coordinates(numbers[near.nodes])
        return self.machine.table.machine.solve(x, near.wanted, groups=near.groups, losses=near.losses).left_out

    def _found(self, near: "_Near", numbers: Tensor, features: Tensor) -> "_Graph | None":
        """Fits the graph's part jointly with features `(N, numbers)` of nodes; None if it does not help significantly.

        `features` is the result of `_of_features` for these features, computed just before.
        """
        near.rank(near.wanted - features)
        kernel, x = self.machine.table.machine, self.machine.coordinates(numbers[near.nodes])
        found = near.beside(kernel.kernel(x, x), features)
        left_out = near.alone if found is None else found.left_out
        if left_out is None:
            return None
        losses = _beside(near.losses, left_out)
        kernel.solve(x, near.wanted - left_out, groups=near.groups, losses=losses)
        other = near.beside(kernel.kernel(x, x))
        return found if other is None or (found is not None and found.error <= other.error) else other

    def _found_far(self, near: "_Near", far: Tensor, machine: KernelMachine) -> "tuple[Solution, _Graph | None] | None":
        """Fits r `(N, numbers)` jointly with the graph's part; None if not significantly better than without r.

        The solution has the weights of e, and the joint left-out predictions of e and g less Ȳ.
        """
        before, x, mean = near.errors, far[near.nodes].double(), near.wanted.mean(0)
        alone = machine.solve(x, near.wanted, groups=near.groups)
        near.rank(near.wanted - alone.left_out)
        found = near.beside(machine.kernel(x, x), alone.left_out)
        if not is_surely_less(near.errors, before, near.own_groups):
            return None
        weights, whole = (alone.weights, alone.left_out) if found is None else (found.of_features, found.whole)
        return Solution(weights, mean, whole - mean), found

    def _signal(self, graph: GraphBatch) -> tuple[Tensor, Graph]:
        u, domain = read_graphs(self.encoder, graph)
        if len(u) != 1:
            raise ValueError(f"models.NodeMachine: there are {len(u)} graphs; expected one")
        return u, domain

    def _numbers(self, u: Tensor, domain: Graph, positions: Tensor) -> Tensor:
        """Returns z `(N, numbers)`."""
        found = neighbourhoods(u, domain, self.config.hops)
        if self.directions.shape[1]:
            found = (found.unflatten(1, (self.config.hops + 1, -1)) @ self.directions.to(found.dtype)).flatten(1)
        return torch.cat([found, positions.to(found.dtype)], 1)

    def _far(self, u: Tensor, domain: Graph) -> Tensor:
        """Returns r `(N, numbers)`."""
        step = neighbourhoods(u, domain, 0)
        if self.directions.shape[1]:
            step = step @ self.directions.to(step.dtype)
        far, weight = (1 - SPREAD) * step, 1 - SPREAD
        for _ in range(WALK - 1):
            step, weight = means_around(step, domain), SPREAD * weight
            far = far + weight * step
        return far

    def _learn_directions(self, u: Tensor, domain: Graph) -> None:
        if self.directions.shape[1]:
            own = neighbourhoods(u, domain, 0)
            count = min(self.directions.shape[1], *own.shape)
            _, _, vectors = torch.svd_lowrank(own, q=count, niter=4)
            self.directions.zero_()
            self.directions[:, :count] = vectors


def _even_walks_reach(steps: GraphSteps, nodes: Tensor) -> bool:
    """Whether walks of even length reach nearly all nodes that any walks from some nodes `(n,)` reach."""
    ones, reach = torch.ones_like(nodes, dtype=torch.float64)[:, None], 0.97
    every, even = (
        steps.sums(nodes, ones, each.coefficients())[:, 0] for each in (Reach(reach, 1), Reach(reach**2, 1, stride=2))
    )
    reached = every > _SAME * every.amax()
    return int((even[reached] < _ODD * every[reached]).sum()) <= _ODD * int(reached.sum())


def _steps(domain: Graph, count: int) -> GraphSteps:
    weights = domain.edge_weights
    alike = torch.ones_like(domain.source, dtype=torch.float64)
    return GraphSteps(domain.source, domain.target, alike if weights is None else weights, count)


@final
class _Graph(NamedTuple):
    """The graph's part: γ, p and q, s, λ / s in units of κ_g, the mean square of left-out errors, its dual, and
    left-out g `(n, c)`; the dual of the features, and left-out predictions of both parts.
    """

    reach: Reach
    share: float
    noise: float
    error: float
    dual: Tensor
    left_out: Tensor
    of_features: Tensor
    whole: Tensor


@final
class _Near:
    """The known nodes with their targets, and the choices made on them."""

    def __init__(
        self,
        steps: GraphSteps,
        nodes: Tensor,
        wanted: Tensor,
        groups: Tensor | None,
        losses: Losses | None,
        *,
        reads_even: bool,
    ) -> None:
        self._reaches = [reach for reach in REACHES if reads_even or reach.stride == 1]
        self.steps, self.nodes, self.wanted, self.groups, self.losses = steps, nodes, wanted, groups, losses
        some = torch.randperm(len(nodes))[:CHOSEN].sort().values.to(nodes.device)
        self._some, self._members = some, members_of(groups, some)
        self.own_groups = None if groups is None or self._members is None else groups[some]
        offset = wanted[some].mean(0)
        self._chosen = wanted[some] - offset
        self._whole: tuple[Reach, Tensor] | None = None
        """The last reach whose κ_g was computed for all known nodes, with this kernel."""
        self._kernels = dict[Reach, tuple[Tensor, float]]()
        """Scaled κ_g between the nodes on which choices are made, and its scale, by reach."""
        self._best: tuple[Reach, list[KernelFit]] | None = None
        self._without: Tensor | None = None
        self._learnt = torch.zeros_like(self._chosen[:, 0])
        """Increase of squared left-out errors if the kernel of features is learned without the left-out node."""
        self._between: list[tuple[Reach, Tensor, float]] | None = None
        self.errors = self._chosen.square().mean(1)
        """Squared left-out errors of the best predictions so far, at the nodes on which choices are made."""

    def _all(self) -> list[tuple[Reach, Tensor, float]]:
        """Result of `_apart` for REACHES and the nodes on which choices are made."""
        if self._between is None:
            self._between = _apart(self.steps, self.nodes[self._some], self._reaches)
        return self._between

    def rank(self, rest: Tensor) -> None:
        """Keeps the reaches that predict best by themselves, for the targets and for the residuals of features."""
        own, members = rest[self._some], self._members
        parts, fits = (self._chosen, own - own.mean(0)), list[tuple[Reach, list[KernelFit]]]()
        self._kernels, self._without, self.errors = {}, None, self._chosen.square().mean(1)
        for reach, between, unit in self._all():
            fits.append((reach, best_fits(between, parts, members, PENALTIES)))
            self._kernels[reach] = between, unit
        ranked = [sorted(fits, key=lambda each: each[1][of].error) for of in (0, 1)]
        kept = dict.fromkeys(reach for pair in zip(*ranked, strict=True) for reach, _ in pair)
        self._kernels = {reach: self._kernels[reach] for reach in list(kept)[:KEPT]}
        self._best = ranked[0][0] if fits else None

    def squares(self, left_out: Tensor) -> Tensor:
        """Mean squared errors of left-out predictions `(n, c)`, at the nodes on which choices are made."""
        return (self.wanted - left_out)[self._some].square().mean(1)

    @property
    def alone(self) -> Tensor | None:
        """Left-out predictions by the graph alone `(n, c)`; None if they are no better than the mean."""
        if self._best is None or self._best[1][0].error >= float(self._chosen.square().mean()):
            return None
        reach, fits = self._best
        return self._of_all(None, 1.0, reach, 1.0, fits[0].penalty).left_out

    def beside(self, kernel: Tensor, left_out: Tensor | None = None) -> _Graph | None:
        """Fits the graph's part jointly with a kernel of features `(n, n)`; None if it does not help significantly.

        Args:
            kernel: kernel of features, whose relevances may depend on a left-out node.
            left_out: its predictions `(n, c)` with relevances learned without the node; None: reuses the last
                increase of errors.
        """
        own, wanted = kernel[self._some][:, self._some], self._chosen
        unit = _unit(own)
        own = own / (unit or 1.0)
        alone = best_fit(own, wanted, self._members, PENALTIES)
        if left_out is not None:
            self._learnt = self.squares(left_out) - _squares(wanted, alone)
        without = _squares(wanted, alone) + self._learnt
        self._without = without if self._without is None else min(self._without, without, key=_mean)
        best, chosen = self._without, None
        for reach, (between, _) in self._kernels.items():
            for share in SHARES if unit else SHARES[-1:]:
                fit = best_fit(torch.lerp(own, between, share), wanted, self._members, PENALTIES)
                errors = _squares(wanted, fit) + (self._learnt if share < 1 else 0)
                if _mean(errors) < _mean(best):
                    best, chosen = errors, (reach, share, fit.penalty)
        is_sure = chosen is not None and is_surely_less(best, self._without, self.own_groups)
        self.errors = min(self.errors, best if is_sure else self._without, key=_mean)
        if chosen is None or not is_sure:
            return None
        return self._of_all(kernel, unit or 1.0, *chosen)

    def _of_all(self, kernel: Tensor | None, scale: float, reach: Reach, share: float, penalty: float) -> _Graph:
        """Fits the graph's part to all known nodes, jointly with a kernel of features divided by `scale`."""
        (between, unit), everything = self._kernels[reach], len(self._some) == len(self.nodes)
        of_graph = share * (between if everything else self._between_all(reach) / unit)
        wanted, members = self.wanted - self.wanted.mean(0), members_of(self.groups)
        best = None
        for multiple in (1.0,) if everything else REFINED:
            system = of_graph.clone() if kernel is None else (1 - share) / scale * kernel + of_graph
            system.diagonal().add_(multiple * penalty)
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(system))
            errors, left_out, dual = left_out_part(inverse, of_graph, wanted, members)
            noise = multiple * penalty * unit / share
            error, of_features = float(errors.square().mean()), (1 - share) / scale * dual
            whole = self.wanted - errors
            found = _Graph(reach, share, noise, error, share / unit * dual, left_out, of_features, whole)
            if best is None or found.error < best.error:
                best = found
        assert best is not None
        return best

    def _between_all(self, reach: Reach) -> Tensor:
        """κ_g between all known nodes."""
        if self._whole is None or self._whole[0] != reach:
            self._whole = reach, self.steps.between(self.nodes, [reach])[0]
        return self._whole[1]


def left_out_part(
    inverse: Tensor, of_graph: Tensor, wanted: Tensor, members: list[Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Left-out errors, the left-out predictions by one part of the kernel, both `(n, c)`, and the dual."""
    dual, moved = inverse @ wanted, left_out_mean_shift(wanted, members)
    product = of_graph @ inverse
    without = dual + inverse.sum(1)[:, None] * moved
    part = of_graph @ dual + product.sum(1)[:, None] * moved
    if members is None:
        errors = without / inverse.diagonal()[:, None]
        return errors, part - product.diagonal()[:, None] * errors, dual
    errors = torch.empty_like(dual)
    for own in members:
        errors[own] = torch.linalg.solve(inverse[own][:, own], without[own])
        part[own] -= product[own][:, own] @ errors[own]
    return errors, part, dual


def _squares(wanted: Tensor, fit: KernelFit) -> Tensor:
    """Mean squared left-out error of each node."""
    return (wanted - fit.left_out).square().mean(1)


def _mean(errors: Tensor) -> float:
    return float(errors.mean())


def _apart(steps: GraphSteps, nodes: Tensor, reaches: Sequence[Reach]) -> list[tuple[Reach, Tensor, float]]:
    """The reaches whose κ_g is not constant between some nodes, with the scaled κ_g and its scale."""
    units = [(*each, _unit(each[1])) for each in zip(reaches, steps.between(nodes, reaches), strict=True)]
    return [(reach, between / unit, unit) for reach, between, unit in units if unit]


def _unit(kernel: Tensor) -> float:
    """Mean diagonal of the centred kernel; 0 if the kernel is constant up to rounding."""
    found = float((kernel.diagonal() - 2 * kernel.mean(0)).mean() + kernel.mean())
    return found if found > 1e-12 * float(kernel.diagonal().abs().max()) else 0.0


@final
class _Beside(Regressand):
    """The residual of a regressand after given predictions `(n, c)`, with the readout of the sum."""

    scores: Tensor
    read: Readout

    def __init__(self, regressand: Regressand, wanted: Tensor, predicted: Tensor) -> None:
        self._regressand, self._wanted, self._predicted = regressand, wanted, predicted

    def columns(self, targets: Tensor) -> Tensor:
        """See `Regressand.columns`."""
        return self._wanted - self._predicted

    def readout(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Readout:
        """See `Regressand.readout`: the readout of the sum of residual scores and predictions."""
        self.scores = scores + self._predicted
        self.read = self._regressand.readout(self.scores, targets, weights)
        return self.read

    def losses_of_scores(self, targets: Tensor, weights: Tensor | None = None) -> Losses | None:
        """See `Regressand.losses_of_scores`: those of the sum of scores and predictions."""
        return _beside(self._regressand.losses_of_scores(targets, weights), self._predicted)


def _beside(losses: Losses | None, predicted: Tensor) -> Losses | None:
    """Losses of scores that are added to predictions `(n, c)`."""
    return None if losses is None else lambda scores, some: losses(scores + predicted[some], some)
