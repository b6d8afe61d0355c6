"""κ on paper: one kernel a file, each with its definition (`matrix`) and the pieces its fast routes need."""

from fredholm.kernels.features import fourier_features, phases, sample_frequencies
from fredholm.kernels.kernel import Kernel, PairwiseForm, PairwiseMLP, State, Stateful
from fredholm.kernels.mlp import MLP, KernelInputs, activate
from fredholm.kernels.semi_separable import SemiSeparable, StateSpace

__all__ = [
    "MLP",
    "Kernel",
    "KernelInputs",
    "PairwiseForm",
    "PairwiseMLP",
    "SemiSeparable",
    "State",
    "StateSpace",
    "Stateful",
    "activate",
    "fourier_features",
    "phases",
    "sample_frequencies",
]
