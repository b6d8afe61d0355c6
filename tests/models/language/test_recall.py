import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from fredholm.models import GPT2, BlendedLanguageModel, NGramModel
from fredholm.models.language import recall as recalling
from fredholm.models.language.recall import LONGEST, NOTHING, Recall
from tests.models.language.test_n_gram_model import CONTEXT, V, a_text
from tests.refusals import refused


def recall(reach: int = 30) -> Recall:
    found = Recall(V, reach)
    found.kept.copy_(torch.rand(found.kept.shape, generator=torch.Generator().manual_seed(1)))
    return found


def given(*shape: int) -> Tensor:
    return torch.rand(*shape, V, generator=torch.Generator().manual_seed(2)).softmax(-1)


def literal(model: Recall, given: list[float], text: list[int], x: int) -> list[float]:
    """The probabilities after position x of a text, by loops."""
    p = given
    for k in range(1, LONGEST + 1):
        if x - k + 1 < 0 or NOTHING in (last := text[x - k + 1 : x + 1]):
            break
        ends = range(max(k - 1, x - model.reach), x)
        found = Counter(text[y + 1] for y in ends if text[y - k + 1 : y + 1] == last)
        if not found:
            break
        place = min(9, math.floor(math.log2(found.total()))) * 6 + min(6, len(found)) - 1
        own = float(model.kept[k - 1, place])
        p = [own * p[w] + (1 - own) * found[w] / found.total() for w in range(V)]
    return p


