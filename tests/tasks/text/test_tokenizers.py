import json
import random
import sys

import pytest
import torch

from fredholm.tasks.text import BytePairs, Bytes, ByteTokenizer, documents
from tests.refusals import refused
from tests.tasks.text.literal import join

CORPUS = [
    "the cat sat on the mat.\n\n  The other cat\tate it: 12.5 % of the catalogue!\n" * 20,
    "Zwölf Boxkämpfer jagen Viktor über den großen Sylter Deich. 𝄞 €\r\n" * 10,
]
STRANGE = ["", "\x00\x7f\x80\xff", "\ufeff<|endoftext|>", "日本語 العربية 🏳️‍🌈", " \n \n\n  x\u2028y\u3000z", "a" * 500]


@pytest.fixture(scope="module", params=["bytes", "byte pairs"])
def tokenizer(request: pytest.FixtureRequest) -> ByteTokenizer:
    return Bytes() if request.param == "bytes" else BytePairs.learn(CORPUS, 320)


@pytest.mark.parametrize("text", [*CORPUS, *STRANGE])
def test_every_text_is_decoded_exactly(tokenizer: ByteTokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokens.dtype == torch.int32
    assert tokens.ndim == 1
    assert tokenizer.decode(tokens.tolist()) == text.encode()
    assert tokenizer.end_of_text not in tokens
    assert not len(tokens) or 0 <= int(tokens.min()) <= int(tokens.max()) < tokenizer.vocab_size


def test_any_tokens_decode_to_bytes(tokenizer: ByteTokenizer) -> None:
    numbers = [random.Random(0).randrange(tokenizer.vocab_size) for _ in range(500)]
    assert tokenizer.decode(numbers) == b"".join(map(tokenizer.token_bytes, numbers))
    assert {tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)} >= {bytes([b]) for b in range(256)}
    assert tokenizer.token_bytes(tokenizer.end_of_text) == b""
    for token in (-1, tokenizer.vocab_size):
        with refused(ValueError, f"there is no token {token}"):
            tokenizer.token_bytes(token)


def test_sizes_in_bytes(tokenizer: ByteTokenizer) -> None:
    tokens = torch.tensor(join(tokenizer, CORPUS, tokenizer.end_of_text))
    whole = sum(len(text.encode()) for text in CORPUS)
    assert int(tokenizer.num_bytes[tokens].sum()) == whole + len(CORPUS)
    assert len(tokenizer.num_bytes) == tokenizer.vocab_size


def test_half_a_surrogate_pair_is_refused(tokenizer: ByteTokenizer) -> None:
    with refused(ValueError, "no UTF-8 at character 2"):
        tokenizer.encode("ab\udce9")


def test_a_byte_is_its_own_token() -> None:
    assert Bytes().encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert (Bytes().vocab_size, Bytes().end_of_text) == (257, 256)


def test_frequent_pairs_are_merged() -> None:
    learnt = BytePairs.learn(CORPUS, 320)
    assert learnt.vocab_size == 320
    spelt = {learnt.token_bytes(token) for token in range(320)}
    assert {b"the", b" cat"} <= spelt
    assert len(learnt.encode(CORPUS[0])) < 0.5 * len(CORPUS[0])
    assert BytePairs.learn(["ab"], 1000).vocab_size == 258  # one pair, and no more to merge
    assert BytePairs.learn(CORPUS, 257).encode("the").tolist() == [
        learnt.encode(letter).tolist()[0] for letter in "the"
    ]


def test_the_same_text_gives_the_same_tokens_and_they_survive_json() -> None:
    learnt, again = (BytePairs.learn(CORPUS, 300) for _ in range(2))
    assert learnt.state == again.state
    back = BytePairs(json.loads(json.dumps(learnt.state)))
    assert [back.token_bytes(t) for t in range(300)] == [learnt.token_bytes(t) for t in range(300)]
    assert torch.equal(back.encode(CORPUS[1]), learnt.encode(CORPUS[1]))


def test_a_long_text_in_pieces_gives_the_tokens_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(CORPUS) + "\n\n \n\tthe end\n\n\nthe\r\ncat\n sat \n\u2003\nmat\n\n"
    # runs of blanks are tokens, so that a cut inside one would give another token
    learnt = BytePairs.learn([*CORPUS, "cat\n\n\nthe\n\n\ncat\n\n\nthe \n\u2003\nmat" * 9], 330)
    whole = learnt.encode(text)
    for size in (1, 7, 60):
        monkeypatch.setattr(documents, "PIECE", size)
        assert len(list(documents.pieces(text))) > 3
        assert torch.equal(learnt.encode(text), whole)


def test_bad_vocabularies() -> None:
    with refused(ValueError, "vocab_size is 256; expected at least 257"):
        BytePairs.learn(CORPUS, 256)
    with refused(ValueError, "this is no tokenizer of the tokenizers library"):
        BytePairs("{}")
    words = json.loads(BytePairs.learn(CORPUS, 260).state)
    words["model"]["vocab"] = {"the cat": 0}
    words["model"]["merges"] = []
    with refused(ValueError, "this tokenizer is not over bytes"):
        BytePairs(json.dumps(words))


def test_the_missing_library_gives_an_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r'pip install "fredholm\[data\]"'):
        BytePairs.learn(CORPUS, 300)
