import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm.tasks.text import MARKS, MarkedTokenizer, Tokens
from tests.refusals import refused

TEXTS = [
    "The cat sat on the mat.",
    "Der Kater saß auf der Matte, was die Katze ärgerte!",
    "the other cat\tate it: 12.5 % of the catalogue\n\nand the mat",
] * 4
KINDS = {
    "bytes": Tokens(kind="bytes"),
    "byte pairs": Tokens(kind="byte_pairs", vocab_size=290),
    "word pieces": Tokens(vocab_size=90),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> MarkedTokenizer:
    return KINDS[request.param].learn(TEXTS)


def test_no_text_is_encoded_as_marks(tokenizer: MarkedTokenizer) -> None:
    marks = tokenizer.marks
    ids = {marks.pad, marks.unknown, marks.class_token, marks.separator, marks.mask}
    assert ids == {0, 1, 2, 3, 4}
    for mark in MARKS:
        assert not (ids - {marks.unknown}) & set(tokenizer.encode(f"the {mark} cat{mark}").tolist())
        assert len(tokenizer.encode(mark)) > 2


def test_a_sentence_and_a_pair_are_laid_out_between_marks(tokenizer: MarkedTokenizer) -> None:
    a, b = (tokenizer.encode(text).tolist() for text in ("the cat", "on the mat"))
    start, end = tokenizer.marks.class_token, tokenizer.marks.separator
    alone, pair = tokenizer.lay_out("the cat", None, 50), tokenizer.lay_out("the cat", "on the mat", 50)
    assert alone.tokens.tolist() == [start, *a, end]
    assert pair.tokens.tolist() == [start, *a, end, *b, end]
    assert alone.tokens.dtype == tokenizer.encode("a").dtype == torch.int32
    assert not alone.is_cut
    assert not pair.is_cut


def test_the_longer_sentence_of_a_pair_is_truncated_first(tokenizer: MarkedTokenizer) -> None:
    long, short = "the cat sat on the mat " * 3, "the mat"
    a, b = (tokenizer.encode(text).tolist() for text in (long, short))
    start, end = tokenizer.marks.class_token, tokenizer.marks.separator
    room = len(b) + 2
    for texts, expected in (
        ((long, short), [start, *a[:room], end, *b, end]),
        ((short, long), [start, *b, end, *a[:room], end]),
        ((long, None), [start, *a[: 2 * len(b) + 3], end]),
    ):
        found = tokenizer.lay_out(*texts, context=3 + len(b) + room)
        assert found.tokens.tolist() == expected
        assert found.is_cut
    both = tokenizer.lay_out(long, long, context=13).tokens.tolist()
    assert both == [start, *a[:5], end, *a[:5], end]
    assert tokenizer.encode(long).tolist() == a  # not truncated
    with refused(ValueError, "context=4 has no room for a text between its marks; expected at least 5"):
        tokenizer.lay_out("a", None, 4)


def test_word_pieces_match_bert() -> None:
    tokenizer = KINDS["word pieces"].learn(TEXTS)
    assert tokenizer.vocab_size == 90
    vocabulary = json.loads(tokenizer.state)["model"]["vocab"]
    spelt = {token: word for word, token in vocabulary.items()}
    assert [spelt[token] for token in tokenizer.encode("The MAT.").tolist()] == ["the", "mat", "."]
    assert tokenizer.encode("z☃").tolist()[-1] == tokenizer.marks.unknown
    assert {"##t", "##e"} <= vocabulary.keys()
    assert "##." not in vocabulary
    large = Tokens(vocab_size=90, lowercase=False).learn(TEXTS)
    assert large.encode("The").tolist() != large.encode("the").tolist()


def test_accents_are_kept_however_they_are_written() -> None:
    tokenizer = Tokens(vocab_size=60).learn(["MÄT mat", "mät matt"])
    composed, plain = (tokenizer.encode(text).tolist() for text in ("mät", "mat"))
    assert composed != plain
    assert tokenizer.marks.unknown not in composed
    assert tokenizer.encode("ma\u0308t").tolist() == composed  # an a and a mark above it


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("naïve thé ca\u0301t", "naive the cat"),  # an accent that training lacks is left out
        ("über uber thë", "über uber the"),  # one that it has is kept, where it has it
        ("कीटु", "कीट"),  # a vowel sign that it has is a letter of its own
        ("cat☃☃s uqthe", "cat � s u � the"),
        ("ubzer", "ubzer"),  # z only begins a word in training
        ("ế é", "ế e"),  # a letter of two accents
        ("привет", "�"),
    ],
)
def test_only_a_letter_that_training_lacks_is_unknown(text: str, read: str) -> None:
    tokenizer = Tokens(vocab_size=99).learn(["the cats ate naive über uber", "zebra नी कट ế"])
    assert spelt(tokenizer, text).strip("_ ") == read


