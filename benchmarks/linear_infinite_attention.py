"""Linear-time infinite attention beside other attention: ``python -m benchmarks linear_infinite_attention``.

Every side is a kernel with its own projections on the same signal. The gate of linear infinite attention is eq. 16-21
of the paper, written out; that of the factorised series is `torch.linalg.solve`. The others are other functions of the
same shape, and marks for time.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

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
from fredholm import domains
from fredholm.evaluation import AUTO, Integral
from fredholm.kernels import Attention, FactorisedInfiniteAttention, Kernel, LinearAttention, LinearInfiniteAttention

LINEAR, FACTORISED = "linear infinite attention", "factorised infinite attention"
LINEAR_ATTENTION, SOFTMAX = "linear attention", "softmax attention, fused"
WRITTEN, DENSE, PLAIN = "eq. 16-21 written out", "torch.linalg.solve", "softmax attention, written out"
GATES = {LINEAR: WRITTEN, FACTORISED: DENSE}


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """What is measured. The defaults take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(budget_s=20.0))
    channels: int = 768
    """Channels of all heads where all sides are measured."""
    heads: int = 64
    """Heads that they are cut into."""
    points: int = 4096
    """Points where all sides are measured: an image of 1024 x 1024 in patches of 16."""
    own_channels: int = 64
    """Channels of the one head with which the two are measured at larger sizes."""
    own_points: tuple[int, ...] = (4096, 16384, 65536, 262144, 331776)
    """Those sizes; the last is an image of 9216 x 9216."""
    tolerance: float = 2e-5
    """Relative difference, of output and every gradient, above which nothing is timed."""

    def sized(self) -> "Config":
        """The configuration that runs: ``quick`` shrinks everything."""
        if not self.options.quick:
            return self
        return dataclasses.replace(
            self, options=self.options.sized(), channels=12, heads=2, points=32, own_channels=4, own_points=(48, 64)
        )


