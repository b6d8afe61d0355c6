"""Interleaved timing: each round runs every step once, so that a busy moment of the machine falls on all of them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from tqdm import tqdm

Step = Callable[[], Sequence[Tensor]]


@final
@dataclass(kw_only=True)
class Timed:
    """All times of one step in seconds, and what its last run returned."""

    seconds: list[float] = field(default_factory=list)
    result: Sequence[Tensor] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def synchronize(device: torch.device) -> None:
    """Wait for the accelerator, if that is where the work goes."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleave(
    steps: Mapping[str, Step], *, device: torch.device, rounds: int, budget_s: float, label: str
) -> dict[str, Timed]:
    """Run the steps in turn, ``rounds`` times; a step sits out further rounds once it has used ``budget_s`` seconds.

    The first round of a step that fits the budget twice over is a warm-up and not counted.
    """
    timed = {name: Timed() for name in steps}
    turns = [(turn, name) for turn in range(rounds + 1) for name in steps]
    for turn, name in tqdm(turns, desc=label, leave=False, disable=None):
        record = timed[name]
        if sum(record.seconds) >= budget_s:
            continue
        synchronize(device)
        start = time.perf_counter()
        record.result = steps[name]()
        synchronize(device)
        elapsed = time.perf_counter() - start
        if turn > 0 or 2 * elapsed > budget_s:
            record.seconds.append(elapsed)
    return timed
