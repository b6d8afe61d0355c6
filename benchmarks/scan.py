"""The scan of the selective state space against a plain loop: ``python -m benchmarks scan``.

The peer computes the same operator from the same weights: it discretises every point, then steps through time, with
autograd through the loop. Outputs and gradients are compared at a small size first; every timed result is compared too.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness import (
    Benchmark,
    Direction,
    Instance,
    Options,
    Row,
    Settings,
    Step,
    both_ways,
    directed,
    growth,
    require_agreement,
    require_same,
    rows_alone,
    side_by_side,
)
from benchmarks.peers.state_space_loop import selective_loop
from fredholm import IntegralOperator, kernels

CASE, PEER = SIDES = ("selective scan", "plain loop")


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(budget_s=20.0))
    channels: int = 256
    """Channels d of the signal."""
    state_dim: int = 16
    """State variables per channel."""
    batch: int = 1
    """Sequences at a time."""
    peer_sizes: tuple[int, ...] = (1024, 2048, 4096)
    """Numbers of points at which the peer is timed too. Both are compared beforehand at the first."""
    own_sizes: tuple[int, ...] = (8192, 16384)
    """Numbers of points at which only the library is timed, in two chunks against the whole."""
    tolerance: float = 2e-5
    """Largest relative difference, of output and every gradient, that is timed; sums run over all points."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return dataclasses.replace(self, channels=8, state_dim=4, peer_sizes=(32,), own_sizes=(64,))


@final
class Problem(Instance):
    """A sequence of ``n`` points with a random kernel, signal and cotangent, the same in every process."""

    def __init__(self, config: Config, n: int) -> None:
        self.n, self.device, self._tolerance = n, config.options.torch_device, config.tolerance
        torch.manual_seed(config.options.seed)
        self.kernel = kernels.SelectiveStateSpace(config.channels, config.state_dim).to(self.device)
        self.operator = IntegralOperator(self.kernel, residual=False, bias=False, output_projection=False)
        self.u = torch.randn(config.batch, n, config.channels).to(self.device).requires_grad_()
        self.cotangent = torch.randn(config.batch, n, config.channels).to(self.device)

    def step(self, name: str, direction: Direction) -> Step:
        """The library's operator as a user calls it, with an automatic route, or the peer."""
        apply = self._ours if name == CASE else self._theirs
        return directed(apply, direction, [self.u, *self.kernel.parameters()], self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """Error of two chunks that are connected by a state, against the whole sequence, forward."""
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
    """Compares, then times, with the peer at small sizes and alone at large ones."""
    if config.peer_sizes:
        compare(config)
    for n in tqdm(config.peer_sizes, desc="sizes with the peer", disable=None):
        yield from against_peer(config, n)
    for n in tqdm(config.own_sizes, desc="sizes without", disable=None):
        yield from rows_alone(functools.partial(Problem, config), n, {CASE: CASE}, config.options)


def compare(config: Config) -> float:
    """The gate before any timing: output and all gradients against the peer, at the first size."""
    return require_same(functools.partial(Problem, config), config.peer_sizes[0], CASE, [PEER], config.tolerance)


def against_peer(config: Config, n: int) -> Iterator[Row]:
    """Both sides at one size: interleaved times and isolated memory, with a separate row for the peer."""
    names = both_ways(SIDES)
    for sides in side_by_side(functools.partial(Problem, config), n, names, config.options):
        error = sides.require_agreement(CASE, PEER, config.tolerance)
        yield sides.against(CASE, PEER, error=error)
        yield sides.own(PEER, error=error)


BENCHMARK = Benchmark(
    name="scan",
    purpose="the selective state space's scan against a plain loop",
    config=Config,
    measure=measure,
    notes=growth,
)
