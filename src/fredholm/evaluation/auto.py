"""All routes, the fastest first, and the evaluation that picks one of them."""

import dataclasses
from typing import Any, final

from torch import Tensor
from torch.nn.functional import linear

from fredholm.evaluation.attention.fused import FusedAttention
from fredholm.evaluation.attention.linear import BilinearSum, FeatureMapSum
from fredholm.evaluation.attention.score_tiled import ScoreTiled
from fredholm.evaluation.convolution.basis_fft import BasisFFT
from fredholm.evaluation.convolution.basis_tiled import BasisTiled
from fredholm.evaluation.convolution.fft import FFT
from fredholm.evaluation.convolution.native import NativeConvolution
from fredholm.evaluation.dense import Dense
from fredholm.evaluation.evaluation import (
    Evaluation,
    FirstOf,
    Integral,
    Queries,
    Route,
    StatefulEvaluation,
    StatefulRoute,
)
from fredholm.evaluation.features.feature_sum import FeatureSum
from fredholm.evaluation.features.low_rank_scan import LowRankScan
from fredholm.evaluation.features.separable_scan import SeparableScan
from fredholm.evaluation.neumann.central_pooling import CentralPooling
from fredholm.evaluation.neumann.hops import HopSeries, HopTiled
from fredholm.evaluation.neumann.scan import NeumannScan
from fredholm.evaluation.neumann.solvers import Factorisation, Iteration, Substitution
from fredholm.evaluation.neumann.woodbury import Woodbury
from fredholm.evaluation.perceptron.tiled import Tiled, Toeplitz
from fredholm.evaluation.recurrence.long_convolution import LongConvolution
from fredholm.evaluation.recurrence.native import NativeRecurrence
from fredholm.evaluation.recurrence.scan import Scan
from fredholm.evaluation.step_loop import StepLoop
from fredholm.evaluation.triton import TritonFeatureSum, TritonTiled, TritonYat
from fredholm.evaluation.weighted import Weighted
from fredholm.kernels import Pointwise, Scaled, State, Sum
from fredholm.kernels.kernel import added, joined_states


@final
@dataclasses.dataclass(frozen=True)
class AtThePoint(Route[Pointwise]):
    """For `Pointwise`: κ vanishes unless x = y, and one matrix product for all points is left."""

    marker = Pointwise
    queries = Queries.AT_POINTS

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
    """For `Sum` and `Scaled`: the integral is linear in κ, so each part goes its own way.

    Along a sequence each part goes on from its own part of the state.

    Args:
        parts: how each part is integrated; None: `Auto()`.
    """

    marker = Sum | Scaled
    weighs_pairs = True
    parts: Evaluation | None = None

    def refusals(self, integral: Integral[Sum | Scaled]) -> list[str]:
        """Refuses nothing: a part that cannot be integrated says why itself."""
        return []

    def compute(self, integral: Integral[Sum | Scaled]) -> Tensor:
        """See `Route.compute`."""
        parts, kernel = self._evaluation, integral.kernel
        if isinstance(kernel, Scaled):
            return kernel.gate * parts.integrate(integral.of(kernel.kernel))
        return added(parts.integrate(integral.of(term)) for term in kernel.kernels)

    def run_refusals(self, integral: Integral[Sum | Scaled], state: State | None, reset: Tensor | None) -> list[str]:
        """Refuses parts that carry no state, and an evaluation of parts that carries none."""
        parts = self._evaluation
        stateless = [] if isinstance(parts, StatefulEvaluation) else [f"{parts.name} carries no state"]
        return stateless + integral.kernel.unsteppable(integral.domain)

    def advance(
        self, integral: Integral[Sum | Scaled], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulRoute.advance`; the state is that of all parts in a row."""
        parts, kernel = self._evaluation, integral.kernel
        assert isinstance(parts, StatefulEvaluation)
        if isinstance(kernel, Scaled):
            out, state = parts.run(integral.of(kernel.kernel), state, reset)
            return kernel.gate * out, state
        terms = kernel.kernels
        before = [None] * len(terms) if state is None else kernel.states_of_terms(state)
        runs = [parts.run(integral.of(term), own, reset) for term, own in zip(terms, before, strict=True)]
        return added(out for out, _ in runs), joined_states(after for _, after in runs)

    @property
    def _evaluation(self) -> Evaluation:
        return AUTO if self.parts is None else self.parts


ROUTES: tuple[Route[Any], ...] = (
    AtThePoint(),
    TritonTiled(),
    Toeplitz(),
    Tiled(),
    BasisFFT(min_gain=3.0),
    FFT(min_gain=8.0),
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
    Weighted(),
    Dense(),
)
"""All routes that `Auto` takes unless told otherwise, the fastest first."""


@final
@dataclasses.dataclass(frozen=True)
class Auto(FirstOf):
    """Takes the first of its routes that can compute an integral.

    Args:
        routes: the fastest first.
    """

    routes: tuple[Route[Any], ...] = ROUTES


AUTO = Auto()
"""The choice among all routes."""
