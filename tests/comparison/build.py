"""Small data on which kernels are compared in seconds."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fredholm.comparison import Request, workers
from fredholm.models import ITNet
from fredholm.tasks import ImageLearning
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.training import Run, TrainingConfig


def stripes(folder: Path, *, count: int = 48, seed: int = 0) -> Path:
    """Pictures of 8 x 8 pixels with stripes along one axis or the other, or none, in noise."""
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
    """A comparison of small networks; `changes` are of the task's settings."""
    stack = ITNet.Config(embed_dim=16, depth=1, num_heads=2, pool="mean", dropout=0.0)
    augmentation = Augmentation.Config(label_smoothing=0.1)
    settings = {"patch_size": 4, "position_frequencies": 2, "stem_depth": 0, "augmentation": augmentation, **changes}
    task = ImageLearning.Config(data=str(data), model=stack, **settings)
    run = Run.Config(task=task, training=TrainingConfig(tensorboard=False, device="cpu", batch_size=16))
    return Request(run=run, default="not asked for", kernels=kernels, seeds=(0, 1), epochs=epochs, minutes=minutes)


def keep_a_worker(log: Path, told: Connection) -> None:
    """Starts a process that waits for the jobs of a comparison, tells its number, and waits for its end."""
    forks = multiprocessing.get_context("fork")
    here, there = forks.Pipe()
    worker = forks.Process(target=workers._work, args=(there, log))
    worker.start()
    told.send(worker.pid)
    worker.join()
    here.close()
