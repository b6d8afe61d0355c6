import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.models.language.aether import Aether
from tests.refusals import refused

SMALL: dict[str, Any] = {"embed_dim": 12, "depth": 2, "num_heads": 3, "dropout": 0.0}
VOCABULARY, CONTEXT = 11, 9
OPTIONS = {
    "learned positions": {},
    "rotary positions": {"positions": "rotary"},
    "shared keys": {"num_kv_heads": 1, "learn_epsilon": True},
    "norms before": {"layer_norm": "pre"},
    "norms after": {"layer_norm": "post"},
}


def model(**settings: Any) -> Aether:
    """A model in float64 with perturbed weights, so that every part has an influence."""
    torch.manual_seed(0)
    built = Aether.Config(**{**SMALL, **settings}).build(VOCABULARY, CONTEXT).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim == 2:
                parameter.add_(0.5 * torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]))
    return built


def tokens(length: int = CONTEXT, batch: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length))


def formula(net: Aether, given: Tensor) -> Tensor:
    """The model written out, with explicit differences: heads one by one, attention weights in full."""
    u = net.tokens.weight[given]
    if net.positions is not None:
        u = u + net.positions.weight[: given.shape[1]]
    u = net.scale * u
    future = torch.ones(given.shape[1], given.shape[1]).triu(1).bool()
    blocks: Any = net.blocks
    for block in blocks:
        own, parts = block.operator.kernel.projections, []
        for rows in torch.arange(12).chunk(3):
            q, k, v = (u @ w[rows].mT for w in (own.query_weight, own.key_weight, own.value_weight))
            distance = (q[:, :, None] - k[:, None]).square().sum(-1)
            scores = (q @ k.mT).square() / (distance + 4 * net.config.epsilon)
            parts.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v)
        u = u + torch.cat(parts, -1) @ block.operator.output_weight.mT
        w, scale = block.feed_forward.expand.weight, block.feed_forward.expand.scale
        units = (u @ w.mT).square() / ((u[..., None, :] - w).square().sum(-1) + 12 * net.config.epsilon)
        u = u + (scale() * units) @ block.feed_forward.contract.weight.mT
    return u / net.scale @ net.tokens.weight.mT


@pytest.mark.parametrize("length", [1, CONTEXT])
def test_equals_the_formula(length):
    net, given = model(), tokens(length)
    torch.testing.assert_close(net(given), formula(net, given))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_token_by_token_and_in_chunks_equals_the_whole(options):
    net, given = model(**options), tokens()
    whole = net(given)
    for cuts in ([1] * CONTEXT, [4, 1, 4], [CONTEXT]):
        state, rows = net.initial_state(2), []
        for part in given.split(cuts, dim=1):
            logits, state = net.advance(part, state)
            rows.append(logits)
        torch.testing.assert_close(torch.cat(rows, 1), whole)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_no_logit_sees_a_later_token(options):
    net, given = model(**options), tokens()
    other = given.clone()
    other[:, 5:] = (other[:, 5:] + 1) % VOCABULARY
    before, after = net(given), net(other)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_the_small_model_has_124_million_parameters_and_neither_norms_nor_biases():
    with torch.device("meta"):
        net = Aether.Config.small().build(50_257, 1024)
    # tokens, positions, and in each block four square maps, two of the network, and α
    expected = 50_257 * 768 + 1024 * 768 + 12 * (4 * 768**2 + 2 * 768 * 3072 + 1)
    assert sum(p.numel() for p in net.parameters()) == expected == 124_318_476
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in net.modules())
    assert not any("bias" in name for name, _ in net.named_parameters())


@pytest.mark.parametrize("width", [32, 256])
def test_activations_keep_their_size_through_depth(width):
    torch.manual_seed(0)
    net = Aether.Config(embed_dim=width, depth=12, num_heads=4).build(50, 16).eval()
    sizes = []
    for block in net.blocks:
        block.register_forward_hook(
            lambda module, inputs, output: sizes.append(output[0].square().mean().sqrt().item())
        )
    loss = torch.nn.functional.cross_entropy(net(tokens(16, 8)).flatten(0, 1), tokens(16, 8).flatten())
    assert loss < 1.2 * math.log(50)
    assert all(0.5 < size < 4 for size in sizes), sizes
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name


def test_bfloat16_autocast_is_close():
    net, given = model().float(), tokens()
    exact = net(given)
    with torch.autocast("cpu", torch.bfloat16):
        rough = net(given)
    torch.testing.assert_close(rough.float(), exact, atol=0.1, rtol=0.1)


@pytest.mark.long
def test_the_model_compiles_to_one_graph():
    net, given = model().float(), tokens()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(given), net(given))


def test_bad_arguments_are_refused():
    with refused(ValueError, "num_heads must divide embed_dim", "5 heads for 12 channels"):
        model(num_heads=5)
    with refused(ValueError, "layer_norm is 'none' or 'pre' or 'post'", "'before'"):
        Aether.Config(layer_norm="before")  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "epsilon", "0"):
        model(epsilon=0.0)
    with refused(ValueError, "depth must be at least 1"):
        model(depth=0)
    net = model()
    with refused(ValueError, "exceed the context of 9"):
        net(tokens(10))
    with refused(ValueError, "1 tokens after 9 others exceed the context"):
        net.advance(tokens(1), net.advance(tokens(9), net.initial_state(2))[1])
