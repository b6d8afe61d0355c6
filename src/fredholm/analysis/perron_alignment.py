"""How near the weights of linear infinite attention come to the Perron vectors that they stand for.

Legend
    q_j          query and key of a head        ω_j    mass of a point        a_j    density that the kernel gives it

    A_ij = ω_i max(q_i·q_j, 0),   A v = ρ v,   v compared with ω_j a_j

Source: Infinite Self-Attention, eq. 24-27 and supplement, section 8. Deviation: a measure; with equal masses A is the
paper's up to a factor, which changes no vector.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fredholm.analysis.alignment import Alignment, alignment
from fredholm.analysis.perron import perron_vector
from fredholm.analysis.weights import attention_weights
from fredholm.domains import Domain
from fredholm.kernels import LinearInfiniteAttention
from fredholm.operators import IntegralOperator


@torch.no_grad()
def perron_alignment(model: nn.Module, inputs: Tensor) -> dict[str, Alignment]:
    """The alignment of every layer of linear infinite attention in a model, head by head, while it reads some inputs.

    One sample is one head at one input. Points that do not exist, or have no mass, are left out.

    Args:
        model: any module with operators of `kernels.LinearInfiniteAttention` inside, or one itself (its name is then
            "").
        inputs: what it takes.

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
    weights = attention_weights(kernel, u, domain).double().amax(2)  # rows are equal, but for those that do not exist
    q = torch.einsum("bnc,hdc->bhnd", kernel.multiplicand(u), kernel.central_form().weight.to(u.dtype)).double()
    mass = kernel.given_mass(domain, torch.float64).expand(u.shape[:2])
    each = []
    for own, queries, measure in zip(weights, q, mass, strict=True):
        exists = measure > 0
        step = measure[exists, None] * (queries[:, exists] @ queries[:, exists].mT).relu()
        each.append(alignment(own[:, exists], perron_vector(step, allow_reducible=True).vector))
    return Alignment(torch.stack([one.cosine for one in each]), torch.stack([one.spearman for one in each]))
