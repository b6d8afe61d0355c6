"""Numbers of the form of a text: how long it is, and what it consists of.

Legend
    A (6,)    numbers of tokens, words, letters, digits, other signs and capitals of a text; of a pair, of either text
    o (2,)    of a pair, the share of the different tokens of a text that the other has too, for either text

    numbers   A, log(1 + A) and o, standardised over the training texts and divided by the root of their number; 0 where
              all training texts are equal
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm.models.language.sentence_model import TokenReading

ROUNDING = 1e-9
"""Deviation, relative to the largest number, up to which numbers count as equal."""


@final
class Symbols(NamedTuple):
    """Tokens or letters of consecutive rows, each `(E,)`.

    Args:
        row: row of the symbol.
        symbol: index of the symbol.
        is_second: whether it follows the end of the row's first sentence.
    """

    row: Tensor
    symbol: Tensor
    is_second: Tensor


@final
class TextForm(nn.Module):
    """The numbers of rows of tokens; see the legend.

    Args:
        reading: description of the rows.

    Attributes:
        factor: `(k,)`, by which numbers are multiplied about their means; all 0: they are not read.
    """

    table: Tensor
    mean: Tensor
    factor: Tensor

    def __init__(self, reading: TokenReading) -> None:
        super().__init__()
        spelling = reading.spelling or ("",) * reading.vocab_size
        self.register_buffer("table", torch.tensor([*map(_amounts, spelling)], dtype=torch.float64), persistent=False)
        count = 4 * self.table.shape[1] + 2
        self.register_buffer("mean", torch.zeros(count, dtype=torch.float64))
        self.register_buffer("factor", torch.zeros(count, dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.factor)

    def forward(self, tokens: Symbols, num_rows: int) -> Tensor:
        """Returns the standardised numbers, float64 `(num_rows, k)`."""
        return (self._numbers(tokens, num_rows) - self.mean) * self.factor

    def learn(self, texts: Iterable[tuple[Symbols, int]]) -> None:
        """Sets mean and factor from the tokens of training rows and the numbers of these."""
        numbers = torch.cat([self._numbers(tokens, count) for tokens, count in texts])
        self.mean.copy_(numbers.mean(0))
        deviation = (numbers - self.mean).square().mean(0).sqrt()
        varies = deviation > ROUNDING * numbers.amax(0)
        scale = torch.where(varies, deviation, 1.0) * max(1, int(varies.sum())) ** 0.5
        self.factor.copy_(torch.where(varies, 1 / scale, 0.0))

    def _numbers(self, tokens: Symbols, num_rows: int) -> Tensor:
        size = len(self.table)
        amounts = self.table.new_zeros(2 * num_rows, self.table.shape[1])
        amounts.index_add_(0, 2 * tokens.row + tokens.is_second, self.table[tokens.symbol])
        amounts = amounts.view(num_rows, -1)
        key = tokens.row * size + tokens.symbol
        first, second = key[~tokens.is_second].unique(), key[tokens.is_second].unique()
        shares = [self._share(own, other, num_rows) for own, other in ((first, second), (second, first))]
        return torch.cat([amounts, amounts.log1p(), torch.stack(shares, 1)], 1)

    def _share(self, own: Tensor, other: Tensor, num_rows: int) -> Tensor:
        """Share of the tokens of each row, numbered with their rows, that the other text has too."""
        row = own.div(len(self.table), rounding_mode="floor")
        shared = self.table.new_zeros(num_rows).index_add(0, row, torch.isin(own, other).to(self.table))
        return shared / row.bincount(minlength=num_rows).clamp_min(1)


def _amounts(token: str) -> list[float]:
    """A of a spelt token."""
    kinds = Counter(unicodedata.category(sign)[0] for sign in token if not sign.isspace())
    letters, digits = kinds["L"] + kinds["M"], kinds["N"]  # a mark, such as a vowel sign, is part of a letter
    others = kinds.total() - letters - digits
    return [1.0, token.startswith(" "), letters, digits, others, sum(map(str.isupper, token))]
