"""Tokenizers: the base classes, in general and over bytes, and the simplest one, with one token per byte."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor


class Tokenizer(ABC):
    """Encodes text as numbers from 0 to V - 1."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of tokens V, including those that stand for no text."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Identifier of the tokenizer; tokenizers with equal identifiers produce equal tokens."""

    @property
    def reads_pieces(self) -> bool:
        """Whether a text has the concatenated tokens of its pieces (`documents.pieces`)."""
        return True

    @abstractmethod
    def encode(self, text: str) -> Tensor:
        """Returns the tokens of a text, int32 `(n,)`; tokens that stand for no text are never among them.

        Raises:
            ValueError: the text has a lone surrogate, which UTF-8 cannot encode.
        """


class ByteTokenizer(Tokenizer):
    """Encodes text reversibly: every token stands for bytes of UTF-8, except for special ones such as end-of-text."""

    @property
    def end_of_text(self) -> int:
        """The token between documents; no text encodes to it."""
        return self.vocab_size - 1

    @property
    def start_of_text(self) -> int | None:
        """The token at the beginning of every document, after the previous end; None: the end serves as both."""
        return None

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes of a token; empty for a special token. A character may be spread over several tokens.

        Raises:
            ValueError: the token does not exist.
        """

    def decode(self, tokens: Iterable[int]) -> bytes:
        """Returns the concatenated bytes of tokens; for `encode(text)` they are the text's UTF-8."""
        return b"".join(self.token_bytes(token) for token in tokens)

    @cached_property
    def num_bytes(self) -> Tensor:
        """The number of bytes of each token, int64 `(V,)`; end-of-text counts as one byte."""
        sizes = torch.tensor([len(self.token_bytes(token)) for token in range(self.vocab_size)])
        sizes[self.end_of_text] = 1
        return sizes

    @final
    @property
    def token_names(self) -> tuple[str, ...]:
        """Readable names of the tokens, all different."""
        names = [repr(self.token_bytes(token)) for token in range(self.vocab_size)]
        seen = Counter(names)
        names = [name if seen[name] == 1 else f"{name}, token {number}" for number, name in enumerate(names)]
        names[self.end_of_text] = "end of text"
        return tuple(names)


@final
class Bytes(ByteTokenizer):
    """One token per byte, and 256 for end-of-text: no vocabulary to learn, and no unknown text."""

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
    """Encodes text as UTF-8.

    Raises:
        ValueError: the text has a lone surrogate, as from a command line that is no UTF-8.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text is no UTF-8 at character {error.start}; convert it") from error
