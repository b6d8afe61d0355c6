"""One instance of what a benchmark measures, and the measurement of one of its steps by itself."""

import abc
import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.harness.options import Options
from benchmarks.harness.process import in_fresh_process
from benchmarks.harness.step import Direction, Step
from benchmarks.harness.timing import Timed
from fredholm.operators.cost import PeakMemory


class Instance(abc.ABC):
    """Weights, inputs and cotangents at one size, the same for every process and machine."""

    @abc.abstractmethod
    def step(self, name: str, direction: Direction) -> Step:
        """The computation of that name: the library's, or a peer's."""

    @abc.abstractmethod
    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """How far a result is from an oracle, relative; None where this instance has none. Raises `GateError`."""


class Alone(NamedTuple):
    """One step by itself: median seconds, peak memory, and its error where it was checked."""

    seconds: float
    peak_mb: float
    error: float | None


def measure_alone(
    build: Callable[[int], Instance],
    n: int,
    names: Mapping[str, Sequence[Direction]],
    options: Options,
    *,
    rounds: int,
    tiny: int = 4,
) -> dict[str, dict[Direction, Alone]]:
    """Some steps at one size, one after the other, each by itself.

    Memory is the peak of a step's first run, time the median of that and ``rounds`` - 1 further ones. On a CPU all this
    is in a fresh process, since the system tells only a process's peak; CUDA's allocator tells it in this one. A
    problem of the size ``tiny`` goes first, so that the code's own pages are not counted as memory.
    """
    measure = functools.partial(_alone, build, n, names, options, rounds, tiny)
    if options.torch_device.type == "cuda":
        return measure(torch.get_num_threads())
    return in_fresh_process(measure, torch.get_num_threads())


def _alone(
    build: Callable[[int], Instance],
    n: int,
    names: Mapping[str, Sequence[Direction]],
    options: Options,
    rounds: int,
    tiny: int,
    threads: int,
) -> dict[str, dict[Direction, Alone]]:
    torch.set_num_threads(threads)
    steps: list[tuple[str, Direction]] = [
        (name, direction) for name, directions in names.items() for direction in directions
    ]
    first = build(tiny)
    for name, direction in steps:
        first.step(name, direction)()
    del first
    gc.collect()
    instance = build(n)
    measured: dict[str, dict[Direction, Alone]] = {name: {} for name in names}
    for name, direction in steps:
        measured[name][direction] = _measured(instance, name, direction, options, rounds)
    return measured


def _measured(instance: Instance, name: str, direction: Direction, options: Options, rounds: int) -> Alone:
    device = options.torch_device
    step, timed, peak = instance.step(name, direction), Timed(), PeakMemory(device)
    with peak:
        timed.clock(step, device)
    if device.type == "cuda" and rounds > 1:
        timed.seconds.clear()  # the first run compiled kernels
    while len(timed.seconds) < rounds and sum(timed.seconds) < options.budget_s:
        timed.clock(step, device)
    return Alone(timed.median, peak.megabytes, instance.error(name, direction, timed.result))
