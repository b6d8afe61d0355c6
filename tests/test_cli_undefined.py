"""Every command reports metrics that are undefined on a split as undefined, never as numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import call, check_refused

SPLIT = np.array(["train"] * 20 + ["valid"] * 5 + ["test"] * 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Series and images of two classes, of which one is missing in the held-out splits."""
    folder = tmp_path_factory.mktemp("undefined")
    draw, labels = np.random.default_rng(0), np.arange(30) % 2
    labels[20:] = 1
    np.savez(folder / "series.npz", values=draw.normal(size=(30, 12, 1)), labels=labels, split=SPLIT)
    np.savez(folder / "images.npz", x=draw.integers(0, 256, (30, 8, 8), dtype=np.uint8), y=labels, split=SPLIT)
    return folder


def test_undefined_metrics_are_reported_with_their_requirement(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    code, out, _ = call(capsys, "train", "series", folder / "series.npz", "--run-dir", run)
    assert code == 0
    assert "auroc undefined (it needs examples of two classes)" in out
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["auroc"] for line in log] == [None, None]
    _, out, _ = call(capsys, "evaluate", run)
    assert "test matthews: undefined (it needs examples of two classes)" in out
    _, out, _ = call(capsys, "evaluate", run, "--json")
    assert json.loads(out)["matthews"] is None


@pytest.mark.filterwarnings("ignore:.*no image of '0'")
def test_an_undefined_objective_is_replaced_by_the_loss_and_refused_in_comparisons(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--task.objective", "auroc", "--task.stem-depth", "0", "--task.model.embed-dim", "8"]
    words = ["train", "images", folder / "images.npz", "--run-dir", folder / "runs", "--training.epochs", "3"]
    code, out, _ = call(capsys, *words, "--training.evaluate-every", "1", "--seeds", "0", "1", *options)
    assert code == 0
    assert out.count("weights are chosen by the validation loss") == 2  # once per seed
    assert out.splitlines()[-1] == "test auroc: undefined (it needs examples of two classes)"
    log = [json.loads(line) for line in (folder / "runs/seed-0/metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in log if line["kind"] == "valid"}
    assert len(losses) == 3
    assert f"averaged weights of step {min(losses, key=losses.__getitem__)}" in out
    message = (
        f"{folder / 'images.npz'}: kernels are compared by auroc, which is undefined (it needs examples of two classes)"
    )
    words = ["compare", "images", str(folder / "images.npz"), "--run-dir", str(folder / "compared"), *options[:2]]
    check_refused(capsys, folder, message, *words, "--kernels", "mlp", "attention")


def test_a_model_in_closed_form_needs_no_held_out_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values, labels = np.random.default_rng(0).normal(size=(12, 6, 1)), np.arange(12) % 2
    np.savez(tmp_path / "all.npz", values=values, labels=labels, split=["train"] * 12)
    (tmp_path / "long.csv").write_text("\n".join(["time,v", *(f"{t},{t % 5}" for t in range(40))]))
    series = ("train", "series", str(tmp_path / "all.npz"), "--run-dir", str(tmp_path / "series"))
    network = ("--task.model", "ckcnn", "--task.valid-fraction", "0")
    check_refused(capsys, tmp_path, "nothing is held out to measure on; pass data with a test set", *series, *network)
    forecast = ("train", "forecast", str(tmp_path / "long.csv"), "--run-dir", str(tmp_path / "forecast"))
    for words in (series, (*forecast, "--task.test-fraction", "0")):
        code, out, err = call(capsys, *words, "--no-report")
        assert (code, err) == (0, "")
        assert out.splitlines()[-1] == "nothing is held out, so the model is not measured"


def test_a_model_in_closed_form_is_reported_without_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values, labels = np.random.default_rng(0).normal(size=(12, 6, 1)), np.arange(12) % 2
    np.savez(tmp_path / "all.npz", values=values, labels=labels)
    code, out, _ = call(capsys, "train", "series", tmp_path / "all.npz", "--run-dir", tmp_path / "run", "--no-report")
    assert (code, out.count("weights fitted in closed form")) == (0, 1)
    code, out, _ = call(capsys, "evaluate", tmp_path / "run")
    assert (code, out.splitlines()[-1]) == (0, "3 examples, weights fitted in closed form")
