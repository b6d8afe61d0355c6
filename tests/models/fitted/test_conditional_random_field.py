import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fredholm.models import ConditionalRandomField, word_forms
from fredholm.models.fitted import conditional_random_field
from fredholm.models.fitted.conditional_random_field import UNKNOWN
from fredholm.models.fitted.word_forms import BEGINNINGS, ENDINGS, LOWER, SHAPE, SHORT_SHAPE, WORD
from tests.refusals import refused

CONFIG = ConditionalRandomField.Config(num_features=400)


@pytest.fixture(autouse=True)
def one_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional_random_field, "PENALTIES", (0.1,))


def forms(*sentences: str) -> Tensor:
    return pad_sequence([word_forms(text.split()) for text in sentences], batch_first=True)


def labels(*sentences: str) -> Tensor:
    """Labels by digits, `-` where they are not known."""
    rows = [torch.tensor([UNKNOWN if each == "-" else int(each) for each in text]) for text in sentences]
    return pad_sequence(rows, batch_first=True, padding_value=UNKNOWN)


def fitted(texts: Tensor, targets: Tensor, config: ConditionalRandomField.Config = CONFIG) -> ConditionalRandomField:
    torch.manual_seed(0)
    model = ConditionalRandomField(3, config)
    model.fit([(texts, targets)])
    return model


def many(count: int = 40) -> tuple[Tensor, Tensor]:
    """Words in -ase are 1, the word after "in" is 2, all others 0; most words occur once."""
    drawn = torch.Generator().manual_seed(0)
    texts, targets = list[str](), list[str]()
    for i in range(count):
        words, known = list[str](), ""
        for j in range(5):
            kind = int(torch.randint(3, (), generator=drawn))
            stem = f"{chr(97 + i % 26)}{chr(97 + (7 * i + j) % 26)}{chr(97 + (3 * i + 5 * j) % 26)}"
            words += [f"{stem}ase"] if kind == 1 else ["in", stem] if kind == 2 else [stem]
            known += ["0", "1", "02"][kind]
        texts.append(" ".join(words))
        targets.append(known)
    return forms(*texts), labels(*targets)


def test_words_share_the_numbers_of_their_form() -> None:
    found = word_forms(["Route-66", "route-66", "Track-71", "at", "66"])
    assert found[0, LOWER] == found[1, LOWER] != found[2, LOWER]
    assert found[0, WORD] != found[1, WORD]
    assert found[0, SHAPE] == found[2, SHAPE] != found[1, SHAPE]
    assert found[0, SHORT_SHAPE] == found[2, SHORT_SHAPE] == word_forms(["Xx-7"])[0, SHORT_SHAPE]
    assert (found[0, ENDINGS : ENDINGS + 3] == word_forms(["x-66"])[0, ENDINGS : ENDINGS + 3]).all()
    assert found[0, BEGINNINGS + 1] == word_forms(["rock"])[0, BEGINNINGS + 1]
    assert (found[3, ENDINGS + 1 : ENDINGS + 5] == 0).all()  # a word of two letters has one proper ending
    assert found[4, WORD] == word_forms(["66"])[0, WORD] != 0


def test_unseen_words_are_labelled_by_their_ending_and_their_neighbour() -> None:
    model = fitted(*many())
    assert model.best(forms("in zorbu qqwase vlk", "vvvase")).tolist() == [[0, 2, 1, 0], [1, 0, 0, 0]]
    chances = model(forms("in zorbu qqwase vlk")).exp()
    torch.testing.assert_close(chances.sum(-1), torch.ones(1, 4))
    assert (chances[0].argmax(1) == torch.tensor([0, 2, 1, 0])).all()


def test_a_label_may_depend_on_the_label_before_alone() -> None:
    """Labels 1 and 2 take turns, and the words do not tell which; without transitions they cannot be told."""
    texts = ["start " + "x " * count for count in range(3, 9)] * 5
    known = ["0" + ("12" * 5)[:count] for count in range(3, 9)] * 5
    config = ConditionalRandomField.Config(num_features=20, window=1)
    model = fitted(forms(*texts), labels(*known), config)
    assert model.best(forms("start " + "x " * 8))[0].tolist() == [0, 1, 2, 1, 2, 1, 2, 1, 2]


def test_padding_and_other_sentences_change_nothing() -> None:
    texts, known = many()
    model = fitted(texts, known)
    alone = [model(forms("in zorbu")), model(forms("a vvvase of it"))]
    together = model(forms("in zorbu", "a vvvase of it"))
    assert torch.equal(together[:1, :2], alone[0])
    assert torch.equal(together[1:], alone[1])
    assert (together[0, 2:] == 0).all()
    padded = torch.cat([texts, torch.zeros_like(texts)], 1), torch.cat([known, torch.full_like(known, UNKNOWN)], 1)
    torch.testing.assert_close(fitted(*padded).weight, model.weight)


def test_words_of_unknown_label_are_read_and_not_learnt() -> None:
    """The label of a word depends on the one before, whose own label is not known."""
    pairs = ["in ab", "of ab", "in cd", "of cd"] * 6
    model = fitted(forms(*pairs), labels(*["-2", "-1"] * 12))
    assert model.best(forms("in zz", "of zz"))[:, 1].tolist() == [2, 1]
    assert model.bias[0] < model.bias[1:].min()  # nothing is known to be 0


