import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.kernels import Rotary
from fredholm.models import Aether, Llama, Mamba
from fredholm.models.language.generation import Sampling
from fredholm.models.language.gpt2 import GPT2
from fredholm.models.language.language_model import LanguageModel
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import Batch, LanguageModelling, Task
from fredholm.tasks.text import IGNORED
from fredholm.training import Run, TrainingConfig, seed_everything, train
from fredholm.training.batches import EpochBatches, iterate
from fredholm.training.scoring import score_split
from tests.refusals import refused
from tests.tasks.text.literal import join, texts

SMALL = GPT2.Config(embed_dim=8, depth=1, num_heads=2, dropout=0.0)
TEXT = "".join(f"{i}: the cat sat on the mat, and {i % 7} mice watched it.\n" for i in range(60))
CPU = torch.device("cpu")


def config(folder: Path, **settings: Any) -> LanguageModelling.Config:
    path = folder / "cats.txt"
    if not path.exists():
        path.write_text(TEXT)
    return LanguageModelling.Config(
        **{"data": str(path), "valid_fraction": 0.0, "context": 16, "model": SMALL, **settings}
    )


def everything(task: Task, epoch: int, seed: int = 0, num_workers: int = 0) -> list[Batch]:
    made = iterate(EpochBatches(task, 5, seed, epoch), 0, num_workers=num_workers, pin_memory=False)
    return [share.rows for share in made]


def counted(batches: list[Batch]) -> list[int]:
    targets = torch.cat([batch["targets"] for batch in batches])
    return sorted(targets[targets != IGNORED].tolist())


@pytest.mark.parametrize("vocab_size", [None, 300])
def test_every_training_token_is_a_target_once_per_epoch(tmp_path: Path, vocab_size: int | None) -> None:
    task = config(tmp_path, vocab_size=vocab_size).build()
    end = task.tokenizer.end_of_text
    tokens = sorted(join(task.tokenizer, texts(task.splits.train), end)[1:])
    for epoch in range(3):
        batches = everything(task, epoch)
        assert counted(batches) == tokens
        assert sum(task.num_targets(batch) for batch in batches) == len(tokens)
        assert sum(len(batch["inputs"]) for batch in batches) == task.num_train


def test_the_seed_decides_where_epochs_are_cut_into_blocks(tmp_path: Path) -> None:
    task = config(tmp_path).build()

    def starts(epoch: int, seed: int = 0, num_workers: int = 0) -> list[list[int]]:
        return [row[:8] for batch in everything(task, epoch, seed, num_workers) for row in batch["inputs"].tolist()]

    assert starts(0) == starts(0) == starts(0, num_workers=1)
    assert starts(3) == starts(3)
    assert {tuple(row) for row in starts(0)} != {tuple(row) for row in starts(1)}
    assert {tuple(row) for row in starts(0)} != {tuple(row) for row in starts(0, seed=1)}
    drawn = {task.for_epoch(torch.Generator().manual_seed(s))._offset % 16 for s in range(60)}
    assert len(drawn) == 16


