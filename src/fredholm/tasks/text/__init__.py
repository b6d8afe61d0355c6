"""Text for language models: files, documents, tokens and blocks of tokens."""

from .blocks import IGNORED, TokenStream
from .byte_pairs import BytePairs
from .checkpoint_tokenizer import CheckpointTokens, checkpoint_tokenizer, checkpoint_tokens
from .continuation import Piece, continue_text
from .documents import Documents, Separator
from .joined import SHORT, joined
from .json_lines import JSONL_SUFFIXES, JsonLine, json_lines
from .marked_tokenizer import MARKS, Layout, MarkedTokenizer, Marks, tokens_axis
from .open import TextSplits, open_text
from .read import read_text, text_chunks
from .tokenizer import Bytes, ByteTokenizer, Tokenizer
from .tokens import Tokens, context_for, warn_of_cut

__all__ = [
    "IGNORED",
    "JSONL_SUFFIXES",
    "MARKS",
    "SHORT",
    "BytePairs",
    "ByteTokenizer",
    "Bytes",
    "CheckpointTokens",
    "Documents",
    "JsonLine",
    "Layout",
    "MarkedTokenizer",
    "Marks",
    "Piece",
    "Separator",
    "TextSplits",
    "TokenStream",
    "Tokenizer",
    "Tokens",
    "checkpoint_tokenizer",
    "checkpoint_tokens",
    "context_for",
    "continue_text",
    "joined",
    "json_lines",
    "open_text",
    "read_text",
    "text_chunks",
    "tokens_axis",
    "warn_of_cut",
]
