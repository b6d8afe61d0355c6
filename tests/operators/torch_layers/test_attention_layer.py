import copy

import pytest
import torch
from torch import nn

from fredholm.operators.torch_layers import AttentionLayer
from tests.refusals import refused

SIZES = {
    "plain": {"embed_dim": 8, "num_heads": 4},
    "no bias": {"embed_dim": 6, "num_heads": 2, "bias": False},
    "one head, batch first": {"embed_dim": 5, "num_heads": 1, "batch_first": True},
    "kdim": {"embed_dim": 8, "num_heads": 2, "kdim": 3},
    "kdim and vdim": {"embed_dim": 8, "num_heads": 2, "kdim": 3, "vdim": 5, "batch_first": True},
}


def pair(**options) -> tuple[nn.MultiheadAttention, AttentionLayer]:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(**options).double()
    with torch.no_grad():
        for parameter in theirs.parameters():  # torch starts all constants at 0, which would hide them
            parameter.copy_(torch.randn_like(parameter))
    return theirs, AttentionLayer.from_torch(theirs)


def signals(theirs: nn.MultiheadAttention, kind: str) -> tuple[torch.Tensor, ...]:
    """query, key and value in the order of the layer, with 5 queries and 7 points, or 5 of both for "self"."""
    generator = torch.Generator().manual_seed(1)

    def draw(length: int, dim: int) -> torch.Tensor:
        shape = (3, length, dim) if theirs.batch_first else (length, 3, dim)
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    query = draw(5, theirs.embed_dim)
    if kind == "self":
        return query, query, query
    key = draw(7, theirs.kdim or theirs.embed_dim)
    return query, key, key if kind == "cross" else draw(7, theirs.vdim or theirs.embed_dim)


def check(theirs: nn.MultiheadAttention, ours: AttentionLayer, inputs: tuple[torch.Tensor, ...], **options) -> None:
    out, weights = ours(*inputs, **options)
    expected, expected_weights = theirs(*inputs, **options)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    if expected_weights is None:
        assert weights is None
    else:
        torch.testing.assert_close(weights, expected_weights, atol=1e-12, rtol=0)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    leaves = list({id(part): part for part in inputs}.values())
    for mine, other in zip(
        torch.autograd.grad(out, leaves, cotangent, retain_graph=True),
        torch.autograd.grad(expected, leaves, cotangent, retain_graph=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=0)
    ours.zero_grad()
    theirs.zero_grad()
    out.backward(cotangent)
    expected.backward(cotangent)
    back = ours.to_torch()  # names the gradients as torch does
    grads = {name.rpartition(".")[2]: p.grad for name, p in ours.kernel.named_parameters() if p.grad is not None}
    for kind, packed in (("weight", theirs.in_proj_weight), ("bias", theirs.in_proj_bias)):
        if packed is not None:
            own = torch.cat([grads[f"{name}_{kind}"] for name in ("query", "key", "value")])
            torch.testing.assert_close(own, packed.grad, atol=1e-10, rtol=0)
    assert ours.operator.output_weight is not None
    assert theirs.out_proj.weight.grad is not None
    torch.testing.assert_close(ours.operator.output_weight.grad, theirs.out_proj.weight.grad, atol=1e-10, rtol=0)
    for name, parameter in back.state_dict().items():
        assert torch.equal(parameter, theirs.state_dict()[name]), name


@pytest.mark.parametrize("kind", ["self", "cross", "apart"])
@pytest.mark.parametrize("options", SIZES.values(), ids=SIZES.keys())
def test_equals_torch(options, kind):
    theirs, ours = pair(**options)
    if ("kdim" in options or "vdim" in options) and kind != "apart":
        return
    check(theirs, ours, signals(theirs, kind))


def causal(n: int) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "masks",
    [
        {"attn_mask": causal(5)},
        {"attn_mask": causal(5), "is_causal": True},
        {"attn_mask": torch.randn(5, 5).double()},
        {"attn_mask": torch.randn(12, 5, 5).double()},
        {"attn_mask": torch.zeros(5, 5).double().masked_fill(causal(5), -torch.inf)},
        {"key_padding_mask": torch.tensor([[False] * 5, [False, True, True, False, True], [True] + [False] * 4])},
        {"key_padding_mask": torch.randn(3, 5).double()},
        {
            "attn_mask": causal(5),
            "key_padding_mask": torch.tensor([[False] * 5, [False, True, True, False, True], [False] * 5]),
        },
        {"attn_mask": torch.randn(12, 5, 5).double(), "key_padding_mask": torch.randn(3, 5).double()},
    ],
    ids=[
        "causal",
        "causal said so",
        "added",
        "added per head",
        "added -inf",
        "padding",
        "padding added",
        "both",
        "all",
    ],
)
def test_masks_mean_what_they_mean_in_torch(masks, need_weights):
    theirs, ours = pair(embed_dim=8, num_heads=4, batch_first=True)
    check(theirs, ours, signals(theirs, "self"), need_weights=need_weights, average_attn_weights=False, **masks)


