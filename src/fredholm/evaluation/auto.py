"""All routes, the fastest first, and the evaluation that chooses among them."""

import dataclasses
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import linear

from fredholm._precision import wide_dtype
from fredholm.domains import Domain, Graph, Points
from fredholm.evaluation.attention.fused import FusedAttention
from fredholm.evaluation.attention.linear import BilinearSum, FeatureMapSum
from fredholm.evaluation.attention.listed import ListedScores
from fredholm.evaluation.attention.score_tiled import ScoreTiled
from fredholm.evaluation.convolution.basis_fft import BasisFFT
from fredholm.evaluation.convolution.basis_tiled import BasisTiled
from fredholm.evaluation.convolution.fft import FFT
from fredholm.evaluation.convolution.fourier_sum import FourierSum
from fredholm.evaluation.convolution.native import NativeConvolution
from fredholm.evaluation.dense import Dense
from fredholm.evaluation.evaluation import Evaluation, FirstOf, Queries, Route, StatefulEvaluation, StatefulRoute
from fredholm.evaluation.features.feature_sum import FeatureSum
from fredholm.evaluation.features.listed import ListedFeatures
from fredholm.evaluation.features.low_rank_scan import LowRankScan
from fredholm.evaluation.features.separable_scan import SeparableScan
from fredholm.evaluation.integral import Integral, ordered_queries
from fredholm.evaluation.listed import Gathered, pair_mass, per_point, row_by_row, spread
from fredholm.evaluation.neumann.central_pooling import CentralPooling
from fredholm.evaluation.neumann.diffusion import Walk
from fredholm.evaluation.neumann.hop_routes import HopSeries, HopTiled
from fredholm.evaluation.neumann.scan import NeumannScan
from fredholm.evaluation.neumann.solvers import Factorisation, Iteration, Substitution
from fredholm.evaluation.neumann.woodbury import Woodbury
from fredholm.evaluation.perceptron.listed import ListedPerceptron
from fredholm.evaluation.perceptron.tiled import Tiled, Toeplitz
from fredholm.evaluation.recurrence.long_convolution import LongConvolution
from fredholm.evaluation.recurrence.native import NativeRecurrence
from fredholm.evaluation.recurrence.scan import Scan
from fredholm.evaluation.sharded.hop_ring import HopRing
from fredholm.evaluation.sharded.relay import Relay
from fredholm.evaluation.sharded.ring import Ring, ScoreRing
from fredholm.evaluation.sharded.whole_signal import WholeSignal
from fredholm.evaluation.step_loop import StepLoop
from fredholm.evaluation.triton import TritonFeatureSum, TritonTiled, TritonYat
from fredholm.evaluation.weighted import Weighted
from fredholm.kernels import Constant, Kernel, OnEdges, Pointwise, Scaled, State, Sum
from fredholm.kernels.kernel import added, joined_states


