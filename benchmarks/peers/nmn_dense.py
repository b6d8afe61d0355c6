"""The dense layer of the Yat paper's public package, called as its users call it, with the library's weights."""

import torch
from torch import nn

from fredholm.layers import YatDense


def nmn_dense(layer: YatDense) -> nn.Module:
    """The package's torch layer of the same size, prototypes, constants, ε and scale; its alpha is the scale s itself.

    Raises:
        ImportError: where the package is missing.
    """
    try:
        from nmn.torch import YatNMN
    except ImportError as error:
        raise ImportError("the nmn peer needs the package nmn: pip install 'fredholm[peers]'") from error
    assert layer.scale is not None
    bias = layer.bias is not None
    peer = YatNMN(layer.in_features, layer.out_features, bias=bias, epsilon=layer.softening.epsilon)
    weights = {"weight": layer.weight, "alpha": layer.scale().view(1), **({"bias": layer.bias} if bias else {})}
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            parameter.copy_(weights[name])
    return peer.to(layer.weight.device)
