import copy

import pytest
import torch
from torch import nn

from fredholm.evaluation import Dense
from fredholm.kernels import MLP, Attention, Scaled, Sum
from fredholm.layers.torch_layers.attention import AttentionLayer
from fredholm.pretrained import add_kernel
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
        for parameter in theirs.parameters():  # torch initialises biases with 0, which would hide mistakes
            parameter.copy_(torch.randn_like(parameter))
    return theirs, AttentionLayer.from_torch(theirs)


def signals(theirs: nn.MultiheadAttention, kind: str) -> tuple[torch.Tensor, ...]:
    """query, key and value in the layout of the layer, with 5 queries and 7 points, or 5 of both for "self"."""
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
    back = ours.to_torch()  # gives the gradients torch's names
    grads = {name.rpartition(".")[2]: p.grad for name, p in ours.kernel.named_parameters() if p.grad is not None}
    for kind, packed in (("weight", theirs.in_proj_weight), ("bias", theirs.in_proj_bias)):
        if packed is not None:
            joined = torch.cat([grads[f"{name}_{kind}"] for name in ("query", "key", "value")])
            torch.testing.assert_close(joined, packed.grad, atol=1e-10, rtol=0)
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
def test_masks_have_the_same_meaning_as_in_torch(masks, need_weights):
    theirs, ours = pair(embed_dim=8, num_heads=4, batch_first=True)
    check(theirs, ours, signals(theirs, "self"), need_weights=need_weights, average_attn_weights=False, **masks)


def test_without_a_batch():
    theirs, ours = pair(embed_dim=8, num_heads=4)
    u = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    check(theirs, ours, (u, u, u))
    check(theirs, ours, (u, u, u), key_padding_mask=torch.tensor([False, True, False, False, True]))


def test_a_query_without_visible_keys_gets_only_the_bias():
    theirs, ours = pair(embed_dim=8, num_heads=4, batch_first=True)
    u = signals(theirs, "self")[0]
    out, weights = ours(u, u, u, key_padding_mask=torch.tensor([[False] * 5, [True] * 5, [False] * 5]))
    assert torch.equal(out[1], theirs.out_proj.bias.expand(5, -1))
    assert not weights[1].any()
    grad = torch.autograd.grad(out[1].sum(), u)[0]
    assert not grad.any()


def test_keeps_mode_dtype_and_frozen_parameters():
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


def test_options_without_an_integral_and_bad_inputs_are_refused():
    with refused(ValueError, "add_bias_kv", "domains.Union"):
        AttentionLayer.from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True))
    with refused(ValueError, "add_zero_attn"):
        AttentionLayer.from_torch(nn.MultiheadAttention(8, 2, add_zero_attn=True))
    with refused(TypeError, "Linear"):
        AttentionLayer.from_torch(nn.Linear(2, 2))  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "dropout is a probability in [0, 1]; got 1.5"):
        AttentionLayer(Attention(8, 2), dropout=1.5)
    layer, u = AttentionLayer.from_torch(nn.MultiheadAttention(8, 2)), torch.randn(5, 3, 8)
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


def apart(dtype: torch.dtype = torch.float64) -> tuple[nn.MultiheadAttention, AttentionLayer, tuple[torch.Tensor, ...]]:
    theirs, ours = pair(embed_dim=8, num_heads=2, batch_first=True)
    generator = torch.Generator().manual_seed(3)
    inputs = tuple(torch.randn(3, n, 8, generator=generator, dtype=torch.float64).to(dtype) for n in (5, 7, 7))
    return theirs, ours, inputs