def test_a_resumed_run_continues_with_the_same_blocks(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    whole = everything(task, 2)
    rest = [share.rows for share in iterate(EpochBatches(task, 5, 0, 2), 3, num_workers=0, pin_memory=False)]
    for one, other in zip(whole[3:], rest, strict=True):
        assert torch.equal(one["inputs"], other["inputs"])
        assert torch.equal(one["targets"], other["targets"])


class Table(nn.Module):
    """A bigram model: the logits after a token are a row of a table."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = torch.randn(size, size, generator=torch.Generator().manual_seed(3))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


@pytest.mark.parametrize("vocab_size", [None, 300])
@pytest.mark.parametrize("stride", [None, 5])
def test_metrics_count_every_test_token_once(tmp_path: Path, vocab_size: int | None, stride: int | None) -> None:
    task = config(tmp_path, vocab_size=vocab_size, stride=stride).build()
    model = Table(task.tokenizer.vocab_size)
    assert task.splits.test is not None
    text = "".join(task.splits.test)
    tokens = torch.tensor([task.tokenizer.end_of_text, *task.tokenizer.encode(text).tolist()])
    nats = F.cross_entropy(model.table[tokens[:-1]].double(), tokens[1:], reduction="sum").item()
    found = score_split(task, "test", model, batch_size=3, device=CPU, dtype=torch.float32)
    loss = nats / (len(tokens) - 1)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-6)
    file = tmp_path / "test.txt"
    file.write_text(text)
    (row,) = task.predict(model, [file], CPU)
    assert (row["file"], row["tokens"]) == (str(file), len(tokens) - 1)
    assert {name: row[name] for name in found} == pytest.approx(found, rel=1e-5)


def test_a_stride_gives_every_token_more_context(tmp_path: Path) -> None:
    seed_everything(0)
    task = config(tmp_path, stride=4).build()
    batch = task.held_out_batch("test", torch.arange(task.num_held_out("test")))
    first = (batch["targets"] != IGNORED).int().argmax(1)
    assert (first[4:] == 12).all()


def test_the_loss_is_summed_over_the_targets_that_are_not_ignored(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    model, inputs = Table(257), torch.tensor([[1, 2, 3], [4, 5, 6]])
    targets = torch.tensor([[2, 3, IGNORED], [IGNORED, 6, 7]])
    batch = {"inputs": inputs, "targets": targets}
    logs = model.table.log_softmax(-1)
    expected = -sum(logs[a, b] for a, b in ((1, 2), (2, 3), (5, 6), (6, 7)))
    torch.testing.assert_close(task.loss(model, batch), expected)
    assert task.num_targets(batch) == 4


def test_documents_and_the_held_out_splits(tmp_path: Path) -> None:
    task = config(tmp_path, documents="line", test_fraction=0.1, valid_fraction=0.2).build()
    assert task.splits.valid is not None
    assert task.splits.valid.size.documents == pytest.approx(12, abs=1)
    assert task.num_held_out("valid") > task.num_held_out("test") > 0
    assert (task.held_out_streams["valid"].windows(torch.tensor([0]), 16, 16)[0][0, :1] == 256).all()
    assert (task.held_out_batch("valid", torch.tensor([0]))["inputs"][0, 0] == 256).all()


def test_text_shorter_than_a_context_is_reported(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("abcd")
    short = LanguageModelling.Config(data=str(tmp_path / "short.txt"), context=64, valid_fraction=0.0)
    with pytest.warns(UserWarning, match=r"short\.txt has 3 tokens to learn from, less than one context of 64"):
        assert short.build().train_stream.num_targets == 3


def test_prediction_and_generation_need_no_data(tmp_path: Path) -> None:
    task = config(tmp_path, vocab_size=300).build()
    facts = from_json(json.loads(json.dumps(to_json(task.facts))), Task.Facts, [LanguageModelling.Facts])
    moved = dataclasses.replace(task.config, data=str(tmp_path / "gone.txt")).build(facts)
    seed_everything(0)
    model = moved.model().eval()
    (row,) = moved.predict(model, [tmp_path / "cats.txt"], CPU)
    assert row["perplexity"] == pytest.approx(300, rel=0.1)
    pieces = moved.generate(
        model, "the", max_tokens=3, sampling=Sampling(), generator=torch.Generator().manual_seed(0), device=CPU
    )
    assert 1 <= len(list(pieces)) <= 3
    with pytest.raises(ValueError, match="no text at"):
        moved.num_train  # noqa: B018 - reads the data


def test_bad_settings(tmp_path: Path) -> None:
    for settings, message in (
        ({"context": 0}, "context is 0; expected at least 1"),
        ({"stride": 0}, "stride is 0; expected 1 to the context of 16"),
        ({"stride": 17}, "stride is 17"),
    ):
        with refused(ValueError, message):
            config(tmp_path, **settings)
    with refused(ValueError, "no text is given"):
        LanguageModelling.Config().build()
    with refused(ValueError, "the facts are of Task.Facts, not of language modelling"):
        config(tmp_path).build(Task.Facts())
    assert config(tmp_path).build().num_held_out("valid") == 0
    folder = tmp_path / "ptb"
    folder.mkdir()
    (folder / "train.txt").write_text("a")
    (folder / "valid.txt").write_text("b")
    assert LanguageModelling.Config(data=str(folder)).build().num_held_out("test") == 0
    with refused(ValueError, "vocab_size is 12; expected at least 257"):
        config(tmp_path, vocab_size=12).build()


def test_missing_torchmetrics_gives_an_install_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "fredholm.tasks.mean_metrics", raising=False)
    with pytest.raises(ImportError, match=r'pip install "fredholm\[train\]"'):
        config(tmp_path).build().metrics()


@pytest.mark.parametrize(
    "model",
    [
        SMALL,
        Aether.Config(embed_dim=8, depth=1, num_heads=2, dropout=0.0),
        Llama.Config(embed_dim=8, depth=1, num_heads=2, num_kv_heads=1, rotary=Rotary()),
        Mamba.Config(embed_dim=8, depth=1, state_dim=4),
    ],
    ids=["GPT-2", "Aether", "Llama", "Mamba"],
)
def test_each_model_learns_and_the_run_is_read_back(tmp_path: Path, model: LanguageModel.Config) -> None:
    training = TrainingConfig(
        epochs=6, batch_size=8, learning_rate=1e-2, ema_decay=0.9, tensorboard=False, evaluate_every=3, device="cpu"
    )
    task = config(tmp_path, vocab_size=280, model=model)
    result = train(Run.Config(task=task, training=training), tmp_path / "run")
    assert result.metrics["perplexity"] < 60  # 280 at the start
    run = Run(tmp_path / "run", device="cpu")
    assert run.evaluate() == pytest.approx(result.metrics, rel=1e-6)
    assert run.config.task.model == model  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("kind", [Aether.Config, GPT2.Config, Llama.Config, Mamba.Config])
@pytest.mark.parametrize("width", [96, 384])
def test_models_are_sized_by_the_data_unless_set(kind: type[LanguageModel.Config], width: int) -> None:
    found = kind().resized(width, 4, GPT2.Config())
    sizes: dict[str, Any] = vars(found)
    assert (sizes["embed_dim"], sizes["depth"]) == (width, 8 if kind is Mamba.Config else 4)
    with torch.device("meta"):
        found.build(300, 128)
    sizes: dict[str, Any] = {"embed_dim": 192, "depth": 3}
    given: Any = kind(**sizes).resized(width, 4, GPT2.Config())
    assert (given.embed_dim, given.depth) == (192, 3)
    with torch.device("meta"):
        given.build(300, 128)


def test_a_llama_keeps_an_explicit_number_of_heads() -> None:
    found = Llama.Config(embed_dim=48, num_heads=6, num_kv_heads=3).resized(96, 4, GPT2.Config())
    assert (found.num_heads, found.num_kv_heads, found.depth) == (6, 3, 4)
    assert Llama.Config(embed_dim=48, num_heads=24).resized(96, 4, GPT2.Config()).num_kv_heads == 24
