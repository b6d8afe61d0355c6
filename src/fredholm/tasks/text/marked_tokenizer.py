"""Tokenizers with special tokens (marks), which lay out sentences and pairs of them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm.tasks.tensor_form import BATCH, Axis, OpenAxis, Slot, first_of_each

from .byte_pairs import byte_letters
from .documents import pieces
from .library import cuts_bytes_at_words, library_tokenizer, library_version, made_from_file, tokenizers_library
from .tokenizer import Tokenizer, utf8
from .unknown_letters import is_of_letters, unknown_letters

if TYPE_CHECKING:
    import tokenizers

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens by BERT's names: padding, unknown, class, separator and mask."""
CONTINUED = "##"
"""Prefix of word pieces within a word."""
LONGEST_WORD = 100
"""Letters after which a word is cut: a text without spaces is a single word."""


@final
class _Spelling(NamedTuple):
    """Names of special tokens in a vocabulary, and the number of separators between the sentences of a pair."""

    pad: str
    unknown: str
    class_token: str
    separator: str
    mask: str
    ends: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all special tokens."""
        return self[:5]

    @property
    def shortest(self) -> int:
        """Number of tokens of a pair of sentences with one token each."""
        return 4 + self.ends

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> "_Spelling":
        """Returns the spelling of a vocabulary; BERT's where it has none of the known ones."""
        return next((each for each in _SPELLINGS if vocabulary.keys() >= {*each.names}), _SPELLINGS[0])


_SPELLINGS = (_Spelling(*MARKS, ends=1), _Spelling("<pad>", "<unk>", "<s>", "</s>", "<mask>", ends=2))
"""BERT's, and RoBERTa's."""


@final
@dataclass(frozen=True, kw_only=True)
class Marks:
    """Numbers of the special tokens `MARKS`, by whatever names; texts encode to none of them but `unknown`."""

    pad: int
    unknown: int
    class_token: int
    separator: int
    mask: int


def tokens_axis(context: int) -> OpenAxis:
    """Returns the axis of rows of at most ``context`` tokens."""
    example = max(2, min(12, context - 1))
    return OpenAxis(example, min(context, example + 5), context, context)


class Layout(NamedTuple):
    """The tokens of a sentence or pair with special tokens, int32 `(n,)`, and whether they were truncated."""

    tokens: Tensor
    is_cut: bool


