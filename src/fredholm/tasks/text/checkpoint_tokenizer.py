"""Tokenizers of checkpoints, from the files that `transformers` and `tokenizers` save beside a model."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from fredholm.tasks.files.read_record import recorded

from .byte_pairs import byte_letters
from .library import cuts_bytes_at_words, library_tokenizer, library_version, made_from_file, tokenizers_library
from .marked_tokenizer import MARKS, MarkedTokenizer
from .read import read_text
from .tokenizer import ByteTokenizer, utf8

if TYPE_CHECKING:
    import tokenizers

FILES = ("tokenizer.json", "vocab.txt", "vocab.json and merges.txt")
"""Files of a tokenizer, in the order of search."""


def checkpoint_tokenizer(folder: Path) -> MarkedTokenizer | None:
    """Reads the tokenizer of a checkpoint; None where the folder has none of `FILES`.

    Texts get the same tokens as from the peer's own tokenizer, except that special tokens spelt in a text are encoded
    as text. `vocab.txt` gives BERT's word pieces, and `vocab.json` and `merges.txt` RoBERTa's byte pairs, with the
    settings of `tokenizer_config.json`.

    Raises:
        ValueError: a file cannot be read, is no tokenizer, or lacks special tokens.
        ImportError: the library is not installed.
    """
    settings = _settings(folder)
    if (folder / "tokenizer.json").is_file():
        return MarkedTokenizer.load(folder / "tokenizer.json")
    if (folder / "vocab.txt").is_file():
        return _word_pieces(folder / "vocab.txt", settings)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        state = _byte_pairs(folder, settings).to_str()
        try:
            return MarkedTokenizer(state)
        except ValueError as error:
            raise ValueError(f"{folder / 'vocab.json'}: {error}") from error
    return None


@final
class CheckpointTokens(ByteTokenizer):
    """Tokens of a checkpoint's language model, over bytes or with bytes as a fallback.

    Texts get the same tokens as from the peer's own tokenizer, except that special tokens spelt in a text are encoded
    as text. In a tokenizer that puts a space before every text, that space counts as a byte of the text.

    Args:
        state: the library's JSON, whose template lays out a document: `start $A end`, or `$A end` for documents without
            a start token.

    Raises:
        ValueError: the JSON is no such tokenizer, or some text has no tokens.
        ImportError: the library is not installed.
    """

    def __init__(self, state: str) -> None:
        self._library = library_tokenizer(state)
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True  # that is, encode their spelling as text
        self.state = json.dumps(json.loads(self._library.to_str()))
        """Complete state as JSON."""
        marks = self._library.encode("", add_special_tokens=True).ids
        if len(marks) not in (1, 2):
            raise ValueError(
                "this tokenizer does not lay out a document as a start, a text and an end, or a text and an end; "
                "expected the tokenizer.json of a run that began with a checkpoint"
            )
        self._end, self._start = marks[-1], marks[0] if len(marks) == 2 else None
        self._bytes = _bytes_of_tokens(self._library)
        added = self._library.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special} | {*marks}
        each = {self._bytes[number]: number for number in range(len(self._bytes)) if number not in special}
        names = {mark: self._library.id_to_token(mark) or "" for mark in special}
        if absent := [byte for byte in range(256) if bytes([byte]) not in each]:
            raise ValueError(
                f"with the marks {', '.join(sorted(names.values()))} no token is left for the byte {absent[0]:#04x}; "
                "expected marks that are no bytes of a text"
            )
        self._spelt = {mark: [each[bytes([byte])] for byte in name.encode()] for mark, name in names.items()}
        """Names of special tokens, as bytes, which a text may spell."""
        for mark in special:
            self._bytes[mark] = b""

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    @property
    def identity(self) -> str:
        return f"{library_version()} {self.state}"

    @property
    def reads_pieces(self) -> bool:
        """Only for tokenizers that are known not to read across lines."""
        return cuts_bytes_at_words(json.loads(self.state))

    @property
    def end_of_text(self) -> int:
        return self._end

    @property
    def start_of_text(self) -> int | None:
        return self._start

    def encode(self, text: str) -> Tensor:
        utf8(text)
        found = self._library.encode(text, add_special_tokens=False).ids
        if not self._spelt.keys().isdisjoint(found):
            found = [token for each in found for token in self._spelt.get(each, [each])]
        return torch.tensor(found, dtype=torch.int32)

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"there is no token {token}; expected 0 to {self.vocab_size - 1}")
        return self._bytes[token]


def checkpoint_tokens(folder: Path) -> CheckpointTokens | None:
    """Reads the tokenizer of a checkpoint's language model.

    None without a tokenizer.json, and without a vocab.json with its merges.txt.

    The end of a text is `eos_token` of tokenizer_config.json, or `eos_token_id` of config.json. Documents begin with
    the token that the tokenizer puts before texts, such as Llama's `<s>`.

    Raises:
        ValueError: a file cannot be read or is no such tokenizer, or the end-of-text token is not specified.
        ImportError: the library is not installed.
    """
    settings, file = _settings(folder), folder / "tokenizer.json"
    if file.is_file():
        library = made_from_file(file, library_tokenizer)
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        library = _byte_pairs(folder, settings)
        from tokenizers import decoders

        library.decoder = decoders.ByteLevel()
    else:
        return None
    end = _end_of_text(folder, settings, library)
    begun = library.encode("", add_special_tokens=True).tokens
    start = begun[:1] if begun[:1] != [end] else []
    from tokenizers.processors import TemplateProcessing

    marks = [*start, end]
    library.add_special_tokens(marks)
    library.post_processor = TemplateProcessing(
        single=" ".join([*start, "$A", end]), special_tokens=[(mark, library.token_to_id(mark)) for mark in marks]
    )
    try:
        return CheckpointTokens(library.to_str())
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def _end_of_text(folder: Path, settings: dict[str, Any], library: "tokenizers.Tokenizer") -> str:
    """Returns the name of the token that ends a text."""
    named = settings.get("eos_token")
    named = named.get("content") if isinstance(named, dict) else named
    if isinstance(named, str):
        if library.token_to_id(named) is None:
            raise ValueError(
                f"{folder / 'tokenizer_config.json'}: eos_token is {named!r:.80}, which is none of the tokens; "
                "expected the one that ends a text"
            )
        return named
    end = _object(folder / "config.json").get("eos_token_id")
    end = end[0] if isinstance(end, list) and end else end
    if type(end) is int and end >= 0 and (token := library.id_to_token(end)) is not None:
        return token
    raise ValueError(
        f"{folder}: the end-of-text token is missing; give tokenizer_config.json an eos_token that is one of the tokens"
    )


def _bytes_of_tokens(library: "tokenizers.Tokenizer") -> list[bytes]:
    """Returns the bytes of each token; empty for numbers without a token.

    Raises:
        ValueError: some text has no tokens.
    """
    added, parts = library.get_added_tokens_decoder(), json.loads(library.to_str())
    decoder = json.dumps(parts["decoder"])
    letters = {letter: bytes([byte]) for byte, letter in enumerate(byte_letters())}
    vocabulary = library.get_vocab()
    if '"ByteLevel"' in decoder:
        singles = letters.keys()
    elif parts["model"].get("byte_fallback"):
        letters = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
        singles = letters.keys()
    else:
        raise ValueError(
            "the tokens of tokenizer.json stand for no bytes; expected byte pairs over bytes, as GPT-2's, or bytes as "
            "a fallback, as Llama's"
        )
    if absent := sorted(singles - vocabulary.keys()):
        raise ValueError(f"{len(absent)} bytes have no token in tokenizer.json, such as {absent[0]}; expected all 256")

    def stands_for(number: int) -> bytes:
        if (mark := added.get(number)) is not None:
            return mark.content.encode()
        token = library.id_to_token(number)
        if token is None:
            return b""
        if '"ByteLevel"' in decoder:
            return b"".join(letters.get(letter, letter.encode()) for letter in token)
        return letters[token] if token in singles else token.replace("▁", " ").encode()

    return [stands_for(number) for number in range(max(vocabulary.values()) + 1)]


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    return _object(file) if file.is_file() else {}


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(recorded(file, is_start=True)))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds {type(found).__name__}; expected an object")
    return found


def _flag(settings: dict[str, Any], name: str) -> bool | None:
    """Reads a boolean setting; None where it is missing."""
    value = settings.get(name)
    if not isinstance(value, bool | None):
        raise ValueError(f"tokenizer_config.json: {name} must be true, false or null; got {value!r:.80}")
    return value


def _word_pieces(file: Path, settings: dict[str, Any]) -> MarkedTokenizer:
    """Makes BERT's word pieces from a list of tokens, one a line."""
    library = tokenizers_library()
    from tokenizers import models, normalizers, pre_tokenizers

    lines = read_text(recorded(file, is_start=True)).split("\n")
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


def _byte_pairs(folder: Path, settings: dict[str, Any]) -> "tokenizers.Tokenizer":
    """Makes the byte pairs of RoBERTa and GPT-2 from the numbers of tokens and a list of merges in order."""
    library = tokenizers_library()
    from tokenizers import models, pre_tokenizers

    merges = folder / "merges.txt"
    vocabulary = _object(folder / "vocab.json")
    lines = read_text(recorded(merges, is_start=True)).split("\n")
    merge_lines = [line.rstrip("\r") for line in lines if line and not line.startswith("#version")]
    if wrong := next((line for line in merge_lines if line.count(" ") != 1), None):
        raise ValueError(f"{merges}: has the line {wrong!r:.80}; expected two tokens: fetch it again")
    pairs = [(first, second) for first, second in (line.split(" ") for line in merge_lines)]
    try:
        tokenizer = library.Tokenizer(models.BPE(vocabulary, pairs))
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(f"{folder}: vocab.json and merges.txt are no tokens ({error}); fetch them again") from error
    prefix = _flag(settings, "add_prefix_space") is True
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return tokenizer
