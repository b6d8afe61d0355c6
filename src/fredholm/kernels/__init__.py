"""κ on paper: one kernel a file, each with its definition (`matrix`) and the pieces its fast routes need."""

from fredholm.kernels.attention import Attention
from fredholm.kernels.compose import Scaled, Sum
from fredholm.kernels.cell_recurrence import CellMode, CellRecurrence
from fredholm.kernels.convolution import Convolution
from fredholm.kernels.dot_product import DotProduct, DotProductForm
from fredholm.kernels.features import fourier_features, phases, sample_frequencies
from fredholm.kernels.gru import GRU
from fredholm.kernels.kernel import Kernel, PairwiseForm, PairwiseMLP, State, Stateful
from fredholm.kernels.linear_attention import FeatureMap, LinearAttention, elu_plus_one
from fredholm.kernels.lstm import LSTM
from fredholm.kernels.mlp import MLP, KernelInputs, activate
from fredholm.kernels.normalised import Normalised
from fredholm.kernels.rnn import RNN
from fredholm.kernels.semi_separable import SemiSeparable, StateSpace
from fredholm.kernels.separable import Separable, SeparableForm
from fredholm.kernels.stationary import BoundaryMode, FilterGeometry, Stationary, boundary_map, relative_lattice

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "RNN",
    "Attention",
    "BoundaryMode",
    "CellMode",
    "CellRecurrence",
    "Convolution",
    "DotProduct",
    "DotProductForm",
    "FeatureMap",
    "FilterGeometry",
    "Kernel",
    "KernelInputs",
    "LinearAttention",
    "Normalised",
    "PairwiseForm",
    "PairwiseMLP",
    "Scaled",
    "SemiSeparable",
    "Separable",
    "SeparableForm",
    "State",
    "StateSpace",
    "Stateful",
    "Sum",
    "Stationary",
    "activate",
    "boundary_map",
    "elu_plus_one",
    "fourier_features",
    "phases",
    "relative_lattice",
    "sample_frequencies",
]
