"""Integrals over pairs against the roofline of the machine: ``python -m benchmarks roofline``.

For every case the work that any computation of it needs is counted: multiplications in matrix products, activations
(GELU, exp), and bytes that are read and written once. The machine's best rates of all three are measured in the same
run, before and after each case, by `torch.mm` of large matrices, by activations in cache or registers, and by a copy.
The longest of the three times is the roof: no shorter time is possible at these rates, whatever overlaps. A gradient
is counted with one recomputation of the tile.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch.nn import functional as F

from benchmarks import problem as exact
from benchmarks import yat_attention as yat
from benchmarks.harness import Benchmark, Direction, Instance, Options, Row, Settings, both_ways, in_turn, require_known
from fredholm.operators.cost import synchronize

EXACT = ("exact, grid", "exact, grid bf16", "exact, points")
SCORES = (yat.OURS, yat.SOFTMAX)
CASES = (*EXACT, *SCORES)
PARTS = ("products", "activations", "bytes")
GATE_POINTS = 64
"""A multiple of 16: on a GPU other sizes have separate kernels, which would be compiled only for the gate."""


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(budget_s=20.0))
    cases: tuple[str, ...] = CASES
    problem: exact.ProblemConfig = field(default_factory=exact.ProblemConfig)
    points: int = 1024
    """Points of the exact cases; a square number."""
    score_points: int = 4096
    """Points of the attention cases."""
    score_heads: int = 6
    matrix: int = 2048
    """Rows and columns of the matrices whose product gives the rate of matrix products."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        small = dataclasses.replace(self.problem, embed_dim=48, num_heads=3, width=16, num_frequencies=8)
        return dataclasses.replace(self, problem=small, points=36, score_points=40, score_heads=2, matrix=64)

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on an unknown case, and if ``points`` is not a square number."""
        require_known(self.cases, CASES)
        if math.isqrt(self.points) ** 2 != self.points:
            raise ValueError(f"the grid is square, so points must be a square number; got {self.points}")
        return self


class Work(NamedTuple):
    """Work that any computation of a case needs."""

    flops: float
    """2 for each multiplication and addition of a matrix product."""
    activations: float
    num_bytes: float
    """Inputs, parameters and results, once each."""


class Rates(NamedTuple):
    """The machine's rates per second, in one dtype."""

    flops: float
    activations: float
    num_bytes: float

    def seconds(self, work: Work) -> tuple[float, float, float]:
        """Seconds of the products, the activations and the bytes, each alone."""
        return work.flops / self.flops, work.activations / self.activations, work.num_bytes / self.num_bytes

    def or_better(self, other: "Rates") -> "Rates":
        """The larger of each pair of rates."""
        return Rates(*map(max, self, other))


def work_of_exact(config: Config, case: str, direction: Direction) -> Work:
    """Work of an exact case.

    Each pair and head needs 2w (2d) flops, off a grid 2w (2d + 2L) with L frequencies, and w GELUs; the last layer W
    is applied once per query. The gradient needs as much again for the tile, 2w d each for the gradients of h, of ω u,
    of u and of A, off a grid 2w (2L) more for those of the sine and the cosine, and w GELUs with their slopes.
    """
    sizes = config.problem
    n, w, d = config.points, sizes.width, sizes.embed_dim // sizes.num_heads
    pairs, by_parts = n * n * sizes.num_heads * sizes.batch, 2 * sizes.num_frequencies * (case == "exact, points")
    once = n * sizes.num_heads * sizes.batch * 2 * w * d * d
    flops, gelus = pairs * 2 * w * (2 * d + by_parts) + once, pairs * w
    parameters = sizes.num_heads * w * d * (d + 3)
    numbers = 2 * n * sizes.embed_dim * sizes.batch + parameters
    if direction == "forward+backward":
        flops += pairs * 2 * w * (5 * d + 2 * by_parts) + 3 * once
        return Work(flops, 3 * gelus, 3 * numbers * _size(case))
    return Work(flops, gelus, numbers * _size(case))


def work_of_scores(config: Config, direction: Direction) -> Work:
    """Work of attention: per pair and head 2d flops for the score, 2d for the value and one exp.

    The gradient needs five times 2d flops and another exp.
    """
    n, channels = config.score_points, yat.Config().channels
    pairs, numbers = n * n, 4 * n * channels
    if direction == "forward+backward":
        return Work(pairs * 14.0 * channels, 2.0 * pairs * config.score_heads, 8.0 * numbers)
    return Work(pairs * 4.0 * channels, float(pairs * config.score_heads), 4.0 * numbers)


