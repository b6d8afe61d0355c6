"""Text for language models: files, documents, tokens and blocks of them."""

from .blocks import IGNORED, TokenStream
from .byte_pairs import BytePairs
from .continuation import Piece, continue_text
from .documents import Separator, cut_documents, split_documents
from .open import TextSplits, open_text
from .read import read_text
from .tokenizer import Bytes, Tokenizer

__all__ = [
    "IGNORED",
    "BytePairs",
    "Bytes",
    "Piece",
    "Separator",
    "TextSplits",
    "TokenStream",
    "Tokenizer",
    "continue_text",
    "cut_documents",
    "open_text",
    "read_text",
    "split_documents",
]
