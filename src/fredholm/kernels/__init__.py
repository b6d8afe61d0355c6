"""Kernels κ, one per file: the definition (`matrix`), and the pieces that fast routes need."""

from fredholm.kernels.attention.additive_attention import AdditiveAttention
from fredholm.kernels.attention.attention import Attention
from fredholm.kernels.attention.linear_attention import FeatureMapped, LinearAttention
from fredholm.kernels.attention.normalisers import Softermax, SoftSigmoid, SoftTanh, Unnormalised
from fredholm.kernels.attention.rotary import Rotary
from fredholm.kernels.attention.scored import (
    CachedScored,
    Normalised,
    Normaliser,
    Score,
    Scored,
    ScoreForm,
    Softmax,
    ValueMixing,
)
from fredholm.kernels.attention.unnormalised_attention import UnnormalisedAttention
from fredholm.kernels.attention.yat import Yat, YatAttention, yat
from fredholm.kernels.constant import Constant
from fredholm.kernels.convolution.basis_filter import BasisFilter
from fredholm.kernels.convolution.continuous_convolution import ContinuousConvolution
from fredholm.kernels.convolution.convolution import Convolution
from fredholm.kernels.convolution.fourier_filter import FourierFilter, SpectralConvolution
from fredholm.kernels.convolution.stationary import Stationary
from fredholm.kernels.heads import HeadProjections
from fredholm.kernels.kernel import Kernel, MultiHead, Scaled, State, Stateful, Sum
from fredholm.kernels.neumann.diffusion import Diffusion
from fredholm.kernels.neumann.factorised_infinite_attention import FactorisedInfiniteAttention
from fredholm.kernels.neumann.infinite_attention import FrobeniusNorm, HopNorm, InfiniteAttention, Neumann, RowNorm
from fredholm.kernels.neumann.linear_infinite_attention import LinearInfiniteAttention
from fredholm.kernels.on_edges import OnEdges
from fredholm.kernels.perceptron.factorised import FeatureFactorised, PointInputs
from fredholm.kernels.perceptron.low_rank_mlp import LowRankMLP
from fredholm.kernels.perceptron.mlp import MLP, KernelInputs, PairwiseMLP
from fredholm.kernels.perceptron.separable_mlp import SeparableMLP
from fredholm.kernels.pointwise import Pointwise
from fredholm.kernels.recurrence.diagonal_state_space import DiagonalStateSpace
from fredholm.kernels.recurrence.gru import GRU
from fredholm.kernels.recurrence.linear_rnn import LinearRNN
from fredholm.kernels.recurrence.linear_system import LinearSystem
from fredholm.kernels.recurrence.lstm import LSTM
from fredholm.kernels.recurrence.rnn import RNN
from fredholm.kernels.recurrence.selective_state_space import SelectiveStateSpace
from fredholm.kernels.recurrence.semi_separable import SemiSeparable

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "RNN",
    "AdditiveAttention",
    "Attention",
    "BasisFilter",
    "CachedScored",
    "Constant",
    "ContinuousConvolution",
    "Convolution",
    "DiagonalStateSpace",
    "Diffusion",
    "FactorisedInfiniteAttention",
    "FeatureFactorised",
    "FeatureMapped",
    "FourierFilter",
    "FrobeniusNorm",
    "HeadProjections",
    "HopNorm",
    "InfiniteAttention",
    "Kernel",
    "KernelInputs",
    "LinearAttention",
    "LinearInfiniteAttention",
    "LinearRNN",
    "LinearSystem",
    "LowRankMLP",
    "MultiHead",
    "Neumann",
    "Normalised",
    "Normaliser",
    "OnEdges",
    "PairwiseMLP",
    "PointInputs",
    "Pointwise",
    "Rotary",
    "RowNorm",
    "Scaled",
    "Score",
    "ScoreForm",
    "Scored",
    "SelectiveStateSpace",
    "SemiSeparable",
    "SeparableMLP",
    "SoftSigmoid",
    "SoftTanh",
    "Softermax",
    "Softmax",
    "SpectralConvolution",
    "State",
    "Stateful",
    "Stationary",
    "Sum",
    "Unnormalised",
    "UnnormalisedAttention",
    "ValueMixing",
    "Yat",
    "YatAttention",
    "yat",
]
