"""Models from checkpoints of other libraries."""

from fredholm.pretrained.from_pretrained import from_pretrained

__all__ = ["from_pretrained"]
