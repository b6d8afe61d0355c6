"""Attention and linear maps against torch's, with the operator's own weights; linear attention against its sum."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fredholm.domains import Domain, Sequence
from fredholm.kernels import Attention, LinearAttention, Pointwise
from fredholm.operators import IntegralOperator
from fredholm.verification.check import Equality, operator_of

BATCH, KEYS, QUERIES = 2, 6, 4


def attentions() -> Iterator[Equality]:
    """Self and cross attention with every mask, linear attention, and the pointwise linear map."""
    causal = torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    keep = torch.tensor([[True] * KEYS, [True, True, False, True, False, False]])
    yield _multi_head("single head", Attention(8, 1))
    yield _multi_head("multi-head", Attention(8, 4))
    yield _multi_head("causal", Attention(8, 4, is_causal=True), attn_mask=~causal)
    yield _multi_head("cross", Attention(8, 2), queries=QUERIES)
    yield _multi_head("cross, kdim and vdim", Attention(8, 2, kdim=3, vdim=5), queries=QUERIES)
    yield _multi_head("key mask", Attention(8, 4), Sequence(KEYS, mask=keep), key_padding_mask=~keep)
    yield _multi_head("boolean pair mask", Attention(8, 4), Sequence(KEYS).weigh_pairs(causal), attn_mask=~causal)
    bias = torch.randn(BATCH, 4, KEYS, KEYS, dtype=torch.float64)
    added = bias.flatten(0, 1)
    yield _multi_head("additive mask a head", Attention(8, 4), Sequence(KEYS).weigh_pairs(bias), attn_mask=added)
    weights = torch.rand(KEYS, dtype=torch.float64) + 0.1
    # weights of the measure equal their logarithms added to the scores
    log_weights = weights.log().expand(KEYS, KEYS)
    yield _multi_head("measure weights", Attention(8, 4), Sequence(KEYS, weights=weights), attn_mask=log_weights)
    yield _grouped()
    yield _linear_attention("full", is_causal=False)
    yield _linear_attention("causal", is_causal=True)
    yield _pointwise()


def _multi_head(
    variant: str,
    kernel: Attention,
    domain: Domain | None = None,
    *,
    queries: int | None = None,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
) -> Equality:
    operator = IntegralOperator(kernel, residual=False).double()
    for parameter in operator.parameters():
        nn.init.normal_(parameter, std=0.5)
    native = nn.MultiheadAttention(
        8, kernel.num_heads, batch_first=True, kdim=kernel.projections.key_dim, vdim=kernel.projections.value_dim
    ).double()
    signal = torch.randn(BATCH, KEYS, kernel.in_dim, dtype=torch.float64)
    if domain is not None and domain.mask is not None:
        signal = torch.where(domain.mask[..., None], signal, 0.0)
    u = signal.requires_grad_()
    query = None if queries is None else torch.randn(BATCH, queries, 8, dtype=torch.float64, requires_grad=True)

    def expected() -> Tensor:
        own = kernel.projections
        assert operator.output_weight is not None
        assert operator.bias is not None
        weights: dict[str, Tensor] = {"out_proj.weight": operator.output_weight, "out_proj.bias": operator.bias}
        biases = (own.query_bias, own.key_bias, own.value_bias)
        weights["in_proj_bias"] = torch.cat([bias for bias in biases if bias is not None])
        projections = (own.query_weight, own.key_weight, own.value_weight)
        if native.in_proj_weight is not None:
            weights["in_proj_weight"] = torch.cat(projections)
        else:
            names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
            weights |= dict(zip(names, projections, strict=True))
        key, value = (u[..., : own.key_dim], u[..., own.key_dim :]) if own.separate_values else (u, u)
        masks = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}
        out, _ = functional_call(native, weights, (u if query is None else query, key, value), masks)
        if domain is not None and domain.mask is not None:
            out = torch.where(domain.mask[..., None], out, 0.0)  # a masked query has no result
        return out

    query_domain = None if queries is None else Sequence(queries)
    return Equality("MultiheadAttention", variant, operator, u, expected, domain, query, query_domain)


def _grouped() -> Equality:
    kernel = Attention(8, 4, num_kv_heads=2)
    operator = operator_of(kernel)
    u = torch.randn(BATCH, KEYS, 8, dtype=torch.float64, requires_grad=True)

    def expected() -> Tensor:
        own = kernel.projections
        out = nn.functional.scaled_dot_product_attention(
            own.queries(u), own.keys(u), own.values(u), scale=kernel.scale, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(2)

    return Equality("scaled_dot_product_attention", "grouped queries", operator, u, expected)


def _linear_attention(variant: str, *, is_causal: bool) -> Equality:
    kernel, line = LinearAttention(6, 2, is_causal=is_causal), Sequence(KEYS)
    operator = operator_of(kernel)
    u = torch.randn(BATCH, KEYS, 6, dtype=torch.float64, requires_grad=True)

    def expected() -> Tensor:
        phi, psi, value = kernel.feature_map_form(u, line, u, line)
        rows = []
        for i in range(KEYS):
            seen = i + 1 if is_causal else KEYS
            scores = torch.einsum("bhr,bhjr->bhj", phi[:, :, i], psi[:, :, :seen])
            total = torch.einsum("bhj,bhjd->bhd", scores, value[:, :, :seen])
            rows.append((total / scores.sum(-1, keepdim=True)).flatten(1))
        return torch.stack(rows, dim=1)

    return Equality("linear attention", variant, operator, u, expected)


def _pointwise() -> Equality:
    kernel = Pointwise(4, 3)
    operator = operator_of(kernel, bias=True)
    u = torch.randn(BATCH, KEYS, 4, dtype=torch.float64, requires_grad=True)
    return Equality("Linear", "", operator, u, lambda: nn.functional.linear(u, kernel.weight, operator.bias))
