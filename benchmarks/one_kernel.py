"""MLP kernels without content inputs, evaluated once for a whole batch: ``python -m benchmarks one_kernel``.

A kernel of positions is evaluated once for all entries: the peer computes the same integrals entry by entry. A kernel
of the displacement alone is a filter between regular grids: the peer is the sum over all pairs, in tiles. Output and
every gradient of both sides are compared before anything is timed, and so is every timed result.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness import (
    Benchmark,
    Direction,
    Instance,
    Row,
    Settings,
    Step,
    both_ways,
    directed,
    require_same,
    side_by_side,
)
from fredholm import IntegralOperator, domains, kernels
from fredholm.evaluation import Toeplitz

Case = Literal["positions", "displacement"]
POSITIONS, DISPLACEMENT = get_args(Case)
PEERS: dict[Case, str] = {POSITIONS: "entry by entry", DISPLACEMENT: "sum over pairs"}
SMALL: dict[Case, int] = {POSITIONS: 2, DISPLACEMENT: 6}
"""Sizes at which both sides are compared beforehand."""


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on one core."""

    cases: tuple[Case, ...] = get_args(Case)
    """Kernels to measure."""
    batches: tuple[int, ...] = (1, 32)
    """Batch sizes for the kernel of positions."""
    side: int = 16
    """Cells along each axis of the grid for the kernel of positions."""
    sides: tuple[int, ...] = (16, 64)
    """Cells along each axis of the grids for the kernel of displacement, whose batch is 1."""
    channels: int = 32
    """Channels of the signal, in 4 heads."""
    width: int = 32
    """Hidden units of the perceptron."""
    num_frequencies: int = 16
    """Fourier frequencies of positions and displacements."""
    tolerance: float = 2e-5
    """Largest relative difference, of output and every gradient, that is timed."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return replace(self, batches=(1, 3), side=4, sides=(4, 6), channels=8, width=8, num_frequencies=4)

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on sizes below 1, and on channels that the heads do not divide."""
        sizes = (*self.batches, self.side, *self.sides)
        if min(sizes) < 1:
            raise ValueError(f"batches, side and sides must be at least 1; got {min(sizes)}")
        if self.channels < 4 or self.channels % 4:
            raise ValueError(f"channels must be a multiple of the 4 heads; got {self.channels}")
        return self


@final
class Problem(Instance):
    """A kernel with a random signal and cotangent.

    Args:
        config: sizes, device and seed.
        case: name of the kernel.
        size: entries of the batch, or cells along each axis.
    """

    def __init__(self, config: Config, case: Case, size: int) -> None:
        torch.manual_seed(config.options.seed)
        device = config.options.torch_device
        off = dict.fromkeys(["query_content", "key_content", "product"], False)
        if case == DISPLACEMENT:
            off |= dict.fromkeys(["query_position", "key_position"], False)
        inputs = kernels.KernelInputs(**off)
        lifted = {"width": config.width, "num_frequencies": config.num_frequencies, "sigma": 2.0}
        kernel = kernels.MLP(config.channels, 4, 2, inputs=inputs, **lifted)
        with torch.no_grad():
            for parameter in kernel.parameters():
                parameter.normal_(std=0.3)
        batch, side = (size, config.side) if case == POSITIONS else (1, size)
        plain: dict[str, Any] = {"residual": False, "bias": False, "output_projection": False}
        self.operator = IntegralOperator(kernel, **plain).to(device)
        self.pairs = IntegralOperator(kernel, evaluation=Toeplitz(), **plain).to(device)
        self.domain = domains.Grid(side, side)
        self.u = torch.randn(batch, side**2, config.channels).to(device).requires_grad_()
        self.cotangent = torch.randn(batch, side**2, config.channels).to(device)

    def step(self, name: str, direction: Direction) -> Step:
        """The operator as a user calls it, or the peer."""
        computed = {PEERS[POSITIONS]: self._entry_by_entry, PEERS[DISPLACEMENT]: self._over_pairs}
        leaves = [self.u, *self.operator.parameters()]
        return directed(computed.get(name, self._ours), direction, leaves, self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """None: both sides are compared when they are timed."""
        return None

    def _ours(self) -> Tensor:
        return self.operator(self.u, self.domain)

    def _entry_by_entry(self) -> Tensor:
        return torch.cat([self.operator(entry[None], self.domain) for entry in self.u])

    def _over_pairs(self) -> Tensor:
        return self.pairs(self.u, self.domain)


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times, case by case."""
    for case in config.cases:
        build = functools.partial(Problem, config, case)
        require_same(build, SMALL[case], case, [PEERS[case]], config.tolerance)
    for case in tqdm(config.cases, desc="cases", disable=None):
        build, peer = functools.partial(Problem, config, case), PEERS[case]
        for size in config.batches if case == POSITIONS else config.sides:
            for sides in side_by_side(build, size, both_ways((case, peer)), config.options, tiny=SMALL[case]):
                yield sides.against(case, peer, error=sides.require_agreement(case, peer, config.tolerance))


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Time of the largest batch over that of the smallest."""
    of_batches = [row for row in rows if row.case == POSITIONS]
    for direction in dict.fromkeys(row.direction for row in of_batches):
        seconds = {row.n: row.ours_s for row in of_batches if row.direction == direction}
        least, most = min(seconds), max(seconds)
        if most > least:
            ratio = seconds[most] / seconds[least]
            yield f"{POSITIONS}, {direction}: a batch of {most} takes {ratio:.2f} times as long as one of {least}"


BENCHMARK = Benchmark(
    name="one_kernel",
    purpose="kernels without content inputs, evaluated once for a whole batch, against entry by entry and all pairs",
    config=Config,
    measure=measure,
    notes=notes,
)
