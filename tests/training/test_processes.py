"""A run on several processes has the numbers of the same run on one."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm.distributed.processes import ALONE, Processes, current
from fredholm.storage.tensors import model_tensors
from fredholm.training import Learner, Run, TrainingConfig, train
from fredholm.training.batches import EpochBatches, Share
from fredholm.training.progress import muted
from tests.processes import on_processes
from tests.training.toy_task import ToyTask, toy_run

SPREADS = ["copies"]


def config(*, dropout: float = 0.0, num_examples: int = 50, **training: Any) -> Run.Config:
    run = toy_run()
    task = ToyTask.Config(dropout=dropout, num_examples=num_examples)
    return dataclasses.replace(run, task=task, training=dataclasses.replace(run.training, **training))


def trained(path: Path, run: Run.Config, **arguments: Any) -> dict[str, Any]:
    """What a run on all processes says at its end, where each of them has come to."""
    with muted():
        result = train(run, path, tasks=[ToyTask], processes=current(), **arguments)
    model = Run(path, tasks=[ToyTask], device="cpu").model("last")
    return {"metrics": result.metrics, "weights": model_tensors(model)}


def log(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    times = ("examples_per_second", "unix_time")
    return [{name: value for name, value in line.items() if name not in times} for line in lines]


def check_alike(path: Path, whole: Path) -> None:
    """Asserts that two runs logged the same numbers, and have the same weights."""
    assert len(log(path)) == len(log(whole)) > 5
    for line, expected in zip(log(path), log(whole), strict=True):
        assert line.pop("kind") == expected.pop("kind")
        assert line == pytest.approx(expected, rel=1e-5, abs=1e-5)
    model, other = (model_tensors(Run(each, tasks=[ToyTask], device="cpu").model("last")) for each in (path, whole))
    torch.testing.assert_close(model, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2, {}),
        (3, {"accumulation": 1}),  # of the last batch, of two examples, one process has none
        (3, {"accumulation": 3, "gradient_clip": 0.05}),
        (2, {"num_examples": 49, "num_workers": 1}),  # the last batch is of one
        (2, {"ema_decay": 0.5, "patience": 1, "epochs": 8, "learning_rate": 0.3}),
    ],
)
def test_a_run_on_processes_is_that_on_one(tmp_path: Path, size: int, settings: dict[str, Any]) -> None:
    run = config(**settings)
    found = on_processes(size, trained, tmp_path / "shared", run)
    alone = trained(tmp_path / "alone", run)
    check_alike(tmp_path / "shared", tmp_path / "alone")
    for each in found:
        assert each["metrics"] == pytest.approx(alone["metrics"], rel=1e-5)
        assert each["metrics"] == found[0]["metrics"]


def test_patience_ends_all_at_once(tmp_path: Path) -> None:
    run = config(patience=1, epochs=8, learning_rate=0.3)
    trained(tmp_path, run)
    assert log(tmp_path)[-1]["epoch"] < 8  # so that the case above tells something
