"""Tokens with marks, which lay out sentences and pairs of them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm.tasks.tensor_form import BATCH, Axis, OpenAxis, Slot, first_of_each

from .byte_pairs import byte_letters
from .documents import pieces
from .library import cuts_bytes_at_words, library_tokenizer, library_version, made_of, tokenizers_library
from .tokenizer import Tokenizer, utf8

if TYPE_CHECKING:
    import tokenizers

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Padding, what is no other token, the class token, the end of a sentence, a hidden token; BERT's names."""
CONTINUED = "##"
"""What word pieces that go on with a word begin with."""


@final
class _Spelling(NamedTuple):
    """What marks are called in a vocabulary, and how often the first sentence of a pair ends."""

    pad: str
    unknown: str
    class_token: str
    separator: str
    mask: str
    ends: int

    @property
    def names(self) -> tuple[str, ...]:
        """Of all marks."""
        return self[:5]

    @property
    def shortest(self) -> int:
        """Tokens of a pair of sentences with a token each."""
        return 4 + self.ends

    @classmethod
    def of(cls, vocabulary: Mapping[str, int]) -> "_Spelling":
        """That of a vocabulary; of one that has neither, BERT's."""
        return next((each for each in _SPELLINGS if vocabulary.keys() >= {*each.names}), _SPELLINGS[0])


_SPELLINGS = (_Spelling(*MARKS, ends=1), _Spelling("<pad>", "<unk>", "<s>", "</s>", "<mask>", ends=2))
"""BERT's, and RoBERTa's."""


@final
@dataclass(frozen=True, kw_only=True)
class Marks:
    """The tokens of `MARKS`, by whatever names, which no text encodes to but `unknown`."""

    pad: int
    unknown: int
    class_token: int
    separator: int
    mask: int


def tokens_axis(context: int) -> OpenAxis:
    """Of rows of at most so many tokens."""
    example = max(2, min(12, context - 1))
    return OpenAxis(example, min(context, example + 5), context, context)


class Layout(NamedTuple):
    """The tokens of a sentence or pair between its marks, int32 `(n,)`, and whether it had more than fit."""

    tokens: Tensor
    is_cut: bool


