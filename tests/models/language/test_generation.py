import itertools
import math
from typing import Any, final

import pytest
import torch
from torch import Tensor

from fredholm.models.language.generation import Sampling, generate
from fredholm.models.language.gpt2 import GPT2
from fredholm.models.language.language_model import LanguageModel, LanguageState
from tests.refusals import refused


@final
class Reader(LanguageModel):
    """Predicts the sum of all tokens read, and records the tokens that it is given."""

    def __init__(self, vocab_size: int, context: int) -> None:
        super().__init__()
        self.vocab_size, self.context = vocab_size, context
        self.handed: list[tuple[int, ...]] = []

    def forward(self, tokens: Tensor) -> Tensor:
        return self.read(tokens, self.initial_state(len(tokens)))[0]

    def initial_state(self, batch_size: int) -> LanguageState:
        return ((torch.zeros(batch_size, dtype=torch.int64), torch.tensor(0)),)

    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        total, num_read = state[0]
        self.check_tokens(tokens, int(num_read))
        self.handed.append(tuple(tokens[0].tolist()))
        sums = total[:, None] + tokens.cumsum(1)
        logits = torch.nn.functional.one_hot(sums % self.vocab_size, self.vocab_size).float()
        return logits, ((sums[:, -1], num_read + tokens.shape[1]),)

    def logits(self, signal: Tensor) -> Tensor:
        assert signal.shape[1] == 1, "only the last position of a prompt needs logits"
        return signal


def gpt2(context: int = 12) -> GPT2:
    net = GPT2.Config(embed_dim=12, depth=2, num_heads=3, dropout=0.0).build(13, context).eval()
    with torch.no_grad():
        net.tokens.weight.mul_(10)  # logits far enough apart that samples depend on them
    return net


def drawn(net: LanguageModel, prompt: Tensor, count: int, **settings: Any) -> list[list[int]]:
    return [token.tolist() for token in itertools.islice(generate(net, prompt, **settings), count)]


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0), Sampling(), Sampling(temperature=0.7, top_k=5, top_p=0.9)]
)
@pytest.mark.parametrize("length", [1, 5, 12])
def test_generation_with_and_without_a_cache_gives_the_same_tokens(sampling: Sampling, length: int) -> None:
    net, prompt = gpt2(), torch.randint(13, (3, length))
    texts = [
        drawn(net, prompt, 40, sampling=sampling, generator=torch.Generator().manual_seed(5), cache=cache)
        for cache in (True, False)
    ]
    assert texts[0] == texts[1]
    assert len({tuple(row) for row in zip(*texts[0], strict=True)}) > 1


def test_the_seed_decides_the_text() -> None:
    net, prompt = gpt2(), torch.randint(13, (1, 4))
    one, same, other = (drawn(net, prompt, 30, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert one == same != other
    state = torch.get_rng_state()
    drawn(net, prompt, 3, generator=torch.Generator())
    assert torch.equal(torch.get_rng_state(), state)


def test_tokens_are_read_once_until_the_context_is_full() -> None:
    net = Reader(vocab_size=7, context=6)
    found = drawn(net, torch.tensor([[1, 2]]), 8, sampling=Sampling(temperature=0))
    # 1 2 | 3 6 5 3 fill the context; then the latest three tokens are read again
    assert [token for (token,) in found] == [3, 6, 5, 3, 6, 0, 0, 0]
    assert net.handed == [(1, 2), (3,), (6,), (5,), (3,), (5, 3, 6), (0,), (0,)]
    net.handed.clear()
    assert drawn(net, torch.tensor([[1, 2]]), 4, sampling=Sampling(temperature=0), cache=False) == found[:4]
    assert net.handed == [(1, 2), (1, 2, 3), (1, 2, 3, 6), (1, 2, 3, 6, 5)]


@pytest.mark.parametrize("context", [1, 2, 5])
def test_generation_continues_beyond_tiny_contexts(context: int) -> None:
    net = Reader(vocab_size=7, context=context)
    ways = [
        drawn(net, torch.tensor([[3]]), 9, sampling=Sampling(temperature=0), cache=cache) for cache in (True, False)
    ]
    assert ways[0] == ways[1]
    assert all(len(part) <= context for part in net.handed)


def test_samples_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0])
    sampling = Sampling(temperature=2.0)
    expected = (logits / 2).double().softmax(-1)
    torch.testing.assert_close(sampling.probabilities(logits), expected)
    many = sampling.draw(logits.expand(20_000, 4), torch.Generator().manual_seed(0))
    shares = torch.bincount(many, minlength=4) / 20_000
    torch.testing.assert_close(shares.double(), expected, atol=0.015, rtol=0)


