"""Conversion of torch.nn modules to operators, and back."""

import warnings
from collections.abc import Callable
from typing import Any, cast, final

import torch
from torch import nn
from torch.nn import Parameter

from fredholm.layers.torch_layers.attention import AttentionLayer
from fredholm.layers.torch_layers.convolution import ConvolutionLayer
from fredholm.layers.torch_layers.layer import LayoutConverter, TorchLayer, computed, duplicate, why_not
from fredholm.layers.torch_layers.linear import LinearLayer
from fredholm.layers.torch_layers.recurrence import RecurrentLayer

Convert = Callable[[nn.Module], nn.Module]

LAYERS: tuple[type[TorchLayer], ...] = (LinearLayer, ConvolutionLayer, RecurrentLayer, AttentionLayer)
# layers that mix points or channels by weights; a subclass that cannot be converted is an error, never skipped
MIXING = (nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Linear, nn.Bilinear)


def from_torch(module: nn.Module) -> nn.Module:
    """The module with every layer that is an integral operator replaced by that operator.

    Converts nn.Linear, Conv1d-3d, ConvTranspose1d-3d, MultiheadAttention, RNN, LSTM and GRU, and the Conv1D of
    transformers, alone or anywhere inside another module. That module keeps its own code, with torch's norms,
    activations, embeddings and pooling. The result is a full copy, with the calling convention, names, outputs and
    gradients of the original: shared parameters stay shared, and hooks are called as before.

    Args:
        module: one of these layers, or a module that holds some. It is left as it is.

    Returns:
        A layer of `layers.torch_layers`, or a copy of the module that holds such layers.

    Raises:
        ValueError: naming every layer inside that cannot be converted, and why; or when there is nothing to convert.
        TypeError: when `module` is not a module, or a layer of a type that is not converted.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"from_torch: expected a torch.nn.Module; got {type(module).__name__}")
    kind = _kind(module)
    if kind is not None:
        return kind.from_torch(module)
    if isinstance(module, MIXING):
        raise TypeError(f"from_torch: cannot convert a {why_not(module)}")
    refused = [
        f"{path or type(module).__name__} ({wrong})"
        for path, inner in module.named_modules()
        if (wrong := computed(inner))
    ]
    if refused:
        raise ValueError(f"from_torch: cannot convert {'; '.join(refused)}")
    converted = duplicate(module)
    exchange = _Exchange(converted, _taking(LayoutConverter()), MIXING)
    if exchange.refused:
        raise ValueError(f"from_torch: cannot convert {'; '.join(exchange.refused)}")
    if not exchange.done:
        kinds = ", ".join(
            sorted({native.__name__ for kind in LAYERS for native in kind.natives if hasattr(nn, native.__name__)})
        )
        raise ValueError(f"from_torch: {type(module).__name__} holds none of {kinds}")
    for inner in converted.modules():
        if isinstance(inner, nn.TransformerEncoder):
            # its shortcut for padded batches hands the packed weights of torch's own attention to a fused function
            inner.use_nested_tensor = False
    return converted


def to_torch(module: nn.Module) -> nn.Module:
    """The module with every layer of `layers.torch_layers` replaced by torch's own, with copies of the parameters.

    Shared parameters stay shared, and hooks are called as before.

    Raises:
        ValueError: when a layer has options that torch's own lacks, or there is nothing to convert.
        TypeError: when `module` is not a module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"to_torch: expected a torch.nn.Module; got {type(module).__name__}")
    if isinstance(module, TorchLayer):
        return module.to_torch()
    converted, relaid = duplicate(module), LayoutConverter()
    exchange = _Exchange(converted, lambda layer: layer.giving(relaid) if isinstance(layer, TorchLayer) else None)
    if exchange.refused:
        raise ValueError(f"to_torch: cannot convert {'; '.join(exchange.refused)}")
    if not exchange.done:
        raise ValueError(f"to_torch: {type(module).__name__} holds no layer that from_torch makes")
    for inner in converted.modules():
        if isinstance(inner, nn.TransformerEncoder) and inner.enable_nested_tensor and len(inner.layers):
            with warnings.catch_warnings(action="ignore"):  # the rule of torch's own constructor
                inner.use_nested_tensor = nn.TransformerEncoder(cast(Any, inner.layers[0]), 0).use_nested_tensor
    return converted