@final
class MarkedTokenizer(Tokenizer):
    """Bytes, byte pairs, word pieces or a tokenizer from elsewhere, with marks; all by the `tokenizers` library.

    Marks that are spelt in a text are text: nobody can write a class token.

    Args:
        state: the library's JSON, with `MARKS`, or RoBERTa's. How it cuts, pads and lays out is left to `lay_out`.

    Raises:
        ValueError: something else, or without some of the marks.
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
        self._library.encode_special_tokens = True  # that is, as the text that they are
        self.marks = Marks(
            pad=vocabulary[spelling.pad],
            unknown=vocabulary[spelling.unknown],
            class_token=vocabulary[start],
            separator=vocabulary[end],
            mask=vocabulary[spelling.mask],
        )
        """The tokens that stand for no text."""
        self.state = json.dumps(json.loads(self._library.to_str()))
        """All there is to know, as JSON."""

    @property
    def slot(self) -> Slot:
        """Rows of tokens, as what a form takes."""
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
        """Rows of random tokens between their marks, int64 `(batch, most)`, padded."""
        marks, exists = self.marks, first_of_each(batch, most)
        tokens = torch.randint(self.vocab_size, (batch, most), generator=generator)
        tokens = torch.where(torch.isin(tokens, torch.tensor([marks.pad, marks.mask])), marks.unknown, tokens)
        tokens[:, 0] = marks.class_token
        tokens[torch.arange(batch), exists.sum(1) - 1] = marks.separator
        return torch.where(exists, tokens, marks.pad)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The tokenizer of a `tokenizer.json`.

        Raises:
            ValueError: the file cannot be read, is none, or lacks marks.
        """
        return made_of(path, cls)

    @classmethod
    def byte_pairs(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Byte pairs as those of `BytePairs`: the marks, all bytes, then pairs that are learnt from the texts.

        Args:
            texts: what is learnt from.
            vocab_size: tokens wanted, marks included, at least 261, which is a token a byte.
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
        """The marks and a token a byte."""
        return cls.byte_pairs((), len(MARKS) + 256)

    @classmethod
    def word_pieces(cls, texts: Iterable[str], vocab_size: int, *, lowercase: bool = True) -> Self:
        """BERT's word pieces (Devlin et al., 2019): words and punctuation, words in the longest pieces there are.

        The library alone would number letters within words in the order of a random hash, and break ties by it; they
        are handed to it sorted.

        Args:
            texts: what is learnt from, read twice.
            vocab_size: tokens wanted, marks and the texts' letters included.
            lowercase: make letters small and drop accents.
        """
        library = tokenizers_library()
        from tokenizers import models, normalizers, pre_tokenizers, trainers

        normalizer, pre_tokenizer = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
        words = {
            word
            for text in texts
            for piece in pieces(text)
            for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(piece))
        }
        within = sorted({CONTINUED + letter for word in words for letter in word[1:]})
        num_letters = len({letter for word in words for letter in word})
        _check_size(vocab_size, len(MARKS) + len(within) + num_letters, "the marks and the letters of the texts")
        learning = library.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        learning.normalizer, learning.pre_tokenizer = normalizer, pre_tokenizer
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, show_progress=False, special_tokens=[*MARKS, *within]
        )
        learning.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
        tokenizer = library.Tokenizer(learning.model)  # without the letters as special tokens
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
        tokenizer.add_special_tokens(list(MARKS))
        return cls(tokenizer.to_str())

    @property
    def identity(self) -> str:
        return f"{library_version()} {self.state}"

    @property
    def reads_pieces(self) -> bool:
        """Of word pieces and byte pairs; one from elsewhere may read across lines."""
        parts = json.loads(self.state)
        normalizer, words = parts["normalizer"] or {}, parts["pre_tokenizer"] or {}
        if cuts_bytes_at_words(parts):
            return True
        return words.get("type") == "BertPreTokenizer" and normalizer.get("type") in (None, "BertNormalizer")

    @property
    def vocab_size(self) -> int:
        return max(self._library.get_vocab().values()) + 1

    def encode(self, text: str) -> Tensor:
        return self._tokens(self._encoded(text, None, add_marks=False))

    def pieces(self, tokens: Tensor) -> list[str]:
        """What each of the tokens `(n,)` stands for, as people read it; parts of a letter become `�`."""
        from tokenizers import decoders

        found = [self._library.id_to_token(token) or "" for token in tokens.tolist()]
        if '"type": "ByteLevel"' not in self.state:
            return found
        decoder = decoders.ByteLevel()
        return [piece if piece in self._spelling.names else decoder.decode([piece]) for piece in found]

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """What each token stands for, with a space before what begins a word and after what ends one.

        Letters are bytes where tokens are made of these, whatever sign the library has for each. Marks end words; an
        unknown token is a word of the letter `�`.
        """
        parts, marks = json.loads(self.state), self.marks
        prefix, suffix = (
            parts["model"].get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix")
        )
        cuts = json.dumps([parts["normalizer"], parts["pre_tokenizer"]], ensure_ascii=False)
        has_bytes, has_spaces = '"type": "ByteLevel"' in self.state, "▁" in cuts
        # not those of Latin-1: bytes 133 and 160 are parts of letters such as à
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
        """`[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`; with RoBERTa's marks [SEP] is there twice between.

        What has more than `context` tokens, marks included, is cut at its end; of a pair the longer sentence first,
        until both have one length.

        Raises:
            ValueError: a context below 5, or 6 with RoBERTa's marks; or no UTF-8.
        """
        if context < self._spelling.shortest:
            raise ValueError(f"context is {context}; expected at least {self._spelling.shortest}")
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
        """Tokens int32 `(n,)`. A word of the text that a brought vocabulary takes for a mark is unknown."""
        marks = self.marks
        reserved = {marks.pad, marks.class_token, marks.separator, marks.mask}
        flagged = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        found = [token if is_mark or token not in reserved else marks.unknown for token, is_mark in flagged]
        return torch.tensor(found, dtype=torch.int32)


def _check_size(vocab_size: int, smallest: int, which: str) -> None:
    if vocab_size < smallest:
        raise ValueError(f"vocab_size is {vocab_size}; expected at least {smallest}, {which}")