def texts(length: int) -> Tensor:
    """Three texts: the second repeats itself, and the third begins with padding."""
    found = torch.stack([a_text(99), torch.tensor([0, 1, 2])[torch.arange(99) % 3], a_text(99, seed=1)])[:, :length]
    found[2, : length // 3] = NOTHING
    return found


@pytest.mark.parametrize(("reach", "length", "count"), [(30, 60, 9), (7, 41, 30), (100, 40, 40), (1, 9, 5), (3, 1, 1)])
@pytest.mark.parametrize("is_graph", [False, True])
def test_probabilities_equal_those_of_loops(
    reach: int, length: int, count: int, is_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text, before = recall(reach), texts(length), given(3, count)
    expected = [
        [literal(model, before[b, i].tolist(), text[b].tolist(), length - count + i) for i in range(count)]
        for b in range(3)
    ]
    if is_graph:
        monkeypatch.setattr(recalling, "values_can_be_read", lambda *_: False)
    found = model(before, text)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.sum(-1), torch.ones(3, count))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("is_graph", [False, True])
def test_the_share_blends_recalled_probabilities(share: float, is_graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text, before = recall(), texts(40), given(3, 20)
    whole = model(before, text)
    assert float((whole - before).abs().max()) > 0.1
    if is_graph:
        monkeypatch.setattr(recalling, "values_can_be_read", lambda *_: False)
    expected = share * whole + (1 - share) * before
    torch.testing.assert_close(model(before, text, share), expected)
    model.share.fill_(share)
    torch.testing.assert_close(model(before, text), expected)
    torch.testing.assert_close(model(before, text, 1.0), whole)


def test_later_tokens_batch_mates_and_the_division_of_a_text_change_nothing() -> None:
    model, text, before = recall(20), texts(70), given(3, 70)
    whole = model(before, text)
    (other := text.clone())[:, 50:] = torch.randint(V, (3, 20), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(before, other)[:, :50], whole[:, :50], rtol=0, atol=0)
    assert not torch.equal(model(before, other)[:, 51:], whole[:, 51:])
    torch.testing.assert_close(model(before[1:2], text[1:2]), whole[1:2], rtol=0, atol=0)
    for start, end in ((40, 45), (60, 70), (33, 34)):
        seen = text[:, max(0, start - model.length) : end]
        torch.testing.assert_close(model(before[:, start:end], seen), whole[:, start:end], rtol=0, atol=0)


def test_probabilities_are_unchanged_before_a_fit_and_without_repeats() -> None:
    text, before = texts(40), given(3, 40)
    torch.testing.assert_close(Recall(V, 9)(before, text), before)
    torch.testing.assert_close(recall()(before[:1, :4], torch.tensor([[4, 2, 0, 1]])), before[:1, :4])
    assert recall()(before[:0], text[:0]).shape == (0, 40, V)
    assert recall()(before[:, :0], text[:, :7]).shape == (3, 0, V)


def test_the_weights_have_the_maximum_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, model = a_text(300), recall(50)
    before = given(299)
    observed = before.gather(-1, tokens[1:, None])[:, 0].double()
    model.fit(tokens, observed, torch.zeros(299, dtype=torch.int64))

    fitted = model.kept.clone()

    def cost() -> float:
        """Negative log likelihood in nats, with one pseudo-count of either outcome for each weight."""
        p = model(before[None].double(), tokens[None, :-1])[0].gather(-1, tokens[1:, None])
        kept = model.kept[model.kept < 1]
        return -float(p.log().sum()) - float(kept.log().sum() + (1 - kept).log().sum())

    for k, place in ((0, 6 * 3 + 3), (1, 6 * 2 + 2), (2, 6)):
        model.kept.copy_(fitted)
        model.kept[k + 1 :] = 1.0  # the best weight of each length, given those of the shorter ones
        best, own = cost(), float(fitted[k, place])
        for other in (0.9 * own, 1 - 0.9 * (1 - own)):
            model.kept[k, place] = other
            assert cost() > best
        model.kept[k, place] = own
    model.kept.copy_(fitted)
    # of a text longer than the limit, whole stretches are left out
    for most in (299, 298):
        monkeypatch.setattr(recalling, "_PLACES", most)
        model.fit(tokens, observed, torch.zeros(299, dtype=torch.int64))
        assert torch.equal(model.kept, fitted) == (most == 299)


def test_weights_do_not_depend_on_the_window_size(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, stretch = a_text(300), (torch.arange(299) >= 170).long()
    observed = given(299).gather(-1, tokens[1:, None])[:, 0].double()
    found = list[Tensor]()
    for size in (128, 37, 1000):
        monkeypatch.setattr(recalling, "_WINDOW", size)
        model = Recall(V, 20)
        model.fit(tokens, observed, stretch)
        found.append(model.kept.clone())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=0)
    model.fit(tokens, observed, torch.zeros(299, dtype=torch.int64))
    assert not torch.equal(model.kept, found[0])  # nothing is recalled from another stretch


def test_words_repeated_within_a_text_are_learnt_while_reading() -> None:
    generator = torch.Generator().manual_seed(0)
    size = 30

    def chapters(count: int) -> Tensor:
        """Each chapter repeats a word of its own, of eight tokens, between random ones."""
        found = list[Tensor]()
        for _ in range(count):
            word = torch.randint(size, (8,), generator=generator)
            for _ in range(12):
                found += [word, torch.randint(size, (3,), generator=generator)]
        return torch.cat(found)

    learnt, read = chapters(40), chapters(3)
    bits = dict[int, float]()
    for reach in (0, 60):
        config = NGramModel.Config(sizes=NGramModel.distinct(learnt, size, 4), recall=reach)
        model = NGramModel(size, len(read), config)
        model.fit(learnt)
        bits[reach] = -float(model.probabilities(read[None, :-1])[0].gather(-1, read[1:, None]).log2().mean())
    assert bits[0] > 4.5  # of log2(30) = 4.9: nothing of the other chapters recurs
    assert bits[60] < 3.0


def recalling_counts(share: float | None) -> NGramModel | BlendedLanguageModel:
    config = NGramModel.Config(sizes=NGramModel.distinct(a_text(), V, 3), recall=40)
    counts = NGramModel(V, CONTEXT, config)
    counts.fit(a_text())
    if share is None:
        return counts.eval()
    torch.manual_seed(0)
    network = GPT2.Config(embed_dim=8, depth=1, num_heads=2, dropout=0.0, positions="rotary").build(V, CONTEXT)
    model = BlendedLanguageModel(network, counts)
    model.share.fill_(share)
    return model.eval()


@pytest.mark.parametrize("share", [None, 0.0, 0.3, 1.0])
def test_a_past_is_treated_as_text_read_before(share: float | None) -> None:
    model, text = recalling_counts(share), a_text(CONTEXT, seed=3)[None]
    past = a_text(50, seed=5)[None]
    found, alone = model(text, past).softmax(-1), model(text).softmax(-1)
    assert torch.equal(found, alone) == (share == 1.0)
    counts = model if isinstance(model, NGramModel) else model.fitted
    assert counts.recall is not None
    expected = counts.recall(counts._of_text(text), torch.cat([past, text], 1))
    if share is not None:
        assert isinstance(model, BlendedLanguageModel)
        expected = share * model.network(text).softmax(-1) + (1 - share) * expected
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(model(text, torch.full((1, 9), NOTHING)), model(text))
    model.train()
    if share is not None:
        assert isinstance(model, BlendedLanguageModel)
        torch.testing.assert_close(model(text, past), model.network(text))


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("pieces", [(5, 7), (1, 1, 10), (0, 3)])
def test_reading_in_pieces_recalls_earlier_pieces(share: float | None, pieces: tuple[int, ...]) -> None:
    model, text = recalling_counts(share), torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3], [*range(4)] * 3])
    text[1, 3] = 1
    whole, state, found, start = model(text[:, : sum(pieces)]), model.initial_state(2), list[Tensor](), 0
    for piece in pieces:
        logits, state = model.advance(text[:, start : start + piece], state)
        found.append(logits)
        start += piece
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=1e-4, atol=1e-5)


def test_misfits_are_refused() -> None:
    model, tokens = recalling_counts(None), a_text(CONTEXT)[None]
    assert isinstance(model, NGramModel)
    without = NGramModel(V, CONTEXT, NGramModel.Config(sizes=(4,)))
    with refused(ValueError, "past has no effect with recall=0"):
        without(tokens, tokens)
    with refused(ValueError, "recalled has no effect with recall=0"):
        without(tokens, recalled=0.0)
    for past, message in (
        (tokens[0], "(12,); expected torch.int64 of 1 sequences"),
        (tokens.float(), "past is torch.float32 (1, 12)"),
        (tokens.repeat(2, 1), "past is torch.int64 (2, 12)"),
        (tokens + V, f"expected 0 to {V - 1}, or -1 before a text begins"),
        (tokens - 2 - V, "past runs from"),
    ):
        with refused(ValueError, message):
            model(tokens, past)
    for value in (-1,):
        with refused(ValueError, "recall is -1"):
            NGramModel.Config(sizes=(4,), recall=value)