def _kind(module: nn.Module) -> type[TorchLayer] | None:
    """The operator layer class for a torch module; None: there is none."""
    return next((kind for kind in LAYERS if kind.replaces(module)), None)


def _taking(relaid: LayoutConverter) -> Callable[[nn.Module], nn.Module | None]:
    def take(module: nn.Module) -> nn.Module | None:
        kind = _kind(module)
        return None if kind is None else kind.taking(module, relaid)

    return take


@final
class _Exchange:
    """Replaces the layers inside a module; new layers take over the parameters, and a shared layer stays shared.

    Attributes:
        done: the replacement of each replaced layer.
        refused: path and reason of each layer that cannot be replaced.
    """

    def __init__(
        self,
        root: nn.Module,
        convert: Callable[[nn.Module], nn.Module | None],
        mixing: tuple[type[nn.Module], ...] = (),
    ) -> None:
        self.done: dict[nn.Module, nn.Module] = {}
        self.refused: list[str] = []
        self._laid_out: list[tuple[str, str, Parameter]] = []
        settled: tuple[str, ...] = ()
        for path, layer in list(root.named_modules(remove_duplicate=False)):
            if not path or path.startswith(settled):
                continue
            if not self._replace(root, path, layer, convert):
                if not isinstance(layer, mixing):
                    continue
                self.refused.append(f"{path} ({why_not(layer)})")
            settled = (*settled, f"{path}.")  # submodules belong to the layer
        self._check_nothing_is_torn(root)
        seen: set[int] = set()
        for inner in root.modules():
            for name, value in vars(inner).items():
                if name not in ("_modules", "_parameters", "_buffers"):
                    vars(inner)[name] = self._renewed(value, seen)

    def _replace(
        self, root: nn.Module, path: str, layer: nn.Module, convert: Callable[[nn.Module], nn.Module | None]
    ) -> bool:
        """Replaces one layer; returns whether its type can be replaced, even if this layer was refused."""
        if layer not in self.done:
            before = dict(layer.named_parameters())
            try:
                made = convert(layer)
            except (TypeError, ValueError) as error:
                self.refused.append(f"{path} ({error})")
                return True
            if made is None:
                return False
            self.done[layer] = made
            kept = set(made.parameters())
            self._laid_out += [(path, name, parameter) for name, parameter in before.items() if parameter not in kept]
        parent, _, name = path.rpartition(".")
        home = root.get_submodule(parent)
        if isinstance(home, torch._dynamo.OptimizedModule):
            self.refused.append(
                f"{parent or type(home).__name__} (is compiled, and would keep calling the layer that it was made "
                "from; convert that first, and compile the result)"
            )
        home._modules[name] = self.done[layer]
        return True

    def _check_nothing_is_torn(self, root: nn.Module) -> None:
        """Refuses layers whose parameters change layout while other modules share them."""
        left = {parameter: path for path, parameter in root.named_parameters(remove_duplicate=False)}
        for path, name, parameter in self._laid_out:
            if parameter in left:
                self.refused.append(
                    f"{path} (its {name} is also {left[parameter]}, and is held here in another layout; untie them)"
                )

    def _renewed(self, value: Any, seen: set[int]) -> Any:
        """Returns a plain attribute of a module, with the layers in it exchanged for their replacements."""
        if isinstance(value, nn.Module):
            return self.done.get(value, value)
        if type(value) is tuple:
            return tuple(self._renewed(part, seen) for part in value)
        if type(value) in (list, dict) and id(value) not in seen:  # changed in place, since others may hold it too
            seen.add(id(value))
            for key, part in list(enumerate(value) if type(value) is list else value.items()):
                value[key] = self._renewed(part, seen)
        return value
