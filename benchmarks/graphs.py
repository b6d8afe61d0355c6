"""Kernels on the edges of a graph against PyTorch Geometric's layers: ``python -m benchmarks graphs``.

Random undirected graphs. Each layer has the operator's own weights and the same list of edges; output and every
gradient are compared at a small size, and so is every timed result. Where no layer computes the same or fits into
memory, the operator is timed alone and compared with its definition.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final, get_args

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness import (
    Benchmark,
    Direction,
    Instance,
    Options,
    Row,
    Settings,
    Step,
    both_ways,
    directed,
    growth,
    measure_alone,
    require_agreement,
    require_same,
    rows_alone,
    side_by_side,
)
from benchmarks.peers.graph_layers import GAT, GCN, GCN_SPARSE, NN, graph_layer
from fredholm import IntegralOperator, domains, kernels
from fredholm.evaluation import Dense, Integral

Case = Literal[
    "building the graph",
    "graph convolution",
    "graph attention",
    "edge network",
    "exact perceptron",
    "low rank",
]
BUILDING, CONVOLUTION, ATTENTION, NETWORK, PERCEPTRON, LOW_RANK = get_args(Case)
PEERS: dict[Case, tuple[str, ...]] = {CONVOLUTION: (GCN, GCN_SPARSE), ATTENTION: (GAT,), NETWORK: (NN,)}
EDGE_FEATURES, POSITIONS, SIGMA = 4, 8, 1.0
CHECKED_ROWS = 4
SMALL = 200
"""Nodes of the gate, and of the small problem that runs before memory is measured."""


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on one core, and 8 GB of memory."""

    options: Options = field(default_factory=lambda: Options(rounds=5, budget_s=10.0))
    cases: tuple[Case, ...] = get_args(Case)
    """Operators to measure, and the time to build their graph."""
    sizes: tuple[int, ...] = (10_000, 100_000)
    """Numbers of nodes."""
    degree: int = 10
    """Directed edges per node, without loops; even, because each edge is listed in both directions."""
    channels: int = 64
    """Channels of the signal and of the result, a multiple of 4."""
    peer_bytes: int = 2 << 30
    """Bytes; NNConv is left out where its matrices, one per edge, need more."""
    tolerance: float = 1e-5
    """Largest relative difference, of output and every gradient, that is timed; larger on many nodes, for rounding."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return replace(self, sizes=(30, 50), channels=8)

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on impossible graphs, and on channels that the heads do not divide."""
        if not self.sizes or min(self.sizes) < 2:
            raise ValueError(f"sizes must be one or more numbers of nodes, each at least 2; got {self.sizes}")
        if self.degree < 2 or self.degree % 2:
            raise ValueError(f"degree must be even and at least 2, as edges are listed both ways; got {self.degree}")
        if self.channels < 4 or self.channels % 4:
            raise ValueError(f"channels must be a multiple of the 4 heads; got {self.channels}")
        return self

    def rounding(self, terms: int) -> float:
        """The tolerance of sums of this many terms in float32.

        Added one after the other, terms of random signs round by up to ε √terms of their sum.
        """
        return max(self.tolerance, torch.finfo(torch.float32).eps * math.sqrt(terms))

    def peers(self, case: Case, n: int) -> tuple[str, ...]:
        """The layers that a case is compared with at one size."""
        matrices = 4 * self.channels**2 * self.degree * n
        return tuple(peer for peer in PEERS.get(case, ()) if peer != NN or matrices <= self.peer_bytes)


