"""Two data sets of the package aeon, and simulated machines."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.first_runs.first_run import FirstRun, Peer, accuracy


def machines(folder: Path, seed: int) -> Path:
    """600 recordings of three sensors at 200 times, of machines that are normal, unbalanced, loose or worn.

    The speed varies from recording to recording. In unbalanced machines one sensor is stronger; loose ones knock once
    per turn; worn ones have high-frequency noise whose amplitude follows the turns.
    """
    draw, time, kinds = np.random.default_rng(seed), np.arange(200) / 200, ("normal", "unbalanced", "loose", "worn")
    values, labels = np.empty((600, 3, 200)), []
    for i, own in enumerate(values):
        kind, speed = kinds[i % 4], draw.uniform(6, 14)
        turn = speed * time + draw.random()
        for n in range(3):
            strength = draw.uniform(0.7, 1.3) * (1.5 if kind == "unbalanced" and n == 1 else 1)
            own[n] = strength * np.sin(2 * np.pi * turn + n) + 0.3 * np.sin(4 * np.pi * turn + draw.uniform(0, 6))
        if kind == "loose":
            own += draw.uniform(0.5, 1) * np.exp(-8 * (turn % 1))
        if kind == "worn":
            own += 0.35 * (1 + np.sin(2 * np.pi * turn)) * np.sin(2 * np.pi * 60 * time + draw.uniform(0, 6))
        own += 0.6 * draw.normal(size=own.shape)
        labels.append(kind)
    path = folder / "machines.npz"
    np.savez(path, values=values.transpose(0, 2, 1).astype(np.float32), labels=np.array(labels))
    return path


def of_aeon(name: str) -> Callable[[Path, int], Path]:
    """A data set of the package aeon, training and test part together, in an order that the seed draws."""

    def make(folder: Path, seed: int) -> Path:
        values, labels = importlib.import_module("aeon.datasets").load_classification(name)
        order = np.random.default_rng(seed).permutation(len(labels))
        path = folder / f"{name}.npz"
        np.savez(
            path,
            values=values[order].transpose(0, 2, 1).astype(np.float32),
            labels=np.asarray(labels)[order].astype(str),
        )
        return path

    return make


def arrays(part: Any) -> tuple[np.ndarray, np.ndarray]:
    """Series of equal length `(n, channels, length)`, and their classes."""
    return part.values.mT.double().numpy(), part.answers.values.numpy()


def of_package(module: str, kind: str, **settings: Any) -> Peer:
    """The accuracy of a classifier of aeon, which is imported on use."""

    def peer(task: Any, split: Any) -> float:
        return accuracy(getattr(importlib.import_module(module), kind)(**settings), arrays)(task, split)

    return peer


PEERS = {
    "MiniRocket": of_package("aeon.classification.convolution_based", "MiniRocketClassifier", random_state=0),
    "1-NN DTW": of_package(
        "aeon.classification.distance_based",
        "KNeighborsTimeSeriesClassifier",
        distance="dtw",
        distance_params={"window": 0.1},
    ),
}
FIRST_RUNS = (
    FirstRun(name="machines", task="series", data="vibrations, 4 faults", make=machines, peers=PEERS),
    FirstRun(name="leaves", task="series", data="outlines of leaves (OSULeaf)", make=of_aeon("OSULeaf"), peers=PEERS),
    FirstRun(name="appliances", task="series", data="power of appliances (ACSF1)", make=of_aeon("ACSF1"), peers=PEERS),
)
