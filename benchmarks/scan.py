"""The scan of the selective state space against a plain loop: ``python -m benchmarks.scan [--json FILE]``.

The peer computes the same operator from the same weights: it discretises every point, then steps through time, with
autograd through the loop. Outputs and gradients are compared at a small size first; every timed result is compared too.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, final, get_args

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
from benchmarks.peers.state_space_loop import selective_loop
from fredholm import IntegralOperator, kernels

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
CASE, PEER = "selective scan", "plain loop"
Side = Literal["ours", "peer"]


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """What is measured. The defaults take some minutes on two cores."""

    json: Path | None = None
    """Where to write the report."""
    quick: bool = False
    """Small sizes, in seconds: checks the benchmark itself, its numbers mean nothing."""
    channels: int = 256
    """Channels d of the signal."""
    state_dim: int = 16
    """State variables a channel."""
    batch: int = 1
    """Sequences at a time."""
    device: str = "cpu"
    """Where everything runs."""
    seed: int = 0
    """Of weights, signal and cotangent."""
    peer_sizes: tuple[int, ...] = (1024, 2048, 4096)
    """Numbers of points at which the peer is timed too. The first is where both are compared beforehand."""
    own_sizes: tuple[int, ...] = (8192, 16384)
    """Numbers of points at which only the library is timed; it is checked by the peer where they were compared."""
    rounds: int = 7
    """Counted rounds of each interleaved measurement."""
    budget_s: float = 20.0
    """Seconds after which a step sits out further rounds."""
    tolerance: float = 2e-5
    """Relative difference, of output and every gradient, above which nothing is timed; sums run over all points."""
    threads: int | None = None
    """Threads of every computation; default: as PyTorch chooses."""

    def sized(self) -> "Config":
        """The configuration that runs: ``quick`` shrinks everything."""
        if not self.quick:
            return self
        return dataclasses.replace(
            self, channels=8, state_dim=4, peer_sizes=(32,), own_sizes=(64,), rounds=2, budget_s=1.0, quick=False
        )


class Alone(NamedTuple):
    """One side by itself in a fresh process: median seconds and peak memory."""

    seconds: float
    peak_mb: float


@final
class Problem:
    """A sequence of ``n`` points with a random kernel, signal and cotangent, the same for every process and machine."""

    def __init__(self, config: Config, n: int) -> None:
        self.n, self.device = n, torch.device(config.device)
        torch.manual_seed(config.seed)
        self.kernel = kernels.SelectiveStateSpace(config.channels, config.state_dim).to(self.device)
        self.operator = IntegralOperator(self.kernel, residual=False, bias=False, output_projection=False)
        self.u = torch.randn(config.batch, n, config.channels).to(self.device).requires_grad_()
        self.cotangent = torch.randn(config.batch, n, config.channels).to(self.device)

    def step(self, side: Side, direction: Direction) -> Step:
        """The library's operator as a user calls it, which chooses its own route, or the peer."""

        def forward() -> Sequence[Tensor]:
            with torch.no_grad():
                return (self._apply(side),)

        def forward_backward() -> Sequence[Tensor]:
            output = self._apply(side)
            grads = torch.autograd.grad(output, [self.u, *self.kernel.parameters()], self.cotangent)
            return (output.detach(), *grads)

        return forward if direction == "forward" else forward_backward

    def _apply(self, side: Side) -> Tensor:
        if side == "ours":
            return self.operator(self.u)
        k = self.kernel
        assert k.feedthrough is not None
        return selective_loop(self.u, k.content_weight, k.step_weight, k.step_bias, k.log_a, k.feedthrough)


def run(config: Config) -> Report:
    """Compare, then time; the report of all rows, kept in ``config.json`` after every size.

    Raises `GateError` where two results disagree.
    """
    config = config.sized()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.peer_sizes:
        compare(config)
    rows: list[Row] = []
    for n in tqdm(config.peer_sizes, desc="sizes with the peer", disable=None):
        rows += against_peer(config, n)
        _keep(config, rows)
    for n in tqdm(config.own_sizes, desc="sizes without", disable=None):
        rows += without_peer(config, n)
        _keep(config, rows)
    return _keep(config, rows)


def _keep(config: Config, rows: list[Row]) -> Report:
    report = report_of(rows, torch.device(config.device))
    if config.json is not None:
        report.write_json(config.json)
    return report