@final
class Problem(Instance):
    """An operator, a random graph of ``n`` nodes, a signal on it, and the layers that compute the same.

    For an operator on edges without a layer the cotangent is zero except at a few nodes, so that its definition at
    these nodes gives the whole gradient.

    Args:
        config: sizes, device and seed.
        case: name of the operator.
        n: number of nodes.
    """

    def __init__(self, config: Config, case: Case, n: int) -> None:
        torch.manual_seed(config.options.seed)
        self.n, self.case, self.device = n, case, config.options.torch_device
        self._tolerance = config.rounding(n)
        self.operator = _operator(case, config.channels).to(self.device)
        self.pos = torch.randn(n, POSITIONS, dtype=torch.float64).to(self.device)
        edges = _undirected(n, config.degree)
        if case in (CONVOLUTION, ATTENTION):
            edges = torch.cat([edges, torch.arange(n).expand(2, -1)], dim=1)
        self.edges = edges.to(self.device)
        self.features = torch.randn(edges.shape[1], EDGE_FEATURES).to(self.device) if case == NETWORK else None
        self.domain = domains.Points(self.pos) if case == LOW_RANK else self._graph()
        self.u = torch.randn(1, n, config.channels).to(self.device).requires_grad_()
        self.cotangent, self.rows = torch.randn(1, n, config.channels).to(self.device), None
        peers = config.peers(case, n)
        if not peers and case != LOW_RANK:
            self.rows = torch.randperm(n)[:CHECKED_ROWS].sort().values.to(self.device)
            self.cotangent *= torch.zeros(n, 1, device=self.device).index_fill(0, self.rows, 1.0)
        self._layers = {peer: graph_layer(peer, self.operator, self.edges, n, self.features) for peer in peers}

    def step(self, name: str, direction: Direction) -> Step:
        """The operator, a layer, or building the graph; gradients are of the signal and the operator's parameters."""
        if name == BUILDING:
            return lambda: (self._graph().source,)
        layer = self._layers.get(name)
        return self._directed(self._ours if layer is None else functools.partial(layer, self.u), direction)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """Error against the definition, or None if there is a layer to compare with."""
        if name == BUILDING or self._layers:
            return None
        if self.rows is None:
            expected, found = self._by_factors(direction), result
        else:
            at_rows = directed(self._by_definition, direction, self._leaves(), self.cotangent[:, self.rows])
            expected, found = at_rows(), (result[0][:, self.rows], *result[1:])
        return require_agreement(f"{self.case} against its definition, n={self.n}", found, expected, self._tolerance)

    def _graph(self) -> domains.Graph:
        return domains.Graph(self.edges, self.n, pos=self.pos, edge_features=self.features)

    def _ours(self) -> Tensor:
        return self.operator(self.u, self.domain)

    def _by_definition(self) -> Tensor:
        """The result at a few nodes, by κ in full between them and the sources of their edges."""
        assert self.rows is not None
        kept = torch.isin(self.edges[1], self.rows)
        nodes, place = torch.cat([self.edges[:, kept].flatten(), self.rows]).unique(return_inverse=True)
        ends, rows = place.split([2 * int(kept.sum()), len(self.rows)])
        edge_features = None if self.features is None else self.features[kept]
        graph = domains.Graph(ends.view(2, -1), len(nodes), pos=self.pos[nodes], edge_features=edge_features)
        u = self.u[:, nodes]
        integral = Dense().integrate(Integral(self.operator.kernel, u, graph))
        return self.operator.around(integral, u)[:, rows]

    def _by_factors(self, direction: Direction) -> Sequence[Tensor]:
        """Φ(x)ᵀ of the mean of Ψ(y) u(y), and B of that of u(y), with Φ and Ψ at every node; all in float64."""
        operator, u = copy.deepcopy(self.operator).double(), self.u.detach().double().requires_grad_()
        kernel = operator.kernel
        assert isinstance(kernel, kernels.LowRankMLP)

        def apply() -> Tensor:
            query, key = kernel.both_sides(u, self.domain, None, None)
            form, value = kernel.low_rank_form(), u.unflatten(-1, (kernel.num_heads, -1)).transpose(1, 2)
            phi = torch.einsum("bhna,hrac->bhnrc", query, form.query)
            psi = torch.einsum("bhna,hrac->bhnrc", key, form.key)
            mean = torch.einsum("bhnrc,bhnc->bhr", psi, value) / self.n
            out = torch.einsum("bhnrc,bhr->bhnc", phi, mean)
            assert form.constant is not None
            out = out + torch.einsum("hoc,bhc->bho", form.constant, value.mean(2))[:, :, None]
            return operator.around(out.transpose(1, 2).flatten(2), u)

        return directed(apply, direction, [u, *operator.parameters()], self.cotangent)()

    def _directed(self, apply: Callable[[], Tensor], direction: Direction) -> Step:
        return directed(apply, direction, self._leaves(), self.cotangent)

    def _leaves(self) -> list[Tensor]:
        return [self.u, *self.operator.parameters()]