@pytest.mark.pairs
@pytest.mark.slow
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 8}], ids=str)
def test_separate_keys_and_values_compile_in_one_graph(need_weights, masked, options):
    torch.compiler.reset()
    theirs, ours = pair(embed_dim=8, num_heads=2, batch_first=True, **options)
    query, key, value = (torch.randn(3, n, c, dtype=torch.float64) for n, c in ((5, 8), (7, theirs.kdim), (7, 8)))
    more = {"key_padding_mask": torch.rand(3, 7) > 0.6, "need_weights": need_weights} if masked else {}
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    leaf = query.clone().requires_grad_()
    out, expected = compiled(leaf, key, value, **more)[0], ours(leaf, key, value, **more)[0]
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    grads = [torch.autograd.grad(result.sin().sum(), leaf, retain_graph=True)[0] for result in (out, expected)]
    torch.testing.assert_close(*grads, atol=1e-10, rtol=0)
    torch.compiler.reset()


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("same", [False, True], ids=["apart", "same"])
@pytest.mark.parametrize("masks", [None, "bool", "float"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_vmap_over_a_stack_of_signals(masks, need_weights, same):
    theirs, ours, (query, key, value) = apart()
    stacked = [torch.stack([part, -part, 2 * part]) for part in (query, key, value)]
    stacked = [stacked[0]] * 3 if same else stacked
    length = stacked[1].shape[2]
    mask = None
    if masks is not None:
        hidden = torch.rand(5, length, generator=torch.Generator().manual_seed(0)) > 0.6
        mask = hidden if masks == "bool" else hidden.double()

    def run(*parts: torch.Tensor) -> torch.Tensor:
        parts = (parts[0],) * 3 if same else parts
        return ours(*parts, attn_mask=mask, need_weights=need_weights)[0]

    out = torch.func.vmap(run)(*stacked)
    for row, *parts in zip(out, *stacked, strict=True):
        torch.testing.assert_close(row, theirs(*parts, attn_mask=mask)[0], atol=1e-12, rtol=0)


def test_functional_call_with_separate_keys_and_values():
    theirs, ours, inputs = apart()
    doubled = {name: 2 * parameter for name, parameter in ours.named_parameters()}
    got = torch.func.functional_call(ours, doubled, inputs)[0]
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(got, theirs(*inputs)[0], atol=1e-12, rtol=0)


@pytest.mark.pairs
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kind", ["self", "cross", "apart"])
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_of_weights_in_training_is_the_same_as_torchs(need_weights, average, kind, masked):
    theirs, ours = pair(embed_dim=8, num_heads=4, dropout=0.4)
    inputs = signals(theirs, kind)
    options: dict = {"need_weights": need_weights, "average_attn_weights": average}
    if masked:
        options["key_padding_mask"] = torch.rand(3, len(inputs[1]), generator=torch.Generator().manual_seed(1)) > 0.7
        options["key_padding_mask"][:, 0] = False
    results = []
    for layer in (theirs, ours):
        torch.manual_seed(7)
        out, weights = layer(*inputs, **options)
        leaves = list({id(part): part for part in inputs}.values())
        results.append((out, weights, *torch.autograd.grad(out.sin().sum(), leaves)))
    for mine, other in zip(results[1], results[0], strict=True):
        if other is None:
            assert mine is None
        else:
            torch.testing.assert_close(mine, other, atol=1e-11, rtol=0)
    assert not torch.equal(ours(*inputs)[0], ours(*inputs)[0])
    assert torch.equal(ours.eval()(*inputs)[0], ours(*inputs)[0])


def test_a_chosen_route_is_always_used():
    _, ours, (query, key, value) = apart()
    ours.operator.evaluation = Dense()
    with refused(ValueError, "Dense", "key and value", "evaluation.AUTO"):
        ours(query, key, value)
    ours.dropout = 0.2
    with refused(ValueError, "Dense", "dropout", "evaluation.AUTO"):
        ours(query, key, key, need_weights=False)
    torch.testing.assert_close(
        ours.eval()(query, key, key, need_weights=False)[0], ours.to_torch()(query, key, key)[0], atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_masks_of_integers_are_refused(dtype):
    _, ours, (query, key, value) = apart()
    with refused(TypeError, "attn_mask must be bool", str(dtype)):
        ours(query, key, value, attn_mask=torch.zeros(5, 7, dtype=dtype))
    with refused(TypeError, "key_padding_mask must be bool", str(dtype)):
        ours(query, key, key, key_padding_mask=torch.zeros(3, 7, dtype=dtype))


def test_a_bias_of_only_some_projections_is_converted_back():
    torch.manual_seed(0)
    u = torch.randn(2, 5, 8, dtype=torch.float64)
    for inner, outer in ((False, True), (True, False)):
        ours = AttentionLayer(Attention(8, 2, bias=inner), bias=outer, batch_first=True).double()
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.copy_(torch.randn_like(parameter))
        back = ours.to_torch()
        torch.testing.assert_close(back(u, u, u)[0], ours(u, u, u)[0], atol=1e-12, rtol=0)
        assert sum(p.numel() for p in back.parameters() if p.requires_grad) == sum(p.numel() for p in ours.parameters())


def test_further_kernels_beside_the_attention() -> None:
    ours = pair(embed_dim=8, num_heads=2, batch_first=True)[1]
    u = torch.randn(3, 5, 8, dtype=torch.float64)
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    before = ours(u, u, u, attn_mask=causal)
    add_kernel(ours, MLP(8, 2, 1, width=3), gate=0.0, freeze=False)
    after = ours(u, u, u, attn_mask=causal)
    torch.testing.assert_close(after[0], before[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(after[1], before[1], atol=1e-12, rtol=0)  # gradients of the attention
    kernel = ours.operator.kernel
    assert isinstance(kernel, Sum)
    attention, added = kernel.kernels
    assert isinstance(attention, Attention)
    assert isinstance(added, Scaled)
    assert ours.q_proj_weight is attention.projections.query_weight
    with torch.no_grad():
        added.gate.add_(0.5)
    moved = torch.cat([u[:, :4], torch.zeros(3, 1, 8, dtype=torch.float64)], 1)
    one, other = (ours(x, x, x, attn_mask=causal)[0] for x in (u, moved))
    assert not torch.allclose(one, after[0])
    torch.testing.assert_close(one[:, :4], other[:, :4], atol=1e-12, rtol=0)  # the mask hides pairs from both
    with refused(ValueError, "torch's layer has attention alone", "further kernels"):
        ours.to_torch()
    with refused(ValueError, "the kernels beside the attention cannot see key and value as two signals"):
        ours(u, u, u + 1)
    ours.dropout = 0.1
    with refused(ValueError, "the kernels beside the attention cannot see dropout", ".dropout = 0"):
        ours(u, u, u)


def test_another_kernel_in_place_of_the_attention_is_refused() -> None:
    ours = pair(embed_dim=8, num_heads=2, batch_first=True)[1]
    u = torch.randn(3, 5, 8, dtype=torch.float64)
    for kernel, name in ((MLP(8, 2, 1), "MLP"), (Attention(8, 2) + Attention(8, 2), "Sum")):
        ours.operator.kernel = kernel.double()
        with refused(TypeError, "needs one kernels.Attention", f"got {name}", "put an IntegralOperator in place"):
            ours(u, u, u)
