"""Continuous convolutions, regular, long and at irregular times: ``python -m benchmarks continuous_convolution``.

Three cases of one causal kernel, a small network of the distance in time:

- `regular`: a batch at evenly spaced times, through the route `BasisFFT`, against the straightforward form (the whole
  kernel sampled and transformed, channels multiplied by broadcasting) and, where that is affordable, torch's own direct
  convolution with the sampled kernel;
- `long`: one signal at a time, up to a million samples, by itself;
- `irregular`: a batch whose signals each have random times, through `BasisTiled`, against κ in full.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

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
from benchmarks.peers.full_spectra import full_spectra
from fredholm import domains
from fredholm.evaluation import AUTO, Dense, Integral, NativeConvolution
from fredholm.kernels import ContinuousConvolution

REGULAR, LONG, IRREGULAR = "regular", "long", "irregular"
OURS, STRAIGHT, DIRECT, LITERAL = "ours", "full spectra", "direct convolution", "κ in full"
CHECKED_ROWS = 4
TINY = 300
"""Samples of the problem that runs first: it takes the routes of large ones, so that their code is loaded."""


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on two cores, and 4 GB of memory."""

    options: Options = field(default_factory=lambda: Options(rounds=5, budget_s=20.0))
    channels: int = 30
    """Channels of the signal and of the result."""
    batch: int = 8
    """Signals at a time, except in the case `long`."""
    direct_sizes: tuple[int, ...] = (1000,)
    """Samples at which direct convolution is timed, too. All sides are compared beforehand at the first."""
    sizes: tuple[int, ...] = (4000, 16_000)
    """Samples at which the library is timed against full spectra."""
    long_sizes: tuple[int, ...] = (1 << 16, 1 << 18, 1 << 20)
    """Samples of one signal, timed without peers."""
    literal_sizes: tuple[int, ...] = (100,)
    """Samples at irregular times for which κ in full is timed, too."""
    irregular_sizes: tuple[int, ...] = (500, 1000, 2000)
    """Samples at irregular times for which the library is timed without peers."""
    tolerance: float = 2e-5
    """Largest relative difference, of output and every gradient, that is timed; the direct sum rounds most."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return dataclasses.replace(
            self,
            channels=3,
            batch=2,
            direct_sizes=(31,),
            sizes=(48,),
            long_sizes=(64, 100),
            literal_sizes=(17,),
            irregular_sizes=(24, 40),
        )


@final
class Problem(Instance):
    """A kernel, ``n`` samples of a random signal and a cotangent, the same in every process and on every machine."""

    def __init__(self, config: Config, case: str, n: int) -> None:
        self.n, self.case, self.device = n, case, config.options.torch_device
        self._tolerance = config.tolerance
        batch, channels = 1 if case == LONG else config.batch, config.channels
        torch.manual_seed(config.options.seed)
        self.kernel = ContinuousConvolution(channels, channels, num_samples=n).to(self.device)
        self.u = torch.randn(batch, n, channels).to(self.device).requires_grad_()
        self.cotangent = torch.randn(batch, n, channels).to(self.device)
        if case == IRREGULAR:
            times = torch.rand(batch, n, dtype=torch.float64).sort().values
            self.domain = domains.Sequence(times=times, weights=n * domains.trapezoid_weights(times)).to(self.device)
        else:
            self.domain = domains.Grid(n).to(self.device)

    def step(self, name: str, direction: Direction) -> Step:
        """One side, forward or with the gradients of the signal and of all parameters."""
        ways = {OURS: self._ours, STRAIGHT: self._straight, DIRECT: self._direct, LITERAL: self._literal}
        return directed(ways[name], direction, [self.u, *self.kernel.parameters()], self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """Error of the output at some random samples, against the formula in float64."""
        rows = torch.randperm(self.n, generator=torch.Generator().manual_seed(1))[:CHECKED_ROWS].sort().values
        out = result[0][:, rows]
        at = self.domain.pos[..., rows, :]
        with torch.no_grad():
            weights = self.kernel.measure(self.domain)[..., None] * self.u.double()
            expected = torch.stack([self._row(at[..., [row], :], weights) for row in range(len(rows))], dim=1)
        return require_agreement(f"{self.case}, n={self.n}, against its formula", (out,), (expected,), self._tolerance)

    def _row(self, at: Tensor, values: Tensor) -> Tensor:
        # the sum over samples first: κ at a million of them would take gigabytes
        basis = self.kernel.basis(self.domain.displacement(at))[..., 0, :, :].double()
        sums = basis.mT @ values  # (B, w, d_in)
        return torch.einsum("bki,koi->bo", sums, self.kernel.basis_weight().double())

    def _ours(self) -> Tensor:
        return AUTO.integrate(Integral(self.kernel, self.u, self.domain))

    def _straight(self) -> Tensor:
        return full_spectra(self.u, self._sampled())

    def _direct(self) -> Tensor:
        return NativeConvolution().integrate(Integral(self.kernel, self.u, self.domain))

    def _literal(self) -> Tensor:
        return Dense().integrate(Integral(self.kernel, self.u, self.domain))

    def _sampled(self) -> Tensor:
        (grid,) = self.domain.grid_blocks
        return self.kernel.filter_weight(grid, grid).flip(-1)  # a filter's last tap is the distance 0


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times each case with its peers where they are affordable, and alone at other sizes."""
    compare(config, REGULAR, config.direct_sizes[0], (STRAIGHT, DIRECT))
    compare(config, IRREGULAR, config.literal_sizes[0], (LITERAL,))
    for case, sizes, peers in (
        (REGULAR, config.direct_sizes, (STRAIGHT, DIRECT)),
        (REGULAR, config.sizes, (STRAIGHT,)),
        (IRREGULAR, config.literal_sizes, (LITERAL,)),
    ):
        for n in sizes:
            yield from against_peers(config, case, n, peers)
    for case, sizes in ((IRREGULAR, config.irregular_sizes), (LONG, config.long_sizes)):
        for n in sizes:
            yield from rows_alone(functools.partial(Problem, config, case), n, {OURS: case}, config.options, tiny=TINY)


def compare(config: Config, case: str, n: int, peers: Sequence[str]) -> float:
    """The gate before any timing: output and all gradients against every peer."""
    return require_same(functools.partial(Problem, config, case), n, OURS, peers, config.tolerance, case=case)


def against_peers(config: Config, case: str, n: int, peers: Sequence[str]) -> Iterator[Row]:
    """All sides at one size: interleaved times and isolated memory, with a separate row for each peer."""
    build, names = functools.partial(Problem, config, case), both_ways((OURS, *peers))
    for sides in side_by_side(build, n, names, config.options, tiny=min(TINY, n)):
        for peer in peers:
            error = sides.require_agreement(OURS, peer, config.tolerance, case=case)
            yield sides.against(OURS, peer, case=case, error=error)
            yield sides.own(peer, error=error)


BENCHMARK = Benchmark(
    name="continuous_convolution",
    purpose="long and irregular continuous convolutions against the straightforward forms",
    config=Config,
    measure=measure,
    notes=growth,
)
