"""Adds a learned kernel to every attention of a trained model."""

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
"""A predicate of name and operator that selects operators."""


def add_kernel(
    model: Model,
    kernel: Kernel,
    *,
    gate: float = 0.0,
    freeze: bool = True,
    where: Where | None = None,
) -> Model:
    """Adds g κ to the kernel of every attention: W^O ∫ (κ_attention + g κ) u dμ, with one learned scalar g per layer.

    At g = 0 the model's outputs are unchanged, to the last bit, and only g has a gradient: the weights of κ get one
    once g is not 0. Each layer gets a copy of κ with weights of its own.

    Args:
        model: changed in place.
        kernel: κ, on as many channels as the attention; causal where that is, and with as many coordinates as its
            domains have: 1 for text, 2 for images.
        gate: initial value of g.
        freeze: whether the existing parameters are frozen, so that only the copies of κ and their g are trained.
        where: predicate of name and operator that selects the operators; None: those with attention (`Scored` kernels).

    Returns:
        the model.

    Raises:
        TypeError, ValueError: κ is no kernel, or does not fit an operator's channels, causality, positions or nodes;
            the gate is not finite; or no operator is selected. The model is then unchanged.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"add_kernel: kernel must be a fredholm kernel; got {type(kernel).__name__}")
    check_module("add_kernel", model)
    selected, sums = selected_operators("add_kernel", model, where), list[Kernel]()
    for name, operator in selected.items():
        check_channels_and_causality("add_kernel", name, operator.kernel, kernel)
        like = next(operator.parameters())
        added = Scaled(copy.deepcopy(kernel), gate).to(device=like.device, dtype=like.dtype).train(operator.training)
        sums.append(operator.kernel + added)
        check_quadrature(sums[-1], operator.quadrature)
    if freeze:
        model.requires_grad_(False)
    for operator, both in zip(selected.values(), sums, strict=True):
        operator.kernel = both
    return model


def check_module(function: str, model: object) -> None:
    """Raises a TypeError, with the function's name, unless a model is a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: model must be a module; got {type(model).__name__}")


def selected_operators(function: str, model: nn.Module, where: Where | None) -> dict[str, IntegralOperator]:
    """The selected operators of a model, by their names; without a predicate those with attention.

    Raises:
        ValueError: no operator is selected; the message names the function.
    """
    operators = {name: part for name, part in model.named_modules() if isinstance(part, IntegralOperator)}
    choose = _has_attention if where is None else where
    selected = {name: operator for name, operator in operators.items() if choose(name, operator)}
    if not selected:
        kinds = sorted({type(operator.kernel).__name__ for operator in operators.values()})
        raise ValueError(
            f"{function}: none of the {len(operators)} operators of {type(model).__name__} is selected (their kernels: "
            f"{', '.join(kinds) or 'none'}); pass where=, a function of name and operator"
        )
    return selected


def _has_attention(name: str, operator: IntegralOperator) -> bool:
    return isinstance(operator.kernel, Scored)


def check_channels_and_causality(function: str, name: str, there: Kernel, kernel: Kernel) -> None:
    """Raises a ValueError, with the function's name, unless a kernel can take the place of another."""
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
