"""ITNets of tokens: padding, batch mates and later tokens change nothing, and steps equal the whole."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm import encoders
from fredholm.kernels import MLP, Kernel, Pointwise
from fredholm.models import (
    KERNELS,
    AttentionConfig,
    ConvolutionConfig,
    InfiniteConfig,
    ITNet,
    ITNetLanguageModel,
    ITNetMaskedModel,
    KernelConfig,
    LanguageState,
    LinearAttentionConfig,
    LowRankConfig,
    MLPConfig,
    OnEdgesConfig,
    RecurrenceConfig,
    SeparableConfig,
    SumConfig,
)
from tests.refusals import refused

VOCABULARY, CONTEXT, PAD, SEPARATOR = 13, 32, 0, 1
SMALL: dict[str, Any] = {"width": 6, "num_frequencies": 3, "sigma": 2.0, "epsilon": 1.0}
BY_KIND: dict[str, KernelConfig] = {
    "exact": MLPConfig(**SMALL),
    "low rank": LowRankConfig(rank=3, **SMALL),
    "separable": SeparableConfig(**SMALL),
    "attention": AttentionConfig(num_kv_heads=1),
    "sum": SumConfig(first=LowRankConfig(rank=3, **SMALL), second=LinearAttentionConfig()),
    **{f"infinite {kind}": InfiniteConfig(kind=kind) for kind in ("exact", "factorised", "linear")},
    **{f"recurrence {kind}": RecurrenceConfig(kind=kind) for kind in ("selective", "lstm", "gru")},
}
BY_KIND |= {kind.__name__: kind() for kind in KERNELS if kind not in {OnEdgesConfig, *map(type, BY_KIND.values())}}
LOOKS_AHEAD = ("infinite linear", "ConvolutionConfig", "AdditiveAttentionConfig", "ConstantConfig", "SpectralConfig")
CAUSAL = [name for name in BY_KIND if name not in LOOKS_AHEAD]


def stack(kernel: KernelConfig, **settings: Any) -> ITNet.Config:
    sizes: dict[str, Any] = {"embed_dim": 8, "depth": 2, "dropout": 0.0, "drop_path": 0.0}
    heads: dict[str, Any] = {"num_heads": 2} if kernel.has_heads else {}
    return ITNet.Config(**sizes | heads | settings, kernel=kernel)


def masked(name: str, **settings: Any) -> ITNetMaskedModel:
    config = ITNetMaskedModel.Config(stack=stack(BY_KIND[name]), position_frequencies=4, position_sigma=2.0)
    return config.build(VOCABULARY, CONTEXT, pad=PAD, separator=SEPARATOR).double()


def causal(name: str) -> ITNetLanguageModel:
    config = ITNetLanguageModel.Config(stack=stack(BY_KIND[name]), position_frequencies=4, position_sigma=2.0)
    return config.build(VOCABULARY, CONTEXT).double()


def sentences(batch: int = 3, length: int = 11) -> Tensor:
    drawn = torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(5))
    drawn[:, length // 2] = SEPARATOR
    return drawn


def with_gradients(model: nn.Module, out: Tensor) -> Iterator[Tensor]:
    """The output, and the gradient in every parameter of one function of it."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    parameters = [p for p in model.parameters() if p.numel()]
    found = torch.autograd.grad((out * weights).sum(), parameters, allow_unused=True, materialize_grads=True)
    yield from (out.detach(), *found)


