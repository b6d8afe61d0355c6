"""Complete models, each with its configurations."""

from fredholm.models.itnet import ITNet

__all__ = ["ITNet"]
