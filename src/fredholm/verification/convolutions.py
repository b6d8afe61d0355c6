"""Checks of convolutions against torch's, with the operator's own weights."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fredholm.domains import Grid
from fredholm.kernels import Convolution
from fredholm.layers.torch_layers.convolution import ConvolutionLayer
from fredholm.verification.check import Equality, operator_of

SHAPES = {1: (9,), 2: (5, 6), 3: (3, 4, 3)}

VARIANTS: dict[str, dict[str, Any]] = {
    "multi-channel": {"kernel_size": 3},
    "depthwise": {"kernel_size": 3, "in_dim": 4, "out_dim": 4, "groups": 4, "padding": 1},
    "grouped": {"kernel_size": 3, "in_dim": 4, "out_dim": 6, "groups": 2, "padding": "same"},
    "dilated": {"kernel_size": 2, "dilation": 2, "padding": 1},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "1 x 1": {"kernel_size": 1},
    "even filter": {"kernel_size": 2, "padding": "same"},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "replicate": {"kernel_size": 3, "padding": 2, "padding_mode": "replicate"},
    "circular": {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    "transposed": {"kernel_size": 3, "transposed": True},
    "transposed, strided": {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1, "transposed": True},
}


def convolutions() -> Iterator[Equality]:
    """Yields every variant in 1, 2 and 3 dimensions."""
    for axes, shape in SHAPES.items():
        for variant, options in VARIANTS.items():
            yield _equality(axes, shape, variant, options)


def _equality(axes: int, shape: tuple[int, ...], variant: str, options: dict[str, Any]) -> Equality:
    given: dict[str, Any] = {"in_dim": 2, "out_dim": 3, "pos_dim": axes} | options
    kernel = Convolution(**given)
    operator = operator_of(kernel, bias=True)
    domain = Grid(*shape, periodic=kernel.padding_mode == "circular")
    u = torch.randn(2, domain.num_points, kernel.in_dim, dtype=torch.float64, requires_grad=True)
    native = ConvolutionLayer(kernel).to_torch()

    def expected() -> Tensor:
        assert operator.bias is not None
        weights: dict[str, Tensor] = {"weight": kernel.weight, "bias": operator.bias}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using padding='same'")  # torch copies an image for even filters
            return functional_call(native, weights, (u.mT.unflatten(2, shape),)).flatten(2).mT

    layer = f"Conv{'Transpose' if kernel.transposed else ''}{axes}d"
    return Equality(layer, variant, operator, u, expected, domain)
