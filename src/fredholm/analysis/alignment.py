"""Similarity of two weightings of the same points, such as linear infinite attention's weights and Perron vectors.

Legend
    a, b         two vectors over points, `(..., N)`        r(·)    ranks from 1; equal values share their mean rank
    q_j          query and key of a head                    ω_j     mass of a point
    a_j          density that the kernel gives it

    cosine = a·b / ‖a‖‖b‖,   Spearman = the correlation of r(a) and r(b)
    A_ij = ω_i max(q_i·q_j, 0),   A v = ρ v,   v compared with ω_j a_j

Source: Infinite Self-Attention, eq. 24-27 and supplement, section 8. Deviation: a measure; with equal masses A is the
paper's up to a factor, which changes no vector.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fredholm.analysis.perron import perron_vector
from fredholm.analysis.weights import attention_weights
from fredholm.domains import Domain
from fredholm.kernels import LinearInfiniteAttention
from fredholm.operators import IntegralOperator


class Alignment(NamedTuple):
    """Two similarity measures, `(...)` each, in [-1, 1]."""

    cosine: Tensor
    spearman: Tensor


def alignment(weights: Tensor, vector: Tensor) -> Alignment:
    """Cosine and Spearman's rank correlation of two vectors over points, for each of a batch.

    Args:
        weights: `(..., N)`, N >= 2, over points that exist.
        vector: the same shape, such as that of `perron_vector`.

    Raises:
        ValueError: on shapes that differ, fewer than two points, values that are not finite, or constant vectors,
            which have no ranks.
    """
    if weights.shape != vector.shape or weights.ndim < 1 or weights.shape[-1] < 2:
        raise ValueError(
            f"analysis.alignment: needs two tensors of one shape (..., N) with N >= 2; got {tuple(weights.shape)} and "
            f"{tuple(vector.shape)}"
        )
    dtype = torch.promote_types(torch.promote_types(weights.dtype, vector.dtype), torch.float32)
    a, b = weights.to(dtype), vector.to(dtype)
    for name, values in (("weights", a), ("vector", b)):
        if not bool(values.isfinite().all()):
            raise ValueError(f"analysis.alignment: {name} holds NaN or infinite values")
        constant = values.amax(-1) == values.amin(-1)
        if bool(constant.any()):
            raise ValueError(
                f"analysis.alignment: {int(constant.sum())} of {constant.numel()} {name} are constant, so that they "
                "order nothing; leave those out"
            )
    return Alignment(_cosine(a, b), _cosine(*(_centred(ranks(values)).to(dtype) for values in (a, b))))


def ranks(values: Tensor) -> Tensor:
    """Ranks along the last dimension, from 1, in float64; equal values share the mean of their ranks."""
    ordered = values.sort(-1).values.contiguous()
    values = values.contiguous()
    below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + up_to + 1).double() / 2


def _centred(values: Tensor) -> Tensor:
    return values - values.mean(-1, keepdim=True)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    # scaled first, since squares of small weights underflow
    a, b = (side / side.abs().amax(-1, keepdim=True) for side in (a, b))
    norms = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return ((a * b).sum(-1) / norms).clamp(-1, 1)


@torch.no_grad()
def perron_alignment(model: nn.Module, inputs: Tensor) -> dict[str, Alignment]:
    """Alignment of weights and Perron vector in every linear infinite attention of a model, per head and input.

    One sample is one head at one input. Masked points and points without mass are left out.

    Args:
        model: any module with operators of `kernels.LinearInfiniteAttention` inside, or one itself (its name is then
            "").
        inputs: inputs of the model.

    Returns:
        by name of the operator, in the order of `model.named_modules()`: cosine and Spearman's correlation, `(B, H)`.

    Raises:
        ValueError: for a model without such layers; as `alignment` where a head weighs all points the same, and as
            `perron_vector` where it gives weight to none.
    """
    found: dict[str, Alignment] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, IntegralOperator) and isinstance(module.kernel, LinearInfiniteAttention):
            handles.append(module.register_forward_pre_hook(_recorder(name, found), with_kwargs=True))
    if not handles:
        raise ValueError("analysis.perron_alignment: the model has no operator of kernels.LinearInfiniteAttention")
    try:
        model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {name: found[name] for name, _ in model.named_modules() if name in found}


def _recorder(name: str, found: dict[str, Alignment]) -> Any:
    def record(operator: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        assert isinstance(operator, IntegralOperator)
        kernel = operator.kernel
        assert isinstance(kernel, LinearInfiniteAttention)
        integral = operator.prepare(*args, **options)
        u, domain = integral.u, integral.domain
        found[name] = _aligned(kernel, u, domain)

    return record


def _aligned(kernel: LinearInfiniteAttention, u: Tensor, domain: Domain) -> Alignment:
    weights = attention_weights(kernel, u, domain).double().amax(2)  # all rows of existing points are equal
    q = torch.einsum("bnc,hdc->bhnd", kernel.multiplicand(u), kernel.central_form().weight.to(u.dtype)).double()
    mass = kernel.given_mass(domain, torch.float64).expand(u.shape[:2])
    each = []
    for own, queries, measure in zip(weights, q, mass, strict=True):
        exists = measure > 0
        step = measure[exists, None] * (queries[:, exists] @ queries[:, exists].mT).relu()
        each.append(alignment(own[:, exists], perron_vector(step, allow_reducible=True).vector))
    return Alignment(torch.stack([one.cosine for one in each]), torch.stack([one.spearman for one in each]))
