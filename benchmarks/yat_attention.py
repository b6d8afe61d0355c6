"""Tiled Yat attention against its dense form and fused softmax attention: ``python -m benchmarks yat_attention``.

All sides are given the same queries, keys and values. The dense form is the same function, written out with autograd,
and the gate. PyTorch's softmax attention is another function of the same shape, and the mark for time.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

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
from fredholm.kernels import Softmax
from fredholm.kernels.attention.scored import ScoreForm
from fredholm.kernels.attention.yat import YatScored

OURS, DENSE, SOFTMAX = "Yat attention", "dense form", "softmax attention"


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """What is measured. The defaults take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(budget_s=20.0))
    channels: int = 384
    """Channels of all heads."""
    heads: tuple[int, ...] = (6, 1)
    """Numbers of heads that the channels are cut into."""
    points: int = 4096
    """Points where all sides are measured."""
    own_points: tuple[int, ...] = (8192, 16384)
    """Points at which only the library is timed, with the first number of heads."""
    tolerance: float = 2e-5
    """Relative difference, of output and every gradient, above which nothing is timed."""

    def sized(self) -> "Config":
        """The configuration that runs: ``quick`` shrinks everything."""
        if not self.options.quick:
            return self
        return dataclasses.replace(self, options=self.options.sized(), channels=12, points=32, own_points=(48, 64))


@final
class Given(YatScored):
    """Yat attention on queries, keys and values that lie side by side in the signal."""

    pos_dim, is_causal, reads_query = None, False, True

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.in_dim, self.out_dim, self.num_heads = 3 * channels, channels, heads
        self.normaliser = Softmax()

    def value_matrices(self) -> Tensor:
        """The last third of the signal, head by head."""
        return torch.eye(self.in_dim)[-self.out_dim :].unflatten(0, (self.num_heads, -1))

    def score_form(self, u: Tensor, domain: domains.Domain, query: Tensor, query_domain: domains.Domain) -> ScoreForm:
        """The thirds of the signal."""
        q, k, v = u.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return ScoreForm(q, k, v, softening=torch.ones((), device=u.device))


@final
class Problem(Instance):
    """Random queries, keys and values of ``n`` points, the same for every process and machine."""

    def __init__(self, config: Config, heads: int, n: int) -> None:
        self.n, self.device, self._tolerance = n, config.options.torch_device, config.tolerance
        torch.manual_seed(config.options.seed)
        self.kernel = Given(config.channels, heads)
        self.u = torch.randn(1, n, 3 * config.channels).to(self.device).requires_grad_()
        self.cotangent = torch.randn(1, n, config.channels).to(self.device)
        self.domain = domains.Sequence(n).to(self.device)

    def step(self, name: str, direction: Direction) -> Step:
        """One side, forward or with the gradient of the signal."""
        return directed(
            {OURS: self._ours, DENSE: self._dense, SOFTMAX: self._softmax}[name], direction, [self.u], self.cotangent
        )

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> None:
        """Checked beforehand, at a size where the dense form is small."""

    def _ours(self) -> Tensor:
        return AUTO.integrate(Integral(self.kernel, self.u, self.domain))

    def _dense(self) -> Tensor:
        shares = self.kernel.coefficients(self.u, self.domain)
        value = self.kernel.score_form(self.u, self.domain, self.u, self.domain).value
        return (shares @ value).transpose(1, 2).flatten(2)

    def _softmax(self) -> Tensor:
        query, key, value, *_ = self.kernel.score_form(self.u, self.domain, self.u, self.domain)
        return scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Build:
    """Builds a problem by its size, in any process."""

    config: Config
    heads: int

    def __call__(self, n: int) -> Problem:
        return Problem(self.config, self.heads, n)


def measure(config: Config) -> Iterator[Row]:
    """Compare, then time all sides at one size, then the library alone at larger ones."""
    for heads in config.heads:
        build, case = Build(config, heads), f"{OURS}, {heads} head{'s' if heads > 1 else ''}"
        compare(build)
        sides = (OURS, DENSE, SOFTMAX)
        alone = measure_alone(build, config.points, dict.fromkeys(sides, DIRECTIONS), config.options, rounds=1)
        problem = build(config.points)
        for direction in DIRECTIONS:
            steps = {side: problem.step(side, direction) for side in sides}
            timed = interleave(steps, device=problem.device, options=config.options, label=f"{case} {direction}")
            error = require_agreement(case, timed[OURS].result, timed[DENSE].result, config.tolerance)
            for peer in (SOFTMAX, DENSE):
                yield Row.against(
                    case,
                    config.points,
                    direction,
                    timed,
                    ours=OURS,
                    peer=peer,
                    name=peer,
                    peak_mb=alone[OURS][direction].peak_mb,
                    error=error if peer == DENSE else None,
                )
                theirs = alone[peer][direction]._replace(seconds=timed[peer].median)
                yield Row.alone(f"{peer}, {heads}", config.points, direction, theirs)
    for n in config.own_points:
        build = Build(config, config.heads[0])
        found = measure_alone(build, n, {OURS: DIRECTIONS}, config.options, rounds=config.options.rounds)
        for direction, measured in found[OURS].items():
            yield Row.alone(f"{OURS}, {config.heads[0]} heads", n, direction, measured)


def compare(build: Build) -> float:
    """The gate before any timing: output and gradients against the dense form, at a size with odd edges of tiles."""
    problem = build(min(777, build.config.points - 1))
    ours, theirs = (problem.step(side, "forward+backward")() for side in (OURS, DENSE))
    return require_agreement(f"{OURS} against {DENSE}, n={problem.n}", ours, theirs, build.config.tolerance)


BENCHMARK = Benchmark(
    name="yat_attention",
    purpose="tiled Yat attention against its dense form and fused softmax attention",
    config=Config,
    measure=measure,
    notes=growth,
)
