"""Tokens of text: the contract, that of tokens which stand for bytes, and the plainest ones, a token a byte."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor


class Tokenizer(ABC):
    """Text as numbers 0 to V - 1."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of tokens V, those included that stand for no text."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What tells it from others: equal ones give a text equal tokens."""

    @property
    def reads_pieces(self) -> bool:
        """Whether a text has the tokens of its pieces (`documents.pieces`), one after the other."""
        return True

    @abstractmethod
    def encode(self, text: str) -> Tensor:
        """The tokens of a text, int32 `(n,)`; those that stand for no text are never among them.

        Raises:
            ValueError: half a surrogate pair, which no UTF-8 can hold.
        """


class ByteTokenizer(Tokenizer):
    """Text as numbers and back: every token stands for some bytes of UTF-8, but for marks such as end-of-text."""

    @property
    def end_of_text(self) -> int:
        """The token between documents; no text encodes to it."""
        return self.vocab_size - 1

    @property
    def start_of_text(self) -> int | None:
        """The token that every document begins with, after the end of the one before; None: the end does for both."""
        return None

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """What a token stands for; nothing for a mark. A character may be spread over several tokens.

        Raises:
            ValueError: there is no such token.
        """

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The bytes of all tokens in a row; those of `encode(text)` are the text's UTF-8."""
        return b"".join(self.token_bytes(token) for token in tokens)

    @cached_property
    def num_bytes(self) -> Tensor:
        """How many bytes each token stands for, int64 `(V,)`; end-of-text counts as the one that it replaces."""
        sizes = torch.tensor([len(self.token_bytes(token)) for token in range(self.vocab_size)])
        sizes[self.end_of_text] = 1
        return sizes

    @final
    @property
    def token_names(self) -> tuple[str, ...]:
        """What each token stands for, in words, no two alike."""
        told = [repr(self.token_bytes(token)) for token in range(self.vocab_size)]
        seen = Counter(told)
        told = [name if seen[name] == 1 else f"{name}, token {number}" for number, name in enumerate(told)]
        told[self.end_of_text] = "end of text"
        return tuple(told)


@final
class Bytes(ByteTokenizer):
    """A token a byte, and 256 for end-of-text: nothing to learn, nothing unknown."""

    @property
    def vocab_size(self) -> int:
        return 257

    @property
    def identity(self) -> str:
        return "bytes"

    def encode(self, text: str) -> Tensor:
        data = np.frombuffer(utf8(text), dtype=np.uint8)
        return torch.from_numpy(data.astype(np.int32))

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"there is no token {token}; expected 0 to {self.end_of_text}")
        return b"" if token == self.end_of_text else bytes([token])


def utf8(text: str) -> bytes:
    """The text's bytes.

    Raises:
        ValueError: half a surrogate pair, as a command line with other bytes than UTF-8 gives.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text is no UTF-8 at character {error.start}; convert it") from error
