"""Operators in the calling convention of torch's own layers, and the way there and back."""

from fredholm.operators.torch_layers.attention import AttentionLayer
from fredholm.operators.torch_layers.convolution import ConvolutionLayer
from fredholm.operators.torch_layers.linear import LinearLayer
from fredholm.operators.torch_layers.recurrence import RecurrentLayer

__all__ = ["AttentionLayer", "ConvolutionLayer", "LinearLayer", "RecurrentLayer"]
