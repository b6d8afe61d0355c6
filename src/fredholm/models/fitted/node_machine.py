"""What a kernel and trees read at a node and around it, and what is known of nodes near by.

Legend
    h_v         features of node v and the means of those of edges that end there; of more than MOST_FEATURES their
                parts along the first NUM_DIRECTIONS right singular vectors of those of all nodes
    P           means over neighbours, as `neighbourhoods` says
    x_v         where the node lies by how it is joined, as `graph_positions.py` says, in K coordinates,
                K = `num_positions` or a quarter of the known nodes; known nodes lie where they did in the fit
    z_v         [h, P h, ..., P^H h, x](v),  H = `hops`
    r_v         (1 - ρ) Σ_k (ρ P)^k h at v,  ρ = SPREAD, of at most WALK terms: the mean of features where a walk ends
                that goes on with the chance ρ at each step
    κ_r         the kernel of a `KernelMachine` on r whose coordinates count by how much they vary
    Y (n, c)    what is fitted at the n known nodes, as a `Regressand` says      Ȳ (c,)  its column means
    κ_x         the kernel of a `KernelMachine` on z, over the mean of its diagonal where it is centred
    κ_g         that of `graph_kernel.py`, likewise; its γ, p and q are those of REACHES
    s           one of SHARES, or 0;   K = (1 - s) κ_x + s κ_g between the known nodes;   λ > 0 the penalty

    β = (K + λI)⁻¹ (Y - Ȳ),     g(v) = s Σ_j κ_g(v, w_j) β_j,     w_j the known nodes
    outputs     f(z_v) + g(v),  f a kernel machine and trees (`table_machine.py`) fitted to Y_j - g_j, where g_j is what
                is said of node j by β without it;   or f(z_v) + e(v) + g(v), where κ_r is in the place of κ_x,
                e(v) = (1 - s) Σ_j κ_r(v, w_j) β_j, and f is fitted to Y_j - e_j - g_j

β is the prediction of a Gaussian process with two parts, one of features and one of the graph, of which the second is
what is known of nodes near by: kriging with a trend that is learnt (Matheron, 1963; Rasmussen and Williams, 2006, 2.7;
on graphs, correct and smooth of Huang et al., arXiv 2010.13993, whose two steps are here one system, so that features
do not take what is the graph's). γ, p, q, s and λ are those with the smallest mean square of left-out errors, exact for
what κ_x has learnt, on at most CHOSEN known nodes. κ_x may have learnt of the node that is left out; of few known nodes
it is learnt without parts of them too (`kernel_machine.py`), and by how much its squared errors are larger then, is
added to those of every s < 1. s is 0, and g too, unless these errors are surely smaller than those of s = 0. x is read
if what κ_x says with it of left-out nodes is surely better than all that is chosen without it. κ_x learns which numbers
matter from Y, and then once more from Y_j - g_j, and is kept if the left-out errors have become smaller. Of more known
nodes than `num_centres` g reads as many, drawn.

Features of one node, such as the words of a text, may tell little that those of many around it tell together: a
network would learn a map of h and spread what it says (Gasteiger et al., arXiv 1810.05997); without learning h itself
is spread. κ_r is in the place of κ_x if the left-out errors are then surely smaller than those of all above. It is of r
alone, since beside the noise of h nothing would be gained, and learns no weights of coordinates, since few known nodes
tell them wrongly.

Where much of the graph is joined to known nodes by walks of odd lengths alone, as where every second node of a ring is
known, these tell nothing of what even walks say there, and neither q = 2 nor the x of eigenvalues below 0 are read.

In a graph that has grown κ_g is another one between known nodes too, and β is solved for again, with f as it was:

    (s κ_g' + λI) β' = s κ_g β + λ β

What f reads of neighbours has changed too, and tells small groups apart no more that it told apart by chance. So what
is said of known nodes stays what it was: o'(v) + δ(v), o' the outputs there and δ kriging, by one of κ_g of KEEPING and
the λ with the smallest left-out errors, of o(w_j) - o'(w_j), at most CHOSEN of them.

In another graph, where the known nodes are not, g is 0, and x the mean of the known nodes.
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
from fredholm.models.fitted.graph_kernel import GraphSteps, Reach
from fredholm.models.fitted.graph_positions import aligned, positions_of
from fredholm.models.fitted.kernel_machine import KernelFit, KernelMachine, best_fit, best_fits, members_of
from fredholm.models.fitted.neighbourhood_bank import means_around, neighbourhoods, read_graphs
from fredholm.models.fitted.ridge_head import Readout, Regressand, fall_of_mean, is_surely_less
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
"""Values of s that are tried beside 0."""
PENALTIES = torch.logspace(-6, 3, 28, dtype=torch.float64)
REFINED = (1 / 3, 1.0, 3.0)
"""Multiples of λ that are tried with all known nodes."""
CHOSEN = 1500
"""Known nodes by which is chosen, at most."""
_SAME = 1e-9
"""Of the largest sum of the kernel over known nodes, by how much one may differ in the graph of the fit: rounding."""
_ODD = 0.1
"""Share of the walks from known nodes to a node that are of even lengths, below which odd ones alone reach it, and of
such nodes, above which even walks are not read.
"""
_NARROW = 0.1
"""Times the size of a coordinate x, below which it does not tell known nodes apart."""
KEEPING = (Reach(0.9, 1), Reach(0.97, 4), Reach(0.97, 1, stride=2))
"""By which outputs at known nodes stay what they were; by the first, where s is 0, a graph that has grown is seen."""
KEPT = 4
"""Of REACHES, those that are tried beside features."""


@final
class KnownNodes(NamedTuple):
    """A graph, and where in it the nodes are by which a model is fitted.

    `graph` is one graph. `nodes (n,)`, int64, are numbers of nodes; once a model is fitted those of the nodes that it
    was fitted to, in their order, -1 where one is not in the graph.
    """

    graph: GraphBatch
    nodes: Tensor


@final
class NodeMachine(FittedModel[KnownNodes]):
    """What a kernel and trees say of each node of a graph, and what nodes near by say that are known.

    Takes one graph, with features and weights of nodes and of edges. Positions are not read.

    Args:
        reading: how graphs reach it.
        num_outputs: such as classes.
        num_known: n, of nodes that it is fitted to.
        config: sizes.

    Attributes:
        spread: the kernel on r, with (1 - s) β and what the readout does to it, 0 where r is not read; None where
            `hops` is 0.
        dual: float64 `(num_known, num_outputs)`, s β with what the readout does to it; 0 before a fit. A
            parameter, so that gradient steps may go on from the fit; a graph that has grown is told of by the fit.
        aim: `(num_known, num_outputs)`, the right side of the system of a graph that has grown, likewise.
        crowd: `(num_known,)`, Σ_j κ(v, w_j) at known nodes v, by which a graph that has grown is seen; κ is κ_g, or
            where s is 0 the first of KEEPING.
        answers: float64 `(num_known, num_outputs)`, o, the outputs at known nodes in the graph of the fit.
        reach: `(3,)`, γ, p and q of the last fit; 0, 1 and 1 before one, and where g is 0.
        share: s, a float64 scalar.
        noise: λ / s, in units of κ_g; a float64 scalar.
        signed: whether x of eigenvalues below 0 are read, a bool scalar.
        places: `(num_known, K)`, x of the known nodes in the graph of the fit.
        read_places: bool `(K,)`, the coordinates x that are read.

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
        """How many edges what is read around a node reaches; 0: the node itself, and nothing is spread."""
        num_positions: int = 16
        """Coordinates of where a node lies by how it is joined, at most a quarter of the known nodes; 0: none."""
        num_centres: int = 4096
        """Known nodes that are centres of the kernels, at most; trees learn from all."""
        num_trees: int = 100
        """Of each fold, at most; 0: there are none."""

        def __post_init__(self) -> None:
            for name, least in (("hops", 0), ("num_positions", 0), ("num_centres", 2), ("num_trees", 0)):
                check_count("models.NodeMachine", name, getattr(self, name), least)

        def check_nodes(self) -> None:
            """See `NodeModelConfig.check_nodes`: it answers at every node in any case."""

        def build(self, reading: GraphReading, num_outputs: int, num_known: int) -> "NodeMachine":
            """A new model, from the global torch seed."""
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
        """One graph to outputs at all nodes `(N, num_outputs)`, all equal before a fit.

        Raises:
            ValueError, TypeError: what `encoders.Graph` refuses, several graphs, or other known nodes than it has.
        """
        u, domain = self._signal(inputs.graph)
        if inputs.nodes.shape != (len(self.dual),):
            raise ValueError(
                f"models.NodeMachine: known nodes are {tuple(inputs.nodes.shape)}; expected ({len(self.dual)},), those "
                "that it was fitted to, -1 where one is not in the graph"
            )
        with without_autocast(u):
            steps, is_there = _steps(domain, u.shape[1]), inputs.nodes >= 0
            told = self.machine(self._numbers(u, domain, self._positions(steps, inputs.nodes, is_there)))
            if self.spread is not None and bool(self.spread.dual.any()):
                told = told + self.spread(self._far(u, domain))
            there = is_there & (self.crowd != 0)
            if not bool(there.any()):
                return told
            nodes, coefficients = inputs.nodes[there], self._sight.coefficients()
            ones, crowd = torch.ones_like(nodes, dtype=torch.float64)[:, None], self.crowd[there]
            found = steps.sums(nodes, torch.cat([self.dual[there], ones], 1), coefficients)
            has_grown = bool((found[nodes, -1] - crowd).abs().amax() > _SAME * crowd.abs().amax())
            if not has_grown:
                return told + found[:, :-1].to(told.dtype)
            if float(self.share) > 0:
                told = told + self._solved_again(steps, nodes, there).to(told.dtype)
            return told + self._change(steps, nodes, self.answers[there] - told.detach()[nodes]).to(told.dtype)

    @property
    def _sight(self) -> Reach:
        """By which a graph that has grown is seen, and g is told where s is not 0."""
        reach = Reach(float(self.reach[0]), int(self.reach[1]), int(self.reach[2]))
        return reach if float(self.share) > 0 else KEEPING[0]

    @property
    def reads_known(self) -> bool:
        """Whether something is read that is known only where the known nodes are."""
        return float(self.share) > 0 or bool(self.read_places.any())

    def _positions(self, steps: GraphSteps, nodes: Tensor, there: Tensor) -> Tensor:
        """x of all nodes `(N, K)`, by the known nodes `(num_known,)` that are there."""
        count = self.places.shape[1]
        if int(there.sum()) < max(count, 1) or not bool(self.read_places.any()):
            return (self.places.mean(0) * self.read_places).expand(len(steps.root), -1)
        found = positions_of(steps, count, signed=bool(self.signed))
        return aligned(found, nodes[there], self.places[there].double(), self.read_places)

    def _learn_places(self, steps: GraphSteps, nodes: Tensor) -> Tensor:
        """Keeps x of the known nodes, and gives that of all nodes `(N, K)`, 0 in coordinates that are not read."""
        count = self.places.shape[1]
        if not count:
            return self.places.new_zeros(len(steps.root), 0)
        found = positions_of(steps, count, signed=bool(self.signed))
        spread = found[nodes].std(0, correction=0)
        self.places.copy_(found[nodes])
        self.read_places.copy_((spread > 0) & (spread >= _NARROW * found.square().mean(0).sqrt()))
        return found * self.read_places

    def _solved_again(self, steps: GraphSteps, nodes: Tensor, there: Tensor) -> Tensor:
        """g at all nodes `(N, num_outputs)` of a graph that has grown, of those known nodes that are there."""
        system = steps.between(nodes, [self._sight])[0]
        system.diagonal().add_(self.noise)
        dual = torch.cholesky_solve(self.aim[there], torch.linalg.cholesky(system))
        return steps.sums(nodes, dual, self._sight.coefficients())

    @torch.no_grad()
    def _change(self, steps: GraphSteps, nodes: Tensor, wanted: Tensor) -> Tensor:
        """δ at all nodes `(N, num_outputs)`, of what is wanted at known nodes `(n, num_outputs)`."""
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
    ) -> Tensor:
        """Fits both parts to the known nodes of one graph, the only batch; see `FittedModel.fit`."""
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
            near = _Near(steps, nodes[drawn], wanted[drawn], own, reads_even=bool(self.signed))
            positions = self._learn_places(steps, nodes)
            numbers = self._numbers(u, domain, torch.zeros_like(positions))
            found = self._found(near, numbers, self._of_features(near, numbers, nodes))
            if bool(self.read_places.any()):
                placed = self._numbers(u, domain, positions)
                features = self._of_features(near, placed, nodes)
                if is_surely_less(near.squares(features), near.errors, near.own_groups):
                    numbers, found = placed, self._found(near, placed, features)
                else:
                    self.read_places.fill_(False)
            far, of_far = self._far(u, domain), None
            if self.spread is not None and (other := self._found_far(near, far, self.spread)) is not None:
                of_far, found = other
            self.reach.copy_(torch.tensor(Reach(0.0, 1)))
            for each in (self.share, self.noise, self.aim, self.crowd):
                each.zero_()
            beside = torch.zeros_like(wanted)
            if found is not None:
                self.reach.copy_(torch.tensor(found.reach, dtype=torch.float64))
                self.share.fill_(found.share)
                if len(drawn) < len(nodes):
                    beside = near.steps.sums(nodes[drawn], found.dual, found.reach.coefficients())[nodes]
                beside[drawn] = found.left_out
            if self.spread is not None and of_far is not None:
                if len(drawn) < len(nodes):
                    beside += self.spread.kernel(far[nodes].double(), self.spread.centres) @ of_far.weights
                beside[drawn] = of_far.left_out
            rest = _Beside(regressand, wanted, beside)
            self.machine.fit(numbers[nodes], targets, rest, groups=groups)
            self.dual.zero_()
            if found is not None:
                self.dual[drawn] = rest.read.gain * found.dual[:, rest.read.column]
                self.noise.fill_(found.noise)
            if self.spread is not None:
                self.spread.dual.zero_()
                self.spread.bias.zero_()
                if of_far is not None:
                    self.spread.dual[: len(drawn)] = rest.read.gain * of_far.weights[:, rest.read.column]
            values = torch.cat([self.dual[drawn], torch.ones_like(self.dual[drawn, :1])], 1)
            said = steps.sums(nodes[drawn], values, self._sight.coefficients())[nodes[drawn]]
            self.aim[drawn] = said[:, :-1] + self.noise * self.dual[drawn]
            self.crowd[drawn] = said[:, -1]
            self.answers.copy_(self(inputs)[nodes])
        return rest.read(rest.scores)

    def _of_features(self, near: "_Near", numbers: Tensor, nodes: Tensor) -> Tensor:
        """What the kernel says of each known node by what is read at the others `(N, numbers)`."""
        self.machine.measure(numbers[nodes])
        x = self.machine.coordinates(numbers[near.nodes])
        return self.machine.table.machine.solve(x, near.wanted, groups=near.groups).left_out

    def _found(self, near: "_Near", numbers: Tensor, features: Tensor) -> "_Graph | None":
        """What the graph says beside what is read at nodes `(N, numbers)`; None: nothing for sure.

        `features` is what `_of_features` says of these numbers, just before.
        """
        near.rank(near.wanted - features)
        kernel, x = self.machine.table.machine, self.machine.coordinates(numbers[near.nodes])
        found = near.beside(kernel.kernel(x, x), features)
        said = near.alone if found is None else found.left_out
        if said is None:
            return None
        kernel.solve(x, near.wanted - said, groups=near.groups)
        other = near.beside(kernel.kernel(x, x))
        return found if other is None or (found is not None and found.error <= other.error) else other

    def _found_far(self, near: "_Near", far: Tensor, machine: KernelMachine) -> "tuple[Solution, _Graph | None] | None":
        """What r `(N, numbers)` says, and the graph beside it; None: surely no more than is said without r.

        Of the solution are the weights of e, and what e and g say together of each node by the others, less Ȳ.
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
        """z `(N, numbers)`."""
        found = neighbourhoods(u, domain, self.config.hops)
        if self.directions.shape[1]:
            found = (found.unflatten(1, (self.config.hops + 1, -1)) @ self.directions.to(found.dtype)).flatten(1)
        return torch.cat([found, positions.to(found.dtype)], 1)

    def _far(self, u: Tensor, domain: Graph) -> Tensor:
        """r `(N, numbers)`."""
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
    """Whether nearly all nodes that walks from some nodes `(n,)` reach are reached by those of even lengths too."""
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
    """The part of the graph: γ and p, s, λ / s in units of κ_g, the mean square of the left-out errors, its dual, and g
    of each node by the others `(n, c)`; the dual of the features, and what both say, of each node by the others.
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
    """Known nodes, and what is fitted at them."""

    def __init__(
        self, steps: GraphSteps, nodes: Tensor, wanted: Tensor, groups: Tensor | None, *, reads_even: bool
    ) -> None:
        self._reaches = [reach for reach in REACHES if reads_even or reach.stride == 1]
        self.steps, self.nodes, self.wanted, self.groups = steps, nodes, wanted, groups
        some = torch.randperm(len(nodes))[:CHOSEN].sort().values.to(nodes.device)
        self._some, self._members = some, members_of(groups, some)
        self.own_groups = None if groups is None or self._members is None else groups[some]
        offset = wanted[some].mean(0)
        self._chosen = wanted[some] - offset
        self._kernels = dict[Reach, tuple[Tensor, float]]()
        """κ_g of the nodes by which is chosen, and what it was divided by."""
        self._best: tuple[Reach, list[KernelFit]] | None = None
        self._without: Tensor | None = None
        self._learnt = torch.zeros_like(self._chosen[:, 0])
        """By how much squares of left-out errors are larger where the kernel of features has not learnt of the node."""
        self._between: list[tuple[Reach, Tensor, float]] | None = None
        self.errors = self._chosen.square().mean(1)
        """Left-out squares of what was said best, of the nodes by which is chosen."""

    def _all(self) -> list[tuple[Reach, Tensor, float]]:
        """See `_apart`, of REACHES and the nodes by which is chosen."""
        if self._between is None:
            self._between = _apart(self.steps, self.nodes[self._some], self._reaches)
        return self._between

    def rank(self, rest: Tensor) -> None:
        """Keeps the reaches that tell most by themselves, of what is fitted and of what features leave of it."""
        own, members = rest[self._some], self._members
        parts, told = (self._chosen, own - own.mean(0)), list[tuple[Reach, list[KernelFit]]]()
        self._kernels, self._without, self.errors = {}, None, self._chosen.square().mean(1)
        for reach, between, unit in self._all():
            told.append((reach, best_fits(between, parts, members, PENALTIES)))
            self._kernels[reach] = between, unit
        ranked = [sorted(told, key=lambda each: each[1][of].error) for of in (0, 1)]
        kept = dict.fromkeys(reach for pair in zip(*ranked, strict=True) for reach, _ in pair)
        self._kernels = {reach: self._kernels[reach] for reach in list(kept)[:KEPT]}
        self._best = ranked[0][0] if told else None

    def squares(self, left_out: Tensor) -> Tensor:
        """Mean squares of errors of what is said of each known node `(n, c)`, of those by which is chosen."""
        return (self.wanted - left_out)[self._some].square().mean(1)

    @property
    def alone(self) -> Tensor | None:
        """What the graph by itself says of each known node by the others `(n, c)`; None: less than the mean."""
        if self._best is None or self._best[1][0].error >= float(self._chosen.square().mean()):
            return None
        reach, fits = self._best
        return self._of_all(None, 1.0, reach, 1.0, fits[0].penalty).left_out

    def beside(self, kernel: Tensor, said: Tensor | None = None) -> _Graph | None:
        """The part of the graph beside a kernel of features `(n, n)`; None: it surely tells nothing.

        Args:
            kernel: what it has learnt may know of a node that is left out.
            said: what it says of each node `(n, c)` without having learnt of it; None: as much less as the last one.
        """
        own, wanted = kernel[self._some][:, self._some], self._chosen
        unit = _unit(own)
        own = own / (unit or 1.0)
        alone = best_fit(own, wanted, self._members, PENALTIES)
        if said is not None:
            self._learnt = self.squares(said) - _squares(wanted, alone)
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
        """The part of the graph by all known nodes, beside a kernel of features over its scale."""
        (between, unit), everything = self._kernels[reach], len(self._some) == len(self.nodes)
        of_graph = share * (between if everything else self.steps.between(self.nodes, [reach])[0] / unit)
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