@final
@dataclasses.dataclass(frozen=True)
class PointwiseProduct(Route[Pointwise]):
    """For `Pointwise`: κ vanishes unless x = y, so that one matrix product for all points remains."""

    marker = Pointwise
    queries = Queries.AT_POINTS
    spans_processes = True

    def refusals(self, integral: Integral[Pointwise]) -> list[str]:
        """Refuses nothing; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[Pointwise]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        if domain.mask is not None or not domain.is_uniform:
            u = u * kernel.measure(domain)[..., None].to(u.dtype)
        return linear(u, kernel.weight)


@final
@dataclasses.dataclass(frozen=True)
class TermByTerm(StatefulRoute[Sum | Scaled]):
    """For `Sum` and `Scaled`: the integral is linear in κ, so each part takes its own route.

    Along a sequence each part continues from its own part of the state.

    Args:
        parts: evaluation of each part; None: `Auto()`.
    """

    marker = Sum | Scaled
    weighs_pairs = lists_pairs = spans_processes = True
    parts: Evaluation | None = None

    def refusals(self, integral: Integral[Sum | Scaled]) -> list[str]:
        """Refuses nothing: a part that cannot be integrated raises its own error."""
        return []

    def compute(self, integral: Integral[Sum | Scaled]) -> Tensor:
        """See `Route.compute`."""
        parts, kernel = self._evaluation, integral.kernel
        if isinstance(kernel, Scaled):
            return kernel.gate[0] * parts.integrate(integral.of(kernel.kernel))
        return added(parts.integrate(integral.of(term)) for term in kernel.kernels)

    def run_refusals(self, integral: Integral[Sum | Scaled], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses parts without a state, and a `parts` evaluation that carries no state."""
        parts = self._evaluation
        stateless = [] if isinstance(parts, StatefulEvaluation) else [f"{parts.name} carries no state"]
        return stateless + integral.kernel.unsteppable(integral.domain)

    def advance(
        self, integral: Integral[Sum | Scaled], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`; the state is that of all parts, concatenated."""
        parts, kernel = self._evaluation, integral.kernel
        assert isinstance(parts, StatefulEvaluation)
        if isinstance(kernel, Scaled):
            out, state = parts.run(integral.of(kernel.kernel), state, reset)
            return kernel.gate[0] * out, state
        terms = kernel.kernels
        before = [None] * len(terms) if state is None else kernel.states_of_terms(state)
        runs = [parts.run(integral.of(term), own, reset) for term, own in zip(terms, before, strict=True)]
        return added(out for out, _ in runs), joined_states(after for _, after in runs)

    @property
    def _evaluation(self) -> Evaluation:
        return AUTO if self.parts is None else self.parts


@final
@dataclasses.dataclass(frozen=True)
class EdgeSum(Route[OnEdges]):
    """For `OnEdges`: a sum over the edges plus λ times the integral over all nodes, each by its own route.

    Args:
        parts: evaluation of both terms; None: `Auto()`.
    """

    marker = OnEdges
    queries = Queries.AT_POINTS
    parts: Evaluation | None = None

    def refusals(self, integral: Integral[OnEdges]) -> list[str]:
        """Refuses nothing: a domain without edges raises an error; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[OnEdges]) -> Tensor:
        """See `Route.compute`."""
        kernel, parts = integral.kernel, AUTO if self.parts is None else self.parts
        near = parts.integrate(_along_edges(integral))
        if kernel.long_range is None:
            return near
        far = parts.integrate(integral.of(kernel.kernel))
        return near + kernel.long_range.to(far.dtype) * far

    def details(self, integral: Integral[OnEdges]) -> list[str]:
        """The routes and numbers of pairs of both parts."""
        parts = AUTO if self.parts is None else self.parts
        near = _along_edges(integral)
        graph = near.domain
        assert isinstance(graph, Graph)
        edges = graph.num_edges * (1 if graph.edges_batch > 1 else near.u.shape[0])
        lines = [f"edges, {edges:.3g} pairs: {parts.explain(near)}"]
        if integral.kernel.long_range is not None:
            far = integral.of(integral.kernel.kernel)
            pairs = far.u.shape[0] * far.num_queries * far.domain.num_points
            lines.append(f"all nodes, {pairs:.3g} pairs: {parts.explain(far)}")
        return [line for part in lines for line in part.split("\n")]


def _along_edges(integral: Integral[OnEdges]) -> Integral[Kernel]:
    """The sum over edges."""
    u, domain, query, query_domain = integral.arguments
    return Integral(integral.kernel.kernel, u, integral.kernel.on_edges(domain), query, query_domain).differentiable_as(
        integral
    )


@final
@dataclasses.dataclass(frozen=True)
class Mean(Route[Constant]):
    """For `Constant` on a whole measure: one sum of the signal serves all queries."""

    marker = Constant
    weighs_pairs = spans_processes = True

    def refusals(self, integral: Integral[Constant]) -> list[str]:
        """Refuses pair weights that differ between groups of channels; see `Route.refusals`."""
        bias = integral.domain.pair_bias
        return [] if bias is None or bias.shape[1] == 1 else ["pair weights differ between channels"]

    def compute(self, integral: Integral[Constant]) -> Tensor:
        """See `Route.compute`."""
        u, weights, pairs = integral.u, torch.atleast_2d(integral.domain.weights), integral.domain.pair_weights
        values = u.to(wide_dtype(u)) * weights[..., None].to(wide_dtype(u))
        total = integral.domain.total(
            values.sum(-2, keepdim=True) if pairs is None else pairs[:, 0].to(values.dtype) @ values
        )
        return linear(total.to(u.dtype), integral.kernel.weight).expand(-1, integral.num_queries, -1)


@final
@dataclasses.dataclass(frozen=True)
class EachQuery(Route[Kernel]):
    """For any kernel and listed pairs: every query becomes a batch entry of its own, with its points.

    Per-point computations of a kernel are repeated for each pair of the point; the routes for listed pairs of
    perceptrons and scores avoid that.

    Args:
        parts: evaluation of each entry; None: `Auto()`.
    """

    lists_pairs = needs_list = True
    parts: Evaluation | None = None

    def refusals(self, integral: Integral[Kernel]) -> list[str]:
        """Refuses kernels that need more than two points, or their order; see `Route.refusals`."""
        kernel = integral.kernel
        if isinstance(kernel, Sum | Scaled):
            return ["each term takes its own route"]
        if kernel.reads_order:
            return ["the order of the points is lost in the lists of the queries"]
        return [] if kernel.is_pairwise else [f"{type(kernel).__name__} needs more than the two points of a pair"]

    def compute(self, integral: Integral[Kernel]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        assert domain.pair_list is not None
        pairs, query_domain = domain.pair_list.repeated(u.shape[0]), ordered_queries(integral)[0]
        n, n_q, past = pairs.num_points, pairs.num_queries, query_domain.given_past_mass
        pos, query_pos = (d.pos if d.pos.ndim == 3 else d.pos[None] for d in (domain, query_domain))
        rows = []
        for group in pairs.groups:
            queries, points, _, features = group
            every = torch.arange(queries.shape[0], device=u.device)
            inputs = {
                "u": per_point(u, points, n),
                "pos": per_point(pos, points, n),
                "mass": Gathered(pair_mass(integral, group), every),
                "scale": per_point(torch.atleast_2d(domain.counts_per_mass), queries // n_q, 1),
                "query_pos": per_point(query_pos, queries, n_q),
            }
            if integral.has_query_signal:
                inputs["query"] = per_point(integral.query, queries, n_q)
            if past is not None:
                inputs["past"] = per_point(past, queries, n_q)
            if features is not None:
                inputs["features"] = Gathered(features, every)
            entries = _Entries(self, integral, query_domain)
            rows.append(row_by_row(entries, inputs, kernel.out_dim, module=kernel))
        return spread(rows, pairs, u, kernel.out_dim)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Entries:
    """The integrals of a chunk of rows, as entries of a batch."""

    route: EachQuery
    whole: Integral[Kernel]
    query_domain: Domain

    def __call__(
        self,
        *,
        u: Tensor,
        pos: Tensor,
        mass: Tensor,
        scale: Tensor,
        query_pos: Tensor,
        query: Tensor | None = None,
        past: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """`(n, d_out)` from the points' signals `(n, K, C)`, positions and masses, and the queries' own."""
        nodes = Points.derived(self.whole.domain, pos, mass, counts_per_mass=scale[:, None], features=features)
        ones, past = mass.new_ones(mass.shape[0], 1), None if past is None else past[:, None]
        query_domain = Points.derived(self.query_domain, query_pos[:, None], ones, past_mass=past)
        parts = AUTO if self.route.parts is None else self.route.parts
        signal = None if query is None else query[:, None]
        return parts.integrate(
            Integral(self.whole.kernel, u, nodes, signal, query_domain).differentiable_as(self.whole)
        )[:, 0]


ON_ONE_PROCESS: tuple[Route[Any], ...] = (
    PointwiseProduct(),
    Mean(),
    EdgeSum(),
    Walk(),
    FourierSum(),
    BasisFFT(min_gain=3.0),
    FFT(min_gain=8.0),
    TritonTiled(),
    Toeplitz(),
    Tiled(),
    NativeConvolution(),
    BasisTiled(),
    LongConvolution(),
    TritonFeatureSum(),
    FeatureSum(),
    CentralPooling(),
    Woodbury(),
    FusedAttention(),
    TritonYat(),
    ScoreTiled(),
    NeumannScan(),
    HopTiled(),
    HopSeries(Substitution()),
    HopSeries(Factorisation()),
    HopSeries(Iteration()),
    FeatureMapSum(),
    BilinearSum(),
    LowRankScan(),
    SeparableScan(),
    NativeRecurrence(),
    Scan(),
    TermByTerm(),
    StepLoop(),
    ListedPerceptron(),
    ListedScores(),
    ListedFeatures(),
    EachQuery(),
    Weighted(),
    Dense(),
)
"""The routes on a single process, the fastest first."""


@final
@dataclasses.dataclass(frozen=True)
class Auto(FirstOf):
    """Takes the first of its routes that can compute an integral.

    Args:
        routes: the fastest first.
        differentiable_twice: whether to take only routes with second and forward-mode derivatives: for losses that
            contain derivatives of the model, such as residuals of differential equations.
    """

    routes: tuple[Route[Any], ...] = dataclasses.field(default_factory=lambda: ROUTES)
    differentiable_twice: bool = False

    def __repr__(self) -> str:
        # omits the default routes, which are long and appear in many signatures
        stated = [] if self.routes == ROUTES else [f"routes={self.routes!r}"]
        return f"Auto({', '.join([*stated, *(['differentiable_twice=True'] if self.differentiable_twice else [])])})"


LOCAL = Auto(ON_ONE_PROCESS)
"""The choice for local computations of a process on a sharded signal."""
ROUTES: tuple[Route[Any], ...] = (
    *ON_ONE_PROCESS,
    Relay(LOCAL),
    ScoreRing(),
    HopRing(),
    Ring(LOCAL),
    WholeSignal(LOCAL),
)
"""The default routes of `Auto`, the fastest first."""

AUTO = Auto()
"""The choice among all routes."""