@final
class Problem(Instance):
    """A random signal of ``n`` points and random weights, the same for every process and machine."""

    def __init__(self, config: Config, channels: int, heads: int, n: int) -> None:
        self.n, self.device = n, config.options.torch_device
        torch.manual_seed(config.options.seed)
        self.linear = LinearInfiniteAttention(channels, heads).to(self.device)
        self.factorised = FactorisedInfiniteAttention(channels, heads).to(self.device)
        self.softmax = Attention(channels, heads).to(self.device)
        self.linear_attention = LinearAttention(channels, heads).to(self.device)
        self.u = torch.randn(1, n, channels).to(self.device).requires_grad_()
        self.cotangent = torch.randn(1, n, channels).to(self.device)
        self.domain = domains.Sequence(n).to(self.device)
        self._sides: dict[str, tuple[Kernel, Callable[[], Tensor]]] = {
            LINEAR: (self.linear, lambda: self._selected(self.linear)),
            FACTORISED: (self.factorised, lambda: self._selected(self.factorised)),
            LINEAR_ATTENTION: (self.linear_attention, lambda: self._selected(self.linear_attention)),
            SOFTMAX: (self.softmax, lambda: self._selected(self.softmax)),
            WRITTEN: (self.linear, self._written),
            DENSE: (self.factorised, self._solve),
            PLAIN: (self.softmax, self._plain),
        }

    def step(self, name: str, direction: Direction) -> Step:
        """One side, forward or with the gradients of the signal and all weights."""
        kernel, apply = self._sides[name]
        return directed(apply, direction, [self.u, *kernel.parameters()], self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> None:
        """Checked beforehand, at a size where dense forms are small."""

    def _selected(self, kernel: Kernel) -> Tensor:
        return AUTO.integrate(Integral(kernel, self.u, self.domain))

    def _written(self) -> Tensor:
        own = self.linear
        q, v = (
            torch.nn.functional.linear(self.u, weight, bias).unflatten(-1, (own.num_heads, -1)).transpose(1, 2)
            for weight, bias in ((own.query_weight, own.query_bias), (own.value_weight, own.value_bias))
        )
        energy = q.norm(dim=-1, keepdim=True)
        alpha = energy / energy.sum(2, keepdim=True)
        score = (q @ (alpha * q).sum(2)[..., None]).relu()
        context = (score / score.sum(2, keepdim=True) * v).sum(2, keepdim=True)
        return context.expand_as(v).transpose(1, 2).flatten(2)

    def _solve(self) -> Tensor:
        form = self.factorised.hop_form(self.u, None)
        hop = form.query @ form.key.mT
        step = 0.7 * hop / torch.linalg.matrix_norm(hop)[..., None, None]
        systems = torch.eye(self.n, device=self.device) - step
        # head by head: batches of float32 systems fail with several threads in some CPU builds
        heads = [torch.linalg.solve(systems[:, h], (step @ form.value)[:, h]) for h in range(systems.shape[1])]
        return torch.stack(heads, dim=2).flatten(2)

    def _plain(self) -> Tensor:
        q, k, v, scale = self.softmax.dot_product_form(self.u, self.u)
        # eight heads at a time: the weights of 64 heads and 4,096 points are 4.3 GB
        groups = zip(*(part.split(8, dim=1) for part in (q, k, v)), strict=True)
        out = [torch.softmax(scale * q @ k.mT, dim=-1) @ v for q, k, v in groups]
        return torch.cat(out, dim=1).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Build:
    """Builds a problem by its size, in any process."""

    config: Config
    channels: int
    heads: int

    def __call__(self, n: int) -> Problem:
        return Problem(self.config, self.channels, self.heads, n)


def measure(config: Config) -> Iterator[Row]:
    """Compare, then time all sides at one size, then the two by themselves, with one head, at larger ones."""
    build = Build(config, config.channels, config.heads)
    errors = compare(build)
    problem, lean = build(config.points), (LINEAR, FACTORISED, LINEAR_ATTENTION, SOFTMAX)
    names: dict[str, Sequence[Direction]] = dict.fromkeys(lean, DIRECTIONS)
    alone = measure_alone(build, config.points, names, config.options, rounds=1)
    for direction in DIRECTIONS:
        sides = (*names, WRITTEN) if direction != "forward" else (*names, WRITTEN, PLAIN)
        steps = {side: problem.step(side, direction) for side in sides}
        timed = interleave(steps, device=problem.device, options=config.options, label=direction)
        for ours in GATES:
            for peer in sides:
                if peer != ours:
                    peak, error = alone[ours][direction].peak_mb, errors[ours] if peer == GATES[ours] else None
                    yield Row.against(
                        ours,
                        config.points,
                        direction,
                        timed,
                        ours=ours,
                        peer=peer,
                        name=peer,
                        peak_mb=peak,
                        error=error,
                    )
        for peer in (LINEAR_ATTENTION, SOFTMAX):
            yield Row.alone(peer, config.points, direction, alone[peer][direction])
    single = Build(config, config.own_channels, 1)
    for n in config.own_points:
        wanted = dict.fromkeys(GATES, DIRECTIONS)
        found = measure_alone(single, n, wanted, config.options, rounds=config.options.rounds)
        for side in GATES:
            for direction, measured in found[side].items():
                yield Row.alone(f"{side}, one head", n, direction, measured)


def compare(build: Build) -> dict[str, float]:
    """The gate before any timing, at a size with odd edges of blocks."""
    problem = build(min(301, build.config.points - 1))
    errors = {}
    for side, gate in GATES.items():
        ours, theirs = (problem.step(name, "forward+backward")() for name in (side, gate))
        errors[side] = require_agreement(f"{side} against {gate}, n={problem.n}", ours, theirs, build.config.tolerance)
    return errors


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """The factorised series beside linear infinite attention, one head, then how costs grow."""
    seconds = {(row.case, row.n, row.direction): row.ours_s for row in rows}
    for (case, n, direction), time in seconds.items():
        if case == f"{FACTORISED}, one head":
            ratio = time / seconds[f"{LINEAR}, one head", n, direction]
            yield f"{case}, n = {n}, {direction}: {ratio:.1f} times the time of {LINEAR}"
    yield from growth([row for row in rows if row.case.endswith("one head")])


BENCHMARK = Benchmark(
    name="linear_infinite_attention",
    purpose="infinite attention in linear time beside linear and softmax attention",
    config=Config,
    measure=measure,
    notes=notes,
)
