"""The scan of the selective state space against a plain loop: ``python -m benchmarks scan``.

The peer computes the same operator from the same weights: it discretises every point, then steps through time, with
autograd through the loop. Outputs and gradients are compared at a small size first; every timed result is compared too.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness import (
    DIRECTIONS,
    Benchmark,
    Direction,
    Instance,
    Options,
    Row,
    Step,
    directed,
    growth,
    interleave,
    measure_alone,
    require_agreement,
)
from benchmarks.peers.state_space_loop import selective_loop
from fredholm import IntegralOperator, kernels

CASE, PEER = SIDES = ("selective scan", "plain loop")


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """What is measured. The defaults take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(budget_s=20.0))
    channels: int = 256
    """Channels d of the signal."""
    state_dim: int = 16
    """State variables a channel."""
    batch: int = 1
    """Sequences at a time."""
    peer_sizes: tuple[int, ...] = (1024, 2048, 4096)
    """Numbers of points at which the peer is timed too. The first is where both are compared beforehand."""
    own_sizes: tuple[int, ...] = (8192, 16384)
    """Numbers of points at which only the library is timed; it is checked by the peer where they were compared."""
    tolerance: float = 2e-5
    """Relative difference, of output and every gradient, above which nothing is timed; sums run over all points."""

    def sized(self) -> "Config":
        """The configuration that runs: ``quick`` shrinks everything."""
        if not self.options.quick:
            return self
        return dataclasses.replace(
            self, options=self.options.sized(), channels=8, state_dim=4, peer_sizes=(32,), own_sizes=(64,)
        )

    def instance(self, n: int) -> "Problem":
        """The problem at one size."""
        return Problem(self, n)


@final
class Problem(Instance):
    """A sequence of ``n`` points with a random kernel, signal and cotangent, the same for every process and machine."""

    def __init__(self, config: Config, n: int) -> None:
        self.n, self.device, self._tolerance = n, config.options.torch_device, config.tolerance
        torch.manual_seed(config.options.seed)
        self.kernel = kernels.SelectiveStateSpace(config.channels, config.state_dim).to(self.device)
        self.operator = IntegralOperator(self.kernel, residual=False, bias=False, output_projection=False)
        self.u = torch.randn(config.batch, n, config.channels).to(self.device).requires_grad_()
        self.cotangent = torch.randn(config.batch, n, config.channels).to(self.device)

    def step(self, name: str, direction: Direction) -> Step:
        """The library's operator as a user calls it, which chooses its own route, or the peer."""
        apply = self._ours if name == CASE else self._theirs
        return directed(apply, direction, [self.u, *self.kernel.parameters()], self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """That of two chunks carried by a state against the whole, forward."""
        whole = result[0]
        with torch.no_grad():
            head, state = self.operator.scan(self.u[:, : self.n // 3])
            tail, _ = self.operator.scan(self.u[:, self.n // 3 :], state=state)
        label = f"{CASE} in two chunks against the whole, n={self.n}"
        return require_agreement(label, (torch.cat([head, tail], dim=1),), (whole,), self._tolerance)

    def _ours(self) -> Tensor:
        return self.operator(self.u)

    def _theirs(self) -> Tensor:
        k = self.kernel
        assert k.feedthrough is not None
        return selective_loop(self.u, k.content_weight, k.step_weight, k.step_bias, k.log_a, k.feedthrough)


def measure(config: Config) -> Iterator[Row]:
    """Compare, then time, with the peer at small sizes and alone at large ones."""
    if config.peer_sizes:
        compare(config)
    for n in tqdm(config.peer_sizes, desc="sizes with the peer", disable=None):
        yield from against_peer(config, n)
    for n in tqdm(config.own_sizes, desc="sizes without", disable=None):
        alone = measure_alone(config.instance, n, {CASE: DIRECTIONS}, config.options, rounds=config.options.rounds)
        for direction, measured in alone[CASE].items():
            yield Row.alone(CASE, n, direction, measured)


def compare(config: Config) -> float:
    """The gate before any timing: output and all gradients against the peer, at the first size."""
    problem = config.instance(config.peer_sizes[0])
    ours, theirs = (problem.step(side, "forward+backward")() for side in SIDES)
    return require_agreement(f"{CASE} against {PEER}, n={problem.n}", ours, theirs, config.tolerance)


def against_peer(config: Config, n: int) -> Iterator[Row]:
    """Both sides at one size: time interleaved, memory of each by itself, the peer's in a row of its own."""
    alone = measure_alone(config.instance, n, dict.fromkeys(SIDES, DIRECTIONS), config.options, rounds=1)
    problem = config.instance(n)
    for direction in DIRECTIONS:
        steps = {side: problem.step(side, direction) for side in SIDES}
        timed = interleave(steps, device=problem.device, options=config.options, label=f"n={n} {direction}")
        label = f"{CASE} against {PEER}, n={n}"
        error = require_agreement(label, timed[CASE].result, timed[PEER].result, config.tolerance)
        peak_mb = alone[CASE][direction].peak_mb
        yield Row.against(CASE, n, direction, timed, ours=CASE, peer=PEER, name=PEER, peak_mb=peak_mb, error=error)
        theirs = alone[PEER][direction]._replace(seconds=timed[PEER].median, error=error)
        yield Row.alone(PEER, n, direction, theirs)


BENCHMARK = Benchmark(
    name="scan",
    purpose="the selective state space's scan against a plain loop",
    config=Config,
    measure=measure,
    notes=growth,
)
