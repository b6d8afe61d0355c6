"""Masked language models: hidden tokens, targets, and evaluation that always hides the same tokens."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.models import AttentionConfig, ITNet, ITNetMaskedModel, SentenceStackConfig
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import MaskedLanguageModelling, SentenceLearning, Task
from fredholm.tasks.text import IGNORED, Tokens
from fredholm.tasks.text.masked_language_modelling import MASKED, RANDOM
from fredholm.training import Run, TrainingConfig, train
from tests.refusals import refused
from tests.tasks.text.literal import texts

pytest.importorskip("tokenizers")

STACK = ITNet.Config(embed_dim=8, depth=1, num_heads=2, kernel=AttentionConfig(), dropout=0.0)
SMALL = ITNetMaskedModel.Config(stack=STACK, position_frequencies=4)
TEXT = "".join(f"The cat number {i} sat on the mat, and {i % 7} mice watched it.\n" for i in range(150))


def config(folder: Path, **settings: Any) -> MaskedLanguageModelling.Config:
    if not (folder / "cats.txt").exists():
        (folder / "cats.txt").write_text(TEXT)
    tokens = Tokens(vocab_size=120)
    start: dict[str, Any] = {"data": str(folder / "cats.txt"), "context": 24, "tokens": tokens, "model": SMALL}
    return MaskedLanguageModelling.Config(**{**start, "documents": "line", **settings})


def whole(task: MaskedLanguageModelling, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and targets of an epoch, and the text from which they were made."""
    batch = task.train_batch(torch.arange(task.num_train), torch.Generator().manual_seed(seed))
    return batch["inputs"], batch["targets"], batch["inputs"].where(batch["targets"] == IGNORED, batch["targets"])