def test_without_a_batch():
    theirs, ours = pair(embed_dim=8, num_heads=4)
    u = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    check(theirs, ours, (u, u, u))
    check(theirs, ours, (u, u, u), key_padding_mask=torch.tensor([False, True, False, False, True]))


def test_a_row_that_sees_nothing_is_the_constant_alone():
    theirs, ours = pair(embed_dim=8, num_heads=4, batch_first=True)
    u = signals(theirs, "self")[0]
    out, weights = ours(u, u, u, key_padding_mask=torch.tensor([[False] * 5, [True] * 5, [False] * 5]))
    assert torch.equal(out[1], theirs.out_proj.bias.expand(5, -1))
    assert not weights[1].any()
    grad = torch.autograd.grad(out[1].sum(), u)[0]
    assert not grad.any()


def test_keeps_mode_dtype_and_what_is_frozen():
    theirs = nn.MultiheadAttention(8, 2).requires_grad_(False).eval().half()
    ours = AttentionLayer.from_torch(theirs)
    assert not ours.training
    assert all(p.dtype == torch.float16 and not p.requires_grad for p in ours.parameters())
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    theirs.in_proj_weight.requires_grad_()
    theirs.out_proj.bias.requires_grad_()
    ours = AttentionLayer.from_torch(theirs)
    assert {name for name, p in ours.named_parameters() if p.requires_grad} == {
        "operator.bias", *(f"operator.kernel.projections.{name}_weight" for name in ("query", "key", "value"))
    }  # fmt: skip
    back = ours.to_torch()
    assert {name for name, p in back.named_parameters() if p.requires_grad} == {"in_proj_weight", "out_proj.bias"}
    copied = copy.deepcopy(ours)
    assert copied.state_dict().keys() == ours.state_dict().keys()


def test_refuses_what_is_no_integral():
    with refused(ValueError, "add_bias_kv", "domains.Union"):
        AttentionLayer.from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True))
    with refused(ValueError, "add_zero_attn"):
        AttentionLayer.from_torch(nn.MultiheadAttention(8, 2, add_zero_attn=True))
    with refused(TypeError, "Linear"):
        AttentionLayer.from_torch(nn.Linear(2, 2))  # pyright: ignore[reportArgumentType]
    layer = AttentionLayer.from_torch(nn.MultiheadAttention(8, 2, dropout=0.1))
    u = torch.randn(5, 3, 8)
    with refused(ValueError, "dropout of attention weights (p = 0.1)", ".eval()"):
        layer(u, u, u)
    assert layer.eval()(u, u, u)[0].shape == (5, 3, 8)
    layer.dropout = 0.0
    with refused(ValueError, "is_causal only describes attn_mask"):
        layer(u, u, u, is_causal=True)
    with refused(ValueError, "attn_mask must be (5, 5) or (6, 5, 5)", "(4, 5)"):
        layer(u, u, u, attn_mask=torch.zeros(4, 5))
    with refused(ValueError, "key_padding_mask must be (3, 5)", "(5, 3)"):
        layer(u, u, u, key_padding_mask=torch.zeros(5, 3))
    with refused(ValueError, "value must be (points, batch, 8) or (points, 8)", "(5, 3, 7)"):
        layer(u, u, u[..., :7])
    with refused(ValueError, "key must be (points, batch, 8)", "(5, 8)"):
        layer(u, u[:, 0], u[:, 0])
    with refused(ValueError, "query must be", "(8,)"):
        layer(u[0, 0], u, u)
    with refused(ValueError, "key and value must hold the same points"):
        layer(u, u, u[:4])
