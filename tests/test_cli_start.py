"""Runs that start from the weights of another run: they take its sizes, and name the weights that do not fit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm import cli
from fredholm.training import Run
from tests.command_line import call, check_refused
from tests.tasks.graphs.build import rings

SHORT = ("--training.epochs", "1", "--training.no-tensorboard")
SMALL = ("--task.model.embed-dim", "8", "--task.model.depth", "1", "--task.model.num-heads", "2")
DRAW = np.random.default_rng(0)


def train(capsys: pytest.CaptureFixture[str], task: str, data: Path, run: Path, *more: str) -> list[str]:
    """Trains a short run and returns the lines that it prints about the run that it starts from."""
    code, out, err = call(capsys, "train", task, data, "--run-dir", run, *SHORT, *more)
    assert code == 0, err
    lines = out.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith("from ")), len(lines))
    return [line for n, line in enumerate(lines) if n == first or (n > first and line.startswith("  "))]


def settings(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())["run"]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return Run(run).model("last").state_dict()


def write_images(path: Path, size: tuple[int, ...], classes: tuple[str, ...]) -> Path:
    count = 10 * len(classes)
    pixels = DRAW.integers(0, 256, (count, *size), dtype=np.uint8)
    np.savez(path, x_train=pixels, y_train=np.arange(count) % len(classes), classes=np.array(classes))
    return path


def test_images_of_other_classes_channels_and_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stem = ("--task.stem-depth", "None")
    old = write_images(tmp_path / "old.npz", (12, 12), ("cat", "bird", "dog"))
    new = write_images(tmp_path / "new.npz", (18, 13, 3), ("dog", "mouse", "cat"))
    first, second = tmp_path / "first", tmp_path / "second"
    train(capsys, "images", old, first, *SMALL, "--task.patch-size", "3", "--task.model.kernel", "attention", *stem)
    still = ("--training.learning-rate", "1e-20", "--training.final-learning-rate", "0", "--training.weight-decay", "0")
    printed = train(capsys, "images", new, second, "--init", str(first), *still)
    assert printed == [
        f"from {first}: {len(weights(first))} tensors",
        "  head.weight, head.bias: as there: dog, cat; new: mouse; left there: bird",
        "  resampled: encoder.patch_embedding.weight",
    ]
    found = settings(second)["task"]
    assert found["model"] == settings(first)["task"]["model"]
    assert (found["patch_size"], found["image_size"]) == (3, [12, 9])
    before, after = weights(first)["head.weight"], weights(second)["head.weight"]
    torch.testing.assert_close(after[[0, 2]], before[[2, 0]])
    # the user's settings stand, and the printed lines name the weights that do not fit them
    more = ("--task.patch-size", "6", "--task.model.depth", "2")
    printed = train(capsys, "images", new, tmp_path / "third", "--init", str(first), *more)
    assert printed[2].startswith("  resampled: encoder.patch_embedding.weight")
    assert printed[3].startswith("  new here: blocks.1.")
    assert (settings(tmp_path / "third")["task"]["image_size"], printed[4:]) == ([12, 6], [])
    assert settings(tmp_path / "third")["training"]["learning_rate"] == pytest.approx(0.3 * 2e-3)


def test_weights_of_other_classes_are_new_even_if_their_number_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write_images(tmp_path / "old.npz", (6, 6), ("cat", "dog"))
    new = write_images(tmp_path / "new.npz", (6, 6), ("oak", "fir"))
    train(capsys, "images", old, tmp_path / "first", *SMALL, "--task.patch-size", "3")
    printed = train(capsys, "images", new, tmp_path / "second", "--init", str(tmp_path / "first"))
    assert printed[1:] == ["  head.weight, head.bias: new: oak, fir; left there: cat, dog"]


def test_text_of_other_tokens_and_a_longer_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "old.txt").write_text("the cat sat on the mat, and the dog sat too\n" * 40)
    (tmp_path / "new.txt").write_text("the dog ran in the fog, and the frog ran too\n" * 40)
    sizes = ("--task.model.positions", "learned", "--task.vocab-size", "262", "--task.context", "8")
    train(capsys, "text", tmp_path / "old.txt", tmp_path / "first", *SMALL, *sizes)
    printed = train(capsys, "text", tmp_path / "new.txt", tmp_path / "second", "--init", str(tmp_path / "first"))
    assert settings(tmp_path / "second")["task"]["context"] == 8
    assert printed[1].startswith("  tokens.weight: as there: ")
    assert printed[2:] == []
    longer = ("--init", str(tmp_path / "first"), "--task.context", "10")
    printed = train(capsys, "text", tmp_path / "old.txt", tmp_path / "third", *longer)
    assert printed[1:] == [
        "  positions.weight: as there: place 0, place 1, place 2, place 3, place 4, place 5, ... (8); "
        "new: place 8, place 9"
    ]


def write_series(path: Path, length: int, channels: tuple[str, ...]) -> Path:
    values = DRAW.normal(size=(20, length, len(channels)))
    labels = np.array(["up", "down"])[np.arange(20) % 2]
    np.savez(path, values=values, labels=labels, channels=np.array(channels))
    return path


def test_series_of_other_channels_and_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (
        write_series(tmp_path / f"{name}.npz", length, channels)
        for name, length, channels in (("old", 9, ("x", "y")), ("new", 14, ("z", "x", "w")))
    )
    sizes = ("--task.model", "itnet-series", "--task.model.stack.embed-dim", "8", "--task.model.stack.depth", "1")
    train(capsys, "series", old, tmp_path / "first", *sizes, "--task.valid-fraction", "0.2")
    found = train(
        capsys, "series", new, tmp_path / "second", "--init", str(tmp_path / "first"), "--task.valid-fraction", "0.2"
    )
    assert found[1:] == ["  encoder.embedding.weight: as there: x; new: z, w; left there: y"]
    assert settings(tmp_path / "second")["task"]["model"] == settings(tmp_path / "first")["task"]["model"]
    fitted = tmp_path / "fitted"
    assert cli.main(["train", "series", str(old), "--run-dir", str(fitted), "--training.no-tensorboard"]) == 0
    capsys.readouterr()
    words = ("train", "series", str(new), "--run-dir", str(tmp_path / "fourth"), "--init", str(fitted))
    check_refused(capsys, tmp_path, f"--init {fitted} has no effect: this model is fitted in closed form", *words)


def write_clouds(path: Path, size: int, channels: tuple[str, ...]) -> Path:
    labels = np.array(["cube", "ball", "cone"])[np.arange(18) % 3]
    np.savez(path, x=DRAW.normal(size=(18, size, 3 + len(channels))), y=labels, channels=np.array(channels))
    return path


def test_points_of_other_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (
        write_clouds(tmp_path / f"{name}.npz", size, channels)
        for name, size, channels in (("old", 9, ("a", "b")), ("new", 12, ("b", "c")))
    )
    train(capsys, "points", old, tmp_path / "first", *SMALL, "--task.num-neighbours", "3")
    printed = train(capsys, "points", new, tmp_path / "second", "--init", str(tmp_path / "first"))
    assert printed[1:] == [
        "  encoder.feature_embedding.weight: as there: b; new: c; left there: a",
        "  encoder.local.0.weight: as there: x to a neighbour, y to a neighbour, z to a neighbour, distance of a "
        "neighbour, b, neighbour's b; new: c, neighbour's c; left there: a, neighbour's a",
    ]


def test_graphs_with_other_numbers_of_each_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = rings(tmp_path / "rings")
    stack = [
        word.replace("--task.model.", "--task.model.stack.") for word in (*SMALL, "--task.model.kernel.kernel.width")
    ]
    sizes = ("--task.model", "graph-stack", *stack, "4", "--task.inputs.num-walks", "2")
    train(capsys, "graphs", data, tmp_path / "first", *sizes)
    start = ("--init", str(tmp_path / "first"))
    printed = train(capsys, "graphs", data, tmp_path / "second", *start)
    assert printed[1:] == []
    assert settings(tmp_path / "second")["task"]["inputs"]["num_walks"] == 2
    printed = train(capsys, "graphs", data, tmp_path / "third", *start, "--task.inputs.num-walks", "3")
    assert printed[1].startswith("  encoder.embedding.weight: as there: ")
    assert printed[1].endswith("; new: back after 4 steps")
