"""Stacks of blocks round integral operators of one kernel, which can be chosen."""

from fredholm.models.fields.neural_operator import NeuralOperator
from fredholm.models.itnet import ITNet

Stack = ITNet.Config | NeuralOperator.Config
"""The same network with any kernel: `embed_dim`, `num_heads`, `kernel`, and `expansion` for all that is hidden."""


def stack_of(model: object) -> Stack:
    """The settings of a model as those of a stack.

    Raises:
        ValueError: it is another model.
    """
    if isinstance(model, ITNet.Config | NeuralOperator.Config):
        return model
    name = type(model).__qualname__.removesuffix("Config").removesuffix(".")
    raise ValueError(f"model={name} has no kernel to choose; leave the model out, or take an ITNet")
