"""Operators: kernel, route and channel maps bound together; torch's own layers as operators."""

from fredholm.operators import torch_layers
from fredholm.operators.auxiliary_loss import collect_auxiliary_losses
from fredholm.operators.from_torch import from_torch, to_torch
from fredholm.operators.integral import IntegralOperator

__all__ = ["IntegralOperator", "collect_auxiliary_losses", "from_torch", "to_torch", "torch_layers"]
