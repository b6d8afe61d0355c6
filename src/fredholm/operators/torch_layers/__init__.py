"""Operators in the calling convention of torch's own layers, and the way there and back."""

from fredholm.operators.torch_layers.convolution import ConvolutionLayer

__all__ = ["ConvolutionLayer"]
