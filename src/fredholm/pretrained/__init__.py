"""Models from checkpoints, of this library and of others, and other kernels in trained models."""

from fredholm.pretrained.add_kernel import add_kernel
from fredholm.pretrained.from_pretrained import from_pretrained
from fredholm.pretrained.linearise import LayerFit, Linearised, linearise

__all__ = ["LayerFit", "Linearised", "add_kernel", "from_pretrained", "linearise"]
