"""Checkpoints of `sentence-transformers`: the folder of the transformer, and the pooling of its signal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fredholm import from_pretrained
from fredholm.models import BertSentences
from fredholm.pretrained import PretrainedMasked, PretrainedSentences
from fredholm.tasks import SentenceLearning
from tests.pretrained.peers import SIZES, saved, started, transformers, write_word_pieces
from tests.refusals import refused

LONG = "the cat sat, a good one number 42, " * 3


def write_checkpoint(folder: Path, pooling: dict[str, Any], *, within: str = "", more: tuple[str, ...] = ()) -> Any:
    """Saves a BERT of the original library with its tokenizer and a list of modules, as in all-MiniLM-L6-v2."""
    inner = folder / within
    inner.mkdir(parents=True)
    size = write_word_pieces(inner)
    tokenizer = transformers().BertTokenizerFast(str(inner / "vocab.txt"))
    tokenizer.backend_tokenizer.enable_truncation(8)  # left there by its author, without effect on the model's tokens
    tokenizer.backend_tokenizer.enable_padding(length=16)
    tokenizer.backend_tokenizer.save(str(inner / "tokenizer.json"))
    (inner / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    rows = [
        (within, "Transformer"),
        ("1_Pooling", "Pooling"),
        *((f"{2 + n}_{kind}", kind) for n, kind in enumerate(more)),
    ]
    found = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(rows)
    ]
    (folder / "modules.json").write_text(json.dumps(found))
    return saved(("BertModel", "BertConfig", {**SIZES, "vocab_size": size, "max_position_embeddings": 64}), inner)


def sentence_task(checkpoint: Path, **settings: Any) -> SentenceLearning:
    path = checkpoint.parent / "data.csv"
    texts = ["The cats sat", LONG, "unaffable 数学, straße?", "!"]
    path.write_text("\n".join(["text,label", *(f'"{text}",{n % 2}' for _ in range(5) for n, text in enumerate(texts))]))
    model = PretrainedSentences(checkpoint=str(checkpoint), **settings)
    return SentenceLearning.Config(data=str(path), context=64, model=model).build()


MEAN, FIRST = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, {"pooling_mode_cls_token": True}
LAYOUTS = {
    "mean": (MEAN, "", "mean"),
    "first, in a folder of its own": (FIRST, "0_Transformer", "first"),
    "mean, as newer files say it": ({"pooling_mode": "mean"}, "", "mean"),
    "first, as newer files say it": ({"pooling_mode": ["cls"]}, "", "first"),
    "nothing said, which is the mean": ({}, "0_BERT", "mean"),
}


@pytest.mark.parametrize("name", LAYOUTS)
@torch.no_grad()
def test_sentences_are_pooled_as_in_the_checkpoint(name: str, tmp_path: Path) -> None:
    pooling, within, expected = LAYOUTS[name]
    folder = tmp_path / "peer"
    peer = write_checkpoint(folder, pooling, within=within, more=("Normalize",))
    task = sentence_task(folder)
    model, batch = started(task), task.train_batch(torch.arange(8), torch.Generator())
    assert isinstance(model, BertSentences)
    assert model.config.pooling == expected
    exists = batch["tokens"] != 0
    assert exists.sum(1).max() > 16
    signal = peer(batch["tokens"], attention_mask=exists.long()).last_hidden_state
    mean = torch.stack([row[there].mean(0) for row, there in zip(signal, exists, strict=True)])
    pooled = mean if expected == "mean" else signal[:, 0]
    torch.testing.assert_close(model(batch["tokens"]), model.head(pooled), rtol=1e-5, atol=1e-5)
    of_folder = from_pretrained(folder)(batch["tokens"], exists)
    torch.testing.assert_close(of_folder[exists], signal[exists], rtol=1e-5, atol=1e-5)


def test_a_run_records_the_files_of_the_layout(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "peer", MEAN, within="0_Transformer")
    brought = PretrainedSentences(checkpoint=str(tmp_path / "peer")).open_pretrained()
    read = {str(file.relative_to(tmp_path / "peer")) for file in (*brought.files, *brought.weights)}
    assert read == {"modules.json", "1_Pooling/config.json", "0_Transformer/config.json"} | {
        "0_Transformer/model.safetensors"
    }
    assert brought.tensors is not None
    assert not [name for name in brought.tensors(brought.model) if not name.startswith("bert.")]


def test_an_explicit_pooling_takes_precedence_over_that_of_the_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "peer", {"pooling_mode": "max"})
    model = started(sentence_task(tmp_path / "peer", pooling="tanh"))
    stored = from_pretrained(tmp_path / "peer").state_dict()
    assert torch.equal(model.bert.tokens.weight, stored["tokens.weight"])
    assert model.config.pooling == "tanh"
    assert model.pooler.weight.detach().abs().max() > 0.2  # the weights of the checkpoint, far larger than new ones
    mean = started(sentence_task(tmp_path / "peer", pooling="mean"))
    assert mean.pooler is None


def test_masked_models_start_from_such_a_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "peer", {"pooling_mode": "max"}, within="0_Transformer", more=("Dense",))
    brought = PretrainedMasked(checkpoint=str(tmp_path / "peer")).open_pretrained()
    assert brought.tensors is not None
    found, stored = brought.tensors(brought.model), from_pretrained(tmp_path / "peer").state_dict()
    assert {name.removeprefix("bert.") for name in found} == stored.keys()


def test_unsupported_pooling_is_refused_by_name(tmp_path: Path) -> None:
    remedy = "set model.pooling to start from the transformer alone"
    for name, pooling in {
        "max": {"pooling_mode_max_tokens": True},
        "['cls', 'mean']": {"pooling_mode": ["cls", "mean"]},
        "lasttoken": {"pooling_mode": "lasttoken"},
    }.items():
        write_checkpoint(tmp_path / name, pooling)
        with refused(ValueError, "1_Pooling", name, "supported is one of cls, mean", remedy):
            PretrainedSentences(checkpoint=str(tmp_path / name)).open_pretrained()
    write_checkpoint(tmp_path / "dense", MEAN, more=("Dense", "Normalize"))
    with refused(ValueError, "modules.json: the module 'Dense' is not supported", remedy):
        PretrainedSentences(checkpoint=str(tmp_path / "dense")).open_pretrained()


WRONG: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "no JSON": (lambda folder: (folder / "modules.json").write_text("["), ValueError, "is not JSON"),
    "an object": (lambda folder: (folder / "modules.json").write_text("{}"), ValueError, "expected list"),
    "none": (lambda folder: (folder / "modules.json").write_text("[]"), ValueError, "lists no modules"),
    "outside": (
        lambda folder: (folder / "modules.json").write_text('[{"path": "../other", "type": "a.Transformer"}]'),
        ValueError,
        "a folder beside it",
    ),
    "not there": (
        lambda folder: (folder / "1_Pooling" / "config.json").unlink(),
        FileNotFoundError,
        "which modules.json names",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_layout_is_refused(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "peer", MEAN)
    spoil, error, message = WRONG[name]
    spoil(tmp_path / "peer")
    with refused(error, message):
        PretrainedSentences(checkpoint=str(tmp_path / "peer")).open_pretrained()
