"""Large domains: exact, sampled and linear-time operators, and attention: ``python -m benchmarks large_domains``.

The exact kernel is that of `exact_mlp`. Approximations share its weights and are reported with their error; low-rank
and separable kernels have other weights and are compared with their κ in full at a small size.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from tqdm import tqdm

from benchmarks.harness import (
    DIRECTIONS,
    Benchmark,
    Direction,
    GateError,
    Options,
    Row,
    Settings,
    growth,
    require_agreement,
    require_known,
    side_by_side,
)
from benchmarks.large_problem import (
    APPROXIMATE,
    ATTENTION,
    CASES,
    DRAWS,
    EXACT,
    GRID,
    LEARNED,
    LINEAR_TIME,
    PER_QUERY,
    SHARED,
    LargeConfig,
    LargeProblem,
)

ORACLE_SIDE = 4


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take about an hour on two cores."""

    options: Options = field(default_factory=lambda: Options(rounds=5, budget_s=20.0))
    problem: LargeConfig = field(default_factory=LargeConfig)
    cases: tuple[str, ...] = CASES
    """Cases besides attention: grid and points (exact), approximations of them, and linear-time kernels."""
    sides: tuple[int, ...] = (32, 64, 128, 256)
    """Sides of the grids; n is their square."""
    directions: tuple[Direction, ...] = DIRECTIONS
    limit_s: float = 60.0
    """Seconds; a case is left out where a pass would take longer, extrapolated from the size before."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        kernel = dataclasses.replace(self.problem.kernel, embed_dim=24, num_heads=3, width=16, num_frequencies=8)
        small = LargeConfig(kernel=kernel, nodes=12, rank=2)
        return dataclasses.replace(self, problem=small, sides=(6, 8))

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on an unknown case."""
        require_known(self.cases, CASES)
        return self


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times, size by size."""
    compare(config)
    expected: dict[tuple[str, Direction], tuple[int, float]] = {}
    for side in tqdm(config.sides, desc="sizes", disable=None):
        yield from at_size(config, side * side, expected)


def compare(config: Config) -> None:
    """The gate before any timing.

    Linear-time kernels must equal their κ in full. With random nodes a mean of many draws must be much nearer to the
    exact integral than one draw, and quadratures that use every point must be exact. Exact routes are compared when
    they are timed.
    """
    small = LargeProblem(config.problem, config.options, ORACLE_SIDE**2)
    for case in config.cases:
        if case in LINEAR_TIME:
            small.against_dense(case)
    every = dataclasses.replace(config.problem, nodes=ORACLE_SIDE**2)
    whole = LargeProblem(every, config.options, ORACLE_SIDE**2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*all points are summed instead")
        expected = whole.step(GRID, "forward")()
        for case in config.cases:
            if case in APPROXIMATE:
                require_agreement(f"{case} at every point", whole.step(case, "forward")(), expected, 1e-5)
    few = dataclasses.replace(config.problem, nodes=2 * ORACLE_SIDE**2)
    sampled = LargeProblem(few, config.options, 4 * ORACLE_SIDE**2)
    for case in config.cases:
        if case in (SHARED, LEARNED, PER_QUERY):
            single, mean = sampled.averaged_error(case)
            # three times the error that unbiased independent draws leave
            if mean > 3 * single / math.sqrt(DRAWS):
                raise GateError(f"{case}: a mean of draws has error {mean:.2e}, one draw {single:.2e}: it is biased")


def at_size(config: Config, n: int, expected: dict[tuple[str, Direction], tuple[int, float]]) -> Iterator[Row]:
    """All cases that are expected to fit ``limit_s``.

    Each case has a row against the exact grid and one against attention, where those ran; attention has separate rows.
    ``expected`` holds the last size and seconds of each case and direction, and is updated.
    """
    options, names = config.options, (*config.cases, ATTENTION)
    build = functools.partial(LargeProblem, config.problem, options)
    fits: dict[str, Sequence[Direction]] = {
        name: [d for d in config.directions if _expected_s(name, n, expected.get((name, d))) <= config.limit_s]
        for name in names
    }
    for sides in side_by_side(build, n, fits, options, tiny=_above(2 * config.problem.nodes)):
        for name in sides.timed:
            expected[name, sides.direction] = (n, sides.timed[name].median)
            others = [other for other in (GRID, ATTENTION) if other in sides.timed and other != name != ATTENTION]
            for other in others:
                yield sides.against(name, other, error=sides.alone[name][sides.direction].error)
            if not others:
                yield sides.own(name)


def _expected_s(name: str, n: int, before: tuple[int, float] | None) -> float:
    """Expected seconds of a pass, from the size before: they grow as n, or as n² where all pairs are summed."""
    if before is None:
        return 0.0
    power = 2 if name in (*EXACT, ATTENTION) else 1
    return before[1] * (n / before[0]) ** power


def _above(n: int) -> int:
    """The first square number from ``n`` on."""
    return math.ceil(math.sqrt(n)) ** 2


BENCHMARK = Benchmark(
    name="large_domains",
    purpose="exact, sampled and linear-time operators on up to 65,536 points, against attention",
    config=Config,
    measure=measure,
    notes=growth,
)
