"""Models from checkpoints of other libraries."""

from fredholm.pretrained.add_kernel import add_kernel
from fredholm.pretrained.from_pretrained import from_pretrained

__all__ = ["add_kernel", "from_pretrained"]
