"""The exact MLP kernel operator against other ways to compute it: ``python -m benchmarks.exact_mlp [--json FILE]``.

Peers: the ITNet paper's Algorithm 1 written plainly, dense einsum, and PyTorch Geometric's NNConv on the complete
graph. All compute the same operator from the same weights. Outputs and gradients are first compared at a small size;
every timed result is compared again.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, final, get_args

import torch
import tyro
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness import (
    PeakMemory,
    Report,
    Row,
    growth_exponent,
    in_fresh_process,
    interleave,
    require_agreement,
    synchronize,
)
from benchmarks.harness.report import Direction, report_of
from benchmarks.harness.timing import Step
from benchmarks.peers import Algorithm1, DenseEinsum, EdgeConditionedConvolution, Peer
from benchmarks.problem import Case, Problem, ProblemConfig

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
TOLERANCE: dict[Case, float] = {"grid": 1e-5, "points": 1e-5, "grid bf16": 2e-2}
ORACLE_ROWS = 4


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """What is measured. The defaults take about half an hour on two cores."""

    json: Path | None = None
    """Where to write the report."""
    quick: bool = False
    """A small kernel and n <= 64, in seconds: checks the benchmark itself, its numbers mean nothing."""
    cases: tuple[Case, ...] = tuple(TOLERANCE)
    """What of the library is measured: a grid, the same points without structure, and the grid in bfloat16."""
    problem: ProblemConfig = field(default_factory=ProblemConfig)
    peer_sizes: tuple[int, ...] = (64, 196, 256)
    """Numbers of points at which peers are timed; square numbers. The first is where all are compared beforehand."""
    own_sizes: tuple[int, ...] = (1024, 4096)
    """Numbers of points at which only the library is timed, checked on a few rows by the formula; square numbers."""
    rounds: int = 7
    """Counted rounds of each interleaved measurement."""
    budget_s: float = 12.0
    """Seconds after which a step sits out further rounds."""
    peer_limit_s: float = 60.0
    """A peer whose pass is expected to take longer is left out."""
    peer_memory_gb: float = 6.0
    """A peer whose kernel values need more is left out."""
    threads: int | None = None
    """Threads of every computation; default: as PyTorch chooses."""

    def sized(self) -> "Config":
        """The configuration that runs, checked: ``quick`` shrinks everything."""
        if "grid bf16" in self.cases and "grid" not in self.cases:
            raise ValueError("the case 'grid bf16' is measured against 'grid', so --cases must name that too")
        if not self.quick:
            return self
        small = dataclasses.replace(self.problem, embed_dim=48, num_heads=3, width=16, num_frequencies=8)
        return dataclasses.replace(
            self, problem=small, peer_sizes=(36,), own_sizes=(64,), rounds=2, budget_s=1.0, quick=False
        )


class Alone(NamedTuple):
    """The library by itself in a fresh process: median seconds, peak memory, and its error where it was checked."""

    seconds: float
    peak_mb: float
    error: float | None


def run(config: Config) -> Report:
    """Compare, then time; the report of all rows, kept in ``config.json`` after every size, for the run is long.

    Raises `GateError` where two results disagree.
    """
    config = config.sized()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    peers = _peers(config)
    compare(config, peers)
    rows: list[Row] = []
    report = report_of(rows, torch.device(config.problem.device))
    expected: dict[tuple[str, Direction], float] = {}
    for n in tqdm(config.peer_sizes, desc="sizes with peers", disable=None):
        rows += against_peers(config, n, peers, expected)
        report = _keep(config, rows)
    for n in tqdm(config.own_sizes, desc="sizes without peers", disable=None):
        rows += without_peers(config, n)
        report = _keep(config, rows)
    return report


def _peers(config: Config) -> list[Peer]:
    """All peers, those with a tile size tuned at the largest size; none where no size asks for them."""
    if not config.peer_sizes:
        return []
    tuning = Problem(config.problem, max(config.peer_sizes))
    with torch.no_grad():
        weights = tuning.weights()
        algorithm1 = [
            Algorithm1.tuned(weights, tuning.u, tuning.pos, tuning.measure, by_line=by_line)
            for by_line in (True, False)
        ]
    return [*algorithm1, DenseEinsum(), EdgeConditionedConvolution()]


def _keep(config: Config, rows: list[Row]) -> Report:
    report = report_of(rows, torch.device(config.problem.device))
    if config.json is not None:
        report.write_json(config.json)
    return report


def compare(config: Config, peers: Sequence[Peer]) -> None:
    """The gate before any timing: output and all gradients of every case against every peer, at the first size."""
    for peer in tqdm(peers, desc="comparing", leave=False, disable=None):
        problem = Problem(config.problem, config.peer_sizes[0])
        theirs = problem.theirs(peer, "forward+backward")()
        for case in config.cases:
            ours = problem.ours(case, "forward+backward")()
            require_agreement(f"{case} against {peer.name}, n={problem.n}", ours, theirs, TOLERANCE[case])


def against_peers(
    config: Config, n: int, peers: Sequence[Peer], expected: dict[tuple[str, Direction], float]
) -> Iterator[Row]:
    """All cases at one size, interleaved with the peers that fit by ``expected``, seconds per n², which is updated."""
    problem = Problem(config.problem, n)
    alone = {case: _measure_alone(config, case, n, oracle=False) for case in config.cases}
    for direction in DIRECTIONS:
        running = {
            peer.name: peer
            for peer in peers
            if peer.kernel_bytes(problem.weights(), config.problem.batch, n) <= config.peer_memory_gb * 1e9
            and expected.get((peer.name, direction), 0.0) * n**2 <= config.peer_limit_s
        }
        steps = {name: problem.theirs(peer, direction) for name, peer in running.items()}
        steps |= {case: problem.ours(case, direction) for case in config.cases}
        timed = interleave(
            steps,
            device=problem.device,
            rounds=config.rounds,
            budget_s=config.budget_s,
            label=f"n={n} {direction}",
        )
        for name in running:
            expected[name, direction] = timed[name].median / n**2
        for case in config.cases:
            for other in ["grid"] if case == "grid bf16" else running:
                label = f"{case} against {other}, n={n}"
                error = require_agreement(label, timed[case].result, timed[other].result, TOLERANCE[case])
                ours_s, peer_s = timed[case].median, timed[other].median
                yield Row(
                    case=case,
                    n=n,
                    direction=direction,
                    ours_s=ours_s,
                    peer=f"fredholm {other}" if other in TOLERANCE else other,
                    peer_s=peer_s,
                    ratio=peer_s / ours_s,
                    peak_mb=alone[case][direction].peak_mb,
                    max_rel_error=error,
                )


def without_peers(config: Config, n: int) -> Iterator[Row]:
    """All cases at one size, each in a process of its own and checked by the formula on a few rows."""
    for case in config.cases:
        for direction, alone in _measure_alone(config, case, n, oracle=True).items():
            assert alone.error is not None
            yield Row(
                case=case,
                n=n,
                direction=direction,
                ours_s=alone.seconds,
                peer=None,
                peer_s=None,
                ratio=None,
                peak_mb=alone.peak_mb,
                max_rel_error=alone.error,
            )


def _measure_alone(config: Config, case: Case, n: int, *, oracle: bool) -> dict[Direction, Alone]:
    return in_fresh_process(_alone, config, torch.get_num_threads(), case, n, oracle)


def _alone(config: Config, threads: int, case: Case, n: int, oracle: bool) -> dict[Direction, Alone]:
    """Runs in the fresh process; a tiny problem first, so that the code's own pages are not counted as memory."""
    torch.set_num_threads(threads)
    for direction in DIRECTIONS:
        Problem(config.problem, 4).ours(case, direction)()
    problem = Problem(config.problem, n, rows=ORACLE_ROWS if oracle else None)
    measured: dict[Direction, Alone] = {}
    for direction in DIRECTIONS:
        step = problem.ours(case, direction)
        seconds: list[float] = []
        peak = PeakMemory(problem.device)
        with peak:
            result = _clock(step, problem, seconds)
        repeats = config.rounds if oracle else 0
        while repeats > len(seconds) and sum(seconds) < config.budget_s:
            result = _clock(step, problem, seconds)
        error = None
        if oracle:
            label = f"{case} against the formula on {ORACLE_ROWS} rows, n={n}"
            error = require_agreement(label, problem.at_rows(result), problem.oracle(direction), TOLERANCE[case])
        measured[direction] = Alone(statistics.median(seconds), peak.megabytes, error)
    return measured


