"""Comparisons of several sides: agreement beforehand, interleaved times, isolated memory, and rows of a report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from benchmarks.harness.gate import require_agreement
from benchmarks.harness.instance import Alone, Instance, each_alone, measure_alone
from benchmarks.harness.options import Options
from benchmarks.harness.report import Row
from benchmarks.harness.step import Direction, Step, both_ways
from benchmarks.harness.timing import Timed, interleave


@final
@dataclass(frozen=True, kw_only=True)
class Sides:
    """Measurements of all sides of a comparison at one size in one direction.

    Args:
        n: the size.
        direction: direction of all steps.
        timed: interleaved times and last result of every side.
        alone: isolated measurements of the sides that have them.
    """

    n: int
    direction: Direction
    timed: Mapping[str, Timed]
    alone: Mapping[str, Mapping[Direction, Alone]]

    @classmethod
    def of(
        cls,
        steps: Mapping[str, Step],
        n: int,
        direction: Direction,
        options: Options,
        alone: Mapping[str, Mapping[Direction, Alone]] | None = None,
    ) -> "Sides":
        """Times the steps in interleaved rounds."""
        timed = interleave(steps, options=options, label=f"n={n} {direction}")
        return cls(n=n, direction=direction, timed=timed, alone=alone or {})

    def require_agreement(self, ours: str, peer: str, tolerance: float, *, case: str | None = None) -> float:
        """The relative error of the timed results, or `GateError`; ``case`` is the name of ours in the message."""
        label = f"{case or ours} against {peer}, n={self.n}"
        return require_agreement(label, self.timed[ours].result, self.timed[peer].result, tolerance)

    def against(self, ours: str, peer: str, *, case: str | None = None, error: float | None = None) -> Row:
        """The row of one side against another, with peak memory if ours was also measured in isolation."""
        ours_s, peer_s = self.timed[ours].median, self.timed[peer].median
        return Row(
            case=case or ours,
            n=self.n,
            direction=self.direction,
            ours_s=ours_s,
            peer=peer,
            peer_s=peer_s,
            ratio=peer_s / ours_s,
            peak_mb=self.alone[ours][self.direction].peak_mb if ours in self.alone else None,
            max_rel_error=error,
        )

    def own(self, side: str, *, case: str | None = None, error: float | None = None) -> Row:
        """The row of a side that was also measured in isolation; ``error`` defaults to the one found there."""
        alone = self.alone[side][self.direction]
        found = Alone(self.timed[side].median, alone.peak_mb, alone.error if error is None else error)
        return Row.alone(case or side, self.n, self.direction, found)


def require_same(
    build: Callable[[int], Instance],
    n: int,
    ours: str,
    peers: Sequence[str],
    tolerance: float,
    *,
    case: str | None = None,
) -> float:
    """The gate before any timing: largest relative error of output and all gradients of a side against its peers."""
    instance = build(n)
    result = instance.step(ours, "forward+backward")()
    return max(
        require_agreement(
            f"{case or ours} against {peer}, n={n}", result, instance.step(peer, "forward+backward")(), tolerance
        )
        for peer in peers
    )


def in_turn(
    instance: Instance,
    n: int,
    names: Mapping[str, Sequence[Direction]],
    options: Options,
    alone: Mapping[str, Mapping[Direction, Alone]] | None = None,
) -> Iterator[Sides]:
    """Times the steps ``names`` of one instance in interleaved rounds, one direction after the other."""
    directions: dict[Direction, None] = {direction: None for each in names.values() for direction in each}
    for direction in directions:
        steps = {name: instance.step(name, direction) for name in names if direction in names[name]}
        yield Sides.of(steps, n, direction, options, alone)


def side_by_side(
    build: Callable[[int], Instance],
    n: int,
    names: Mapping[str, Sequence[Direction]],
    options: Options,
    *,
    tiny: int = 4,
) -> Iterator[Sides]:
    """Each side in isolation for its memory, then all in interleaved rounds; for ``tiny`` see `each_alone`."""
    alone = measure_alone(build, n, names, options, rounds=1, tiny=tiny)
    yield from in_turn(build(n), n, names, options, alone)


def rows_alone(
    build: Callable[[int], Instance], n: int, cases: Mapping[str, str], options: Options, *, tiny: int = 4
) -> Iterator[Row]:
    """A row per side and direction, each measured in isolation; ``cases`` holds each side's name in the report."""
    for side, direction, alone in each_alone(build, n, both_ways(cases), options, rounds=options.rounds, tiny=tiny):
        yield Row.alone(cases[side], n, direction, alone)
