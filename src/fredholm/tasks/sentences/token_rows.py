"""The tokens of sentences as a model reads them; those of large data are computed once and memory-mapped."""

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.cache import CacheEntry
from fredholm.tasks.text import SHORT, MarkedTokenizer

from .sentence import Sentences

_TOGETHER = 1 << 16
"""Smallest number of tokens that are written at a time."""


@final
class TokenRows(Sequence[Tensor]):
    """The tokens of each sentence, int32 `(n,)`; see `MarkedTokenizer.lay_out`.

    Args:
        sentences: the sentences or pairs.
        tokenizer: the tokenizer.
        context: largest number of tokens of a row, with special tokens.

    Attributes:
        num_cut: the number of sentences that are cut to the context.
    """

    def __init__(self, sentences: Sentences, tokenizer: MarkedTokenizer, context: int) -> None:
        self._sentences, self._tokenizer, self._context = sentences, tokenizer, context
        self._found_cut: int | None = None
        key = ("sentence tokens", sentences.key, tokenizer.identity, context)
        self._tokens = CacheEntry(*key).array(self._made, np.uint16 if tokenizer.vocab_size <= SHORT else np.int32)
        counted = CacheEntry("cut", *key).value(lambda: {"cut": self._num_cut()}, size=self._tokens.nbytes)
        self.num_cut: int = counted["cut"]
        # every row begins with the class token, which occurs nowhere else
        starts = np.flatnonzero(self._tokens == tokenizer.marks.class_token)
        self._ends = np.append(starts, len(self._tokens))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, stop = self._ends[index : index + 2]
        return torch.from_numpy(self._tokens[start:stop].astype(np.int32))

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sentence, int64 `(n,)`."""
        return torch.from_numpy(np.diff(self._ends))

    def _made(self) -> Iterator[np.ndarray]:
        waiting, size, cut = list[np.ndarray](), 0, 0
        for sentence in self._sentences:
            tokens, is_cut = self._tokenizer.lay_out(sentence.first, sentence.second, self._context)
            waiting.append(tokens.numpy())
            size, cut = size + len(tokens), cut + is_cut
            if size >= _TOGETHER:
                yield np.concatenate(waiting)
                waiting, size = [], 0
        yield from waiting
        self._found_cut = cut

    def _num_cut(self) -> int:
        if self._found_cut is None:  # another run has made the tokens
            for _ in self._made():
                pass
        assert self._found_cut is not None
        return self._found_cut
