import math
from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.models import GPT2, BlendedLanguageModel, NGramModel, generate
from fredholm.models.language import n_gram_model
from tests.refusals import refused

V, CONTEXT = 5, 12


def a_text(length: int = 90, seed: int = 0) -> Tensor:
    """Tokens that mostly follow from the two before; the last one of the vocabulary never occurs."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [0, 1]
    for noise in torch.randint(10, (length - 2,), generator=generator).tolist():
        tokens.append((tokens[-1] + 2 * tokens[-2]) % (V - 1) if noise < 7 else noise % (V - 1))
    return torch.tensor(tokens)


def counted(tokens: Tensor, order: int = 4, context: int = CONTEXT) -> NGramModel:
    model = NGramModel(V, context, NGramModel.Config(sizes=NGramModel.distinct(tokens, V, order)))
    model.fit(tokens)
    return model


class Literal:
    """The same model by loops over all positions of the text."""

    def __init__(self, tokens: list[int], order: int, stretches: int = 8) -> None:
        self.order, self.tokens = order, tokens
        count = len(tokens) - 1
        self.places = range(count)  # each predicts the next token
        self.stretch = [t * min(stretches, count) // count for t in self.places]
        self.weight = [dict[tuple[int, int], float]() for _ in range(order)]
        p = dict.fromkeys(self.places, 1 / V)
        for n in range(order):
            rows = []
            for t in self.places:
                found = self.after(n, self.context(t, n), without=self.stretch[t]) if t >= n else Counter[int]()
                if found:
                    rows.append((t, self.bin(found), found[tokens[t + 1]] / found.total()))
            for _, key, _ in rows:
                self.weight[n][key] = 0.5
            for _ in range(50):
                sums, times = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
                for t, key, share in rows:
                    part = self.weight[n][key] * p[t]
                    sums[key] += part / (part + (1 - self.weight[n][key]) * share)
                    times[key] += 1
                self.weight[n] |= {key: (sums[key] + 1) / (times[key] + 2) for key in times}
            for t, key, share in rows:
                own = self.weight[n][key]
                p[t] = own * p[t] + (1 - own) * share

    def context(self, t: int, n: int) -> tuple[int, ...]:
        return tuple(self.tokens[t - n + 1 : t + 1])

    def after(self, n: int, context: tuple[int, ...], without: int | None = None) -> Counter[int]:
        return Counter(
            self.tokens[t + 1]
            for t in self.places
            if t >= n and self.context(t, n) == context and self.stretch[t] != without
        )

    @staticmethod
    def bin(found: Counter[int]) -> tuple[int, int]:
        return min(9, math.floor(math.log2(found.total()))), min(6, len(found))

    def chances(self, before: list[int]) -> list[float]:
        p = [1 / V] * V
        for n in range(min(self.order, len(before) + 1)):
            found = self.after(n, tuple(before[len(before) - n :]))
            if not found:
                break
            own = self.weight[n].get(self.bin(found), 0.5)
            p = [own * p[w] + (1 - own) * found[w] / found.total() for w in range(V)]
        return p


@pytest.mark.parametrize(("length", "order"), [(90, 4), (41, 3), (200, 6), (9, 9), (2, 3), (3, 1)])
def test_probabilities_equal_those_of_loops_over_the_text(length: int, order: int) -> None:
    tokens = a_text(length)
    model = counted(tokens, order)
    literal = Literal(tokens.tolist(), min(order, length - 1))
    tokens_read = torch.cat([a_text(CONTEXT, seed=1)[None], torch.randint(V, (3, CONTEXT))])
    found = model.probabilities(tokens_read)
    expected = torch.tensor([[literal.chances(row[: t + 1]) for t in range(CONTEXT)] for row in tokens_read.tolist()])
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-8)
    torch.testing.assert_close(model(tokens_read), expected.log(), rtol=2e-6, atol=2e-6)


def test_chances_sum_to_one_and_none_is_zero() -> None:
    p = counted(a_text()).probabilities(torch.randint(V, (7, CONTEXT)))
    torch.testing.assert_close(p.sum(-1), torch.ones(7, CONTEXT))
    assert float(p.min()) > 0  # also of token 4, which never occurred


def test_logits_stay_finite_where_contexts_leave_almost_no_probability() -> None:
    model = counted(a_text(200), order=6)
    model.kept.fill_(1e-9)
    assert bool(model(torch.randint(V, (7, CONTEXT))).isfinite().all())


def test_a_graph_without_access_to_values_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = counted(a_text()), torch.randint(V, (3, CONTEXT))
    expected = model(tokens)
    monkeypatch.setattr(n_gram_model, "values_can_be_read", lambda *_: False)
    torch.testing.assert_close(model(tokens), expected)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9])
def test_bisection_matches_searchsorted(size: int) -> None:
    keys = torch.arange(size) * 3
    expected = torch.arange(-1, 3 * size + 2)
    assert torch.equal(n_gram_model._bisected(keys, expected), torch.searchsorted(keys, expected))


def network(depth: int = 1) -> GPT2:
    torch.manual_seed(0)
    config = GPT2.Config(embed_dim=8, depth=depth, num_heads=2, dropout=0.0, positions="rotary")
    return config.build(V, CONTEXT)


def blended(share: float) -> BlendedLanguageModel:
    model = BlendedLanguageModel(network(), counted(a_text())).eval()
    model.share.fill_(share)
    return model


@pytest.mark.parametrize("share", [None, 0.0, 0.25, 1.0])
@pytest.mark.parametrize("pieces", [(5, 7), (1, 1, 10), (12,), (0, 3)])
def test_reading_in_pieces_gives_the_logits_of_the_whole(share: float | None, pieces: tuple[int, ...]) -> None:
    model = counted(a_text()) if share is None else blended(share)
    tokens = a_text(CONTEXT, seed=2)[None].repeat(2, 1)
    tokens[1] = torch.randint(V, (CONTEXT,))
    whole, state, found, start = model(tokens[:, : sum(pieces)]), model.initial_state(2), list[Tensor](), 0
    for piece in pieces:
        logits, state = model.advance(tokens[:, start : start + piece], state)
        found.append(logits)
        start += piece
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_probabilities_are_blended(share: float) -> None:
    model, tokens = blended(share), torch.randint(V, (3, CONTEXT))
    expected = share * model.network(tokens).softmax(-1) + (1 - share) * model.fitted.probabilities(tokens)
    torch.testing.assert_close(model(tokens).softmax(-1), expected)


def test_training_uses_the_network_alone() -> None:
    model, tokens = blended(0.25).train(), torch.randint(V, (3, CONTEXT))
    torch.testing.assert_close(model(tokens), model.network(tokens), rtol=0, atol=0)
    model(tokens).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.network.parameters())
    signal, _ = model.read(tokens, model.initial_state(3))
    torch.testing.assert_close(model.logits(signal), model.network(tokens))


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_generated_text_is_the_same_with_and_without_a_state(share: float) -> None:
    model, prompt = blended(share), torch.tensor([[0, 1, 2], [3, 0, 1]])
    drawn = [
        torch.stack(
            list(islice(generate(model, prompt, generator=torch.Generator().manual_seed(3), cache=cache), 40)), 1
        )
        for cache in (True, False)
    ]
    assert torch.equal(*drawn)


def test_counts_keep_their_precision_beside_a_network_of_16_bits() -> None:
    model, tokens = blended(0.0), torch.randint(V, (3, CONTEXT))
    expected = model(tokens)
    model.network.bfloat16()
    signal, _ = model.read(tokens, model.initial_state(3))
    torch.testing.assert_close(model(tokens), expected)
    torch.testing.assert_close(model.logits(signal), expected)


def test_the_whole_model_may_have_16_bits() -> None:
    model = counted(a_text())
    expected = model.probabilities(a_text()[None])
    torch.testing.assert_close(model.to(torch.bfloat16).probabilities(a_text()[None]), expected, rtol=0.05, atol=1e-3)


def test_misfits_are_refused() -> None:
    sizes = NGramModel.distinct(a_text(), V, 3)
    model = NGramModel(V, CONTEXT, NGramModel.Config(sizes=sizes))
    other = a_text(60)
    cases: list[tuple[Any, str]] = [
        (lambda: NGramModel.Config(sizes=()), "sizes is empty"),
        (lambda: NGramModel.Config(sizes=(3, 0)), "sizes must be"),
        (lambda: model.fit(other), f"the text has {NGramModel.distinct(other, V, 3)} n-grams; expected {sizes}"),
        (lambda: model.fit(torch.tensor([1])), "a text of two tokens or more"),
        (lambda: model.fit(torch.rand(9)), "torch.float32 (9,)"),
        (lambda: NGramModel.distinct(torch.tensor([1, V]), V, 2), f"tokens run from 1 to {V}; expected 0 to {V - 1}"),
        (lambda: BlendedLanguageModel(network(), NGramModel(V, 5, model.config)), "context is 12 and that of the"),
    ]
    for call, message in cases:
        with refused(ValueError, message):
            call()
