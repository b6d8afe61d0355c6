"""Tiled Yat attention against its dense form and fused softmax attention: ``python -m benchmarks yat_attention``.

All sides are given the same queries, keys and values. The dense form is the same function, written out with autograd,
and the gate. PyTorch's softmax attention is another function of the same shape, and the mark for time.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

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
    require_same,
    rows_alone,
    side_by_side,
)
from fredholm import domains
from fredholm.evaluation import AUTO, Integral
from fredholm.kernels import Softmax
from fredholm.kernels.attention.scored import ScoreForm
from fredholm.kernels.attention.yat import YatScored

OURS, DENSE, SOFTMAX = "Yat attention", "dense form", "softmax attention"


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
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

    def small(self) -> "Config":
        """See `Settings.small`."""
        return dataclasses.replace(self, channels=12, points=32, own_points=(48, 64))


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


def measure(config: Config) -> Iterator[Row]:
    """Compare, then time all sides at one size, then the library alone at larger ones."""
    wanted = both_ways((OURS, DENSE, SOFTMAX))
    for heads in config.heads:
        compare(config, heads)
        build, case = functools.partial(Problem, config, heads), f"{OURS}, {heads} head{'s' if heads > 1 else ''}"
        for sides in side_by_side(build, config.points, wanted, config.options):
            error = sides.require_agreement(OURS, DENSE, config.tolerance, case=case)
            for peer, found in ((SOFTMAX, None), (DENSE, error)):
                yield sides.against(OURS, peer, case=case, error=found)
                yield sides.own(peer, case=f"{peer}, {heads}")
    build, case = functools.partial(Problem, config, config.heads[0]), f"{OURS}, {config.heads[0]} heads"
    for n in config.own_points:
        yield from rows_alone(build, n, {OURS: case}, config.options)


def compare(config: Config, heads: int) -> float:
    """The gate before any timing: output and gradients against the dense form, at a size with odd edges of tiles."""
    build, n = functools.partial(Problem, config, heads), min(777, config.points - 1)
    return require_same(build, n, OURS, [DENSE], config.tolerance)


BENCHMARK = Benchmark(
    name="yat_attention",
    purpose="tiled Yat attention against its dense form and fused softmax attention",
    config=Config,
    measure=measure,
    notes=growth,
)