@final
class MarkedTokenizer(Tokenizer):
    """Bytes, byte pairs, word pieces or an imported tokenizer, with special tokens; all by the `tokenizers` library.

    Special tokens that are spelt in a text are encoded as text: no text contains a class token.

    Args:
        state: the library's JSON, with `MARKS` or RoBERTa's. Its truncation, padding and layout are replaced by
            `lay_out`.

    Raises:
        ValueError: the JSON is no tokenizer, or lacks some of the special tokens.
        ImportError: the library is not installed.
    """

    def __init__(self, state: str) -> None:
        self._library = library_tokenizer(state)
        vocabulary = self._library.get_vocab()
        self._spelling = spelling = _Spelling.of(vocabulary)
        if absent := [mark for mark in spelling.names if mark not in vocabulary]:
            others = ", ".join(_SPELLINGS[1].names)
            raise ValueError(
                f"this tokenizer has no {', '.join(absent)}; expected the marks {', '.join(MARKS)}, or {others}: add "
                "them to it"
            )
        from tokenizers.processors import TemplateProcessing

        start, end = spelling.class_token, spelling.separator
        self._library.post_processor = TemplateProcessing(
            single=f"{start} $A {end}",
            pair=f"{start} $A {' '.join([end] * spelling.ends)} $B:1 {end}:1",
            special_tokens=[(mark, vocabulary[mark]) for mark in (start, end)],
        )
        self._library.no_truncation()
        self._library.no_padding()
        self._library.add_special_tokens(list(spelling.names))
        self._library.encode_special_tokens = True  # that is, encode their spelling as text
        self.marks = Marks(
            pad=vocabulary[spelling.pad],
            unknown=vocabulary[spelling.unknown],
            class_token=vocabulary[start],
            separator=vocabulary[end],
            mask=vocabulary[spelling.mask],
        )
        """Numbers of the special tokens."""
        self.state = json.dumps(json.loads(self._library.to_str()))
        """Complete state as JSON."""

    @property
    def slot(self) -> Slot:
        """The input slot of rows of tokens."""
        marks, named = self.marks, self._spelling
        twice = f"{named.separator} once more, " if named.ends > 1 else ""
        return Slot(
            "tokens",
            (BATCH, Axis("tokens")),
            f"numbers of the tokens of tokenizer.json: {named.class_token} ({marks.class_token}), the text, "
            f"{named.separator} ({marks.separator}), of a pair {twice}the other text and {named.separator}; then "
            f"{named.pad} ({marks.pad})",
        )

    def draw(self, batch: int, most: int, generator: torch.Generator) -> Tensor:
        """Draws rows of random tokens between special tokens, int64 `(batch, most)`, padded."""
        marks, exists = self.marks, first_of_each(batch, most)
        tokens = torch.randint(self.vocab_size, (batch, most), generator=generator)
        tokens = torch.where(torch.isin(tokens, torch.tensor([marks.pad, marks.mask])), marks.unknown, tokens)
        tokens[:, 0] = marks.class_token
        tokens[torch.arange(batch), exists.sum(1) - 1] = marks.separator
        return torch.where(exists, tokens, marks.pad)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the tokenizer in a `tokenizer.json`.

        Raises:
            ValueError: the file cannot be read, is no tokenizer, or lacks special tokens.
        """
        return made_from_file(path, cls)

    @classmethod
    def byte_pairs(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Learns byte pairs as `BytePairs` does: special tokens, all bytes, then pairs from the texts.

        Args:
            texts: training texts.
            vocab_size: number of tokens, with special tokens, at least 261, which means one token per byte.
        """
        library = tokenizers_library()
        from tokenizers import models, pre_tokenizers, trainers

        smallest = len(MARKS) + 256
        _check_size(vocab_size, smallest, "the marks and the bytes")
        tokenizer = library.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, initial_alphabet=byte_letters(), show_progress=False, special_tokens=list(MARKS)
        )
        tokenizer.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
        return cls(tokenizer.to_str())

    @classmethod
    def bytes(cls) -> Self:
        """Returns special tokens and one token per byte."""
        return cls.byte_pairs((), len(MARKS) + 256)

    @classmethod
    def word_pieces(cls, texts: Iterable[str], vocab_size: int, *, lowercase: bool = True) -> Self:
        """Learns BERT's word pieces (Devlin et al., 2019): words and punctuation, split into the longest known pieces.

        The library would number letters within words in the order of a random hash, which also breaks ties; here they
        are sorted.

        Args:
            texts: training texts, read twice.
            vocab_size: number of tokens, with special tokens and the letters of the texts.
            lowercase: lower-case letters.
        """
        library = tokenizers_library()
        from tokenizers import models, normalizers, pre_tokenizers, trainers

        # one code for each accented letter, however it is written; in many scripts accents are vowels
        steps = [normalizers.NFC(), normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)]
        normalizer = normalizers.Sequence(steps)
        # the library reads a longer word as unknown
        cut = pre_tokenizers.Split(library.Regex(f".{{{LONGEST_WORD}}}"), "isolated")
        pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), cut])

        def words(text: str) -> list[str]:
            return [word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))]

        letters = {letter for text in texts for piece in pieces(text) for word in {*words(piece)} for letter in word}
        # a letter that only begins words in training may stand within others, unless it is always a word by itself
        within = sorted(CONTINUED + letter for letter in letters if len(words(2 * letter)) == 1)
        _check_size(vocab_size, len(MARKS) + len(within) + len(letters), "the marks and the letters of the texts")
        learning = library.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
        learning.normalizer, learning.pre_tokenizer = normalizer, pre_tokenizer
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, show_progress=False, special_tokens=[*MARKS, *within]
        )
        learning.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
        tokenizer = library.Tokenizer(learning.model)  # without the letters as special tokens
        tokenizer.normalizer = normalizers.Sequence([*steps, *unknown_letters(letters)])
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.add_special_tokens(list(MARKS))
        return cls(tokenizer.to_str())

    @property
    def identity(self) -> str:
        return f"{library_version()} {self.state}"

    @property
    def reads_pieces(self) -> bool:
        """True for word pieces and byte pairs; an imported tokenizer may read across lines."""
        parts = json.loads(self.state)
        if cuts_bytes_at_words(parts):
            return True
        steps, words = _steps(parts["normalizer"], "normalizers"), _steps(parts["pre_tokenizer"], "pretokenizers")
        is_by_word = [step["type"] for step in words[:1]] == ["BertPreTokenizer"]
        return is_by_word and all(step["type"] == "BertNormalizer" or is_of_letters(step) for step in steps)

    @property
    def vocab_size(self) -> int:
        return max(self._library.get_vocab().values()) + 1

    def encode(self, text: str) -> Tensor:
        return self._tokens(self._encoded(text, None, add_marks=False))

    def pieces(self, tokens: Tensor) -> list[str]:
        """Returns readable texts of the tokens `(n,)`; parts of a letter become `�`."""
        from tokenizers import decoders

        found = [self._library.id_to_token(token) or "" for token in tokens.tolist()]
        if '"type": "ByteLevel"' not in self.state:
            return found
        decoder = decoders.ByteLevel()
        return [piece if piece in self._spelling.names else decoder.decode([piece]) for piece in found]

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """Letters of each token, with a space before word beginnings and after word ends.

        Letters are bytes for byte-level tokens, whatever sign the library has for each. Special tokens end words; an
        unknown token is a word of the letter `�`.
        """
        parts, marks = json.loads(self.state), self.marks
        prefix, suffix = (
            parts["model"].get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix")
        )
        cuts = json.dumps([parts["normalizer"], parts["pre_tokenizer"]], ensure_ascii=False)
        has_bytes, has_spaces = '"type": "ByteLevel"' in self.state, "▁" in cuts
        # but not spaces of Latin-1: bytes 133 and 160 are parts of letters such as à
        spaces = [letter for byte, letter in enumerate(byte_letters()) if bytes([byte]).isspace()]
        to_space = str.maketrans(dict.fromkeys(spaces if has_bytes else "▁", " "))

        def letters(token: str) -> str:
            if has_bytes or has_spaces:
                return token.translate(to_space)
            if suffix:
                return token.removesuffix(suffix) + " " * token.endswith(suffix)
            return token.removeprefix(prefix) if prefix and token.startswith(prefix) else f" {token}"

        found = [letters(self._library.id_to_token(token) or "") for token in range(self.vocab_size)]
        for mark in (marks.pad, marks.mask):
            found[mark] = ""
        found[marks.class_token] = found[marks.separator] = " "
        found[marks.unknown] = " � "
        return tuple(found)

    def lay_out(self, first: str, second: str | None, context: int) -> Layout:
        """Lays out `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`; RoBERTa's layout has two [SEP] between.

        Longer layouts than `context` tokens, with special tokens, are truncated at the end; of a pair the longer
        sentence first, until both have equal lengths.

        Raises:
            ValueError: the context is below 5, or 6 with RoBERTa's tokens; or a text is no UTF-8.
        """
        if context < self._spelling.shortest:
            least = self._spelling.shortest
            raise ValueError(f"context={context} has no room for a text between its marks; expected at least {least}")
        self._library.enable_truncation(context, strategy="longest_first")
        try:
            found = self._encoded(first, second, add_marks=True)
        finally:
            self._library.no_truncation()
        return Layout(self._tokens(found), bool(found.overflowing))

    def _encoded(self, first: str, second: str | None, *, add_marks: bool) -> "tokenizers.Encoding":
        for text in (first, second or ""):
            utf8(text)
        try:
            return self._library.encode(first, second, add_special_tokens=add_marks)
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(f"the tokenizer cannot encode {first[:40]!r}: {error}") from error

    def _tokens(self, encoding: "tokenizers.Encoding") -> Tensor:
        """Returns tokens int32 `(n,)`. A word that an imported vocabulary takes for a special token becomes unknown."""
        marks = self.marks
        reserved = {marks.pad, marks.class_token, marks.separator, marks.mask}
        flagged = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        found = [token if is_mark or token not in reserved else marks.unknown for token, is_mark in flagged]
        return torch.tensor(found, dtype=torch.int32)


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The steps of a part of a tokenizer in JSON, `name` of a sequence."""
    return [] if part is None else part.get(name, [part])


def _check_size(vocab_size: int, smallest: int, which: str) -> None:
    if vocab_size < smallest:
        raise ValueError(f"vocab_size is {vocab_size}; expected at least {smallest}, {which}")