def left_out_part(
    inverse: Tensor, of_graph: Tensor, wanted: Tensor, members: list[Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Left-out errors, what a part of the kernel says of each example by the others, `(n, c)`, and the dual."""
    dual, moved = inverse @ wanted, fall_of_mean(wanted, members)
    product = of_graph @ inverse
    without = dual + inverse.sum(1)[:, None] * moved
    told = of_graph @ dual + product.sum(1)[:, None] * moved
    if members is None:
        errors = without / inverse.diagonal()[:, None]
        return errors, told - product.diagonal()[:, None] * errors, dual
    errors = torch.empty_like(dual)
    for own in members:
        errors[own] = torch.linalg.solve(inverse[own][:, own], without[own])
        told[own] -= product[own][:, own] @ errors[own]
    return errors, told, dual


def _squares(wanted: Tensor, fit: KernelFit) -> Tensor:
    """Of left-out errors, of each node."""
    return (wanted - fit.left_out).square().mean(1)


def _mean(errors: Tensor) -> float:
    return float(errors.mean())


def _apart(steps: GraphSteps, nodes: Tensor, reaches: Sequence[Reach]) -> list[tuple[Reach, Tensor, float]]:
    """Of some reaches those that tell nodes apart, κ_g over a unit, and the unit."""
    units = [(*each, _unit(each[1])) for each in zip(reaches, steps.between(nodes, reaches), strict=True)]
    return [(reach, between / unit, unit) for reach, between, unit in units if unit]


def _unit(kernel: Tensor) -> float:
    """The mean of the diagonal of a kernel that is centred; 0 where it is constant but for rounding."""
    found = float((kernel.diagonal() - 2 * kernel.mean(0)).mean() + kernel.mean())
    return found if found > 1e-12 * float(kernel.diagonal().abs().max()) else 0.0


@final
class _Beside(Regressand):
    """What is left of a regressand beside what is said of each example already `(n, c)`, and how both are read."""

    scores: Tensor
    read: Readout

    def __init__(self, regressand: Regressand, wanted: Tensor, said: Tensor) -> None:
        self._regressand, self._wanted, self._said = regressand, wanted, said

    def columns(self, targets: Tensor) -> Tensor:
        """See `Regressand.columns`."""
        return self._wanted - self._said

    def readout(self, scores: Tensor, targets: Tensor) -> Readout:
        """See `Regressand.readout`: of the sum."""
        self.scores = scores + self._said
        self.read = self._regressand.readout(self.scores, targets)
        return self.read