def test_a_text_without_spaces_is_cut_into_words() -> None:
    tokenizer = Tokens(vocab_size=60).learn(["acgt" * 60, "tgca" * 60])
    found = tokenizer.encode("gattaca" * 40)
    assert tokenizer.marks.unknown not in found.tolist()
    assert "".join(tokenizer.letters[token] for token in found.tolist()).replace(" ", "") == "gattaca" * 40


def test_every_byte_has_a_token() -> None:
    single, pairs = KINDS["bytes"].learn(TEXTS), KINDS["byte pairs"].learn(TEXTS)
    assert (single.vocab_size, pairs.vocab_size) == (261, 290)
    assert len(single.encode("für ☃")) == len("für ☃".encode())
    assert len(pairs.encode(TEXTS[0])) < len(single.encode(TEXTS[0]))
    assert single.state == Tokens(kind="bytes").learn([]).state


def spelt(tokenizer: MarkedTokenizer, first: str, second: str | None = None) -> str:
    """The text of the tokens of a sentence or a pair, with runs of spaces reduced to one."""
    letters = tokenizer.letters
    found = "".join(letters[token] for token in tokenizer.lay_out(first, second, 99).tokens.tolist())
    return " ".join(("_" + found + "_").split(" ")).replace("  ", " ").replace("  ", " ")


def test_letters_spell_the_text_with_spaces_between_words() -> None:
    pieces = KINDS["word pieces"].learn(TEXTS)
    assert len(pieces.letters) == pieces.vocab_size
    assert spelt(pieces, "The KATZE was late,and catass ☃", "ate it") == "_ the katze was late , and catass � ate it _"
    cat = [pieces.letters[token] for token in pieces.encode("catat").tolist()]
    assert cat[0].startswith(" c")
    assert not any(" " in piece for piece in cat[1:])
    for kind in ("bytes", "byte pairs"):
        tokenizer = KINDS[kind].learn(TEXTS)
        assert spelt(tokenizer, "the cat\tis,\n ñ 12", "a") == "_ the cat is, Ã± 12 a _"  # ñ is two bytes
        voila = "".join(tokenizer.letters[token] for token in tokenizer.encode("voilàÅ").tolist())
        assert voila == "voilÃłÃħ"  # their second bytes are spaces in Latin-1
        assert {tokenizer.letters[mark] for mark in (tokenizer.marks.pad, tokenizer.marks.mask)} == {""}


def test_letters_of_a_custom_tokenizer_follow_its_decoder() -> None:
    assert spelt(MarkedTokenizer(custom_tokenizer().to_str()), "the cat dog the") == "_ the cat � the _"
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    marks = {mark: number for number, mark in enumerate(MARKS)}
    vocabulary = marks | {letter: 5 + i for i, letter in enumerate(["▁", "a", "b", "c", "c</w>", "ab"])}
    sentence_pieces = Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="[UNK]"))
    sentence_pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    assert spelt(MarkedTokenizer(sentence_pieces.to_str()), "abc  a") == "_ abc a _"
    replaced = Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="[UNK]"))
    replaced.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    assert spelt(MarkedTokenizer(replaced.to_str()), "abc a") == "_ abc a _"
    ended = Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="[UNK]", end_of_word_suffix="</w>"))
    ended.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert spelt(MarkedTokenizer(ended.to_str()), "abc bc") == "_ abc bc _"


