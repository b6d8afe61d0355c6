"""The exact MLP kernel operator against other implementations: ``python -m benchmarks exact_mlp``.

Peers: the ITNet paper's Algorithm 1 written plainly, dense einsum, and PyTorch Geometric's NNConv on the complete
graph. All compute the same operator from the same weights. Outputs and gradients are first compared at a small size;
every timed result is compared again.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from tqdm import tqdm

from benchmarks.harness import (
    DIRECTIONS,
    Benchmark,
    Direction,
    Row,
    Settings,
    Sides,
    growth,
    measure_alone,
    require_agreement,
    rows_alone,
)
from benchmarks.peers import Algorithm1, DenseEinsum, EdgeConditionedConvolution, Peer
from benchmarks.problem import CASES, ORACLE_ROWS, TOLERANCE, Case, Problem, ProblemConfig


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take about half an hour on two cores."""

    cases: tuple[Case, ...] = CASES
    """Cases of the library: a grid, the same points without structure, and the grid in bfloat16."""
    problem: ProblemConfig = field(default_factory=ProblemConfig)
    peer_sizes: tuple[int, ...] = (64, 196, 256)
    """Numbers of points at which peers are timed; square numbers. All are compared beforehand at the first."""
    own_sizes: tuple[int, ...] = (1024, 4096)
    """Numbers of points at which only the library is timed, checked on a few rows by the formula; square numbers."""
    peer_limit_s: float = 60.0
    """Seconds; a peer whose pass is expected to take longer is left out."""
    peer_memory_gb: float = 6.0
    """Gigabytes; a peer whose kernel values need more is left out."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        small = dataclasses.replace(self.problem, embed_dim=48, num_heads=3, width=16, num_frequencies=8)
        return dataclasses.replace(self, problem=small, peer_sizes=(36,), own_sizes=(64,))

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on bfloat16 without the case that it is compared with."""
        if "grid bf16" in self.cases and "grid" not in self.cases:
            raise ValueError("the case 'grid bf16' is measured against 'grid', so --cases must name that too")
        return self

    def instance(self, n: int) -> Problem:
        """The problem at one size."""
        return Problem(self.problem, self.options, n)


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times, with peers at small sizes and alone at large ones."""
    peers = _peers(config)
    compare(config, peers)
    expected: dict[tuple[str, Direction], float] = {}
    for n in tqdm(config.peer_sizes, desc="sizes with peers", disable=None):
        yield from against_peers(config, n, peers, expected)
    for n in tqdm(config.own_sizes, desc="sizes without peers", disable=None):
        yield from without_peers(config, n)


def _peers(config: Config) -> list[Peer]:
    """All peers, those with tiles tuned at the largest size; empty if ``peer_sizes`` is."""
    if not config.peer_sizes:
        return []
    tuning = config.instance(max(config.peer_sizes))
    with torch.no_grad():
        weights = tuning.weights()
        algorithm1 = [
            Algorithm1.tuned(weights, tuning.u, tuning.pos, tuning.measure, by_line=by_line)
            for by_line in (True, False)
        ]
    return [*algorithm1, DenseEinsum(), EdgeConditionedConvolution()]


def compare(config: Config, peers: Sequence[Peer]) -> None:
    """The gate before any timing: output and all gradients of every case against every peer, at the first size."""
    for peer in tqdm(peers, desc="comparing", leave=False, disable=None):
        problem = config.instance(config.peer_sizes[0])
        theirs = problem.theirs(peer, "forward+backward")()
        for case in config.cases:
            ours = problem.step(case, "forward+backward")()
            require_agreement(f"{case} against {peer.name}, n={problem.n}", ours, theirs, TOLERANCE[case])


def against_peers(
    config: Config, n: int, peers: Sequence[Peer], expected: dict[tuple[str, Direction], float]
) -> Iterator[Row]:
    """All cases at one size, interleaved with the peers that fit the limits.

    ``expected`` holds the seconds per n² of each peer and direction so far, and is updated.
    """
    problem = config.instance(n)
    alone = measure_alone(config.instance, n, dict.fromkeys(config.cases, DIRECTIONS), config.options, rounds=1)
    for direction in DIRECTIONS:
        running = {
            peer.name: peer
            for peer in peers
            if peer.kernel_bytes(problem.weights(), config.problem.batch, n) <= config.peer_memory_gb * 1e9
            and expected.get((peer.name, direction), 0.0) * n**2 <= config.peer_limit_s
        }
        steps = {name: problem.theirs(peer, direction) for name, peer in running.items()}
        steps |= {case: problem.step(case, direction) for case in config.cases}
        sides = Sides.of(steps, n, direction, config.options, alone)
        for name in running:
            expected[name, direction] = sides.timed[name].median / n**2
        for case in config.cases:
            for other in ["grid"] if case == "grid bf16" else running:
                yield sides.against(case, other, error=sides.require_agreement(case, other, TOLERANCE[case]))


def without_peers(config: Config, n: int) -> Iterator[Row]:
    """All cases at one size, each measured in isolation and checked by the formula on a few rows."""
    checked = functools.partial(Problem, config.problem, config.options, rows=ORACLE_ROWS)
    yield from rows_alone(checked, n, {case: case for case in config.cases}, config.options)


BENCHMARK = Benchmark(
    name="exact_mlp",
    purpose="the exact MLP kernel against the paper's Algorithm 1, dense einsum and PyTorch Geometric",
    config=Config,
    measure=measure,
    notes=growth,
)
