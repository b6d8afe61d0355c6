"""The three integrals of features as PyTorch operators with a gradient, opaque to the compiler.

Each takes its tensors as one list, the fields of `FeatureInputs` first, then what its class names.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable, pullback
from fredholm.evaluation.features.features import plain_features
from fredholm.evaluation.features.inputs import FeatureInputs, accumulator
from fredholm.evaluation.features.maps import Maps
from fredholm.evaluation.features.sums import Sums
from fredholm.evaluation.features.tables import Tables


@torch.library.custom_op("fredholm::feature_sums", mutates_args=())
def feature_sums(tensors: list[Tensor], activation: str, elements: int) -> Tensor:
    """S, `(B, H, w + 1, d)`; see `Sums`."""
    with torch.autocast(tensors[0].device.type, enabled=False):
        return Sums(tensors, activation, elements).forward()


@torch.library.custom_op("fredholm::feature_tables", mutates_args=())
def feature_tables(tensors: list[Tensor], activation: str, elements: int) -> Tensor:
    """h_i T, `(B, N, H, n)`; see `Tables`."""
    with torch.autocast(tensors[0].device.type, enabled=False):
        return Tables(tensors, activation, elements).forward()


@torch.library.custom_op("fredholm::feature_maps", mutates_args=())
def feature_maps(tensors: list[Tensor], activation: str, elements: int) -> Tensor:
    """A_j v_j, `(B, N, H, n)`; see `Maps`."""
    with torch.autocast(tensors[0].device.type, enabled=False):
        return Maps(tensors, activation, elements).forward()


@torch.library.custom_op("fredholm::feature_sums_backward", mutates_args=())
def feature_sums_backward(
    grad: Tensor, tensors: list[Tensor], activation: str, elements: int, wanted: list[bool]
) -> list[Tensor]:
    """Gradients of all tensors; see `Sums.backward`."""
    with torch.autocast(grad.device.type, enabled=False):
        return Sums(tensors, activation, elements).backward(grad, wanted)


@torch.library.custom_op("fredholm::feature_tables_backward", mutates_args=())
def feature_tables_backward(
    grad: Tensor, tensors: list[Tensor], activation: str, elements: int, wanted: list[bool]
) -> list[Tensor]:
    """Gradients of all tensors; see `Tables.backward`."""
    with torch.autocast(grad.device.type, enabled=False):
        return Tables(tensors, activation, elements).backward(grad, wanted)


@torch.library.custom_op("fredholm::feature_maps_backward", mutates_args=())
def feature_maps_backward(
    grad: Tensor, tensors: list[Tensor], activation: str, elements: int, wanted: list[bool]
) -> list[Tensor]:
    """Gradients of all tensors; see `Maps.backward`."""
    with torch.autocast(grad.device.type, enabled=False):
        return Maps(tensors, activation, elements).backward(grad, wanted)


@feature_sums.register_fake
def _(tensors: list[Tensor], activation: str, elements: int) -> Tensor:
    own, value = FeatureInputs(*tensors[:5]), tensors[5]
    shape = (own.content.shape[0], own.content.shape[2], own.bias.shape[1] + 1, value.shape[-1])
    return value.new_empty(shape, dtype=accumulator(value))


@feature_tables.register_fake
def _(tensors: list[Tensor], activation: str, elements: int) -> Tensor:
    own = FeatureInputs(*tensors[:5])
    return own.content.new_empty(*own.content.shape[:3], tensors[5].shape[-1])


@feature_maps.register_fake
def _(tensors: list[Tensor], activation: str, elements: int) -> Tensor:
    own, matrices, value = FeatureInputs(*tensors[:5]), tensors[5], tensors[6]
    return value.new_empty(*own.content.shape[:3], matrices.shape[2], dtype=accumulator(value))


def _fake_backward(
    grad: Tensor, tensors: list[Tensor], activation: str, elements: int, wanted: list[bool]
) -> list[Tensor]:
    return [t.new_empty(t.shape if kept else 0) for t, kept in zip(tensors, kept_gradients(wanted), strict=True)]


def kept_gradients(wanted: list[bool]) -> list[bool]:
    """Which gradients are there: what only points have is left out where nobody wants it."""
    return [*wanted[:2], *(True for _ in wanted[2:])]


for _operator in (feature_sums_backward, feature_tables_backward, feature_maps_backward):
    _operator.register_fake(_fake_backward)


def _setup_context(ctx: Any, inputs: tuple[list[Tensor], str, int], output: Tensor) -> None:
    tensors, ctx.activation, ctx.elements = inputs
    ctx.save_for_backward(*tensors)
    ctx.wanted = [t.requires_grad for t in tensors]


def plain_sums(tensors: list[Tensor], activation: str) -> Tensor:
    """S in differentiable operations, with the features of all points at one time."""
    *inputs, value, weights = tensors
    with torch.autocast(value.device.type, enabled=False):
        h = plain_features(FeatureInputs(*inputs), activation).to(accumulator(value))
        return torch.einsum("bnhw,bnhd->bhwd", h, value.to(h.dtype) * weights[..., None, None])


def plain_tables(tensors: list[Tensor], activation: str) -> Tensor:
    """h_i T in differentiable operations, with the features of all points at one time."""
    *inputs, table = tensors
    with torch.autocast(table.device.type, enabled=False):
        h = plain_features(FeatureInputs(*inputs), activation)
        return torch.einsum("bnhw,bhwd->bnhd", h, table.to(h.dtype))


def _plain_maps(tensors: list[Tensor], activation: str) -> Tensor:
    *inputs, matrices, value = tensors
    with torch.autocast(value.device.type, enabled=False):
        by_kernel, dtype = (len(matrices), -1), accumulator(value)
        h = plain_features(FeatureInputs(*inputs), activation).to(dtype).unflatten(2, by_kernel)
        each = torch.einsum("bngkw,gwij->bngkij", h, matrices.to(dtype))
        return torch.einsum("bngkij,bngkj->bngki", each, value.to(dtype).unflatten(2, by_kernel)).flatten(2, 3)


def _registered(operator: Any, backward: Any, plain: Callable[[list[Tensor], str], Tensor]) -> None:
    def run(ctx: Any, grad: Tensor) -> tuple[list[Tensor | None], None, None]:
        grads = backward(grad.contiguous(), list(ctx.saved_tensors), ctx.activation, ctx.elements, ctx.wanted)
        kept = zip(grads, ctx.wanted, strict=True)
        return [found if wanted else None for found, wanted in kept], None, None

    def gradients(grad: Tensor, tensors: list[Tensor], activation: str, _: int, wanted: list[bool]) -> list[Tensor]:
        return pullback(lambda moved: [plain(moved, activation)], [grad], tensors, kept_gradients(wanted))

    differentiable(
        operator, run, setup_context=_setup_context, plain=lambda tensors, activation, _: plain(tensors, activation)
    )
    differentiable(backward, plain=gradients)


_registered(feature_sums, feature_sums_backward, plain_sums)
_registered(feature_tables, feature_tables_backward, plain_tables)
_registered(feature_maps, feature_maps_backward, _plain_maps)
