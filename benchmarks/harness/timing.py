"""Interleaved timing: each round runs every step once, so that a busy moment of the machine falls on all of them."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness.options import Options
from benchmarks.harness.step import Step
from fredholm.operators.cost import synchronize


@final
@dataclass(kw_only=True)
class Timed:
    """All times of one step in seconds, and the result of its last run."""

    seconds: list[float] = field(default_factory=list)
    result: Sequence[Tensor] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def clock(self, step: Step, device: torch.device) -> None:
        """Runs the step once more, from an idle device to an idle device."""
        self.result = ()  # freed first, so that two results never lie in memory together
        synchronize(device)
        start = time.perf_counter()
        self.result = step()
        synchronize(device)
        self.seconds.append(time.perf_counter() - start)


def interleave(steps: Mapping[str, Step], *, options: Options, label: str) -> dict[str, Timed]:
    """Runs the steps in turn, ``options.rounds`` times; a step that used ``budget_s`` seconds skips further rounds.

    The first round is an uncounted warm-up, except on a CPU for a step whose two runs would exceed the budget. A GPU's
    first round compiles kernels and is never counted.
    """
    device, timed = options.torch_device, {name: Timed() for name in steps}
    turns = [(turn, name) for turn in range(options.rounds + 1) for name in steps]
    for turn, name in tqdm(turns, desc=label, leave=False, disable=None):
        record = timed[name]
        if sum(record.seconds) >= options.budget_s:
            continue
        record.clock(steps[name], device)
        if turn == 0 and (device.type == "cuda" or 2 * record.seconds[0] <= options.budget_s):
            record.seconds.clear()
    return timed
