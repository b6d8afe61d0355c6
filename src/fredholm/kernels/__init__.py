"""κ on paper: one kernel a file, each with its definition (`matrix`) and the pieces its fast routes need."""

from fredholm.kernels.features import fourier_features, phases, sample_frequencies
from fredholm.kernels.kernel import Kernel, PairwiseForm, PairwiseMLP
from fredholm.kernels.mlp import MLP, KernelInputs, activate

__all__ = [
    "MLP",
    "Kernel",
    "KernelInputs",
    "PairwiseForm",
    "PairwiseMLP",
    "activate",
    "fourier_features",
    "phases",
    "sample_frequencies",
]