def some_words() -> conditional_random_field._Words:
    texts, known = many(6)
    words, lengths = conditional_random_field._flat(texts)
    model = ConditionalRandomField(3, CONFIG)
    keys = conditional_random_field._features(words, lengths, 2)
    model._choose(keys)
    chain = torch.arange(len(lengths)).repeat_interleave(lengths)
    return conditional_random_field._Words(model._matrix(keys), known[texts[..., LOWER] != 0], chain, lengths, 3)


@pytest.mark.parametrize("factor", [None, 1.0])
def test_the_gradient_of_the_objective_is_that_of_autograd(factor: float | None) -> None:
    found = some_words()
    generator = torch.Generator().manual_seed(0)
    solution = torch.randn(found.start().shape, dtype=torch.float64, generator=generator)
    value, gradient = found.objective(solution, 0.7, factor)
    point = solution.requires_grad_()
    scores, transitions = found._scored(point)
    losses = torch.nn.functional.cross_entropy(scores, found._labels, reduction="none")
    if factor is None:
        chains = found._chains
        losses = chains.sums(scores, transitions).log_normaliser - chains.scored(scores, transitions, found._labels)
    expected = losses.sum() + 0.35 * point.square().sum()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, point)[0])


def test_left_out_words_are_judged_by_the_probability_of_their_own_labels() -> None:
    found = some_words()
    solution = torch.randn(found.start().shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    chances = found._chains.sums(*found._scored(solution)).log_marginals
    expected = torch.nn.functional.nll_loss(chances, found._labels, reduction="none")
    torch.testing.assert_close(found.losses(solution), expected)


@pytest.mark.parametrize("better", ["losses", "wrong", "neither"])
def test_weights_are_learnt_apart_where_left_out_words_are_surely_better(
    better: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_surely_less(errors: Tensor, others: Tensor, groups: Tensor) -> bool:
        assert len(errors) == len(others) == len(groups)
        return ("wrong" if {*errors.tolist()} <= {0, 1} else "losses") == better

    monkeypatch.setattr(conditional_random_field, "FACTORS", (0.75,))
    monkeypatch.setattr(conditional_random_field, "is_surely_less", is_surely_less)
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    texts, known = list[str](), list[str]()
    for _ in range(8):
        runs = [drawn(3), drawn(3)]
        words = [
            f"{chr(97 + drawn(26))}{chr(97 + drawn(26))}{'dabc'[(1 + run) * drawn(2)]}"
            for run in runs
            for _ in range(8)
        ]
        texts.append(" ".join(words))
        known.append("".join(8 * str(run) for run in runs))
    model = fitted(forms(*texts), labels(*known))
    pairs = torch.zeros(3, 3, dtype=torch.float64)
    for before, after in (pair for text in known for pair in itertools.pairwise(text)):
        pairs[int(before), int(after)] += 1
    shares = torch.tensor([1 + sum(text.count(label) for text in known) for label in "012"]).double()
    shares /= shares.sum()
    ratios = ((pairs + shares) / (pairs.sum(1, keepdim=True) + 1) / shares).log()
    assert torch.allclose(model.transitions.double(), 0.75 * ratios, rtol=1e-5, atol=1e-5) == (better != "neither")


def test_long_sentences_are_fitted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each label but the first of a part is that of the word before; the last part is of one word."""
    monkeypatch.setattr(conditional_random_field, "LONGEST", 3)
    seen = list[Tensor]()
    make = conditional_random_field.Chains
    monkeypatch.setattr(conditional_random_field, "Chains", lambda lengths: seen.append(lengths) or make(lengths))
    fitted(forms("a b c d e f g", "a b"), labels("0120120", "01"))
    assert seen[0].tolist() == [3, 3, 1, 2]


def test_a_fit_refuses_what_it_cannot_learn_from() -> None:
    texts, known = many(4)
    with refused(ValueError, "fewer than 2 sentences with labels"):
        fitted(texts[:1], known[:1])
    with refused(ValueError, "labels must be 0 to 2, or -100; got others"):
        fitted(texts, known + (known == 2).long())
    with refused(ValueError, "expected one for each word of"):
        fitted(texts, known[:, 1:])
    with refused(ValueError, "expected words (B, N, 14), of models.word_forms; got (4, "):
        ConditionalRandomField(3, CONFIG)(texts[..., 0])


def test_labels_on_both_sides_of_an_unknown_one_are_no_neighbours() -> None:
    model = fitted(forms("a b a b", "b a b a", "c c"), labels("0-1-", "1-0-", "2-"))
    assert not bool(model.transitions.any())
    assert bool(fitted(forms("a b a b", "b a b a", "c c"), labels("0101", "1010", "22")).transitions.any())


def test_the_penalty_is_large_where_labels_are_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional_random_field, "PENALTIES", (10.0, 1.0, 0.1))
    texts, targets = many()
    drawn = torch.randint(3, targets.shape, generator=torch.Generator().manual_seed(1))
    assert float(fitted(texts, targets).penalty) < 10
    assert float(fitted(texts, torch.where(targets == UNKNOWN, UNKNOWN, drawn)).penalty) == 10
