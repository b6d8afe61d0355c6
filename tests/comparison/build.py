"""Small data on which kernels are compared in seconds, and a made-up comparison."""

import dataclasses
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fredholm.comparison import BaselineRow, Budget, Comparison, LeftOut, Request, Row, SeedResult, workers
from fredholm.models import AttentionConfig, ITNet
from fredholm.tasks import ImageLearning
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.tasks.objective import Objective
from fredholm.training import Run, TrainingConfig


def stripes(folder: Path, *, count: int = 48, seed: int = 0) -> Path:
    """Writes pictures of 8 x 8 pixels with noisy stripes along one axis or the other, or none."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    pixels = draw.integers(0, 120, (count, 8, 8))
    for picture, label in zip(pixels, labels, strict=True):
        if label:
            picture[::2] += 130
        if label == 2:
            picture[:] = picture.T.copy()
    path = folder / "stripes.npz"
    np.savez(path, x=pixels.astype(np.uint8), y=np.array(["none", "lying", "upright"])[labels])
    return path


def request(data: Path, *kernels: str, epochs: int | None = 2, minutes: float | None = None, **changes: Any) -> Request:
    """A comparison of small networks; `changes` are settings of the task."""
    stack = ITNet.Config(embed_dim=16, depth=1, num_heads=2, pool="mean", dropout=0.0)
    augmentation = Augmentation.Config(label_smoothing=0.1)
    settings = {"patch_size": 4, "position_frequencies": 2, "stem_depth": 0, "augmentation": augmentation, **changes}
    task = ImageLearning.Config(data=str(data), model=stack, **settings)
    run = Run.Config(task=task, training=TrainingConfig(tensorboard=False, device="cpu", batch_size=16))
    return Request(run=run, default="not requested", kernels=kernels, seeds=(0, 1), epochs=epochs, minutes=minutes)


def keep_a_worker(log: Path, expected: Connection) -> None:
    """Starts a process that waits for jobs of a comparison, sends its id, and waits for its end."""
    forks = multiprocessing.get_context("fork")
    here, there = forks.Pipe()
    worker = forks.Process(target=workers._work, args=(there, log))
    worker.start()
    expected.send(worker.pid)
    worker.join()
    here.close()


ROW = Row(
    name="infinite-factorised",
    title="",
    kernel=AttentionConfig(),
    embed_dim=64,
    expansion=4.0,
    parameters=12_345_678,
    seconds_per_step=1.234,
    examples_per_second=51.2,
    memory_bytes=1_234_000_000,
)


def runs(*values: float) -> tuple[SeedResult, ...]:
    """One run per value on the validation split; the value on the test split is 0.01 smaller."""
    return tuple(
        SeedResult(seed=seed, folder=f"run/seed-{seed}", valid=value, test=value - 0.01, metrics={})
        for seed, value in enumerate(values)
    )


def found(*baselines: BaselineRow, objective: Objective = Objective("accuracy", percent=True)) -> Comparison:  # noqa: B008
    """Three kernels, of which the first is the best and the last has no result, and one kernel left out."""
    empty = Comparison(
        task="images",
        data="pictures",
        request="",
        command_line=(),
        created="",
        version="",
        machine={},
        objective=objective,
        seeds=(0, 1),
        budget=Budget(minutes=None, epochs=4, rungs=(1, 2), rates=(1.0,)),
        num_train=10,
        num_valid=10,
        num_test=10,
        target_parameters=12_000_000,
        rows=(ROW, dataclasses.replace(ROW, name="mlp"), dataclasses.replace(ROW, name="lstm", reason="diverged")),
        left_out=(LeftOut(name="mamba", reason="needs an order"),),
        baselines=baselines,
    )
    return empty.with_row(ROW.with_runs(runs(0.90, 0.92))).with_row(
        dataclasses.replace(ROW, name="mlp").with_runs(runs(0.5, 0.52))
    )
