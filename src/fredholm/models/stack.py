"""Stacks of blocks of integral operators whose kernel can be chosen."""

from fredholm.models.fields.neural_operator import NeuralOperator
from fredholm.models.itnet import ITNet

Stack = ITNet.Config | NeuralOperator.Config
"""Settings of a stack with any kernel: `embed_dim`, `num_heads`, `kernel`, and `expansion` of hidden layers."""


def stack_of(model: object) -> Stack:
    """Returns the settings of a model if they are those of a stack.

    Raises:
        ValueError: the settings are not those of a stack.
    """
    if isinstance(model, ITNet.Config | NeuralOperator.Config):
        return model
    name = type(model).__qualname__.removesuffix("Config").removesuffix(".")
    raise ValueError(f"model={name} has no kernel to choose; leave the model out, or take an ITNet")
