"""Byte-pair encoding: frequent neighbouring tokens are merged repeatedly."""

import json
from collections.abc import Iterable
from typing import Self, final

import torch
from torch import Tensor

from .documents import pieces
from .library import library_tokenizer, library_version, tokenizers_library
from .tokenizer import ByteTokenizer, utf8

SMALLEST_VOCABULARY = 257


@final
class BytePairs(ByteTokenizer):
    """Byte-pair tokens over bytes, learnt by the `tokenizers` library; all 256 bytes are tokens, so no text is unknown.

    R. Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016), on bytes, within the words
    of GPT-2's pattern. End-of-text is not in the library's vocabulary, so that no text encodes to it.

    Args:
        state: the library's JSON, as in the attribute `state`.

    Raises:
        ValueError: the JSON is no such tokenizer.
        ImportError: the library is not installed.
    """

    def __init__(self, state: str) -> None:
        self._library = library_tokenizer(state)
        self.state = state
        """Complete state as JSON."""
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
        # a number without a token is spelt as a sign that is no letter of a byte
        spelt = [self._library.id_to_token(token) or " " for token in range(self._library.get_vocab_size())]
        try:
            self._bytes = [bytes(letters[letter] for letter in token) for token in spelt]
        except KeyError as error:
            raise ValueError("this tokenizer is not over bytes; expected one that BytePairs learnt") from error

    @classmethod
    def learn(cls, documents: Iterable[str], vocab_size: int) -> Self:
        """Learns the tokens from texts; equal texts give equal tokens.

        Args:
            documents: training texts.
            vocab_size: number of tokens, with bytes and end-of-text, at least 257; a short text may have fewer pairs.
        """
        if vocab_size < SMALLEST_VOCABULARY:
            raise ValueError(
                f"vocab_size is {vocab_size}; expected at least {SMALLEST_VOCABULARY}, the bytes and end-of-text"
            )
        library = tokenizers_library()
        from tokenizers import models, pre_tokenizers, trainers

        tokenizer = library.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            initial_alphabet=byte_letters(),
            show_progress=False,
            special_tokens=[],
        )
        tokenizer.train_from_iterator((piece for text in documents for piece in pieces(text)), trainer)
        return cls(json.dumps(json.loads(tokenizer.to_str())))

    @property
    def identity(self) -> str:
        return f"{library_version()} {self.state}"

    @property
    def vocab_size(self) -> int:
        return len(self._bytes) + 1

    def encode(self, text: str) -> Tensor:
        utf8(text)
        parts = [self._library.encode(piece).ids for piece in pieces(text)]
        return torch.cat([torch.tensor(part, dtype=torch.int32) for part in parts] or [torch.empty(0).int()])

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"there is no token {token}; expected 0 to {self.end_of_text}")
        return b"" if token == self.end_of_text else self._bytes[token]


def byte_letters() -> list[str]:
    """Returns the letter by which the library represents each byte: printable Latin-1 itself, others from 256 on."""
    own = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]
