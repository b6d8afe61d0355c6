"""`fredholm train` from a checkpoint: settings by rule, runs that no longer need the checkpoint, one-line errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command_line import call, check_refused
from tests.pretrained.peers import CAUSAL, IMAGES, SIZES, saved, write_text_tokens, write_word_pieces

pytest.importorskip("tokenizers")
PRETRAINED = ("--task.model", "pretrained", "--task.model.checkpoint")
SHORT = ("--training.no-tensorboard", "--no-report")


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    folder = tmp_path / "bert"
    folder.mkdir()
    size = write_word_pieces(folder)
    saved(("BertForMaskedLM", "BertConfig", {**SIZES, "vocab_size": size, "max_position_embeddings": 24}), folder)
    return folder


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    saved(IMAGES["ViT"], tmp_path / "vit")
    found = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "size": {"height": 12, "width": 12}}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(found))
    return tmp_path / "vit"


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    rows = [f"the {word} cat number {n},{word}" for n in range(20) for word in ("good", "bad")]
    path = tmp_path / "cats.csv"
    path.write_text("\n".join(["text,label", *rows]))
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 9, 15, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=pixels, y=np.arange(40) % 2)
    return tmp_path / "images.npz"


def run_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    code, out, err = call(capsys, *arguments, *SHORT)
    assert code == 0, err
    return out.splitlines()


def config(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())


def test_sentences(bert: Path, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, more = tmp_path / "run", tmp_path / "more"
    command = ("train", "sentences", sentences, *PRETRAINED, bert, "--run-dir", run)
    message = run_of(capsys, *command, "--training.epochs", 2)
    at = message.index(f"from {bert}: 37 tensors")
    assert message[at + 1] == "  new here: pooler.weight, pooler.bias, head.weight, head.bias"
    found = config(run)
    training = found["run"]["training"]
    assert (training["learning_rate"], training["final_learning_rate"]) == (pytest.approx(6e-4), 0.0)
    assert (training["batch_size"], training["weight_decay"], training["warmup_fraction"]) == (8, 0.01, 0.1)
    assert (found["facts"]["context"], found["facts"]["model"]["type"]) == (16, "BertSentences.Config")
    read = json.loads((run / "data.json").read_text())["start"]  # the checkpoint, which later commands do not read
    assert {Path(name).name for name in read} == {"config.json", "model.safetensors", "vocab.txt"}
    shutil.rmtree(bert)
    # the run resumes, evaluates, predicts and starts another run without the checkpoint
    assert run_of(capsys, *command, "--training.epochs", 3, "--resume", "--dry-run")[0].startswith("data: ")
    message = run_of(capsys, *command, "--training.epochs", 3, "--resume")
    assert any("going on at step 8 of 12" in line for line in message), message
    assert call(capsys, "evaluate", run)[0] == 0
    code, out, _ = call(capsys, "predict", run, sentences)
    assert (code, len(out.splitlines())) == (0, 41)
    assert call(capsys, "push", run, tmp_path / "given")[0] == 0
    assert call(capsys, "predict", tmp_path / "given", sentences)[1] == out
    message = run_of(capsys, "train", "sentences", sentences, "--init", run, "--run-dir", more, "--training.epochs", 1)
    assert f"from {run}: 41 tensors" in message
    assert not [line for line in message if "new here" in line]
    assert config(more)["run"]["training"]["learning_rate"] == pytest.approx(0.3 * 2e-3)
    assert config(more)["run"]["task"]["model"] == found["facts"]["model"]
    message = f"--task.model.checkpoint is {run}, which holds a run; start from it with --init {run}"
    check_refused(capsys, tmp_path, message, "train", "sentences", str(sentences), *PRETRAINED, str(run))


def test_images(vit: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, more = tmp_path / "run", tmp_path / "more"
    command = ("train", "images", images, *PRETRAINED, vit, "--run-dir", run)
    printed = run_of(capsys, *command, "--training.epochs", 1)
    at = printed.index(f"from {vit}: 38 tensors")
    assert printed[at + 1] == "  new here: head.weight, head.bias"
    found = config(run)
    assert found["run"]["task"]["image_size"] == [12, 12]
    assert (found["facts"]["mean"], found["facts"]["deviation"]) == ([0.5] * 3, [0.25] * 3)
    shutil.rmtree(vit)
    run_of(capsys, *command, "--training.epochs", 2, "--resume")
    assert call(capsys, "evaluate", run)[0] == 0
    code, out, _ = call(capsys, "predict", run, images)
    assert (code, len(out.splitlines())) == (0, 41)
    printed = run_of(capsys, "train", "images", images, "--init", run, "--run-dir", more, "--training.epochs", 1)
    assert f"from {run}: 40 tensors" in printed
    assert config(more)["facts"]["mean"] == [0.5] * 3
    assert config(more)["run"]["task"]["model"]["image_size"] == [12, 12]
    printed = run_of(
        capsys, *command[:3], "--task.model", "vit", "--dry-run"
    )  # a model with new weights, at the size of this data
    assert printed[1].startswith("model: ViT with ")


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2, run, more, text = (tmp_path / name for name in ("gpt2", "run", "more", "text.txt"))
    model, kind, settings = CAUSAL["Llama"]
    size = write_text_tokens(gpt2, "Llama 2")
    saved((model, kind, {**settings, "vocab_size": size + 1, "pad_token_id": None}), gpt2)
    text.write_text("\n\n".join(f"the cat number {n} sat on the good cat" for n in range(40)))
    command = ("train", "text", text, "--task.documents", "blank line", *PRETRAINED, gpt2, "--run-dir", run)
    printed = run_of(capsys, *command, "--training.epochs", 1)
    assert f"from {gpt2}: 21 tensors" in printed
    assert not [line for line in printed if "new here" in line]
    found = config(run)
    training, task = found["run"]["training"], found["run"]["task"]
    assert (training["learning_rate"], training["final_learning_rate"]) == (pytest.approx(2e-3), 0.0)
    assert (task["context"], task["stride"], found["facts"]["has_marks"]) == (24, 12, True)
    assert (run / "tokenizer.json").read_text() == found["facts"]["tokenizer"]
    check_refused(
        capsys, tmp_path, f"--init {run} has no effect with --task.model.checkpoint {gpt2}", *map(str, command[:-2]),
        "--init", str(run), "--run-dir", str(tmp_path / "both"),
    )  # fmt: skip
    shutil.rmtree(gpt2)
    run_of(capsys, *command, "--training.epochs", 2, "--resume", "--dry-run")
    run_of(capsys, *command, "--training.epochs", 2, "--resume")
    assert call(capsys, "evaluate", run)[0] == 0
    for place in (run, tmp_path / "given"):
        code, out, _ = call(capsys, "generate", place, "--prompt", "the cat", "--max-tokens", 5, "--temperature", 0)
        assert code == 0
        assert out.startswith("the cat")
        if place == run:
            assert call(capsys, "push", run, tmp_path / "given")[0] == 0
    assert call(capsys, "report", run)[0] == 0
    assert "started from" in (run / "report.html").read_text()
    printed = run_of(capsys, "train", "text", text, "--init", run, "--run-dir", more, "--training.epochs", 1)
    assert f"from {run}: 21 tensors" in printed
    assert config(more)["facts"]["tokenizer"] == found["facts"]["tokenizer"]


def test_hidden_tokens(bert: Path, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, more, text = tmp_path / "run", tmp_path / "more", tmp_path / "text.txt"
    text.write_text("\n".join(f"the cat number {n} sat on the good cat" for n in range(60)))
    command = ("train", "masked", text, "--task.documents", "line", *PRETRAINED, bert, "--run-dir", run)
    printed = run_of(capsys, *command, "--training.epochs", 1)
    assert f"from {bert}: 42 tensors" in printed
    found = config(run)
    assert (found["run"]["task"]["context"], found["facts"]["model"]["type"]) == (24, "BertMasked.Config")
    assert found["run"]["training"]["learning_rate"] == pytest.approx(2e-3)
    shutil.rmtree(bert)
    run_of(capsys, *command, "--training.epochs", 2, "--resume")
    assert call(capsys, "predict", run, text)[0] == 0
    stack = found["facts"]["model"]["stack"]
    sizes = [
        word
        for name in ("embed_dim", "depth", "num_heads", "expansion")
        for word in (f"--task.model.stack.{name.replace('_', '-')}", stack[name])
    ]
    learnt = ("--task.tokens.file", run / "tokenizer.json", "--task.context", 24, "--training.epochs", 1)
    printed = run_of(
        capsys,
        "train",
        "sentences",
        sentences,
        "--task.model",
        "bert",
        *sizes,
        *learnt,
        "--init",
        run,
        "--run-dir",
        more,
    )
    assert any(line.startswith(f"from {run}: 37 tensors") for line in printed), printed


def test_mistakes_are_refused(vit: Path, bert: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, command = images.parent, ("train", "images", str(images), "--run-dir", str(images.parent / "run"))
    begun = (*command, "--task.model", "pretrained")
    check_refused(capsys, folder, "--task.model.checkpoint is empty; pass a folder with config.json", *begun)
    begun = (*command, *PRETRAINED, str(vit))
    check_refused(
        capsys, folder, f"--task.model.checkpoint is {bert}, which holds a Bert; images", *begun[:-1], str(bert)
    )
    wrong = ("--task.patch-size", "3")
    check_refused(
        capsys, folder, "--task.patch-size 3 has no effect with --task.model pretrained-images", *begun, *wrong
    )
    wrong = ("--task.image-size", "10", "12")
    check_refused(capsys, folder, "models.ViT: patches of (4, 4) pixels must divide images of (10, 12)", *begun, *wrong)
    wrong = ("--task.model.revision", "main")
    check_refused(capsys, folder, "--task.model.revision main has no effect on the folder", *begun, *wrong)
    wrong = ("--task.mean", "0.5")
    check_refused(capsys, folder, "--task.mean 0.5 and --task.deviation must be a number each", *begun, *wrong)
    (vit / "preprocessor_config.json").unlink()
    check_refused(capsys, folder, f"{vit} does not say how pixels are standardised", *begun)
