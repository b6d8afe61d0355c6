"""Sides of a comparison: agreement beforehand, time in turn, memory of each by itself, and the rows of a report."""

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
    """What all sides took at one size in one direction.

    Args:
        n: the size.
        direction: of all steps.
        timed: times and last results of every side, taken in turn.
        alone: the sides that were measured by themselves, too.
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
        """Runs the steps in turn."""
        timed = interleave(steps, options=options, label=f"n={n} {direction}")
        return cls(n=n, direction=direction, timed=timed, alone=alone or {})

    def require_agreement(self, ours: str, peer: str, tolerance: float, *, case: str | None = None) -> float:
        """The relative error of the results that were timed, or `GateError`; ``case`` is what ours is called."""
        label = f"{case or ours} against {peer}, n={self.n}"
        return require_agreement(label, self.timed[ours].result, self.timed[peer].result, tolerance)

    def against(self, ours: str, peer: str, *, case: str | None = None, error: float | None = None) -> Row:
        """The row of one side against another; peak memory where ours was measured by itself."""
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
        """The row of one side that was measured by itself, too; its error there where none is given."""
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
    """The gate before any timing: output and all gradients of one side against its peers, the largest error."""
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
    wanted: Mapping[str, Sequence[Direction]],
    options: Options,
    alone: Mapping[str, Mapping[Direction, Alone]] | None = None,
) -> Iterator[Sides]:
    """The sides of one instance, one direction after the other."""
    directions: dict[Direction, None] = {direction: None for each in wanted.values() for direction in each}
    for direction in directions:
        steps = {name: instance.step(name, direction) for name in wanted if direction in wanted[name]}
        yield Sides.of(steps, n, direction, options, alone)


def side_by_side(
    build: Callable[[int], Instance],
    n: int,
    wanted: Mapping[str, Sequence[Direction]],
    options: Options,
    *,
    tiny: int = 4,
) -> Iterator[Sides]:
    """Each side by itself for its memory, then all in turn; for ``tiny`` see `measure_alone`."""
    alone = measure_alone(build, n, wanted, options, rounds=1, tiny=tiny)
    yield from in_turn(build(n), n, wanted, options, alone)


def rows_alone(
    build: Callable[[int], Instance], n: int, cases: Mapping[str, str], options: Options, *, tiny: int = 4
) -> Iterator[Row]:
    """A row a side and direction, each by itself; ``cases`` has each side's name in the report."""
    for side, direction, alone in each_alone(build, n, both_ways(cases), options, rounds=options.rounds, tiny=tiny):
        yield Row.alone(cases[side], n, direction, alone)
