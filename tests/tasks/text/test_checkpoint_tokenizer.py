"""Tokenizers of checkpoints give the tokens of transformers, text by text."""

import json
from pathlib import Path
from typing import Any

import pytest

from fredholm.tasks.text import MarkedTokenizer, checkpoint_tokenizer
from tests.pretrained.peers import transformers, write_byte_pairs, write_word_pieces
from tests.refusals import refused

AWKWARD = [
    "The Cat, unaffable!",
    "  spaces\t and\nlines\r\n  ",
    "Ärger naïve café CAFÉ e\u0301 ſtraße İstanbul ﬁn",
    "数学 cat数cat かな 한국어 ไทย",
    "🙂👩‍👩‍👧 cat👍🏽",
    "a\u200bb\u00adc\ufeffd\u0000e\ufffdf",
    "don't we'll 12,345.67 $5 — … «cat» __init__ #tag @you",
    "nbsp\u00a0here\u2003wide\u3000ideographic",
    "x" * 120,
    "𝒳𐍈 \U0001f1eb\U0001f1f7",
    "אבג عربي हिन्दी",
    "the the the",
    "?",
]
SETTINGS: dict[str, dict[str, Any]] = {
    "as published": {},
    "cased": {"do_lower_case": False},
    "cased without accents": {"do_lower_case": False, "strip_accents": True},
    "small with accents": {"strip_accents": False},
    "Chinese in words": {"tokenize_chinese_chars": False},
}


def check_equal(tokenizer: MarkedTokenizer, peer: Any) -> None:
    """Compares the tokens of each text, and of each with the next one, complete and truncated."""
    for first, second in zip(AWKWARD, [*AWKWARD[1:], AWKWARD[0]], strict=True):
        for given in ((first,), (first, second)):
            for context in (2000, 12):
                expected = peer(*given, truncation="longest_first", max_length=context)["input_ids"]
                laid = tokenizer.lay_out(given[0], given[1] if len(given) > 1 else None, context)
                assert laid.tokens.tolist() == expected, given


@pytest.mark.parametrize("settings", SETTINGS)
def test_word_pieces_are_those_of_bert(settings: str, tmp_path: Path) -> None:
    write_word_pieces(tmp_path, "".join(AWKWARD))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS[settings]))
    peer = transformers().BertTokenizer.from_pretrained(tmp_path)
    found = checkpoint_tokenizer(tmp_path)
    assert found is not None
    check_equal(found, peer)
    check_equal(MarkedTokenizer(found.state), peer)  # as stored in a run
    peer.save_pretrained(tmp_path / "whole")
    (tmp_path / "whole" / "vocab.txt").write_text("not read, where there is a tokenizer.json")
    whole = checkpoint_tokenizer(tmp_path / "whole")
    assert whole is not None
    check_equal(whole, peer)


@pytest.mark.parametrize("prefix", [False, True])
def test_byte_pairs_are_those_of_roberta(prefix: bool, tmp_path: Path) -> None:
    write_byte_pairs(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix}))
    peer = transformers().RobertaTokenizer.from_pretrained(tmp_path, add_prefix_space=prefix)
    found = checkpoint_tokenizer(tmp_path)
    assert found is not None
    check_equal(found, peer)
    check_equal(MarkedTokenizer(found.state), peer)
    peer.save_pretrained(tmp_path / "whole")
    whole = checkpoint_tokenizer(tmp_path / "whole")
    assert whole is not None
    check_equal(whole, peer)


def test_marks_of_roberta_written_out_in_a_text_are_plain_text(tmp_path: Path) -> None:
    write_byte_pairs(tmp_path)
    found = checkpoint_tokenizer(tmp_path)
    assert found is not None
    marks = found.marks
    assert (marks.class_token, marks.pad, marks.separator, marks.unknown) == (0, 1, 2, 3)
    tokens = found.encode("<s> the </s> <mask><pad>").tolist()
    assert not {marks.class_token, marks.pad, marks.separator, marks.mask} & set(tokens)
    pair = found.lay_out("the", "cat", 50).tokens.tolist()
    assert pair == [0, *found.encode("the").tolist(), 2, 2, *found.encode("cat").tolist(), 2]
    assert found.pieces(found.lay_out("the", None, 50).tokens) == ["<s>", "the", "</s>"]
    assert "</s> once more, the other text" in found.slot.about
    with refused(ValueError, "context=5 has no room for a text between its marks; expected at least 6"):
        found.lay_out("the", "cat", 5)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    assert checkpoint_tokenizer(tmp_path) is None
    (tmp_path / "vocab.json").write_text("{}")  # merges.txt is missing
    assert checkpoint_tokenizer(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("vocab.txt", "[PAD]\n[UNK]\nthe\n", "vocab.txt has no [CLS], [SEP], [MASK]"),
        ("tokenizer.json", "{}", "tokenizer.json: this is no tokenizer"),
        ("merges.txt", "#version: 0.2\nt h e\n", "merges.txt: has the line 't h e'; expected two tokens"),
        ("vocab.json", "[]", "vocab.json holds list; expected an object"),
        ("vocab.json", '{"t": 0}', "vocab.json and merges.txt are no tokens"),
        ("tokenizer_config.json", '{"add_prefix_space": 1}', "add_prefix_space must be true, false or null; got 1"),
    ],
)
def test_invalid_tokenizer_files_are_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    if name in ("merges.txt", "vocab.json", "tokenizer_config.json"):
        write_byte_pairs(tmp_path)
    (tmp_path / name).write_text(text)
    with refused(ValueError, message):
        checkpoint_tokenizer(tmp_path)
