"""Routes to compute an integral, and the choice between them."""

from fredholm.evaluation.attention.fused import FusedAttention
from fredholm.evaluation.attention.linear import BilinearSum, FeatureMapSum
from fredholm.evaluation.attention.listed import ListedScores
from fredholm.evaluation.attention.score_tiled import ScoreTiled
from fredholm.evaluation.auto import AUTO, ROUTES, Auto, EachQuery, EdgeSum, Mean, PointwiseProduct, TermByTerm
from fredholm.evaluation.convolution.basis_fft import BasisFFT
from fredholm.evaluation.convolution.basis_tiled import BasisTiled
from fredholm.evaluation.convolution.fft import FFT
from fredholm.evaluation.convolution.filtering import Filtering, FilterRoute, as_filtering
from fredholm.evaluation.convolution.fourier_sum import FourierSum
from fredholm.evaluation.convolution.native import NativeConvolution
from fredholm.evaluation.custom_op import flop_formulas
from fredholm.evaluation.dense import Dense
from fredholm.evaluation.evaluation import (
    Choice,
    Evaluation,
    FirstOf,
    Queries,
    Route,
    StatefulEvaluation,
    StatefulRoute,
)
from fredholm.evaluation.features.feature_sum import FeatureSum
from fredholm.evaluation.features.listed import ListedFeatures
from fredholm.evaluation.features.low_rank_scan import LowRankScan
from fredholm.evaluation.features.separable_scan import SeparableScan
from fredholm.evaluation.integral import Integral, share
from fredholm.evaluation.neumann.central_pooling import CentralPooling
from fredholm.evaluation.neumann.diffusion import Walk
from fredholm.evaluation.neumann.hop_routes import HopSeries, HopTiled
from fredholm.evaluation.neumann.scan import NeumannScan
from fredholm.evaluation.neumann.solvers import Factorisation, Iteration, Solver, Substitution, Truncation
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
from fredholm.evaluation.triton.feature_sum import TritonFeatureSum
from fredholm.evaluation.triton.tiled import TritonTiled
from fredholm.evaluation.triton.tuning import Tuned, tune
from fredholm.evaluation.triton.yat_tiled import TritonYat
from fredholm.evaluation.weighted import Weighted

__all__ = [
    "AUTO",
    "FFT",
    "ROUTES",
    "Auto",
    "BasisFFT",
    "BasisTiled",
    "BilinearSum",
    "CentralPooling",
    "Choice",
    "Dense",
    "EachQuery",
    "EdgeSum",
    "Evaluation",
    "Factorisation",
    "FeatureMapSum",
    "FeatureSum",
    "FilterRoute",
    "Filtering",
    "FirstOf",
    "FourierSum",
    "FusedAttention",
    "HopRing",
    "HopSeries",
    "HopTiled",
    "Integral",
    "Iteration",
    "ListedFeatures",
    "ListedPerceptron",
    "ListedScores",
    "LongConvolution",
    "LowRankScan",
    "Mean",
    "NativeConvolution",
    "NativeRecurrence",
    "NeumannScan",
    "PointwiseProduct",
    "Queries",
    "Relay",
    "Ring",
    "Route",
    "Scan",
    "ScoreRing",
    "ScoreTiled",
    "SeparableScan",
    "Solver",
    "StatefulEvaluation",
    "StatefulRoute",
    "StepLoop",
    "Substitution",
    "TermByTerm",
    "Tiled",
    "Toeplitz",
    "TritonFeatureSum",
    "TritonTiled",
    "TritonYat",
    "Truncation",
    "Tuned",
    "Walk",
    "Weighted",
    "WholeSignal",
    "Woodbury",
    "as_filtering",
    "flop_formulas",
    "share",
    "tune",
]
