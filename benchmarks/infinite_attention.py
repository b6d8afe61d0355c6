"""Routes of infinite attention against each other, one hop and softmax: ``python -m benchmarks infinite_attention``.

All sides get the same queries, keys and values. The gate of a series is `torch.linalg.solve` with autograd, that of
one hop is the hop written out. PyTorch's softmax attention is another function of the same shape, as a reference time.
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
from fredholm.evaluation import (
    Evaluation,
    Factorisation,
    HopSeries,
    HopTiled,
    Integral,
    Iteration,
    Substitution,
    Truncation,
)
from fredholm.kernels import FrobeniusNorm, Neumann
from fredholm.kernels.linear_algebra import solve_each
from fredholm.kernels.neumann.infinite_attention import Discount, HopForm, Relu

ROUTES: dict[str, Evaluation] = {
    "one hop": HopTiled(),
    "iteration": HopSeries(Iteration()),
    "factorisation": HopSeries(Factorisation(max_bytes=1 << 40, max_points=1 << 20)),
    "cut series": HopSeries(Truncation()),
    "causal substitution": HopSeries(Substitution()),
}
PLAIN_HOP, DENSE, SOFTMAX = "one hop, written out", "torch.linalg.solve", "softmax attention"
GATES = {"one hop": PLAIN_HOP, "causal substitution": "causal solve"} | dict.fromkeys(
    ("iteration", "factorisation", "cut series"), DENSE
)


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(budget_s=20.0))
    channels: int = 384
    """Channels of all heads."""
    heads: int = 6
    """Heads that the channels are split into."""
    gamma: float = 0.7
    """Discount of a hop."""
    points: int = 2048
    """Points at which all sides are measured."""
    own_points: tuple[int, ...] = (4096, 8192)
    """Points at which only one hop, iteration and causal substitution are timed."""
    tolerance: float = 2e-5
    """Largest relative difference, of output and every gradient, that is timed."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return dataclasses.replace(self, channels=12, heads=2, points=32, own_points=(48,))


@final
class ConcatenatedQKV(Neumann):
    """Infinite attention on a signal that concatenates queries, keys and values; one hop if ``gamma`` is None."""

    pos_dim, score, norm = None, Relu(), FrobeniusNorm()

    def __init__(self, channels: int, heads: int, gamma: float | None, *, is_causal: bool = False) -> None:
        super().__init__()
        self.in_dim, self.out_dim, self.num_heads = 3 * channels, channels, heads
        self.discount = None if gamma is None else Discount(gamma, heads)
        self.is_causal = is_causal

    def value_matrices(self) -> Tensor:
        """The last third of the signal, head by head."""
        return torch.eye(self.in_dim)[-self.out_dim :].unflatten(0, (self.num_heads, -1))

    def hop_form(self, u: Tensor, query: Tensor | None) -> HopForm:
        """Queries, keys and values: the thirds of the signal."""
        q, k, v = u.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return HopForm(q, None, k, v)


@final
class Problem(Instance):
    """Random queries, keys and values of ``n`` points, the same in every process and on every machine."""

    def __init__(self, config: Config, n: int) -> None:
        self.n, self.device, self._gamma = n, config.options.torch_device, config.gamma
        torch.manual_seed(config.options.seed)
        sizes = config.channels, config.heads
        self.hop, self.series, self.causal = (
            ConcatenatedQKV(*sizes, gamma, is_causal=is_causal).to(self.device)
            for gamma, is_causal in ((None, False), (config.gamma, False), (config.gamma, True))
        )
        self.u = torch.randn(1, n, 3 * config.channels).to(self.device).requires_grad_()
        self.cotangent = torch.randn(1, n, config.channels).to(self.device)
        self.domain = domains.Sequence(n).to(self.device)
        self._peers = {
            PLAIN_HOP: self._plain_hop,
            DENSE: self._solve,
            "causal solve": self._causal_solve,
            SOFTMAX: self._softmax,
        }

    def step(self, name: str, direction: Direction) -> Step:
        """One side, forward or with the gradient of the signal."""
        make = self._peers[name] if name in self._peers else lambda: self._ours(name)
        return directed(make, direction, [self.u], self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> None:
        """None: routes are checked beforehand, at a size where dense forms are small."""

    def _ours(self, name: str) -> Tensor:
        kernel = {"one hop": self.hop, "causal substitution": self.causal}.get(name, self.series)
        return ROUTES[name].integrate(Integral(kernel, self.u, self.domain))

    def _hop(self) -> tuple[Tensor, Tensor]:
        """A and v, `(1, H, n, n)` and `(1, H, n, d)`."""
        query, _, key, value = self.hop.hop_form(self.u, None)
        scores = (query @ key.mT).relu()
        return scores / torch.linalg.matrix_norm(scores)[..., None, None], value

    def _plain_hop(self) -> Tensor:
        hop, value = self._hop()
        return (hop @ value).transpose(1, 2).flatten(2)

    def _solve(self) -> Tensor:
        hop, value = self._hop()
        step = self._gamma * hop
        identity = torch.eye(self.n, device=self.device)
        return solve_each(identity - step, step @ value).transpose(1, 2).flatten(2)

    def _causal_solve(self) -> Tensor:
        shares = self.causal.coefficients(self.u, self.domain)
        return (shares @ self.causal.hop_form(self.u, None).value).transpose(1, 2).flatten(2)

    def _softmax(self) -> Tensor:
        query, _, key, value = self.hop.hop_form(self.u, None)
        return scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times all sides at one size, then the sides without N x N memory at larger ones."""
    errors, build, others = compare(config), functools.partial(Problem, config), (PLAIN_HOP, DENSE, SOFTMAX)
    names = both_ways((*ROUTES, *others))
    for sides in side_by_side(build, config.points, names, config.options):
        for route in ROUTES:
            for peer in dict.fromkeys((GATES[route] if route != "causal substitution" else DENSE, "one hop", SOFTMAX)):
                if peer != route:
                    yield sides.against(route, peer, error=errors[route] if peer == GATES[route] else None)
        for peer in others:
            yield sides.own(peer)
    for n in config.own_points:
        lean = ("one hop", "iteration", "causal substitution")
        yield from rows_alone(build, n, {route: route for route in lean}, config.options)


def compare(config: Config) -> dict[str, float]:
    """The gate before any timing: every route against its dense form, at a size with incomplete tiles."""
    build, n = functools.partial(Problem, config), min(777, config.points - 1)
    return {route: require_same(build, n, route, [gate], config.tolerance) for route, gate in GATES.items()}


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Memory of every route against that of one hop, forward and backward, then the growth of costs."""
    peaks = {(row.case, row.n): row.peak_mb for row in rows if row.direction == "forward+backward" and row.peak_mb}
    for (case, n), peak in peaks.items():
        if ("one hop", n) in peaks and case != "one hop":
            yield f"{case}, n = {n}: {peak / peaks['one hop', n]:.2f} times the peak memory of one hop"
    yield from growth(rows)


BENCHMARK = Benchmark(
    name="infinite_attention",
    purpose="routes of infinite attention against each other, one hop and softmax attention",
    config=Config,
    measure=measure,
    notes=notes,
)