def compare(config: Config) -> float:
    """The gate before any timing: output and all gradients against the peer, at the first size."""
    problem = Problem(config, config.peer_sizes[0])
    ours, theirs = (problem.step(side, "forward+backward")() for side in get_args(Side))
    return require_agreement(f"{CASE} against {PEER}, n={problem.n}", ours, theirs, config.tolerance)


def against_peer(config: Config, n: int) -> Iterator[Row]:
    """Both sides at one size: time interleaved, memory in a process of its own, the peer's in a row of its own."""
    alone: dict[Side, dict[Direction, Alone]] = {
        side: in_fresh_process(_alone, config, torch.get_num_threads(), n, side) for side in get_args(Side)
    }
    problem = Problem(config, n)
    for direction in DIRECTIONS:
        timed = interleave(
            {side: problem.step(side, direction) for side in get_args(Side)},
            device=problem.device,
            rounds=config.rounds,
            budget_s=config.budget_s,
            label=f"n={n} {direction}",
        )
        label = f"{CASE} against {PEER}, n={n}"
        error = require_agreement(label, timed["ours"].result, timed["peer"].result, config.tolerance)
        ours_s, peer_s = timed["ours"].median, timed["peer"].median
        yield Row(
            case=CASE,
            n=n,
            direction=direction,
            ours_s=ours_s,
            peer=PEER,
            peer_s=peer_s,
            ratio=peer_s / ours_s,
            peak_mb=alone["ours"][direction].peak_mb,
            max_rel_error=error,
        )
        yield Row(
            case=PEER,
            n=n,
            direction=direction,
            ours_s=peer_s,
            peer=None,
            peer_s=None,
            ratio=None,
            peak_mb=alone["peer"][direction].peak_mb,
            max_rel_error=error,
        )


def without_peer(config: Config, n: int) -> Iterator[Row]:
    """The library at one size; its error is that of two chunks carried by a state against the whole."""
    problem = Problem(config, n)
    with torch.no_grad():
        whole = problem.operator(problem.u)
        head, state = problem.operator.scan(problem.u[:, : n // 3])
        tail, _ = problem.operator.scan(problem.u[:, n // 3 :], state=state)
    label = f"{CASE} in two chunks against the whole, n={n}"
    error = require_agreement(label, (torch.cat([head, tail], dim=1),), (whole,), config.tolerance)
    measured: dict[Direction, Alone] = in_fresh_process(_alone, config, torch.get_num_threads(), n, "ours")
    for direction, alone in measured.items():
        yield Row(
            case=CASE,
            n=n,
            direction=direction,
            ours_s=alone.seconds,
            peer=None,
            peer_s=None,
            ratio=None,
            peak_mb=alone.peak_mb,
            max_rel_error=error,
        )


def _alone(config: Config, threads: int, n: int, side: Side) -> dict[Direction, Alone]:
    """Runs in the fresh process; a tiny problem first, so that the code's own pages are not counted as memory."""
    torch.set_num_threads(threads)
    for direction in DIRECTIONS:
        Problem(config, 4).step(side, direction)()
    problem = Problem(config, n)
    measured: dict[Direction, Alone] = {}
    for direction in DIRECTIONS:
        step, seconds = problem.step(side, direction), []
        peak = PeakMemory(problem.device)
        with peak:
            _clock(step, problem, seconds)
        while side == "ours" and len(seconds) < config.rounds and sum(seconds) < config.budget_s:
            _clock(step, problem, seconds)
        measured[direction] = Alone(statistics.median(seconds), peak.megabytes)
    return measured


def _clock(step: Step, problem: Problem, seconds: list[float]) -> None:
    synchronize(problem.device)
    start = time.perf_counter()
    step()
    synchronize(problem.device)
    seconds.append(time.perf_counter() - start)


def growth(rows: Sequence[Row]) -> Iterator[str]:
    """How time grows with the number of points, a line a side and direction."""
    seconds: dict[tuple[str, Direction], dict[int, float]] = {}
    for row in rows:
        seconds.setdefault((row.case, row.direction), {})[row.n] = row.ours_s
    for (name, direction), by_size in seconds.items():
        if len(by_size) > 1:
            exponent = growth_exponent(list(by_size), list(by_size.values()))
            yield f"{name}, {direction}: time ~ n^{exponent:.2f} over n = {min(by_size)} to {max(by_size)}"


def main(config: Config) -> None:
    """Measure the scan and print the table; ``--json FILE`` keeps it."""
    report = run(config)
    print(report.markdown(), "", *growth(report.rows), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))