@pytest.mark.slow
def test_another_process_learns_the_same_tokenizer() -> None:
    """The library draws the order of its hashes anew in each process."""
    learnt = f"(kind.learn({TEXTS!r}).state for kind in {[*KINDS.values()]!r})"
    program = f"from fredholm.tasks.text import Tokens; print(*{learnt}, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [kind.learn(TEXTS).state for kind in KINDS.values()]


def test_it_survives_json_and_is_loaded_from_a_file(tokenizer: MarkedTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.state)
    for back in (MarkedTokenizer(tokenizer.state), Tokens(file=str(path)).learn([])):
        assert (back.state, back.marks, back.vocab_size) == (tokenizer.state, tokenizer.marks, tokenizer.vocab_size)
        assert torch.equal(back.encode(TEXTS[1]), tokenizer.encode(TEXTS[1]))


def custom_tokenizer(**changes: Any) -> Any:
    """A tokenizer of words, as a user may supply one, with padding, truncation and a template of its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"cat": 0, "the": 1, "[MASK]": 2, "[SEP]": 3, "[PAD]": 7, "[CLS]": 5, "[UNK]": 6} | changes
    tokenizer = Tokenizer(
        models.WordLevel({word: i for word, i in vocabulary.items() if i is not None}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 3)])
    return tokenizer


def test_a_custom_tokenizer_uses_the_layout_of_all(tmp_path: Path) -> None:
    from tokenizers import AddedToken

    path, own = tmp_path / "tokenizer.json", custom_tokenizer()
    own.add_tokens([AddedToken("[SEP]", special=False)])
    own.save(str(path))
    tokenizer = MarkedTokenizer.load(path)
    assert tokenizer.vocab_size == 8
    assert tokenizer.encode("the the cat").tolist() == [1, 1, 0]
    assert tokenizer.encode("cat[SEP] cat").tolist() == [6, 0]
    assert tokenizer.lay_out("the the cat", "dog [PAD]", 20).tokens.tolist() == [5, 1, 1, 0, 3, 6, 6, 3]


def test_invalid_tokenizers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    custom_tokenizer(**{"[MASK]": None, "[CLS]": None}).save(str(path))
    with refused(ValueError, f"{path}: this tokenizer has no [CLS], [MASK]; expected the marks [PAD], [UNK]"):
        MarkedTokenizer.load(path)
    path.write_text('{"version": "1.0"}')
    with refused(ValueError, f"{path}: this is no tokenizer of the tokenizers library"):
        MarkedTokenizer.load(path)
    with refused(ValueError, "absent.json: cannot be read"):
        MarkedTokenizer.load(tmp_path / "absent.json")
    broken = json.loads(custom_tokenizer().to_str())
    broken["model"]["unk_token"] = "<unk>"
    with refused(ValueError, "the tokenizer cannot encode 'dog'"):
        MarkedTokenizer(json.dumps(broken)).encode("dog")


def test_settings_without_effect_or_out_of_range_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "words"}, "kind is 'words'; expected one of"),
        ({"kind": "bytes", "vocab_size": 300}, "vocab_size=300 has no effect with kind='bytes'"),
        ({"kind": "bytes", "lowercase": False}, "lowercase=False has no effect with kind='bytes'"),
        ({"kind": "byte_pairs", "lowercase": False}, "lowercase=False has no effect with kind='byte_pairs'"),
        ({"file": "t.json", "kind": "bytes"}, "kind='bytes' has no effect with file='t.json'"),
        ({"file": "t.json", "vocab_size": 9}, "vocab_size=9 has no effect with file='t.json'"),
    ]
    for settings, message in cases:
        with refused(ValueError, message):
            Tokens(**settings)
    with refused(ValueError, "vocab_size is 260; expected at least 261, the marks and the bytes"):
        Tokens(kind="byte_pairs", vocab_size=260).learn(TEXTS)
    with refused(ValueError, "vocab_size is 20; expected at least", "the marks and the letters of the texts"):
        Tokens(vocab_size=20).learn(TEXTS)


def test_half_a_surrogate_pair_is_refused(tokenizer: MarkedTokenizer) -> None:
    with refused(ValueError, "no UTF-8 at character 2"):
        tokenizer.lay_out("fine", "ab\udce9", 50)


def test_the_missing_library_gives_an_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r'pip install "fredholm\[data\]"'):
        Tokens().learn(TEXTS)
