"""κ on paper: one kernel a file, each with its definition (`matrix`) and the pieces its fast routes need."""

from fredholm.kernels.attention import Attention
from fredholm.kernels.dot_product import DotProduct, DotProductForm
from fredholm.kernels.features import fourier_features, phases, sample_frequencies
from fredholm.kernels.kernel import Kernel, PairwiseForm, PairwiseMLP, State, Stateful
from fredholm.kernels.linear_attention import FeatureMap, LinearAttention, elu_plus_one
from fredholm.kernels.mlp import MLP, KernelInputs, activate
from fredholm.kernels.normalised import Normalised
from fredholm.kernels.semi_separable import SemiSeparable, StateSpace
from fredholm.kernels.separable import Separable, SeparableForm

__all__ = [
    "MLP",
    "Attention",
    "DotProduct",
    "DotProductForm",
    "FeatureMap",
    "Kernel",
    "KernelInputs",
    "LinearAttention",
    "Normalised",
    "PairwiseForm",
    "PairwiseMLP",
    "SemiSeparable",
    "Separable",
    "SeparableForm",
    "State",
    "StateSpace",
    "Stateful",
    "activate",
    "elu_plus_one",
    "fourier_features",
    "phases",
    "sample_frequencies",
]
