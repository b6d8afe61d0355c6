"""The tokens of a text read in chunks equal those of its documents, in memory or mapped."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from fredholm.tasks import LanguageModelling, MaskedLanguageModelling
from fredholm.tasks.files import cache
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.text import BytePairs, Bytes, Documents, MarkedTokenizer, Tokenizer, Tokens, documents, joined
from fredholm.training.batches import EpochBatches
from tests.tasks.text.literal import join, texts

TEXT = "".join(f"The cat number {i} sat\n\n on the mat,\nand {i % 7} mice watched it.\n\n\n" for i in range(150))


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder; everything of at least a hundred bytes is cached."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LARGE", 100)
    return tmp_path / "cache"


def tokenizers(text: str) -> list[Tokenizer]:
    return [
        Bytes(),
        BytePairs.learn([text], 300),
        MarkedTokenizer.byte_pairs([text], 300),
        MarkedTokenizer.word_pieces([text], 120),
    ]


@pytest.mark.parametrize("number", range(4))
def test_tokens_equal_those_of_the_documents(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "a.txt").write_text(TEXT)
    tokenizer = tokenizers(TEXT)[number]
    assert tokenizer.reads_pieces
    for piece in (10, 1 << 16):
        for large in (100, 1 << 30):
            monkeypatch.setattr(documents, "PIECE", piece)
            monkeypatch.setattr(cache, "LARGE", large)
            found = Documents([tmp_path / "a.txt"], "blank line")
            assert joined(found, tokenizer, before=7).tolist() == join(tokenizer, texts(found), 7)
            expected = join(tokenizer, texts(found), 7)
            assert joined(found, tokenizer, after=7).tolist() == [*expected[1:], 7]


def test_a_tokenizer_that_looks_across_lines_gets_whole_documents(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    own = MarkedTokenizer.byte_pairs([TEXT], 300)
    whole = tokenizers.Tokenizer.from_str(own.state)
    whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    own = MarkedTokenizer(whole.to_str())
    assert not own.reads_pieces
    (tmp_path / "a.txt").write_text(TEXT * 30)
    found = Documents([tmp_path / "a.txt"], "file")
    assert len(list(found)) > 1
    assert joined(found, own, before=1).tolist() == join(own, [TEXT * 30], 1)


def test_few_tokens_take_two_bytes_each(tmp_path: Path) -> None:
    class Many(Tokenizer):
        @property
        def vocab_size(self) -> int:
            return (1 << 16) + 1

        @property
        def identity(self) -> str:
            return "many"

        def encode(self, text: str):
            return Bytes().encode(text)

    (tmp_path / "a.txt").write_text("ab")
    found = Documents([tmp_path / "a.txt"], "file")
    assert joined(found, Bytes(), before=256).dtype == np.uint16
    assert joined(found, Many(), before=1 << 16).tolist() == [1 << 16, 97, 98]


@pytest.mark.parametrize("settings", [{"vocab_size": 280}, {"packed": True}, {"packed": False}])
def test_mapped_tokens_train_like_tokens_in_memory(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "a.txt").write_text(TEXT)
    text: dict[str, Any] = {"data": str(tmp_path / "a.txt"), "documents": "blank line", "context": 24, **settings}
    config = (
        LanguageModelling.Config(**text)
        if "vocab_size" in settings
        else MaskedLanguageModelling.Config(tokens=Tokens(vocab_size=120), **text)
    )
    monkeypatch.setattr(cache, "LARGE", 1 << 30)
    tasks = [config.build()]
    assert not cache_folder.exists()
    monkeypatch.setattr(cache, "LARGE", 100)
    tasks += [config.build(), config.build()]
    batches = [EpochBatches(task, 5, 0, 1) for task in tasks]
    assert tasks[0].facts == tasks[1].facts == tasks[2].facts
    for i in range(len(batches[0])):
        for other in batches[1:]:
            assert all((batches[0][i].rows[name] == tensor).all() for name, tensor in other[i].rows.items())
    for split in get_args(HeldOut):
        indices = torch.arange(tasks[0].num_held_out(split))
        one, two, _ = (task.held_out_batch(split, indices) for task in tasks)
        assert all((one[name] == tensor).all() for name, tensor in two.items())
    assert len(list(cache_folder.glob("*.bin"))) == 3  # one per split
    assert len(list(cache_folder.glob("*.json"))) == 6  # two cuts, and the tokenizer


def test_a_changed_text_gets_new_tokens(tmp_path: Path, cache_folder: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a" * 200)
    assert joined(Documents([file], "file"), Bytes()).tolist() == [97] * 200
    file.write_text("b" * 200)
    assert joined(Documents([file], "file"), Bytes()).tolist() == [98] * 200
    assert joined(Documents([file], "file"), Bytes(), before=256).tolist() == [256, *[98] * 200]