def check_equal(one: Iterator[Tensor], other: Iterator[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * max(1.0, float(b.detach().abs().max())))


@pytest.mark.parametrize("name", BY_KIND)
def test_padding_and_batch_mates_change_nothing(name: str) -> None:
    model, tokens = masked(name), sentences()
    length = tokens.shape[1]
    longer = nn.functional.pad(tokens, (0, 6), value=PAD)
    check_equal(with_gradients(model, model(tokens)), with_gradients(model, model(longer)[:, :length]))
    mates = longer.clone()
    mates[1, 4:] = PAD
    mates[2, length:] = 3
    check_equal(with_gradients(model, model(tokens)[:1]), with_gradients(model, model(mates)[:1, :length]))
    order = torch.tensor([2, 0, 1])
    check_equal(iter([model(longer)[order]]), iter([model(longer[order])]))


@pytest.mark.parametrize("name", CAUSAL)
def test_later_tokens_change_nothing(name: str) -> None:
    model, tokens = causal(name), sentences()
    check_equal(with_gradients(model, model(tokens[:, :7])), with_gradients(model, model(tokens)[:, :7]))


def read(model: ITNetLanguageModel, tokens: Tensor, *cuts: int) -> tuple[Tensor, LanguageState]:
    state, found = model.initial_state(len(tokens)), []
    for part in tokens.tensor_split(cuts, dim=1):
        logits, state = model.advance(part, state)
        found.append(logits)
    return torch.cat(found, dim=1), state


@pytest.mark.parametrize("name", CAUSAL)
def test_reading_in_pieces_gives_the_logits_of_the_whole(name: str) -> None:
    model, tokens = causal(name), sentences()
    check_equal(with_gradients(model, model(tokens)), with_gradients(model, read(model, tokens, 4)[0]))
    one_by_one, state = read(model, tokens, *range(1, tokens.shape[1]))
    check_equal(with_gradients(model, model(tokens)), with_gradients(model, one_by_one))
    assert state[0][0].tolist() == [tokens.shape[1]] * len(tokens)


@pytest.mark.parametrize("name", ["low rank", "separable", "LinearAttentionConfig", "recurrence gru"])
def test_a_state_of_fixed_size_does_not_grow(name: str) -> None:
    model, tokens = causal(name), sentences(length=20)
    sizes = [[part.shape for layer in read(model, tokens[:, :n])[1] for part in layer] for n in (3, 20)]
    assert sizes[0] == sizes[1]


def test_positions_are_indices_divided_by_the_context() -> None:
    encoder = encoders.Text(7, 4, context=16, num_frequencies=3, pad=0)
    whole, domain = encoder(torch.arange(1, 7)[None])
    assert domain.pos[:, 0].tolist() == [k / 16 for k in range(6)]
    part, later = encoder(torch.arange(3, 7)[None], first=2)
    torch.testing.assert_close(part, whole[:, 2:])
    torch.testing.assert_close(later.pos, domain.pos[2:])
    _, padded = encoder(torch.tensor([[3, 4, 0]]))
    assert padded.mask is not None
    assert padded.mask.tolist() == [[True, True, False]]


def test_segments_are_separated_by_separators() -> None:
    encoder = encoders.Text(7, 4, separator=2)
    assert encoder.segment_weight is not None
    tokens = torch.tensor([[3, 2, 3, 2, 3]])
    u, _ = encoder(tokens)
    rest = u - nn.functional.embedding(tokens, encoder.weight)
    torch.testing.assert_close(rest[0], encoder.segment_weight[[0, 0, 1, 1, 1]])


def test_the_head_reads_the_class_token_of_a_sentence() -> None:
    encoder = encoders.Text(VOCABULARY, 8, context=CONTEXT, pad=PAD, has_class_token=True)
    model = ITNet(encoder, 3, stack(BY_KIND["exact"], pool="cls")).eval()
    assert model.cls_token is None
    seen: list[Tensor] = []
    model.norm.register_forward_hook(lambda *found: seen.append(found[-1]))
    out = model(sentences())
    torch.testing.assert_close(out, model.head(seen[0][:, 0]))
    longer = nn.functional.pad(sentences(), (0, 4), value=PAD)
    torch.testing.assert_close(model(longer), out)


def test_the_mean_of_a_sentence_excludes_padding() -> None:
    encoder = encoders.Text(VOCABULARY, 8, context=CONTEXT, pad=PAD)
    model = ITNet(encoder, 3, stack(BY_KIND["attention"], pool="mean")).eval()
    longer = nn.functional.pad(sentences(), (0, 4), value=PAD)
    torch.testing.assert_close(model(longer), model(sentences()))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (InfiniteConfig(kind="linear"), ["kind='linear'", "cannot be causal", "'factorised' or 'exact'"]),
        (ConvolutionConfig(), ["a centred stencil looks ahead", "ContinuousConvolutionConfig"]),
    ],
)
def test_kernels_that_look_ahead_are_refused(config: KernelConfig, message: list[str]) -> None:
    with refused(ValueError, *message):
        ITNetLanguageModel.Config(stack=stack(config)).build(VOCABULARY, CONTEXT)


def test_kernels_without_a_state_are_refused() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(KernelConfig):
        kernel: type[Kernel]

        def build(self, embed_dim: int, num_heads: int, pos_dim: int, *, is_causal: bool, edge_dim: int = 0) -> Kernel:
            return MLP(8, is_causal=True, causal_measure="total") if self.kernel is MLP else Pointwise(8, 8)

    for kind, message in ((Pointwise, "it carries no state"), (MLP, "whole measure")):
        with refused(ValueError, f"no text can be generated with {kind.__name__}", message, "take another kernel"):
            ITNetLanguageModel.Config(stack=stack(Other(kernel=kind))).build(VOCABULARY, CONTEXT)


def test_bad_tokens() -> None:
    model = causal("attention")
    with refused(ValueError, "33 tokens", "exceed the context of 32", "pass fewer"):
        model(torch.zeros(1, 33, dtype=torch.int64))
    with refused(ValueError, "2 tokens after 31 others", "exceed the context of 32"):
        model.advance(sentences(1, 2), model.advance(sentences(1, 31), model.initial_state(1))[1])
    with refused(TypeError, "tokens are torch.float32", "torch.int64"):
        model(torch.zeros(1, 3))
    with refused(ValueError, "pad must be a token, 0 to 6", "got 7"):
        encoders.Text(7, 4, pad=7)
    with refused(ValueError, "num_frequencies=3 has no effect with no context"):
        encoders.Text(7, 4, num_frequencies=3)
    with refused(ValueError, "first=2 needs a context"):
        encoders.Text(7, 4)(torch.zeros(1, 3, dtype=torch.int64), first=2)
    with refused(ValueError, "pool='mean' has no effect with tokens"):
        ITNetMaskedModel.Config(stack=stack(MLPConfig(), pool="mean"))
