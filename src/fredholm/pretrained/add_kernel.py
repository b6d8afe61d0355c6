"""A learned kernel beside every attention of a trained model."""

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import nn

from fredholm.kernels import Kernel, Scaled
from fredholm.kernels.attention.scored import Scored
from fredholm.operators import IntegralOperator
from fredholm.operators.integral import check_quadrature

Model = TypeVar("Model", bound=nn.Module)
Where = Callable[[str, IntegralOperator], bool]
"""Which operators are meant, of name and operator."""


def add_kernel(
    model: Model,
    kernel: Kernel,
    *,
    gate: float = 0.0,
    freeze: bool = True,
    where: Where | None = None,
) -> Model:
    """Puts g κ beside the kernel of every attention: W^O ∫ (κ_attention + g κ) u dμ, with a learned number g a layer.

    At g = 0 the model's numbers are what they were, to the last bit, and g is the first to learn: the weights of κ get
    a gradient once it is not 0. Each layer gets a copy of κ with weights of its own.

    Args:
        model: changed in place.
        kernel: κ, on as many channels as the attention; causal where that is, and with as many coordinates as its
            domains have: 1 for text, 2 for images.
        gate: where g starts.
        freeze: whether all that was there is frozen, so that the copies of κ and their g are what learns.
        where: which operators get one, of name and operator; None: those with attention (`Scored` kernels).

    Returns:
        the model.

    Raises:
        TypeError, ValueError: κ is no kernel, it fits an operator's channels, causality, positions or nodes not, the
            gate is no finite number, or no operator is meant. The model is then as it was.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"add_kernel: kernel must be a fredholm kernel; got {type(kernel).__name__}")
    check_module("add_kernel", model)
    meant, sums = meant_operators("add_kernel", model, where), list[Kernel]()
    for name, operator in meant.items():
        check_channels_and_causality("add_kernel", name, operator.kernel, kernel)
        like = next(operator.parameters())
        added = Scaled(copy.deepcopy(kernel), gate).to(device=like.device, dtype=like.dtype).train(operator.training)
        sums.append(operator.kernel + added)
        check_quadrature(sums[-1], operator.quadrature)
    if freeze:
        model.requires_grad_(False)
    for operator, both in zip(meant.values(), sums, strict=True):
        operator.kernel = both
    return model


def check_module(function: str, model: object) -> None:
    """Raises TypeError, in the name of a function, unless a model is one."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: model must be a module; got {type(model).__name__}")


def meant_operators(function: str, model: nn.Module, where: Where | None) -> dict[str, IntegralOperator]:
    """The operators of a model that are meant, by their names; those with attention where nobody says which.

    Raises:
        ValueError: in the name of a function, where there are none.
    """
    operators = {name: part for name, part in model.named_modules() if isinstance(part, IntegralOperator)}
    choose = _has_attention if where is None else where
    meant = {name: operator for name, operator in operators.items() if choose(name, operator)}
    if not meant:
        kinds = sorted({type(operator.kernel).__name__ for operator in operators.values()})
        raise ValueError(
            f"{function}: none of the {len(operators)} operators of {type(model).__name__} is meant (their kernels: "
            f"{', '.join(kinds) or 'none'}); say where= with a function of name and operator"
        )
    return meant


def _has_attention(name: str, operator: IntegralOperator) -> bool:
    return isinstance(operator.kernel, Scored)


def check_channels_and_causality(function: str, name: str, there: Kernel, kernel: Kernel) -> None:
    """Raises ValueError, in the name of a function, unless a kernel fits where another is."""
    sizes = [(each.in_dim, each.query_dim, each.out_dim) for each in (there, kernel)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{function}: {type(kernel).__name__} has (in_dim, query_dim, out_dim) = {sizes[1]}, and the operator "
            f"{name!r} has {sizes[0]}; give it these"
        )
    if there.is_causal and not kernel.is_causal:
        raise ValueError(
            f"{function}: the operator {name!r} sees the past alone, and {type(kernel).__name__} looks ahead; build it "
            "with is_causal=True"
        )
