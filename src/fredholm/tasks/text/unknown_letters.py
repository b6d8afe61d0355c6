"""What word pieces read in place of letters that training lacks: the base letter of an accented one, and else a mark.

Word pieces know the letters of the training texts, and the library reads a word with any other letter as unknown as a
whole. So the text is changed before it is cut into words, by steps that `tokenizer.json` holds:

    accents    are left out where the letters before and the accent are no beginning of a known letter: ï is read as i
    unknown    each run of other unknown letters becomes a word of its own, REPLACEMENT, which has no piece

A mark that training has by itself, such as a vowel sign of an Indic script, is a letter of its own, and is kept.
"""

import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .library import tokenizers_library

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

REPLACEMENT = "�"
_ACCENTS, _UNKNOWN = r"[\p{M}", "[^"


def unknown_letters(known: Iterable[str]) -> "list[Normalizer]":
    """The steps of a normalizer, after those that made the known letters, composed ones (NFC), of the texts."""
    library = tokenizers_library()
    from tokenizers import normalizers

    letters = sorted(known)
    alone = [letter for letter in letters if _is_accent(letter)]
    # accented letters and their beginnings, such as a letter with the first of its two accents
    begun = {parts[:k] for parts in map(_parts, letters) for k in range(2, len(parts) + 1) if _is_accent(parts[k - 1])}
    accents = f"{_ACCENTS}&&[^{_codes(alone)}]]" if alone else f"{_ACCENTS}]"
    if kept := sorted(parts for parts in begun if parts[-1] not in alone):
        accents += f"(?<!{'|'.join(map(_codes, kept))})"
    return [
        normalizers.NFD(),
        normalizers.Replace(library.Regex(accents), ""),
        normalizers.NFC(),
        normalizers.Replace(library.Regex(rf"{_UNKNOWN}{_codes(letters)}\s]+"), f" {REPLACEMENT} "),
    ]


def is_of_letters(step: dict[str, Any]) -> bool:
    """Whether a step of a normalizer in JSON is one of these, which read no further than a letter and its accents."""
    pattern = step.get("pattern", {}).get("Regex", "")
    return step["type"] in ("NFC", "NFD") or (step["type"] == "Replace" and pattern.startswith((_ACCENTS, _UNKNOWN)))


def _parts(letter: str) -> str:
    return unicodedata.normalize("NFD", letter)


def _is_accent(sign: str) -> bool:
    return unicodedata.category(sign).startswith("M")


def _codes(signs: Iterable[str]) -> str:
    """Signs in a pattern, by their codes."""
    return "".join(rf"\x{{{ord(sign):X}}}" for sign in signs)
