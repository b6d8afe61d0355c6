"""One instance of what a benchmark measures, and the measurement of one of its steps by itself."""

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


Steps = Mapping[str, Sequence[Direction]]
"""Names of steps, and the directions to run each in."""


def measure_alone(
    build: Callable[[int], Instance], n: int, names: Steps, options: Options, *, rounds: int, tiny: int = 4
) -> dict[str, dict[Direction, Alone]]:
    """All that `each_alone` finds, by name and direction."""
    measured: dict[str, dict[Direction, Alone]] = {name: {} for name in names}
    for name, direction, alone in each_alone(build, n, names, options, rounds=rounds, tiny=tiny):
        measured[name][direction] = alone
    return measured


def each_alone(
    build: Callable[[int], Instance], n: int, names: Steps, options: Options, *, rounds: int, tiny: int = 4
) -> Iterator[tuple[str, Direction, Alone]]:
    """Some steps at one size, one after the other, each by itself.

    Memory is the peak of a step's first run, time the median of that and ``rounds`` - 1 further ones. On a CPU all this
    is in a fresh process, since the system reports only a process's peak, and one of the size ``tiny`` goes first,
    so that the code's own pages are not counted as memory. CUDA's allocator reports the peak in this process, and each
    step goes first itself, uncounted: kernels are compiled for this size and no other.
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
