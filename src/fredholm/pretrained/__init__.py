"""Models from checkpoints, of other libraries too (`fredholm.from_pretrained`); other kernels in models; 8 bits."""

from fredholm.pretrained.add_kernel import add_kernel
from fredholm.pretrained.linearise import LayerFit, Linearised, linearise
from fredholm.pretrained.quantise import Quantised, quantise

__all__ = ["LayerFit", "Linearised", "Quantised", "add_kernel", "linearise", "quantise"]
