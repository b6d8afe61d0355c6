"""Layers made of operators and their parts: torch's own layers as operators, and layers of Yat units."""

from fredholm.layers import torch_layers
from fredholm.layers.from_torch import from_torch, to_torch
from fredholm.layers.yat_classifier import YatClassifier
from fredholm.layers.yat_convolution import YatConv1d, YatConv2d, YatConv3d, YatConvolution
from fredholm.layers.yat_dense import YatDense

__all__ = [
    "YatClassifier",
    "YatConv1d",
    "YatConv2d",
    "YatConv3d",
    "YatConvolution",
    "YatDense",
    "from_torch",
    "to_torch",
    "torch_layers",
]