def test_truncated_distributions() -> None:
    logits = torch.tensor([0.4, 0.1, 0.3, 0.2]).log()

    def kept(**settings: Any) -> list[float]:
        return Sampling(**settings).probabilities(logits).tolist()

    assert kept(top_k=2) == pytest.approx([4 / 7, 0, 3 / 7, 0])
    assert kept(top_k=9) == pytest.approx([0.4, 0.1, 0.3, 0.2])
    assert kept(top_p=0.65) == pytest.approx([4 / 7, 0, 3 / 7, 0])
    assert kept(top_p=0.75) == pytest.approx([4 / 9, 0, 3 / 9, 2 / 9])
    assert kept(top_p=1e-9) == [1, 0, 0, 0]
    # after top_k the two have 4/7 and 3/7: the first alone reaches one half
    assert kept(top_k=2, top_p=0.5) == [1, 0, 0, 0]
    assert kept(top_k=2, top_p=0.6) == pytest.approx([4 / 7, 0, 3 / 7, 0])
    assert kept(temperature=0) == [1, 0, 0, 0]
    assert kept(temperature=1e-300) == [1, 0, 0, 0]
    assert Sampling(top_k=1).probabilities(torch.zeros(3)).tolist() == [1, 0, 0]
    assert Sampling(temperature=0).draw(torch.zeros(2, 3)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; expected a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0; expected at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0; expected a number above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        Sampling(**settings)


def test_bad_prompts_are_refused_before_sampling() -> None:
    net = gpt2()
    with refused(ValueError, "13 tokens exceed the context of 12"):
        generate(net, torch.zeros(1, 13, dtype=torch.int64))
    with refused(ValueError, "the prompt is empty"):
        generate(net, torch.zeros(1, 0, dtype=torch.int64))
    with refused(TypeError, "pass torch.int64"):
        generate(net, torch.zeros(1, 2))


def test_logits_that_are_not_finite_are_refused() -> None:
    net = gpt2()
    with torch.no_grad():
        net.tokens.weight.fill_(torch.nan)
    with refused(ValueError, "logits are not finite"):
        next(generate(net, torch.zeros(1, 1, dtype=torch.int64)))


def test_prompts_of_different_length_are_continued_independently() -> None:
    net, lengths = gpt2(), torch.tensor([2, 5, 3])
    prompt = torch.randint(13, (3, 5), generator=torch.Generator().manual_seed(2))
    likeliest = Sampling(temperature=0)
    together = torch.tensor(drawn(net, prompt, 9, sampling=likeliest, lengths=lengths))
    for entry, length in enumerate(lengths.tolist()):
        alone = torch.tensor(drawn(net, prompt[entry : entry + 1, :length], 11 - length, sampling=likeliest))[:, 0]
        assert together[:, entry].tolist() == [*prompt[entry, 2:length].tolist(), *alone.tolist()]


def test_padding_of_short_prompts_is_not_read() -> None:
    net, lengths = gpt2(), torch.tensor([2, 4])
    prompt = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    other = torch.tensor([[1, 2, 9, 9], [5, 6, 7, 8]])
    settings = {"sampling": Sampling(temperature=0), "lengths": lengths}
    assert drawn(net, prompt, 6, **settings) == drawn(net, other, 6, **settings)


def test_bad_lengths() -> None:
    prompt = torch.zeros(2, 3, dtype=torch.int64)
    with refused(ValueError, "lengths are [0, 3]", "expected 1 to 3"):
        generate(gpt2(), prompt, lengths=torch.tensor([0, 3]))
    with refused(ValueError, "lengths are [3, 2]", "expected an int64 tensor"):
        generate(gpt2(), prompt, lengths=[3, 2])  # pyright: ignore[reportArgumentType]
    with refused(ValueError, "lengths are (1,) torch.int64", "one for each of 2 prompts"):
        generate(gpt2(), prompt, lengths=torch.tensor([3]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": torch.nn.Linear(2, 2)}, "generate: model must be a models.LanguageModel; got Linear"),
        ({"sampling": {"temperature": 0.5}}, "generate: sampling must be a models.Sampling, such as Sampling("),
        ({"prompt": "It was"}, "models.Reader: tokens must be a tensor, int64 (batch, length); got str"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": Reader(5, 4), "prompt": torch.zeros(1, 2, dtype=torch.int64), **change}
    with refused(TypeError, message):
        generate(**given)
