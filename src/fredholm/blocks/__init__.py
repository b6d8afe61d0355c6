"""Blocks that fit any kernel: residual blocks, the layer of neural operators, feed-forward networks and more."""

from fredholm.blocks.discounted import DiscountedBlock
from fredholm.blocks.feed_forward import Activation, FeedForward, GatedFeedForward, YatFeedForward
from fredholm.blocks.field_block import FieldBlock
from fredholm.blocks.mamba import MambaBlock
from fredholm.blocks.neural_operator import NeuralOperatorBlock
from fredholm.blocks.post_norm import BlockState, PostNormBlock
from fredholm.blocks.residual import ResidualBlock
from fredholm.blocks.short_convolution import ShortConvolution
from fredholm.blocks.stochastic_depth import StochasticDepth, linear_schedule
from fredholm.blocks.yat_conv_block import YatConvBlock

__all__ = [
    "Activation",
    "BlockState",
    "DiscountedBlock",
    "FeedForward",
    "FieldBlock",
    "GatedFeedForward",
    "MambaBlock",
    "NeuralOperatorBlock",
    "PostNormBlock",
    "ResidualBlock",
    "ShortConvolution",
    "StochasticDepth",
    "YatConvBlock",
    "YatFeedForward",
    "linear_schedule",
]
