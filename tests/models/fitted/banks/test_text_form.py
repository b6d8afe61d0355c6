"""Numbers of the form of a text: counted by hand, and standardised."""

import math

import torch

from fredholm.models.fitted.banks.text_form import Symbols, TextForm
from fredholm.models.language.sentence_model import TokenReading

SPELLING = ("", " ", " ", " Aa", "b", " 12", " !", " \u0915\u093e", " \u4e00")
"""Marks, a word, its continuation, digits, a sign, a letter with a vowel sign, and a letter that is a number too."""
READING = TokenReading(vocab_size=9, context=12, pad=0, separator=2, spelling=SPELLING)
NAMES = ("tokens", "words", "letters", "digits", "others", "capitals")


def symbols(*texts: tuple[list[int], list[int]]) -> Symbols:
    """Symbols of rows, each the tokens of the first and of the second text."""
    entries = [(i, t, k) for i, both in enumerate(texts) for k, text in enumerate(both) for t in text]
    row, symbol, is_second = zip(*entries, strict=True)
    return Symbols(torch.tensor(row), torch.tensor(symbol), torch.tensor(is_second, dtype=torch.bool))


def test_numbers_are_counted_for_either_text() -> None:
    texts = symbols(([3, 4, 5, 3], [6, 7, 8]), ([3], [3]))
    found = TextForm(READING)._numbers(texts, 2)[0].tolist()
    first, second = dict(zip(NAMES, found, strict=False)), dict(zip(NAMES, found[6:], strict=False))
    assert first == {"tokens": 4, "words": 3, "letters": 5, "digits": 2, "others": 0, "capitals": 2}
    assert second == {"tokens": 3, "words": 3, "letters": 3, "digits": 0, "others": 1, "capitals": 0}
    assert found[12] == math.log(5)
    assert found[24:] == [0, 0]


def test_shared_tokens_are_those_of_the_same_row() -> None:
    texts = symbols(([3, 4, 5, 3], [3, 5, 6, 7]), ([6], [8]), ([3, 4], []))
    shares = TextForm(READING)._numbers(texts, 3)[:, -2:]
    torch.testing.assert_close(shares, torch.tensor([[2 / 3, 1 / 2], [0, 0], [0, 0]], dtype=torch.float64))


def test_numbers_are_standardised_over_the_training_texts() -> None:
    form, texts = TextForm(READING), [(symbols(*[([3] * (k + 1), [5, 3]) for k in range(n)]), n) for n in (3, 5)]
    form.learn(texts)
    found = torch.cat([form(*each) for each in texts])
    varies = form.factor > 0
    assert 0 < int(varies.sum()) < len(form)
    torch.testing.assert_close(found.mean(0), torch.zeros(len(form), dtype=torch.float64))
    torch.testing.assert_close(found.square().sum(1).mean(), torch.tensor(1.0, dtype=torch.float64))
    assert not bool(found[:, ~varies].any())