def _size(case: str) -> int:
    return 2 if case.endswith("bf16") else 4


def rates_of(config: Config, dtype: torch.dtype) -> Rates:
    """The best rates of the machine in this measurement."""
    device = config.options.torch_device
    a, b = (torch.randn(config.matrix, config.matrix, device=device, dtype=dtype) for _ in range(2))
    flops = 2 * config.matrix**3 / _least(lambda: a @ b, device)
    large = torch.empty(1 << 26 if config.matrix > 64 else 1 << 16, device=device)
    other = torch.empty_like(large)
    num_bytes = 2 * large.numel() * 4 / _least(lambda: other.copy_(large), device)
    return Rates(flops, _activations(device), num_bytes)


def _activations(device: torch.device) -> float:
    """GELUs per second: on a GPU of numbers in registers, on a CPU of numbers in its cache."""
    if device.type == "cuda":
        # the library can be imported without triton
        from benchmarks.activations import NUMBERS, activate_in_registers

        return NUMBERS / _least(lambda: activate_in_registers(device), device)
    numbers = torch.randn(1 << 15)
    return numbers.numel() / _least(lambda: F.gelu(numbers), device)


def _least(run: Callable[[], object], device: torch.device, rounds: int = 15) -> float:
    """Seconds of the fastest round."""
    times = list[float]()
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)


def compare(config: Config) -> None:
    """The gate before any timing: each case against a formula, at a small size, in output and every gradient."""
    for case in set(config.cases) & set(EXACT):
        name: str = case.removeprefix("exact, ")
        instance = exact.Problem(config.problem, config.options, GATE_POINTS, rows=exact.ORACLE_ROWS)
        instance.error(name, "forward+backward", instance.step(name, "forward+backward")())
    if set(config.cases) & set(SCORES):
        yat.compare(yat.Config(options=config.options), config.score_heads)


def measure(config: Config) -> Iterator[Row]:
    """Each case against its roof."""
    compare(config)
    best = {torch.float32: Rates(0, 0, 0), torch.bfloat16: Rates(0, 0, 0)}
    for case in config.cases:
        dtype = torch.bfloat16 if case.endswith("bf16") else torch.float32
        name, n, build = _built(config, case)
        best[dtype] = best[dtype].or_better(rates_of(config, dtype))
        for sides in in_turn(build(n), n, both_ways([name]), config.options):
            best[dtype] = best[dtype].or_better(rates_of(config, dtype))
            direction, seconds = sides.direction, sides.timed[name].median
            work = work_of_exact(config, case, direction) if case in EXACT else work_of_scores(config, direction)
            for part, amount, roof in zip(PARTS, work, best[dtype].seconds(work), strict=True):
                yield Row(
                    case=case,
                    n=n,
                    direction=direction,
                    ours_s=seconds,
                    peer=part,
                    peer_s=roof,
                    ratio=roof / seconds,
                    per_second=amount / seconds,
                )


def _built(config: Config, case: str) -> tuple[str, int, Callable[[int], Instance]]:
    """Name of a case in its own benchmark, number of points, and constructor of its problem."""
    if case in EXACT:
        build = functools.partial(exact.Problem, config.problem, config.options)
        return case.removeprefix("exact, "), config.points, build
    return (
        case,
        config.score_points,
        functools.partial(yat.Problem, yat.Config(options=config.options), config.score_heads),
    )


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """The machine's rates, and for each case the share of the roof that it reaches, and the kind of the roof."""
    for part in PARTS:
        rates = {_dtype(row): (row.per_second or 0.0) / (row.ratio or 1.0) for row in rows if row.peer == part}
        measured = ", ".join(f"{rate:.3g} in {dtype}" for dtype, rate in rates.items())
        yield f"{'flops of products' if part == 'products' else part} a second: {measured}"
    found = dict[tuple[str, int, Direction], list[Row]]()
    for row in rows:
        found.setdefault((row.case, row.n, row.direction), []).append(row)
    for (case, n, direction), parts in found.items():
        roof = max(parts, key=lambda row: row.peer_s or 0.0)
        yield f"{case}, n = {n}, {direction}: {100 * (roof.ratio or 0.0):.0f} % of the roof, which is its {roof.peer}"


def _dtype(row: Row) -> str:
    return "bfloat16" if row.case.endswith("bf16") else "float32"


BENCHMARK = Benchmark(
    name="roofline",
    purpose="exact and Yat integrals against the least time of their products, activations and bytes",
    config=Config,
    measure=measure,
    notes=notes,
)
