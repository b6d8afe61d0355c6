"""What survives swapping the kernel: residual blocks, feed-forward networks, stochastic depth, the Mamba block."""

from fredholm.blocks.discounted import DiscountedBlock
from fredholm.blocks.feed_forward import FeedForward, YatFeedForward
from fredholm.blocks.mamba import MambaBlock
from fredholm.blocks.post_norm import BlockState, PostNormBlock
from fredholm.blocks.pre_norm import PreNormBlock
from fredholm.blocks.short_convolution import ShortConvolution
from fredholm.blocks.stochastic_depth import StochasticDepth, linear_schedule
from fredholm.blocks.yat_conv_block import YatConvBlock

__all__ = [
    "BlockState",
    "DiscountedBlock",
    "FeedForward",
    "MambaBlock",
    "PostNormBlock",
    "PreNormBlock",
    "ShortConvolution",
    "StochasticDepth",
    "YatConvBlock",
    "YatFeedForward",
    "linear_schedule",
]
