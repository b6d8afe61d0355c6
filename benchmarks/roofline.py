"""How near each integral over pairs is to the least time of its work: ``python -m benchmarks roofline``.

Of every case is counted what any computation of it needs: multiplications in matrix products, activations (GELU, exp),
and bytes that it reads and writes once. The machine's best rates of all three are measured in the same run, before each
case and after it, by `torch.mm` of large matrices, by activations in cache or registers, and by a copy. The longest
of the three is the roof: no time below it is possible at these rates, whatever overlaps. A gradient is counted with one
recomputation of the tile.
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
"""A multiple of 16: on a GPU other sizes have kernels of their own, which would be compiled for the gate alone."""


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """What is measured. The defaults take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(budget_s=20.0))
    cases: tuple[str, ...] = CASES
    problem: exact.ProblemConfig = field(default_factory=exact.ProblemConfig)
    points: int = 1024
    """Points of the exact cases; a square number."""
    score_points: int = 4096
    """Points of those that score pairs."""
    score_heads: int = 6
    matrix: int = 2048
    """Rows and columns of the matrices whose product is the measure."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        small = dataclasses.replace(self.problem, embed_dim=48, num_heads=3, width=16, num_frequencies=8)
        return dataclasses.replace(self, problem=small, points=36, score_points=40, score_heads=2, matrix=64)

    def checked(self) -> "Config":
        """Itself; raises `ValueError` on cases that are not known, and on points that make no square."""
        require_known(self.cases, CASES)
        if math.isqrt(self.points) ** 2 != self.points:
            raise ValueError(f"the grid is square, so points must be a square number; got {self.points}")
        return self


class Work(NamedTuple):
    """What any computation of a case needs."""

    flops: float
    """2 for each multiplication and addition of a matrix product."""
    activations: float
    num_bytes: float
    """Inputs, parameters and results, once each."""


class Rates(NamedTuple):
    """What the machine does in a second, in one dtype."""

    flops: float
    activations: float
    num_bytes: float

    def seconds(self, work: Work) -> tuple[float, float, float]:
        """For the products, the activations and the bytes, each by itself."""
        return work.flops / self.flops, work.activations / self.activations, work.num_bytes / self.num_bytes

    def or_better(self, other: "Rates") -> "Rates":
        """The better one of each."""
        return Rates(*map(max, self, other))


def work_of_exact(config: Config, case: str, direction: Direction) -> Work:
    """Per pair and head 2w (2d) flops, or with L frequencies by parts 2w (2d + 2L), and w GELUs; W once a query.

    The gradient needs as much again for the tile, and 2w d each for the gradients of h, of ω u, of u, and of A, by
    parts 2w (2L) more for those of the sine and the cosine; and w GELUs with their slopes.
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
    """Per pair and head 2d flops for the score and 2d for the value; the gradient five times 2d. One exp each time."""
    n, channels = config.score_points, yat.Config().channels
    pairs, numbers = n * n, 4 * n * channels
    if direction == "forward+backward":
        return Work(pairs * 14.0 * channels, 2.0 * pairs * config.score_heads, 8.0 * numbers)
    return Work(pairs * 4.0 * channels, float(pairs * config.score_heads), 4.0 * numbers)


def _size(case: str) -> int:
    return 2 if case.endswith("bf16") else 4


def rates_of(config: Config, dtype: torch.dtype) -> Rates:
    """The best that are seen now."""
    device = config.options.torch_device
    a, b = (torch.randn(config.matrix, config.matrix, device=device, dtype=dtype) for _ in range(2))
    flops = 2 * config.matrix**3 / _least(lambda: a @ b, device)
    large = torch.empty(1 << 26 if config.matrix > 64 else 1 << 16, device=device)
    other = torch.empty_like(large)
    num_bytes = 2 * large.numel() * 4 / _least(lambda: other.copy_(large), device)
    return Rates(flops, _activations(device), num_bytes)


def _activations(device: torch.device) -> float:
    """GELUs a second: on a GPU of numbers that stay in registers, on a CPU of numbers that stay in its cache."""
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
    """Each case beside its roof."""
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
    """What a case is called where it comes from, its points, and its problem."""
    if case in EXACT:
        build = functools.partial(exact.Problem, config.problem, config.options)
        return case.removeprefix("exact, "), config.points, build
    return (
        case,
        config.score_points,
        functools.partial(yat.Problem, yat.Config(options=config.options), config.score_heads),
    )


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """The machine's rates, and of each case the share of the roof that it reaches, and what the roof is."""
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
    purpose="how near exact and Yat integrals are to the least time of their products, activations and bytes",
    config=Config,
    measure=measure,
    notes=notes,
)