def _clock(step: Step, problem: Problem, seconds: list[float]) -> Sequence[Tensor]:
    synchronize(problem.device)
    start = time.perf_counter()
    result = step()
    synchronize(problem.device)
    seconds.append(time.perf_counter() - start)
    return result


def growth(rows: Sequence[Row]) -> Iterator[str]:
    """How time and peak memory grow, a line a case or peer and direction, fitted over the larger half of the sizes."""
    seconds: dict[tuple[str, Direction], dict[int, float]] = {}
    peaks: dict[tuple[str, Direction], dict[int, float]] = {}
    for row in rows:
        seconds.setdefault((row.case, row.direction), {})[row.n] = row.ours_s
        if row.peak_mb is not None:
            # pages come in kilobytes, and a small problem may need no new one
            peaks.setdefault((row.case, row.direction), {})[row.n] = max(row.peak_mb, 1e-3)
        if row.peer is not None and row.peer_s is not None and row.case != "grid bf16":
            seconds.setdefault((row.peer, row.direction), {})[row.n] = row.peer_s
    for (name, direction), by_size in seconds.items():
        parts = [_fit("time", by_size), _fit("peak memory", peaks.get((name, direction), {}))]
        if any(parts):
            yield f"{name}, {direction}: {', '.join(filter(None, parts))}"


def _fit(cost: str, by_size: dict[int, float]) -> str:
    """``cost ~ n^p over n = a to b``, or nothing where there are not two sizes."""
    sizes = sorted(by_size)
    sizes = sizes[len(sizes) // 2 :] if len(sizes) > 3 else sizes
    if len(sizes) < 2:
        return ""
    exponent = growth_exponent(sizes, [by_size[n] for n in sizes])
    return f"{cost} ~ n^{exponent:.2f} over n = {sizes[0]} to {sizes[-1]}"


def main(config: Config) -> None:
    """Measure exact MLP kernels and print the table; ``--json FILE`` keeps it."""
    report = run(config)
    print(report.markdown(), "", *growth(report.rows), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))
