"""The evaluation that picks a route, and can say why, and why not the others."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar, final

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
from fredholm.evaluation.evaluation import Evaluation, Queries, Route, StatefulEvaluation, StatefulRoute
from fredholm.evaluation.features.feature_sum import FeatureSum
from fredholm.evaluation.features.low_rank_scan import LowRankScan
from fredholm.evaluation.features.separable_scan import SeparableScan
from fredholm.evaluation.integral import Integral
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
from fredholm.kernels import Kernel, Pointwise, Scaled, State, Sum


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
class TermByTerm(Route[Sum | Scaled]):
    """For `Sum` and `Scaled`: the integral is linear in κ, so each part goes its own way.

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
        parts, kernel = AUTO if self.parts is None else self.parts, integral.kernel
        if isinstance(kernel, Scaled):
            return kernel.gate * parts.integrate(integral.of(kernel.kernel))
        first, *others = (parts.integrate(integral.of(term)) for term in kernel.kernels)
        for other in others:
            first = first + other
        return first


STATEFUL_ROUTES: tuple[StatefulRoute[Any], ...] = (
    FusedAttention(),
    TritonYat(),
    ScoreTiled(),
    NeumannScan(),
    HopTiled(),
    HopSeries(Substitution()),
    FeatureMapSum(),
    BilinearSum(),
    LowRankScan(),
    SeparableScan(),
    NativeRecurrence(),
    Scan(),
    StepLoop(),
)
"""The routes that carry a state along a sequence, the fastest first."""

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
    *STATEFUL_ROUTES,
    HopSeries(Factorisation()),
    HopSeries(Iteration()),
    Weighted(),
    TermByTerm(),
    Dense(),
)
"""All routes that `Auto` takes unless told otherwise, the fastest first."""


class Choice(NamedTuple):
    """The route taken, and what each route before it in the list said against itself."""

    route: Route[Any]
    refusals: dict[str, list[str]]

    def __str__(self) -> str:
        lines = [f"{self.route.name}: {self.route.purpose}"]
        lines += [f"  not {name}: {'; '.join(reasons)}" for name, reasons in self.refusals.items()]
        return "\n".join(lines)


@final
@dataclasses.dataclass(frozen=True)
class Auto(StatefulEvaluation):
    """Takes the first of its routes that can compute an integral.

    Routes that are made for other kernels are passed over without a word.

    Args:
        routes: the fastest first.
    """

    routes: tuple[Route[Any], ...] = ROUTES

    def choose(self, integral: Integral[Kernel]) -> Choice:
        """The route that `integrate` takes.

        Raises:
            ValueError: when every route refuses, with all reasons, those of the plainest route first.
        """
        return Choice(*_first(self._made_for(integral), integral, lambda route: route.unsupported_reasons(integral)))

    def unsupported_reasons(self, integral: Integral[Kernel]) -> list[str]:
        """See `Evaluation.unsupported_reasons`."""
        told = {route.name: route.unsupported_reasons(integral) for route in self._made_for(integral)}
        return [] if [] in told.values() else [_refused(integral, told)]

    def integrate(self, integral: Integral[Kernel]) -> Tensor:
        """See `Evaluation.integrate`."""
        return self.choose(integral).route.take(integral)

    def run(
        self, integral: Integral[Kernel], state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """See `StatefulEvaluation.run`."""
        routes = (route for route in self._made_for(integral) if isinstance(route, StatefulRoute))
        route, _ = _first(routes, integral, lambda route: route.unsupported_run_reasons(integral, state, reset))
        return route.advance(integral, state, reset)

    def _made_for(self, integral: Integral[Kernel]) -> Iterator[Route[Any]]:
        return (route for route in self.routes if route.is_made_for(integral.kernel))

    def explain(self, integral: Integral[Kernel]) -> str:
        """See `Evaluation.explain`."""
        return str(self.choose(integral))


AUTO = Auto()
"""The choice among all routes."""

AnyRoute = TypeVar("AnyRoute", bound=Route[Any])


def _first(
    routes: Iterable[AnyRoute], integral: Integral[Kernel], reasons_of: Callable[[AnyRoute], list[str]]
) -> tuple[AnyRoute, dict[str, list[str]]]:
    """The first route without reasons, and those of the routes before it; raises a ValueError if all have some."""
    refusals: dict[str, list[str]] = {}
    for route in routes:
        reasons = reasons_of(route)
        if not reasons:
            return route, refusals
        refusals[route.name] = reasons
    raise ValueError(_refused(integral, refusals))


def _refused(integral: Integral[Kernel], refusals: dict[str, list[str]]) -> str:
    # the plainest routes stand last, and what they lack is what matters
    told = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in reversed(refusals.items()))
    return f"no route can integrate {type(integral.kernel).__name__} on {integral.domain!r} ({told})"