def test_blocks_hold_the_text_once_after_class_tokens(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    marks = task.tokenizer.marks
    _, _, text = whole(task)
    assert (text[:, 0] == marks.class_token).all()
    held = text[:, 1:].flatten()
    tokens = [t for line in texts(task.splits.train) for t in (*task.tokenizer.encode(line).tolist(), marks.separator)]
    assert held[held != marks.pad].tolist() == tokens


def test_unpacked_documents_share_no_block(tmp_path: Path) -> None:
    task = config(tmp_path, packed=False, context=9).build()
    marks = task.tokenizer.marks
    lines = [[*task.tokenizer.encode(line).tolist(), marks.separator] for line in texts(task.splits.train)]
    pieces = [line[i : i + 8] for line in lines for i in range(0, len(line), 8)]
    _, _, text = whole(task)
    assert [[t for t in row if t != marks.pad] for row in text[:, 1:].tolist()] == pieces
    lengths = task.train_lengths
    assert lengths is not None
    assert lengths.tolist() == [len(piece) for piece in pieces]
    assert config(tmp_path).build().train_lengths is None
    moved = task.for_epoch(torch.Generator().manual_seed(3))
    assert torch.equal(whole(moved)[2], text)


def test_padding_does_not_change_the_hidden_tokens_in_evaluation(tmp_path: Path) -> None:
    task = config(tmp_path, packed=False, context=40).build()
    ahead = task.held_out_batch("test", torch.arange(task.num_held_out("test")))
    for index in (0, task.num_held_out("test") - 1):
        alone = task.held_out_batch("test", torch.tensor([index]))
        size = alone["inputs"].shape[1]
        for name, filler in (("inputs", task.tokenizer.marks.pad), ("targets", IGNORED)):
            assert torch.equal(ahead[name][index, :size], alone[name][0])
            assert (ahead[name][index, size:] == filler).all()
    assert ahead["inputs"].shape[1] < 40


def test_a_batch_without_hidden_tokens_has_a_loss(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    batch = {name: tensor[:1, :1] for name, tensor in task.held_out_batch("test", torch.arange(1)).items()}
    assert task.num_targets(batch) == 0
    assert float(task.loss(task.model(), batch).detach()) == 0


def test_a_share_of_each_block_is_masked_as_in_bert(tmp_path: Path) -> None:
    task = config(tmp_path, mask_fraction=0.3).build()
    marks, many = task.tokenizer.marks, [whole(task, seed) for seed in range(30)]
    inputs, targets, text = (torch.cat(parts) for parts in zip(*many, strict=True))
    chosen, reserved = targets != IGNORED, torch.tensor([marks.pad, marks.class_token, marks.separator, marks.unknown])
    assert not torch.isin(targets[chosen], reserved).any()
    words = ~torch.isin(text, reserved)
    assert chosen.sum(1).tolist() == (words.sum(1) * 0.3).round().clamp(min=1).long().tolist()
    hidden, same = inputs[chosen] == marks.mask, inputs[chosen] == targets[chosen]
    assert hidden.double().mean().item() == pytest.approx(MASKED, abs=0.02)
    assert same.double().mean().item() == pytest.approx(1 - MASKED - RANDOM, abs=0.02)
    drawn = inputs[chosen][~hidden & ~same]
    assert not torch.isin(drawn, torch.cat([reserved, torch.tensor([marks.mask])])).any()
    assert len(drawn.unique()) > 50
    assert torch.equal(inputs[~chosen], text[~chosen])


def test_training_masks_anew_and_evaluation_never_does(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    assert not torch.equal(whole(task, 0)[1], whole(task, 1)[1])
    ahead, alone = (
        task.held_out_batch("test", torch.arange(task.num_held_out("test"))),
        task.held_out_batch("test", torch.tensor([1])),
    )
    for name in ("inputs", "targets"):
        assert torch.equal(ahead[name][1:2], alone[name])
    moved = task.for_epoch(torch.Generator().manual_seed(3))
    assert not torch.equal(whole(moved)[2], whole(task)[2])
    assert sorted(whole(moved)[2].flatten().tolist()) == sorted(whole(task)[2].flatten().tolist())


def test_the_loss_is_over_hidden_tokens_alone(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    batch = task.held_out_batch("test", torch.arange(3))

    class Perfect(torch.nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            right = batch["targets"].clamp(min=0)
            return 50.0 * torch.nn.functional.one_hot(right, task.tokenizer.vocab_size)

    assert float(task.loss(Perfect(), batch)) == pytest.approx(0, abs=1e-6)
    metrics = task.metrics()
    task.score(Perfect(), batch, metrics)
    assert float(metrics["accuracy"].compute()) == 1
    assert float(metrics["perplexity"].compute()) == pytest.approx(1)
    assert task.num_targets(batch) == int((batch["targets"] != IGNORED).sum())


def test_a_run_learns_and_predicts_a_file(tmp_path: Path) -> None:
    training = TrainingConfig(epochs=4, batch_size=16, learning_rate=1e-2, tensorboard=False, ema_decay=0.9)
    result = train(Run.Config(task=config(tmp_path), training=training), tmp_path / "run")
    assert result.metrics["perplexity"] < 60
    assert json.loads((tmp_path / "run" / "tokenizer.json").read_text())["model"]["type"] == "WordPiece"
    (row,) = Run(tmp_path / "run").predict([tmp_path / "cats.txt"])
    assert list(row) == ["file", "tokens", "loss", "perplexity", "accuracy"]
    assert float(row["perplexity"]) == pytest.approx(math.exp(float(row["loss"])))
    assert 0 < float(row["accuracy"]) < 1


def test_facts_suffice_to_build_the_task(tmp_path: Path) -> None:
    task = config(tmp_path).build()
    facts = from_json(json.loads(json.dumps(to_json(task.facts))), Task.Facts, [MaskedLanguageModelling.Facts])
    again = config(tmp_path).build(facts)
    assert torch.equal(whole(again)[0], whole(task)[0])
    assert again.input_meaning == task.input_meaning


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context": 1}, ["context is 1", "at least 2"]),
        ({"mask_fraction": 0.0}, ["mask_fraction is 0.0", "above 0 and below 1"]),
        ({"mask_fraction": 1.0}, ["mask_fraction is 1.0", "above 0 and below 1"]),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: list[str], tmp_path: Path) -> None:
    with refused(ValueError, *message):
        config(tmp_path, **settings)


def test_a_text_without_words_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("hi")
    settings: dict[str, Any] = {"tokens": Tokens(vocab_size=20), "valid_fraction": 0.0, "model": SMALL}
    task = MaskedLanguageModelling.Config(data=str(tmp_path / "short.txt"), **settings)
    with refused(ValueError, "short.txt", "no token that the training text has", "pass more text"):
        train(Run.Config(task=task, training=TrainingConfig(tensorboard=False)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_blocks_of_equal_text_are_masked_differently(tmp_path: Path) -> None:
    (tmp_path / "cats.txt").write_text("cat " * 900)
    settings: dict[str, Any] = {"context": 24, "tokens": Tokens(vocab_size=20), "model": SMALL, "test_fraction": 0.5}
    task = MaskedLanguageModelling.Config(data=str(tmp_path / "cats.txt"), **settings).build()
    hidden = task.held_out_batch("test", torch.arange(8))["targets"] != IGNORED
    assert len(hidden.unique(dim=0)) > 1


def test_sentence_models_start_from_it_if_tokens_and_context_are_equal(tmp_path: Path) -> None:
    training = TrainingConfig(epochs=1, batch_size=64, tensorboard=False)
    start = tmp_path / "masked"
    train(Run.Config(task=config(tmp_path), training=training), start)
    rows = [f"the {word} cat {i},{label}" for i in range(20) for label, word in enumerate(("good", "bad"))]
    (tmp_path / "cats.csv").write_text("\n".join(["text,label", *rows]))

    def run(**settings: Any) -> Run.Config:
        tokens = Tokens(file=str(start / "tokenizer.json"))
        given: dict[str, Any] = {"data": str(tmp_path / "cats.csv"), "tokens": tokens, "context": 24}
        given["model"] = SentenceStackConfig(stack=STACK, position_frequencies=4)
        task = SentenceLearning.Config(**{**given, **settings})
        return Run.Config(task=task, training=training, init=str(start))

    with refused(ValueError, "the tokenizer of", "is not this run's", "pass --task.tokens.file"):
        train(run(tokens=Tokens(vocab_size=80)), tmp_path / "other")
    with refused(ValueError, "the context of", "is not this run's", "pass --task.context 24"):
        train(run(context=16), tmp_path / "other")
    assert not (tmp_path / "other").exists()
    train(run(), tmp_path / "sentences")
