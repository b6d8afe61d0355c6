"""The tokens of a checkpoint, from the files that `transformers` and `tokenizers` save beside a model."""

import json
from pathlib import Path
from typing import Any

from fredholm.tasks.files.noted import noted

from .library import tokenizers_library
from .marked_tokenizer import MARKS, MarkedTokenizer
from .read import read_text

FILES = ("tokenizer.json", "vocab.txt", "vocab.json and merges.txt")
"""What is looked for, in this order."""


def checkpoint_tokenizer(folder: Path) -> MarkedTokenizer | None:
    """The tokenizer of a checkpoint; None where the folder has none of `FILES`.

    It gives every text the tokens that the peer's own gives it, but for marks that are spelt in the text, which are
    text here. Of `vocab.txt` these are BERT's word pieces, and of `vocab.json` and `merges.txt` RoBERTa's byte pairs,
    as `tokenizer_config.json` sets them.

    Raises:
        ValueError: a file cannot be read, is no tokenizer, or lacks marks.
        ImportError: the library is not installed.
    """
    settings = _settings(folder)
    if (folder / "tokenizer.json").is_file():
        return MarkedTokenizer.load(folder / "tokenizer.json")
    if (folder / "vocab.txt").is_file():
        return _word_pieces(folder / "vocab.txt", settings)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _byte_pairs(folder, settings)
    return None


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    return _object(file) if file.is_file() else {}


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(noted(file, is_start=True)))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds {type(found).__name__}; expected an object")
    return found


def _flag(settings: dict[str, Any], name: str) -> bool | None:
    """A switch; None where nothing is said."""
    value = settings.get(name)
    if not isinstance(value, bool | None):
        raise ValueError(f"tokenizer_config.json: {name} must be true, false or null; got {value!r:.80}")
    return value


def _word_pieces(file: Path, settings: dict[str, Any]) -> MarkedTokenizer:
    """BERT's, of a list of tokens, a line each."""
    library = tokenizers_library()
    from tokenizers import models, normalizers, pre_tokenizers

    lines = read_text(noted(file, is_start=True)).split("\n")
    words = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    vocabulary = {word: number for number, word in enumerate(words)}
    if absent := [mark for mark in MARKS if mark not in vocabulary]:
        raise ValueError(f"{file} has no {', '.join(absent)}; expected the marks {', '.join(MARKS)}: fetch it again")
    tokenizer = library.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=_flag(settings, "do_lower_case") is not False,
        strip_accents=_flag(settings, "strip_accents"),
        handle_chinese_chars=_flag(settings, "tokenize_chinese_chars") is not False,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return MarkedTokenizer(tokenizer.to_str())


def _byte_pairs(folder: Path, settings: dict[str, Any]) -> MarkedTokenizer:
    """RoBERTa's, of numbers of tokens and the pairs that are joined, the first to be joined first."""
    library = tokenizers_library()
    from tokenizers import models, pre_tokenizers

    merges = folder / "merges.txt"
    vocabulary = _object(folder / "vocab.json")
    lines = read_text(noted(merges, is_start=True)).split("\n")
    told = [line.rstrip("\r") for line in lines if line and not line.startswith("#version")]
    if wrong := next((line for line in told if line.count(" ") != 1), None):
        raise ValueError(f"{merges}: has the line {wrong!r:.80}; expected two tokens: fetch it again")
    pairs = [(first, second) for first, second in (line.split(" ") for line in told)]
    try:
        tokenizer = library.Tokenizer(models.BPE(vocabulary, pairs))
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"{folder}: vocab.json and merges.txt are no tokens ({error}); fetch them again") from error
    prefix = _flag(settings, "add_prefix_space") is True
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    try:
        return MarkedTokenizer(tokenizer.to_str())
    except ValueError as error:
        raise ValueError(f"{folder / 'vocab.json'}: {error}") from error
