import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.models.language.gpt2 import GPT2
from tests.refusals import refused

SMALL: dict[str, Any] = {"embed_dim": 12, "depth": 3, "num_heads": 3, "dropout": 0.0}
VOCABULARY, CONTEXT = 11, 9


def model(**settings: Any) -> GPT2:
    """A model in float64 with large random weights, so that every part has an influence."""
    built = GPT2.Config(**{**SMALL, **settings}).build(VOCABULARY, CONTEXT).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]))
    return built


def tokens(length: int = CONTEXT, batch: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length))


def formula(net: GPT2, given: Tensor) -> Tensor:
    """The model written out: heads one by one, attention weights in full."""
    heads = net.config.num_heads
    u = net.tokens.weight[given]
    if net.positions is not None:
        u = u + net.positions.weight[: given.shape[1]]
    future = torch.ones(given.shape[1], given.shape[1]).triu(1).bool()
    for block in net.blocks:
        p = dict(block.named_parameters())

        def affine(x: Tensor, name: str, p: Mapping[str, Tensor] = p) -> Tensor:
            return x @ p[f"{name}.weight"].mT + p.get(f"{name}.bias", torch.zeros(()))

        def projected(x: Tensor, name: str, p: Mapping[str, Tensor] = p) -> Tensor:
            stem = f"operator.kernel.projections.{name}"
            return x @ p[f"{stem}_weight"].mT + p.get(f"{stem}_bias", torch.zeros(()))

        def norm(x: Tensor, name: str, p: Mapping[str, Tensor] = p) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            return scaled * p[f"{name}.weight"] + p.get(f"{name}.bias", torch.zeros(()))

        query, key, value = (projected(norm(u, "operator_norm"), name) for name in ("query", "key", "value"))
        parts = []
        for q, k, v in zip(query.chunk(heads, -1), key.chunk(heads, -1), value.chunk(heads, -1), strict=True):
            if net.positions is None:
                q, k = turned(q), turned(k)
            scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(future, -torch.inf)
            parts.append(scores.softmax(-1) @ v)
        u = u + torch.cat(parts, -1) @ p["operator.output_weight"].mT + p.get("operator.bias", 0.0)
        h = affine(norm(u, "feed_forward_norm"), "feed_forward.expand")
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        u = u + affine(h, "feed_forward.contract")
    assert isinstance(net.norm, nn.LayerNorm)
    return F.layer_norm(u, u.shape[-1:], net.norm.weight, net.norm.bias) @ net.tokens.weight.mT


