"""From non-negative scores to densities, along a row or each score by itself."""

from fredholm.kernels.normalisers.normaliser import Competitive, Elementwise, Normaliser
from fredholm.kernels.normalisers.softermax import Softermax, softermax
from fredholm.kernels.normalisers.softmax import Softmax
from fredholm.kernels.normalisers.squashing import SoftSigmoid, SoftTanh, Unnormalised, soft_sigmoid, soft_tanh

__all__ = [
    "Competitive",
    "Elementwise",
    "Normaliser",
    "SoftSigmoid",
    "SoftTanh",
    "Softermax",
    "Softmax",
    "Unnormalised",
    "soft_sigmoid",
    "soft_tanh",
    "softermax",
]
