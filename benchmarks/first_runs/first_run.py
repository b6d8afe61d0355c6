"""One first run: data generated from a seed, the bare command on them, and peers on the same splits."""

import contextlib
import dataclasses
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from fredholm import cli
from fredholm.tasks.schedule import Effort, schedule_for
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Batch
from fredholm.training import Run
from fredholm.training.batches import EpochBatches

Peer = Callable[[Any, HeldOut], float]
"""Another method that a user would try: maps the task, with its data and splits, and the split to measure on to the
task's metric there. It learns from `learnable(task, split)`."""


@final
@dataclass(frozen=True, kw_only=True)
class FirstRun:
    """A task on data generated for it.

    Args:
        name: name on the command line.
        task: name of the task in `fredholm train`.
        data: the data in a few words.
        make: writes data from a seed below an empty folder, and returns the path for the command.
        peers: other methods by name.
    """

    name: str
    task: str
    data: str
    make: Callable[[Path, int], Path]
    peers: Mapping[str, Peer]


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of a first run and its peers; values are the task's metric on one split."""

    name: str
    data: str
    command: str
    data_seed: int
    examples: tuple[int, int, int]
    """Numbers of training, validation and test examples."""
    metric: str
    split: HeldOut
    ours: float
    parameters: int
    epochs: int
    """Epochs that were trained, which early stopping may end."""
    seconds: float
    megabytes: float
    """Size of the run folder."""
    peers: dict[str, tuple[float, float]]
    """Value and seconds of each peer."""


def measure(first: FirstRun, folder: Path, data_seed: int, split: HeldOut) -> Row:
    """Generates the data, runs the bare command with its seed of 0, and trains the peers on the same examples.

    Args:
        first: the run.
        folder: new folder for data and run.
        data_seed: seed of the data.
        split: split to measure on: `valid` while something is chosen by it, and `test` once.

    Raises:
        RuntimeError: the command failed.
    """
    folder.mkdir(parents=True)
    data, run_dir = first.make(folder, data_seed), folder / "run"
    start, output = time.perf_counter(), io.StringIO()
    with contextlib.redirect_stdout(output):
        code = cli.main(["train", first.task, str(data), "--run-dir", str(run_dir), "--training.no-tensorboard"])
    seconds = time.perf_counter() - start
    if code:
        raise RuntimeError(f"{first.name}: fredholm train {first.task} ended with code {code}\n{output.getvalue()}")
    run = Run(run_dir)
    task, objective = run.task, run.task.objective
    peers: dict[str, tuple[float, float]] = {}
    for name, peer in first.peers.items():
        start = time.perf_counter()
        peers[name] = (peer(task, split), time.perf_counter() - start)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return Row(
        name=first.name,
        data=first.data,
        command=f"fredholm train {first.task} {data.name}",
        data_seed=data_seed,
        examples=(task.num_train, task.num_held_out("valid"), task.num_held_out("test")),
        metric=objective.metric,
        split=split,
        ours=run.evaluate(split)[objective.metric],
        parameters=sum(parameter.numel() for parameter in run.model().parameters()),
        epochs=max((int(line["epoch"]) for line in lines if "epoch" in line), default=0),
        seconds=seconds,
        megabytes=sum(file.stat().st_size for file in run_dir.rglob("*") if file.is_file()) / 1e6,
        peers=peers,
    )


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    cells = [["run", "examples", "metric", "ours", "peers", "parameters", "time"]]
    cells.append(["---"] * len(cells[0]))
    for row in rows:
        peers = "; ".join(f"{name} {_shown(row.metric, value)}" for name, (value, _) in row.peers.items())
        learnt, valid, test = row.examples
        cells.append(
            [
                f"`{row.command}`: {row.data}",
                f"{learnt:,} + {valid:,} + {test:,}",
                f"{row.metric}, {row.split}",
                f"**{_shown(row.metric, row.ours)}**",
                peers,
                f"{row.parameters:,}",
                f"{row.seconds:.0f} s",
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _shown(metric: str, value: float) -> str:
    unbounded = ("perplexity", "mse", "relative_l2", "relative_error", "mean_absolute_error", "loss", "mase")
    return f"{value:.3g}" if metric in unbounded else f"{100 * value:.1f} %"


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Writes all rows as a list of objects."""
    path.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n")


def learnable(task: Any, split: HeldOut) -> list[Any]:
    """The sets of examples that a peer learns from; measured on the test split, it also learns from validation."""
    splits = task.splits
    return [splits.train] if split == "valid" or splits.valid is None else [splits.train, splits.valid]


def fitted(model: Any, features: Callable[[Any], tuple[Any, np.ndarray]]) -> Callable[[Any, HeldOut], np.ndarray]:
    """A function that fits a scikit-learn model to features and targets, and returns truth and predictions `(2, n)`."""

    def predicted(task: Any, split: HeldOut) -> np.ndarray:
        parts = [features(part) for part in learnable(task, split)]
        inputs = [rows for rows, _ in parts]
        joined = np.concatenate(inputs) if isinstance(inputs[0], np.ndarray) else [x for rows in inputs for x in rows]
        queries, truth = features(task.held_out(split))
        return np.stack([truth, model.fit(joined, np.concatenate([targets for _, targets in parts])).predict(queries)])

    return predicted


def accuracy(model: Any, features: Callable[[Any], tuple[Any, np.ndarray]]) -> Peer:
    """The accuracy of a scikit-learn classifier."""
    answers = fitted(model, features)

    def peer(task: Any, split: HeldOut) -> float:
        truth, predicted = answers(task, split)
        return float((truth == predicted).mean())

    return peer


def taught(network: nn.Module, task: Any, loss: Callable[[Batch], Tensor]) -> None:
    """Trains a peer in plain PyTorch, with the task's augmentation and batches and the default schedule.

    Args:
        network: the model to train.
        task: source of the batches.
        loss: mean loss of a batch.
    """
    schedule = schedule_for(task.num_train, Effort("small"), has_valid=True)
    steps = schedule.epochs * len(EpochBatches(task, schedule.batch_size, 0, 0))
    optimiser = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=schedule.weight_decay)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, steps)
    for epoch in range(schedule.epochs):
        batches = EpochBatches(task, schedule.batch_size, 0, epoch)
        for number in range(len(batches)):
            found = loss(batches.whole(number))
            optimiser.zero_grad()
            found.backward()
            optimiser.step()
            rate.step()
    network.eval()
