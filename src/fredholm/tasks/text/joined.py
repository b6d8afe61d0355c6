"""The concatenated tokens of documents, which for large texts are cached and memory-mapped."""

from collections.abc import Iterator

import numpy as np

from fredholm.tasks.files.cache import CacheEntry

from .documents import DocumentPart, Documents
from .tokenizer import Tokenizer

SHORT = 1 << 16
"""Largest vocabulary whose tokens fit into two bytes."""


def joined(
    documents: Documents, tokenizer: Tokenizer, *, before: int | None = None, after: int | None = None
) -> np.ndarray:
    """Returns all tokens, uint16 or int32 `(n,)`, with a token before each document, after it, or both.

    From `cache.LARGE` bytes on they are mapped from a file of the cache, which later runs reuse.

    Args:
        documents: documents to encode.
        tokenizer: tokenizer of the documents.
        before, after: tokens before and after each document; None: none.

    Raises:
        ValueError: as raised by reading the documents and writing the cache.
    """
    starts, ends = ([] if mark is None else [np.array([mark])] for mark in (before, after))

    def made() -> Iterator[np.ndarray]:
        has_begun = False
        for part in documents.parts() if tokenizer.reads_pieces else _whole(documents):
            if part.is_first:
                yield from [*(ends if has_begun else ()), *starts]
            has_begun = True
            yield tokenizer.encode(part.text).numpy()
        yield from ends

    dtype = np.uint16 if tokenizer.vocab_size <= SHORT else np.int32
    return CacheEntry("tokens", documents.key, tokenizer.identity, before, after).array(made, dtype)


def _whole(documents: Documents) -> Iterator[DocumentPart]:
    """Yields every document in one part."""
    waiting: list[str] = []
    for part in documents.parts():
        if part.is_first and waiting:
            yield DocumentPart("".join(waiting), True)
            waiting.clear()
        waiting.append(part.text)
    yield DocumentPart("".join(waiting), True)
