"""Words as numbers that tell their form: the word, its lower case, its shape, and how it begins and ends.

A number is a hash of 64 bits of the name of the property and its value, so that words that were never seen share the
numbers of their endings and shapes with others. 0 stands for a property that a word does not have.

The shape of a word has X for a capital letter, x for any other letter, d for a digit, and other characters as they
are: Xxxxx-dd for "Route-66". In the short shape equal neighbours are one: Xx-d.
"""

import functools
import hashlib
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

LONGEST_AFFIX = 5
"""Most letters of a beginning or ending."""
LONGEST_SHAPE = 24
"""Most characters of a word whose shape is read in full; beyond it only the short one is."""
WORD, LOWER, SHAPE, SHORT_SHAPE = range(4)
"""Places of the properties among the numbers of a word; endings follow, then beginnings, from one letter on."""
ENDINGS = 4
BEGINNINGS = ENDINGS + LONGEST_AFFIX
NUM_FORMS = BEGINNINGS + LONGEST_AFFIX
"""Numbers of a word."""


def word_forms(words: Sequence[str]) -> Tensor:
    """The numbers of each word, int64 `(n, NUM_FORMS)`; those of the word and of its lower case are never 0."""
    return torch.tensor([_forms(word) for word in words], dtype=torch.int64).view(len(words), NUM_FORMS)


@functools.lru_cache(maxsize=1 << 17)
def _forms(word: str) -> tuple[int, ...]:
    lower, shape = word.lower(), "".join(map(_kind, word))
    short = "".join(kind for kind, _ in itertools.groupby(shape))
    found = [f"word {word}", f"lower {lower}", f"shape {shape}" if len(shape) <= LONGEST_SHAPE else ""]
    found.append(f"short {short}")
    sizes = range(1, LONGEST_AFFIX + 1)
    # an ending that is the whole word says nothing beside it
    found += [f"end {lower[-size:]}" if size < len(lower) else "" for size in sizes]
    found += [f"begin {lower[:size]}" if size < len(lower) else "" for size in sizes]
    return tuple(map(_hash, found))


def _kind(letter: str) -> str:
    if letter.isdigit():
        return "d"
    if letter.isalpha():
        return "X" if letter.isupper() or letter.istitle() else "x"
    return letter


def _hash(text: str) -> int:
    """A number other than 0; 0 for no text."""
    if not text:
        return 0
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1
