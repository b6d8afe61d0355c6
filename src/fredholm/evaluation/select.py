"""Which route computes an integral, and why not the others."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation.at_the_point import AtThePoint
from fredholm.evaluation.bilinear_sum import BilinearSum
from fredholm.evaluation.central_pooling import CentralPooling
from fredholm.evaluation.dense import Dense
from fredholm.evaluation.evaluation import Evaluation, StatefulEvaluation
from fredholm.evaluation.factorised_sum import FactorisedSum
from fredholm.evaluation.feature_fft import FeatureFFT
from fredholm.evaluation.feature_product_scan import FeatureProductScan
from fredholm.evaluation.feature_tiled import FeatureTiled
from fredholm.evaluation.fft import FFT
from fredholm.evaluation.fused_attention import FusedAttention
from fredholm.evaluation.hop_iteration import HopIteration
from fredholm.evaluation.hop_solve import HopSolve
from fredholm.evaluation.hop_substitution import HopSubstitution
from fredholm.evaluation.hop_tiled import HopTiled
from fredholm.evaluation.long_convolution import LongConvolution
from fredholm.evaluation.low_rank_scan import LowRankScan
from fredholm.evaluation.native_convolution import NativeConvolution
from fredholm.evaluation.native_recurrence import NativeRecurrence
from fredholm.evaluation.neumann_scan import NeumannScan
from fredholm.evaluation.scan import Scan
from fredholm.evaluation.separable_sum import SeparableSum
from fredholm.evaluation.step_loop import StepLoop
from fredholm.evaluation.term_by_term import TermByTerm
from fredholm.evaluation.tiled import Tiled
from fredholm.evaluation.toeplitz import Toeplitz
from fredholm.evaluation.triton import TritonFactorisedSum, TritonTiled, TritonYat
from fredholm.evaluation.woodbury import Woodbury
from fredholm.evaluation.yat_tiled import YatTiled
from fredholm.kernels import Kernel

STATEFUL_ROUTES: tuple[StatefulEvaluation, ...] = (
    FusedAttention(),
    TritonYat(),
    YatTiled(),
    NeumannScan(),
    HopTiled(),
    HopSubstitution(),
    SeparableSum(),
    BilinearSum(),
    LowRankScan(),
    FeatureProductScan(),
    NativeRecurrence(),
    Scan(),
    StepLoop(),
)
"""The routes that carry a state along a sequence, the fastest first."""


def _fastest(
    kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
) -> Evaluation:
    return select(kernel, u, domain, query, query_domain).evaluation


ROUTES: tuple[Evaluation, ...] = (
    AtThePoint(),
    TritonTiled(),
    Toeplitz(),
    Tiled(),
    FeatureFFT(min_gain=3.0),
    FFT(min_gain=8.0),
    NativeConvolution(),
    FeatureTiled(),
    LongConvolution(),
    TritonFactorisedSum(),
    FactorisedSum(),
    CentralPooling(),
    Woodbury(),
    *STATEFUL_ROUTES,
    HopSolve(),
    HopIteration(),
    TermByTerm(_fastest),
    Dense(),
)
"""All routes, the fastest first."""


class Choice(NamedTuple):
    """The route taken, and what each route before it in the list said against itself."""

    evaluation: Evaluation
    refusals: dict[str, list[str]]

    def __str__(self) -> str:
        lines = [f"{self.evaluation.name}: {_purpose(self.evaluation)}"]
        lines += [f"  not {name}: {'; '.join(reasons)}" for name, reasons in self.refusals.items()]
        return "\n".join(lines)


def _purpose(evaluation: Evaluation) -> str:
    return (type(evaluation).__doc__ or "").strip().split("\n")[0]


def select(
    kernel: Kernel,
    u: Tensor,
    domain: Domain,
    query: Tensor | None = None,
    query_domain: Domain | None = None,
    routes: Sequence[Evaluation] = ROUTES,
) -> Choice:
    """The first of `routes` that can compute this integral; arguments as in `Evaluation.integrate`.

    Routes that are made for other kernels are passed over without a word.

    Raises:
        ValueError: when every route refuses, with all reasons.
    """
    refusals: dict[str, list[str]] = {}
    for route in routes:
        if not isinstance(kernel, route.marker):
            continue
        reasons = route.unsupported_reasons(kernel, u, domain, query, query_domain)
        if not reasons:
            return Choice(route, refusals)
        refusals[route.name] = reasons
    told = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in refusals.items())
    raise ValueError(f"no evaluation can integrate {type(kernel).__name__} on {domain!r} ({told})")
