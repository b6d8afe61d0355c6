"""The same integral by different routes, and the choice between them."""

from fredholm.evaluation.auto import AUTO, ROUTES, STATEFUL_ROUTES, AtThePoint, Auto, Choice, TermByTerm
from fredholm.evaluation.bilinear_sum import BilinearSum
from fredholm.evaluation.central_pooling import CentralPooling
from fredholm.evaluation.dense import Dense
from fredholm.evaluation.evaluation import Evaluation, Queries, Route, StatefulEvaluation, StatefulRoute
from fredholm.evaluation.factorised_sum import FactorisedSum
from fredholm.evaluation.feature_fft import FeatureFFT
from fredholm.evaluation.feature_product_scan import FeatureProductScan
from fredholm.evaluation.feature_tiled import FeatureTiled
from fredholm.evaluation.fft import FFT
from fredholm.evaluation.filtering import Filtering, FilterRoute, as_filtering
from fredholm.evaluation.fused_attention import FusedAttention
from fredholm.evaluation.hop_iteration import HopIteration
from fredholm.evaluation.hop_series import HopSeries
from fredholm.evaluation.hop_solve import HopSolve
from fredholm.evaluation.hop_substitution import HopSubstitution
from fredholm.evaluation.hop_tiled import HopTiled
from fredholm.evaluation.integral import Integral, share
from fredholm.evaluation.long_convolution import LongConvolution
from fredholm.evaluation.low_rank_scan import LowRankScan
from fredholm.evaluation.native_convolution import NativeConvolution
from fredholm.evaluation.native_recurrence import NativeRecurrence
from fredholm.evaluation.neumann_scan import NeumannScan
from fredholm.evaluation.scan import Scan
from fredholm.evaluation.separable_sum import SeparableSum
from fredholm.evaluation.step_loop import StepLoop
from fredholm.evaluation.tiled import Tiled
from fredholm.evaluation.toeplitz import Toeplitz
from fredholm.evaluation.triton import TritonFactorisedSum, TritonTiled, TritonYat
from fredholm.evaluation.woodbury import Woodbury
from fredholm.evaluation.yat_tiled import YatTiled

__all__ = [
    "AUTO",
    "FFT",
    "ROUTES",
    "STATEFUL_ROUTES",
    "AtThePoint",
    "Auto",
    "BilinearSum",
    "CentralPooling",
    "Choice",
    "Dense",
    "Evaluation",
    "FactorisedSum",
    "FeatureFFT",
    "FeatureProductScan",
    "FeatureTiled",
    "FilterRoute",
    "Filtering",
    "FusedAttention",
    "HopIteration",
    "HopSeries",
    "HopSolve",
    "HopSubstitution",
    "HopTiled",
    "Integral",
    "LongConvolution",
    "LowRankScan",
    "NativeConvolution",
    "NativeRecurrence",
    "NeumannScan",
    "Queries",
    "Route",
    "Scan",
    "SeparableSum",
    "StatefulEvaluation",
    "StatefulRoute",
    "StepLoop",
    "TermByTerm",
    "Tiled",
    "Toeplitz",
    "TritonFactorisedSum",
    "TritonTiled",
    "TritonYat",
    "Woodbury",
    "YatTiled",
    "as_filtering",
    "share",
]
