"""The tiles behind `Tiled` and `Toeplitz`: integrals of pairwise perceptron kernels, forward and backward."""

from fredholm.evaluation.pairwise.gradients import mlp_integral
from fredholm.evaluation.pairwise.inputs import IntegralInputs, IntegralOutputs
from fredholm.evaluation.pairwise.tiling import choose_tiling

__all__ = ["IntegralInputs", "IntegralOutputs", "choose_tiling", "mlp_integral"]
