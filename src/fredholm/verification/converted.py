"""Checks whole converted modules of torch against the originals."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fredholm.layers import from_torch, to_torch
from fredholm.verification.check import EXACT, GRADIENT, Check, relative_error


def converted() -> Iterator[Check]:
    """Stacked and bidirectional recurrences, an encoder, and a strided autoencoder: outputs and all gradients."""
    series, images = (2, 6, 8), (2, 3, 9, 7)
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        module = kind(8, 5, num_layers=2, bidirectional=True, batch_first=True)
        yield from _checks(kind.__name__, "2 layers, bidirectional", module, series)
    for norm_first in (False, True):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
        variant = "norm first" if norm_first else "norm last"
        yield from _checks("TransformerEncoder", variant, nn.TransformerEncoder(layer, 2, None, False), series)
    autoencoder = nn.Sequential(nn.Conv2d(3, 5, 3, 2), nn.BatchNorm2d(5), nn.GELU(), nn.ConvTranspose2d(5, 3, 3, 2))
    yield from _checks("Sequential", "strided autoencoder", autoencoder, images)


def _checks(layer: str, variant: str, module: nn.Module, shape: tuple[int, ...]) -> Iterator[Check]:
    module.double()
    operators = from_torch(module)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected, out = _output(module, x), _output(operators, x)
    yield Check(layer, variant, "converted", relative_error(out.detach(), expected.detach()), EXACT)
    cotangent = torch.randn_like(out)
    at_x = [torch.autograd.grad(y, x, cotangent, retain_graph=True)[0] for y in (out, expected)]
    for model, y in ((operators, out), (module, expected)):
        for parameter, grad in zip(
            model.parameters(), torch.autograd.grad(y, list(model.parameters()), cotangent), strict=True
        ):
            parameter.grad = grad
    with torch.no_grad():
        for parameter in operators.parameters():
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)  # so that `to_torch` gives the gradients torch's names
    named = to_torch(operators).state_dict()
    errors = [relative_error(*at_x)]
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        errors.append(relative_error(named[name], parameter.grad))
    yield Check(layer, variant, "converted, gradient", max(errors), GRADIENT)


def _output(module: nn.Module, x: Tensor) -> Tensor:
    out = module(x)
    return out[0] if isinstance(out, tuple) else out