def _undirected(n: int, degree: int) -> Tensor:
    """Random edges between different nodes, in both directions, `(2, n · degree)`."""
    source = torch.randint(n, (n * degree // 2,))
    target = (source + 1 + torch.randint(n - 1, source.shape)) % n
    return torch.stack([torch.cat([source, target]), torch.cat([target, source])])


def _operator(case: Case, channels: int) -> IntegralOperator:
    """The operator of a case, with parameters drawn at unit scale, so that no part of κ is negligible."""
    nothing = kernels.KernelInputs(**dict.fromkeys(kernels.KernelInputs.__dataclass_fields__, False))
    lifted = {"width": 32, "num_frequencies": 16, "sigma": SIGMA}
    if case == NETWORK:
        network = kernels.MLP(
            channels, 1, POSITIONS, width=16, activation="relu", inputs=nothing, edge_dim=EDGE_FEATURES
        )
        on_edges = kernels.OnEdges(network, long_range=None, edge_mass="sum")
        operator = IntegralOperator(on_edges, output_projection=False)
    elif case == PERCEPTRON:
        perceptron = kernels.MLP(channels, 2, POSITIONS, **lifted)
        operator = IntegralOperator(kernels.OnEdges(perceptron, long_range=None))
    elif case == LOW_RANK:
        operator = IntegralOperator(kernels.LowRankMLP(channels, 2, POSITIONS, rank=8, **lifted))
    elif case == ATTENTION:
        attention = kernels.OnEdges(kernels.AdditiveAttention(channels, 4), long_range=None)
        operator = IntegralOperator(attention, residual=False, output_projection=False)
    else:
        one_matrix = kernels.OnEdges(kernels.Constant(channels, channels), long_range=None, edge_mass="symmetric")
        operator = IntegralOperator(one_matrix, residual=False, output_projection=False)
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.normal_().div_(math.sqrt(parameter.shape[-1] if parameter.ndim > 1 else 1))
    return operator


def measure(config: Config) -> Iterator[Row]:
    """Compares all cases, then measures time and memory, case by case."""
    for case in tqdm(config.cases, desc="comparing", leave=False, disable=None):
        compare(config, case, min(SMALL, *config.sizes))
    for case in tqdm(config.cases, desc="cases", disable=None):
        for n in config.sizes:
            yield from at_size(config, case, n)


def compare(config: Config, case: Case, n: int) -> None:
    """The gate before any timing: output and all gradients against every layer, or against the definition."""
    build = functools.partial(Problem, config, case)
    if peers := config.peers(case, n):
        require_same(build, n, case, peers, config.tolerance)
    else:
        problem = build(n)
        problem.error(case, "forward+backward", problem.step(case, "forward+backward")())


def at_size(config: Config, case: Case, n: int) -> Iterator[Row]:
    """One case: interleaved with its layers, each with isolated memory and a separate row, or alone without layers."""
    build, options, peers = functools.partial(Problem, config, case), config.options, config.peers(case, n)
    tiny = min(SMALL, n)
    if case == BUILDING:
        steps: dict[str, Sequence[Direction]] = {case: ("forward",)}
        found = measure_alone(build, n, steps, options, rounds=options.rounds, tiny=tiny)
        yield Row.alone(case, n, "forward", found[case]["forward"])
    elif not peers:
        yield from rows_alone(build, n, {case: case}, options, tiny=tiny)
    else:
        tolerance = config.rounding(n * config.degree)
        for sides in side_by_side(build, n, both_ways((case, *peers)), options, tiny=tiny):
            for peer in peers:
                yield sides.against(case, peer, error=sides.require_agreement(case, peer, tolerance))
            for peer in peers:
                yield sides.own(peer)


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Time and memory of each case against each layer, and the growth of both; edges grow as nodes do."""
    peak = {(row.case, row.n, row.direction): row.peak_mb for row in rows}
    for row in rows:
        theirs = peak.get((row.peer or "", row.n, row.direction))
        if row.peer_s is None or row.direction == "forward":
            continue
        assert row.peak_mb is not None
        ratio = f"{row.case} beside {row.peer}, forward+backward, n={row.n}: {row.ours_s / row.peer_s:.2f} of its time"
        # small graphs may take less memory than can be measured
        yield f"{ratio}, {row.peak_mb / theirs:.2f} of its peak memory" if theirs else ratio
    yield from growth(rows)


BENCHMARK = Benchmark(
    name="graphs",
    purpose="kernels on the edges of graphs against PyTorch Geometric's layers",
    config=Config,
    measure=measure,
    notes=notes,
)
