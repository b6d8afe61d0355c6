"""Operators in the calling convention of torch's own layers, and conversion in both directions."""

from fredholm.layers.torch_layers.attention import AttentionLayer
from fredholm.layers.torch_layers.convolution import ConvolutionLayer
from fredholm.layers.torch_layers.linear import LinearLayer
from fredholm.layers.torch_layers.recurrence import RecurrentLayer

__all__ = ["AttentionLayer", "ConvolutionLayer", "LinearLayer", "RecurrentLayer"]
