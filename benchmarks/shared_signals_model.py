"""Cost model of one signal over many GPUs: ``python -m benchmarks.shared_signals_model``.

Legend
    N, P, n     points, processes, N / P           C, H, d     channels, heads, C / H
    w           hidden units of an MLP kernel      s           bytes of a number: 2 in bfloat16, 4 in float32

    seconds computing   flops of a process / rate
    seconds sending     bytes / bandwidth + steps · latency;    a sum over all processes sends 2 (P - 1) / P times its
                        size in 2 log₂ P steps, a ring N - n points in P - 1 steps, all but the first while it computes
    efficiency          seconds on one GPU / (P · seconds of a process)

Bytes equal those that `fredholm.distributed.counted_traffic` counts, as a test checks. Rates and bandwidths are round
numbers for hardware of this kind, not measurements.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import tyro


class Sizes(NamedTuple):
    """A signal of one batch entry, and a kernel."""

    points: int
    processes: int
    channels: int
    heads: int
    width: int
    number: int
    """Bytes of a number of the signal; sums are in float32 at least."""

    @property
    def here(self) -> float:
        """Points of a process."""
        return self.points / self.processes

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.channels // self.heads

    @property
    def passing(self) -> float:
        """Points that a process passes on in a ring."""
        return self.points - self.here


@final
@dataclass(frozen=True)
class Way:
    """Computation and communication of a kernel's integral over the points of all processes."""

    flops: Callable[[Sizes], float]
    """Flops of a process, forward."""
    ring: Callable[[Sizes], float] = lambda s: 0.0
    """Bytes that a process sends in a ring, forward."""
    sums: Callable[[Sizes], float] = lambda s: 0.0
    """Bytes that are summed over all processes, forward."""
    relay: Callable[[Sizes], float] = lambda s: 0.0
    """Bytes that are relayed to the next process, which waits for them, forward."""
    num_sums: int = 0


def maps(s: Sizes) -> float:
    """Flops of queries, keys, values and W^O."""
    return 8 * s.channels**2 * s.here


def pairs(per_pair: Callable[[Sizes], float]) -> Callable[[Sizes], float]:
    """Flops of the maps and of all pairs with a process's queries."""
    return lambda s: maps(s) + s.here * s.points * per_pair(s)


def points(per_point: Callable[[Sizes], float]) -> Callable[[Sizes], float]:
    """Flops of the maps and of a process's points."""
    return lambda s: maps(s) + s.here * per_point(s)


WAYS: dict[str, Way] = {
    "exact MLP": Way(
        pairs(lambda s: s.heads * s.width * (2 * s.head + 10)), ring=lambda s: s.passing * s.channels * s.number
    ),
    "attention": Way(pairs(lambda s: 4 * s.channels), ring=lambda s: 2 * s.passing * s.channels * s.number),
    "Yat attention": Way(
        pairs(lambda s: 4 * s.channels + 10 * s.heads), ring=lambda s: 2 * s.passing * s.channels * s.number
    ),
    "one hop": Way(
        pairs(lambda s: 4 * s.channels + 4 * s.heads),
        ring=lambda s: 2 * s.passing * s.channels * max(s.number, 4),
        sums=lambda s: 8 * s.heads,
        num_sums=1,
    ),
    "low rank": Way(
        points(lambda s: 8 * s.channels * s.width),
        sums=lambda s: 4 * s.channels * (s.width + 1),
        num_sums=1,
    ),
    "separable": Way(
        points(lambda s: 8 * s.channels * s.width),
        sums=lambda s: 4 * s.channels * (s.width + 1),
        num_sums=1,
    ),
    "linear attention": Way(
        points(lambda s: 4 * s.channels * s.head), sums=lambda s: 4 * s.channels * (s.head + 1), num_sums=1
    ),
    "linear infinite": Way(
        points(lambda s: 8 * s.channels * s.heads),
        sums=lambda s: 4 * (s.channels + s.heads + s.heads * s.channels + s.heads),
        num_sums=4,
    ),
    "factorised infinite": Way(
        points(lambda s: 10 * s.channels * s.head + 2 * s.channels * s.channels),
        sums=lambda s: 8 * s.channels * (3 * s.head + s.channels + 1),
        num_sums=4,
    ),
}
"""Kernels of `shared_signals` that more processes make faster.

The others gain no time: in relays processes wait for each other and share only memory, and kernels that need all points
at once are computed as a whole by each process, which shares nothing.
"""


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """The signal and the machines."""

    points: int = 1_000_000
    channels: int = 384
    heads: int = 6
    width: int = 128
    gpus: tuple[int, ...] = (8, 64, 256, 1024)
    tflops: float = 300.0
    """Tflop/s that matrix products reach on a GPU, in bfloat16."""
    gigabytes: float = 50.0
    """Bandwidth between GPUs across machines, in GB per second."""
    microseconds: float = 10.0
    """Latency of a message in microseconds."""


def seconds(way: Way, sizes: Sizes, config: Config) -> float:
    """Seconds of a forward pass."""
    computing = way.flops(sizes) / (config.tflops * 1e12)
    if sizes.processes == 1:
        return computing
    rate, latency, others = config.gigabytes * 1e9, config.microseconds * 1e-6, sizes.processes - 1
    ring = way.ring(sizes) / rate + others * latency if way.ring(sizes) else 0.0
    summing = 2 * others / sizes.processes * way.sums(sizes) / rate
    summing += way.num_sums * 2 * math.ceil(math.log2(sizes.processes)) * latency
    return max(computing, ring) + summing


def efficiency(name: str, gpus: int, config: Config) -> float:
    """Seconds on one GPU over ``gpus`` times the seconds on ``gpus`` GPUs."""
    alone = Sizes(config.points, 1, config.channels, config.heads, config.width, 2)
    return seconds(WAYS[name], alone, config) / (gpus * seconds(WAYS[name], alone._replace(processes=gpus), config))


def main(config: Config) -> None:
    """Prints a Markdown table."""
    print("| kernel | sent a process on 64 GPUs, MB | " + " | ".join(f"{gpus:,} GPUs" for gpus in config.gpus) + " |")
    print("|---" * (2 + len(config.gpus)) + "|")
    for name, way in WAYS.items():
        sizes = Sizes(config.points, 64, config.channels, config.heads, config.width, 2)
        sent = way.ring(sizes) + way.sums(sizes)
        cells = [f"{100 * efficiency(name, gpus, config):.0f} %" for gpus in config.gpus]
        print(f"| {name} | {sent / 1e6:,.2f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