def turned(x: Tensor) -> Tensor:
    """Rotary positions by complex numbers, whose parts are the halves of the channels."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None] * 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], -1)


@pytest.mark.parametrize("settings", [{"bias": True}, {"bias": False}, {"positions": "rotary"}], ids=str)
@pytest.mark.parametrize("length", [1, 7, CONTEXT])
def test_outputs_and_gradients_follow_the_formula(settings: dict[str, Any], length: int) -> None:
    net, given = model(**settings), tokens(length)
    got, expected = net(given), formula(net, given)
    torch.testing.assert_close(got, expected)
    cotangent, parameters = torch.randn_like(got), list(net.parameters())
    ours, theirs = (torch.autograd.grad(out, parameters, cotangent) for out in (got, expected))
    torch.testing.assert_close(ours, theirs)


def test_a_later_token_changes_no_earlier_logit() -> None:
    net, given = model(), tokens()
    before = net(given)
    for place in range(CONTEXT):
        other = given.clone()
        other[:, place] = (other[:, place] + 1) % VOCABULARY
        after = net(other)
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.allclose(after[:, place:], before[:, place:])


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("lengths", [[1] * CONTEXT, [4, 1, 1, 3], [CONTEXT], [2, 0, 7]])
def test_reading_in_pieces_gives_the_logits_of_the_whole(lengths: list[int], positions: str) -> None:
    net, given = model(positions=positions), tokens(sum(lengths))
    state, parts = net.initial_state(len(given)), []
    for part in given.split(lengths, dim=1):
        logits, state = net.advance(part, state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), net(given))


def test_a_state_can_be_continued_twice() -> None:
    net, given = model(), tokens()
    _, state = net.advance(given[:, :4], net.initial_state(2))
    first, _ = net.advance(given[:, 4:], state)
    net.advance((given[:, 4:] + 1) % VOCABULARY, state)
    again, _ = net.advance(given[:, 4:], state)
    assert torch.equal(first, again)


def test_the_published_size() -> None:
    with torch.device("meta"):
        net = GPT2.Config.small().build(50257, 1024)
    assert sum(parameter.numel() for parameter in net.parameters()) == 124_439_808
    config = GPT2.Config.small()
    assert (config.embed_dim, config.depth, config.num_heads, config.expansion, config.bias) == (768, 12, 12, 4, True)


def test_initial_weights_are_those_published() -> None:
    net = GPT2.Config(embed_dim=128, depth=8, num_heads=4).build(300, 200)
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        elif "norm" in name:
            assert (parameter == 1).all()
        else:
            into_the_stream = name.endswith(("output_weight", "contract.weight"))
            deviation = 0.01 if name.startswith("positions") else 0.02 / 4 if into_the_stream else 0.02
            assert parameter.std().item() == pytest.approx(deviation, rel=0.05)


def test_biases_are_optional() -> None:
    names = [name for name, _ in model(bias=False).named_parameters()]
    assert not [name for name in names if name.endswith("bias")]


def test_dropout_is_active_only_in_training() -> None:
    net, given = model(dropout=0.5), tokens()
    assert torch.equal(net(given), net(given))
    net.train()
    assert not torch.allclose(net(given), net(given))


def test_training_under_autocast() -> None:
    net, given = model().float(), tokens()
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(given)
        step, _ = net.advance(given[:, 5:], net.advance(given[:, :5], net.initial_state(2))[1])
    logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    torch.testing.assert_close(logits.float(), net(given), rtol=0.1, atol=0.1)
    torch.testing.assert_close(step.float(), logits[:, 5:].float(), rtol=0.05, atol=0.05)


@pytest.mark.long
def test_the_model_compiles_to_one_graph() -> None:
    """Its parts always do: attention in `tests/contracts/uses.py`, blocks in `tests/models/test_itnet.py`."""
    net, given = model(), tokens()
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(given), net(given))
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 0}, ["depth must be at least 1", "got 0"]),
        ({"embed_dim": 0}, ["embed_dim must be at least 1", "got 0"]),
        ({"expansion": 0}, ["expansion must be positive and finite", "got 0"]),
        ({"num_heads": 5}, ["num_heads must divide embed_dim", "5 heads for 12 channels"]),
        ({"positions": "sines"}, ["positions is 'learned' or 'rotary'", "got 'sines'"]),
        ({"positions": "rotary", "num_heads": 4}, ["rotary positions turn pairs of channels", "heads of 3 channels"]),
        ({"dropout": 1.0}, ["dropout must be in [0, 1)", "got 1.0"]),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: list[str]) -> None:
    with refused(ValueError, *message):
        GPT2.Config(**{**SMALL, **settings})


def test_bad_sizes_and_tokens() -> None:
    config = GPT2.Config(**SMALL)
    with refused(ValueError, "vocab_size must be at least 1", "got 0"):
        config.build(0, 4)
    with refused(ValueError, "context must be at least 1", "got 0"):
        config.build(4, 0)
    net = model()
    with refused(TypeError, "tokens are torch.float32", "pass torch.int64"):
        net(torch.zeros(1, 2))
    with refused(ValueError, "tokens have shape (2,)", "pass (batch, length)"):
        net(torch.zeros(2, dtype=torch.int64))
    with refused(ValueError, "10 tokens exceed the context of 9"):
        net(tokens(10))
    _, state = net.advance(tokens(8), net.initial_state(2))
    with refused(ValueError, "2 tokens after 8 others exceed the context of 9"):
        net.advance(tokens(2), state)


def test_a_config_is_a_frozen_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPT2.Config().depth = 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("token", [-1, 5])
def test_tokens_out_of_range_are_refused(token: int) -> None:
    net = GPT2(5, 4, GPT2.Config(embed_dim=4, depth=1, num_heads=1))
    with refused(ValueError, f"models.GPT2: there are tokens 0 to 4; got {token}"):
        net(torch.tensor([[0, 4, token]]))
