"""Which tokens a text is made of, as settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final, get_args

from fredholm._settings import refuse_idle

from .marked_tokenizer import MarkedTokenizer

Kind = Literal["bytes", "byte_pairs", "word_pieces"]


@final
@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens with marks, learnt from the training text or brought along.

    Args:
        kind: a token a byte, frequent byte pairs, or BERT's word pieces.
        vocab_size: tokens to learn, marks included; refused for bytes. A short text may have fewer.
        lowercase: make letters small and drop accents; of word pieces, refused for others.
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

    def learn(self, texts: Sequence[str]) -> MarkedTokenizer:
        """The tokenizer; the same texts give the same one.

        Raises:
            ValueError: fewer tokens than there are letters, or a file that is no tokenizer with marks.
            ImportError: the library is not installed.
        """
        if self.file is not None:
            return MarkedTokenizer.load(Path(self.file).expanduser())
        if self.kind == "bytes":
            return MarkedTokenizer.bytes()
        if self.kind == "byte_pairs":
            return MarkedTokenizer.byte_pairs(texts, self.vocab_size)
        return MarkedTokenizer.word_pieces(texts, self.vocab_size, lowercase=self.lowercase)
