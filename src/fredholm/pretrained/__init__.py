"""Models from checkpoints, those of other libraries too (`fredholm.from_pretrained`); other kernels in models."""

from fredholm.pretrained.add_kernel import add_kernel
from fredholm.pretrained.linearise import LayerFit, Linearised, linearise

__all__ = ["LayerFit", "Linearised", "add_kernel", "linearise"]
