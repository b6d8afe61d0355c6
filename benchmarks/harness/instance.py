"""An instance of the problem that a benchmark measures, and isolated measurements of its steps."""

import abc
import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.harness.options import Options
from benchmarks.harness.process import in_fresh_process
from benchmarks.harness.step import Direction, Step
from benchmarks.harness.timing import Timed
from fredholm.operators.cost import PeakMemory


class Instance(abc.ABC):
    """Weights, inputs and cotangents at one size, the same in every process and on every machine."""

    @abc.abstractmethod
    def step(self, name: str, direction: Direction) -> Step:
        """The computation with this name: the library's or a peer's."""

    @abc.abstractmethod
    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """Relative error of a result against an oracle; None if this instance has no oracle. Raises `GateError`."""


class Alone(NamedTuple):
    """Isolated measurement of a step: median seconds, peak memory, and its error if it was checked."""

    seconds: float
    peak_mb: float
    error: float | None


Steps = Mapping[str, Sequence[Direction]]
"""Names of steps, with the directions in which each is run."""


def measure_alone(
    build: Callable[[int], Instance], n: int, names: Steps, options: Options, *, rounds: int, tiny: int = 4
) -> dict[str, dict[Direction, Alone]]:
    """All measurements of `each_alone`, by name and direction."""
    measured: dict[str, dict[Direction, Alone]] = {name: {} for name in names}
    for name, direction, alone in each_alone(build, n, names, options, rounds=rounds, tiny=tiny):
        measured[name][direction] = alone
    return measured


def each_alone(
    build: Callable[[int], Instance], n: int, names: Steps, options: Options, *, rounds: int, tiny: int = 4
) -> Iterator[tuple[str, Direction, Alone]]:
    """Measures the steps ``names`` at one size in isolation, one after the other.

    Memory is the peak of a step's first run, time the median of this and ``rounds`` - 1 further runs. On a CPU the
    steps run in a fresh process, since the system reports only the peak of a whole process. There all steps run at
    size ``tiny`` first, so that the pages of the code are not counted. CUDA's allocator reports the peak in this
    process, and each step runs once uncounted before, since kernels are compiled for the size.
    """
    measure = functools.partial(_each_alone, build, n, names, options, rounds)
    if options.torch_device.type == "cuda":
        yield from measure()
    else:
        yield from in_fresh_process(_afresh, measure, functools.partial(build, tiny), names, torch.get_num_threads())


def _afresh(
    measure: Callable[[], Iterator[tuple[str, Direction, Alone]]],
    build_tiny: Callable[[], Instance],
    names: Steps,
    threads: int,
) -> list[tuple[str, Direction, Alone]]:
    torch.set_num_threads(threads)
    first = build_tiny()
    for name, directions in names.items():
        for direction in directions:
            first.step(name, direction)()
    del first
    gc.collect()
    return list(measure())


def _each_alone(
    build: Callable[[int], Instance], n: int, names: Steps, options: Options, rounds: int
) -> Iterator[tuple[str, Direction, Alone]]:
    instance = build(n)
    for name, directions in names.items():
        for direction in directions:
            yield name, direction, _measured(instance, name, direction, options, rounds)


def _measured(instance: Instance, name: str, direction: Direction, options: Options, rounds: int) -> Alone:
    device = options.torch_device
    step, timed, peak = instance.step(name, direction), Timed(), PeakMemory(device)
    if device.type == "cuda":
        step()
    with peak:
        timed.clock(step, device)
    while len(timed.seconds) < rounds and sum(timed.seconds) < options.budget_s:
        timed.clock(step, device)
    return Alone(timed.median, peak.megabytes, instance.error(name, direction, timed.result))
