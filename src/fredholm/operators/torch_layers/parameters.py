"""Parameters on their way from one module to another."""

from collections.abc import Mapping

import torch
from torch import nn


def copy_parameters(source: Mapping[str, nn.Parameter], target: Mapping[str, nn.Parameter]) -> None:
    """Copies the value and `requires_grad` of every parameter of `source` to the one of that name in `target`."""
    for name, parameter in source.items():
        with torch.no_grad():
            target[name].copy_(parameter)
        target[name].requires_grad_(parameter.requires_grad)
