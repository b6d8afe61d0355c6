"""Generation of text, token by token."""

import codecs
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch

from fredholm.models.language.generation import Sampling, generate
from fredholm.models.language.language_model import LanguageModel

from .tokenizer import ByteTokenizer


class Piece(NamedTuple):
    """A generated token with the characters that it completes; "" while a character is incomplete."""

    token: int
    text: str
    ended_by: Literal["stop", "end_of_text", "max_tokens"] | None = None
    """For the last piece, the reason why generation ended."""


def continue_text(
    model: LanguageModel,
    tokenizer: ByteTokenizer,
    prompt: str,
    *,
    max_tokens: int,
    sampling: Sampling,
    generator: torch.Generator,
    device: torch.device,
    cache: bool = True,
    stop: Sequence[str] = (),
) -> Iterator[Piece]:
    """Generates tokens after a prompt until end-of-text, which is the last piece, or until there are `max_tokens`.

    Generation also ends before the first of the texts in `stop` that appears; a possible start of one is held back
    until the next token decides.

    An empty prompt starts a document, and so does every prompt where documents have a start token. Bytes that are no
    UTF-8 become U+FFFD. For `generator`, `cache` and a full context, see `fredholm.models.generate`.

    Raises:
        ValueError: the prompt has more tokens than the model's context, or is no UTF-8.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; expected at least 1")
    if "" in stop:
        raise ValueError("stop has an empty text, which stands everywhere; leave it out")
    start = tokenizer.start_of_text
    tokens = [*([] if start is None else [start]), *tokenizer.encode(prompt).tolist()] or [tokenizer.end_of_text]
    if len(tokens) > model.context:
        raise ValueError(
            f"the prompt has {len(tokens)} tokens, more than the model's context of {model.context}; shorten it"
        )
    given = torch.tensor([tokens], device=device)
    drawn = generate(model, given, sampling, generator=generator, cache=cache)
    return _pieces(drawn, tokenizer, max_tokens, tuple(stop))


def _pieces(
    drawn: Iterator[torch.Tensor], tokenizer: ByteTokenizer, max_tokens: int, stop: tuple[str, ...]
) -> Iterator[Piece]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    held = ""
    for number, tokens in enumerate(drawn, 1):
        token = int(tokens)
        ended = "end_of_text" if token == tokenizer.end_of_text else "max_tokens" if number == max_tokens else None
        held += decoder.decode(tokenizer.token_bytes(token), final=ended is not None)
        ends = [at for text in stop if (at := held.find(text)) >= 0]
        ready = min(ends) if ends else len(held) if ended else len(held) - _start_of_any(stop, held)
        ended = "stop" if ends else ended
        yield Piece(token, held[:ready], ended)
        held = held[ready:]
        if ended:
            return


def _start_of_any(stop: tuple[str, ...], text: str) -> int:
    """Returns the number of characters at the end of a text that may begin one of `stop`."""
    longest = min(len(text), max((len(one) for one in stop), default=1) - 1)
    return next((size for size in range(longest, 0, -1) if any(one.startswith(text[-size:]) for one in stop)), 0)
