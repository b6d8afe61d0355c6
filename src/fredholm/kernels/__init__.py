"""κ on paper: one kernel a file, each with its definition (`matrix`) and the pieces its fast routes need."""

from fredholm.kernels.attention import Attention
from fredholm.kernels.bilinear import Bilinear, BilinearForm
from fredholm.kernels.cell_recurrence import CellMode, CellRecurrence
from fredholm.kernels.central_queries import CentralForm, CentralQueries
from fredholm.kernels.compose import Scaled, Sum
from fredholm.kernels.continuous_convolution import ContinuousConvolution
from fredholm.kernels.convolution import Convolution
from fredholm.kernels.diagonal_recurrence import DiagonalForm, DiagonalRecurrence
from fredholm.kernels.diagonal_state_space import DiagonalStateSpace, start_frequencies
from fredholm.kernels.discount import Discount
from fredholm.kernels.dot_product import DotProduct, DotProductForm
from fredholm.kernels.factorised import Factorised, FeatureProduct, LowRank, LowRankForm, ProductForm
from fredholm.kernels.factorised_infinite_attention import FactorisedInfiniteAttention
from fredholm.kernels.factorised_neumann import FactorisedNeumann
from fredholm.kernels.feature_filter import FeatureFilter
from fredholm.kernels.features import fourier_features, phases, sample_frequencies
from fredholm.kernels.gru import GRU
from fredholm.kernels.hop_norms import FrobeniusNorm, HopNorm, HopScores, RowNorm
from fredholm.kernels.infinite_attention import InfiniteAttention
from fredholm.kernels.kernel import Kernel, PairwiseForm, PairwiseMLP, State, Stateful
from fredholm.kernels.kernel_network import KernelActivation, KernelNetwork
from fredholm.kernels.lattice_smoothing import smoothing_taps
from fredholm.kernels.linear_attention import FeatureMap, LinearAttention, elu_plus_one
from fredholm.kernels.linear_infinite_attention import LinearInfiniteAttention
from fredholm.kernels.linear_rnn import LinearRNN
from fredholm.kernels.linear_system import LinearSystem, discretise
from fredholm.kernels.low_rank_mlp import LowRankMLP
from fredholm.kernels.lstm import LSTM
from fredholm.kernels.matrix_recurrence import MatrixForm, MatrixRecurrence
from fredholm.kernels.mlp import MLP, KernelInputs, activate
from fredholm.kernels.multi_head import MultiHead
from fredholm.kernels.neumann import HopActivation, HopForm, Neumann
from fredholm.kernels.normalised import Normalised
from fredholm.kernels.normalisers import (
    Competitive,
    Elementwise,
    Normaliser,
    Softermax,
    Softmax,
    SoftSigmoid,
    SoftTanh,
    Unnormalised,
    soft_sigmoid,
    soft_tanh,
    softermax,
)
from fredholm.kernels.point_features import FeaturePair, PointFeatures, PointInputs
from fredholm.kernels.pointwise import Pointwise
from fredholm.kernels.rnn import RNN
from fredholm.kernels.scored import Scored
from fredholm.kernels.selective_state_space import SelectiveStateSpace
from fredholm.kernels.semi_separable import SemiSeparable, StateSpace
from fredholm.kernels.separable import Separable, SeparableForm
from fredholm.kernels.separable_mlp import SeparableMLP
from fredholm.kernels.softening import Softening
from fredholm.kernels.stationary import BoundaryMode, FilterGeometry, Stationary, boundary_map, relative_lattice
from fredholm.kernels.unit_scale import UnitScale
from fredholm.kernels.unnormalised_attention import UnnormalisedAttention
from fredholm.kernels.value_mixing import ValueMixing
from fredholm.kernels.weight_normalised import WeightNormalised
from fredholm.kernels.yat import Yat
from fredholm.kernels.yat_attention import YatAttention
from fredholm.kernels.yat_product import yat
from fredholm.kernels.yat_scored import StatefulYat, YatForm, YatScored, yat_scores

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "RNN",
    "Attention",
    "Bilinear",
    "BilinearForm",
    "BoundaryMode",
    "CellMode",
    "CellRecurrence",
    "CentralForm",
    "CentralQueries",
    "Competitive",
    "ContinuousConvolution",
    "Convolution",
    "DiagonalForm",
    "DiagonalRecurrence",
    "DiagonalStateSpace",
    "Discount",
    "DotProduct",
    "DotProductForm",
    "Elementwise",
    "Factorised",
    "FactorisedInfiniteAttention",
    "FactorisedNeumann",
    "FeatureFilter",
    "FeatureMap",
    "FeaturePair",
    "FeatureProduct",
    "FilterGeometry",
    "FrobeniusNorm",
    "HopActivation",
    "HopForm",
    "HopNorm",
    "HopScores",
    "InfiniteAttention",
    "Kernel",
    "KernelActivation",
    "KernelInputs",
    "KernelNetwork",
    "LinearAttention",
    "LinearInfiniteAttention",
    "LinearRNN",
    "LinearSystem",
    "LowRank",
    "LowRankForm",
    "LowRankMLP",
    "MatrixForm",
    "MatrixRecurrence",
    "MultiHead",
    "Neumann",
    "Normalised",
    "Normaliser",
    "PairwiseForm",
    "PairwiseMLP",
    "PointFeatures",
    "PointInputs",
    "Pointwise",
    "ProductForm",
    "RowNorm",
    "Scaled",
    "Scored",
    "SelectiveStateSpace",
    "SemiSeparable",
    "Separable",
    "SeparableForm",
    "SeparableMLP",
    "SoftSigmoid",
    "SoftTanh",
    "Softening",
    "Softermax",
    "Softmax",
    "State",
    "StateSpace",
    "Stateful",
    "StatefulYat",
    "Stationary",
    "Sum",
    "UnitScale",
    "Unnormalised",
    "UnnormalisedAttention",
    "ValueMixing",
    "WeightNormalised",
    "Yat",
    "YatAttention",
    "YatForm",
    "YatScored",
    "activate",
    "boundary_map",
    "discretise",
    "elu_plus_one",
    "fourier_features",
    "phases",
    "relative_lattice",
    "sample_frequencies",
    "smoothing_taps",
    "soft_sigmoid",
    "soft_tanh",
    "softermax",
    "start_frequencies",
    "yat",
    "yat_scores",
]
