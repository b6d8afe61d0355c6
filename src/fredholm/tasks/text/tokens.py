"""Settings of the tokenizer of a text."""

import math
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self, final, get_args

from fredholm._settings import refuse_idle
from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.splits.split_files import Split

from .marked_tokenizer import MarkedTokenizer

Kind = Literal["bytes", "byte_pairs", "word_pieces"]
LETTERS_A_TOKEN = 50
"""Letters of text per learnt token in the default vocabulary size, so that tokens are not too rare."""
UNCUT = 1_000_000
"""A context, in tokens, that is longer than any text."""


@final
@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Settings of a tokenizer with special tokens, learnt from the training text or imported.

    Args:
        kind: one token per byte, byte pairs, or BERT's word pieces.
        vocab_size: number of tokens to learn, with special tokens; refused for bytes. A short text may have fewer.
        lowercase: lower-case letters; for word pieces, refused for others.
        file: a tokenizer.json of the tokenizers library, such as another run's, in place of all these; None: none.
    """

    kind: Kind = "word_pieces"
    vocab_size: int = 8000
    lowercase: bool = True
    file: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {self.kind!r}; expected one of {get_args(Kind)}")
        learnt = {"vocab_size": self.vocab_size, "lowercase": self.lowercase}
        if self.file is not None:
            refuse_idle("", type(self), f"file={self.file!r}", "leave the file out", kind=self.kind, **learnt)
        if self.kind == "bytes":
            refuse_idle("", type(self), "kind='bytes'", "learn byte_pairs or word_pieces", **learnt)
        if self.kind == "byte_pairs":
            refuse_idle("", type(self), "kind='byte_pairs'", "learn word_pieces", lowercase=self.lowercase)

    def recommended(self, texts: Iterable[str]) -> Self:
        """Returns the settings with as many tokens as can be learnt from the texts, from 2,000 to the default.

        A text with many different letters gets at least four times as many tokens as letters. Given settings are kept.
        """
        default = Tokens().vocab_size
        if self.file is not None or self.kind == "bytes" or self.vocab_size != default:
            return self
        letters = Counter[str]()
        for text in texts:
            letters.update(text)
            if letters.total() >= default * LETTERS_A_TOKEN:
                return self
        enough = max(2000, letters.total() // LETTERS_A_TOKEN, 4 * len(letters))
        return replace(self, vocab_size=min(enough, default))

    def learn(self, texts: Iterable[str]) -> MarkedTokenizer:
        """Learns or reads the tokenizer; equal texts, which are read twice, give equal tokenizers.

        Raises:
            ValueError: fewer tokens than letters, or a file that is no tokenizer with special tokens.
            ImportError: the library is not installed.
        """
        if self.file is not None:
            return MarkedTokenizer.load(user_path(self.file))
        if self.kind == "bytes":
            return MarkedTokenizer.bytes()
        if self.kind == "byte_pairs":
            return MarkedTokenizer.byte_pairs(texts, self.vocab_size)
        return MarkedTokenizer.word_pieces(texts, self.vocab_size, lowercase=self.lowercase)


def warn_of_cut(num_cut: int, count: int, context: int, split: Split | None = None) -> None:
    """Warns where some texts of a split, or to predict, are longer than the model's context, and are cut."""
    if num_cut:
        texts = "texts" if split is None else f"{split} texts"
        warnings.warn(
            f"{texts} of more than {context:,} tokens, which the model reads at most, are cut at the end: {num_cut:,} "
            f"of {count:,}",
            stacklevel=3,
        )


def context_for(tokenizer: MarkedTokenizer, texts: Iterable[tuple[str, ...]], most: int) -> int:
    """Returns the smallest power of two, from 16 to `most`, that holds each text or pair with its special tokens."""
    longest = max(len(tokenizer.lay_out(each[0], each[1] if len(each) > 1 else None, UNCUT).tokens) for each in texts)
    return min(max(16, 2 ** math.ceil(math.log2(longest))), most)
