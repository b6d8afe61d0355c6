"""What survives swapping the kernel: residual blocks, feed-forward networks, stochastic depth."""

from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.pre_norm import PreNormBlock
from fredholm.blocks.stochastic_depth import StochasticDepth, linear_schedule

__all__ = ["FeedForward", "PreNormBlock", "StochasticDepth", "linear_schedule"]
