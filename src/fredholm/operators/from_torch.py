"""Modules of torch.nn as operators, and back."""

import copy
from collections.abc import Callable
from typing import final

from torch import nn

from fredholm.operators.torch_layers import AttentionLayer, ConvolutionLayer, LinearLayer, RecurrentLayer
from fredholm.operators.torch_layers.convolution import CONVOLUTIONS, TRANSPOSED
from fredholm.operators.torch_layers.linear import LINEAR

Convert = Callable[..., nn.Module]

CONVERTERS: dict[type[nn.Module], Convert] = {
    **dict.fromkeys(LINEAR, LinearLayer.from_torch),
    **dict.fromkeys((*CONVOLUTIONS, *TRANSPOSED), ConvolutionLayer.from_torch),
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), RecurrentLayer.from_torch),
    nn.MultiheadAttention: AttentionLayer.from_torch,
}
LAYERS = (AttentionLayer, ConvolutionLayer, LinearLayer, RecurrentLayer)
BACK: dict[type[nn.Module], Convert] = {layer: layer.to_torch for layer in LAYERS}
# what mixes points or channels with weights of its own; subclasses that are not converted are named, not passed over
MIXING = (nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Linear, nn.Bilinear)


def from_torch(module: nn.Module) -> nn.Module:
    """The module with every layer that is an integral operator replaced by that operator.

    Converts nn.Linear, Conv1d-3d, ConvTranspose1d-3d, MultiheadAttention, RNN, LSTM and GRU, alone or anywhere inside
    another module, which keeps its own code: norms, activations, embeddings and pooling stay torch's. The result has
    the calling convention, outputs and gradients of the original, of which it copies everything.

    Args:
        module: one of these layers, or a module that holds some. It is left as it is.

    Returns:
        A layer of `operators.torch_layers`, or a copy of the module that holds such layers.

    Raises:
        ValueError: naming every layer inside that cannot be converted, and why; or when there is nothing to convert.
        TypeError: when it is no module, or a layer of a kind that is not converted.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"from_torch: expected a torch.nn.Module; got {type(module).__name__}")
    if type(module) in CONVERTERS:
        return CONVERTERS[type(module)](module)
    if isinstance(module, MIXING):
        raise TypeError(f"from_torch: {_unknown(module)}")
    converted = copy.deepcopy(module)
    exchange = _Exchange(converted, CONVERTERS, MIXING)
    if exchange.refused:
        raise ValueError(f"from_torch: cannot convert {'; '.join(exchange.refused)}")
    if not exchange.done:
        kinds = ", ".join(sorted({kind.__name__ for kind in CONVERTERS if kind.__module__ != LINEAR[-1].__module__}))
        raise ValueError(f"from_torch: {type(module).__name__} holds none of {kinds}")
    for inner in converted.modules():
        if isinstance(inner, nn.TransformerEncoder):
            # its shortcut for padded batches hands the packed weights of torch's own attention to a fused function
            inner.use_nested_tensor = False
    return converted


def to_torch(module: nn.Module) -> nn.Module:
    """The module with every layer of `operators.torch_layers` replaced by torch's own, with copies of the parameters.

    Raises:
        ValueError: when a layer has options that torch's own lacks, or there is nothing to convert.
        TypeError: when it is no module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"to_torch: expected a torch.nn.Module; got {type(module).__name__}")
    if type(module) in BACK:
        return BACK[type(module)](module)
    converted = copy.deepcopy(module)
    exchange = _Exchange(converted, BACK)
    if exchange.refused:
        raise ValueError(f"to_torch: cannot convert {'; '.join(exchange.refused)}")
    if not exchange.done:
        raise ValueError(f"to_torch: {type(module).__name__} holds no layer that from_torch makes")
    return converted


@final
class _Exchange:
    """Replaces the layers inside a module; one that occurs twice stays one. Keeps what was refused and why."""

    def __init__(
        self, root: nn.Module, converters: dict[type[nn.Module], Convert], mixing: tuple[type[nn.Module], ...] = ()
    ) -> None:
        self.done: dict[nn.Module, nn.Module] = {}
        self.refused: list[str] = []
        settled: tuple[str, ...] = ()
        for path, layer in list(root.named_modules(remove_duplicate=False)):
            if not path or path.startswith(settled):
                continue
            if type(layer) in converters:
                self._replace(root, path, layer, converters[type(layer)])
            elif isinstance(layer, mixing):
                self.refused.append(f"{path} ({_unknown(layer)})")
            else:
                continue
            settled = (*settled, f"{path}.")  # what lies inside belongs to the layer

    def _replace(self, root: nn.Module, path: str, layer: nn.Module, convert: Convert) -> None:
        if layer not in self.done:
            try:
                self.done[layer] = convert(layer)
            except (TypeError, ValueError) as error:
                self.refused.append(f"{path} ({error})")
                return
        root.set_submodule(path, self.done[layer])


def _unknown(layer: nn.Module) -> str:
    return f"{type(layer).__name__} has no operator here; neither has a subclass of a layer that has one"
