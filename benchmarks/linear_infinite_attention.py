"""Linear-time infinite attention against other attention: ``python -m benchmarks linear_infinite_attention``.

Every side is a kernel with its own projections on the same signal. The gate of linear infinite attention is eq. 16-21
of the paper, written out; that of the factorised series is `torch.linalg.solve`. The remaining sides are other
functions of the same shape, as reference times.
"""

import dataclasses
import functools
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
    Settings,
    Step,
    both_ways,
    directed,
    growth,
    in_turn,
    measure_alone,
    require_same,
    rows_alone,
)
from benchmarks.itnet_problem import Precision
from benchmarks.written_out import WrittenLinear, WrittenSoftmax
from fredholm import domains
from fredholm.evaluation import AUTO, Evaluation, Integral
from fredholm.kernels import Attention, FactorisedInfiniteAttention, Kernel, LinearAttention, LinearInfiniteAttention

LINEAR, FACTORISED = "linear infinite attention", "factorised infinite attention"
LINEAR_ATTENTION, SOFTMAX = "linear attention", "softmax attention, fused"
WRITTEN, DENSE, PLAIN = "eq. 16-21 written out", "torch.linalg.solve", "softmax attention, written out"
GATES = {LINEAR: WRITTEN, FACTORISED: DENSE}


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(budget_s=20.0))
    channels: int = 768
    """Channels of all heads in the comparison of all sides."""
    heads: int = 64
    """Heads in the comparison of all sides."""
    points: int = 4096
    """Points in the comparison of all sides: an image of 1024 x 1024 in patches of 16."""
    own_channels: int = 64
    """Channels of all heads at larger sizes, where only the library's two kernels are measured."""
    own_heads: int = 1
    """Heads at larger sizes."""
    own_precision: Precision = "float32"
    """Precision at larger sizes; bfloat16 is autocast."""
    own_points: tuple[int, ...] = (4096, 16384, 65536, 262144, 331776)
    """The larger sizes; the last is an image of 9216 x 9216."""
    tolerance: float = 2e-5
    """Largest relative difference, of output and every gradient, that is timed."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return dataclasses.replace(
            self, channels=12, heads=2, points=32, own_channels=4, own_heads=2, own_points=(48, 64)
        )

    def checked(self) -> "Config":
        """These settings; raises `ValueError` where heads do not divide the channels."""
        for heads, channels in ((self.heads, self.channels), (self.own_heads, self.own_channels)):
            if heads < 1 or channels % heads:
                raise ValueError(f"expected heads that divide {channels} channels; got {heads}")
        return self


@final
class Problem(Instance):
    """A random signal of ``n`` points and random weights, the same in every process and on every machine."""

    def __init__(self, config: Config, channels: int, heads: int, precision: Precision, n: int) -> None:
        self.n, self.device, self.precision = n, config.options.torch_device, precision
        torch.manual_seed(config.options.seed)
        self.linear = LinearInfiniteAttention(channels, heads).to(self.device)
        self.factorised = FactorisedInfiniteAttention(channels, heads).to(self.device)
        self.softmax = Attention(channels, heads).to(self.device)
        self.linear_attention = LinearAttention(channels, heads).to(self.device)
        self.u = torch.randn(1, n, channels).to(self.device).requires_grad_()
        self.cotangent = torch.randn(1, n, channels).to(self.device)
        self.domain = domains.Sequence(n).to(self.device)
        # the weights of 64 heads and 4,096 points are 4.3 GB, hence eight heads at a time
        plain = WrittenSoftmax(max_bytes=1 << 29)
        self._sides: dict[str, tuple[Kernel, Callable[[], Tensor]]] = {
            LINEAR: (self.linear, lambda: self._by(AUTO, self.linear)),
            FACTORISED: (self.factorised, lambda: self._by(AUTO, self.factorised)),
            LINEAR_ATTENTION: (self.linear_attention, lambda: self._by(AUTO, self.linear_attention)),
            SOFTMAX: (self.softmax, lambda: self._by(AUTO, self.softmax)),
            WRITTEN: (self.linear, lambda: self._by(WrittenLinear(), self.linear)),
            DENSE: (self.factorised, self._solve),
            PLAIN: (self.softmax, lambda: self._by(plain, self.softmax)),
        }

    def step(self, name: str, direction: Direction) -> Step:
        """One side, forward or with the gradients of the signal and all weights."""
        kernel, apply = self._sides[name]
        return directed(apply, direction, [self.u, *kernel.parameters()], self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> None:
        """None: sides are checked beforehand, at a size where dense forms are small."""

    def _by(self, route: Evaluation, kernel: Kernel) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            return route.integrate(Integral(kernel, self.u, self.domain))

    def _solve(self) -> Tensor:
        form = self.factorised.hop_form(self.u, None)
        hop = form.query @ form.key.mT
        step = 0.7 * hop / torch.linalg.matrix_norm(hop)[..., None, None]
        systems = torch.eye(self.n, device=self.device) - step
        # head by head: batches of float32 systems fail with several threads in some CPU builds
        heads = [torch.linalg.solve(systems[:, h], (step @ form.value)[:, h]) for h in range(systems.shape[1])]
        return torch.stack(heads, dim=2).flatten(2)


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times all sides at one size, then the library's two kernels alone at larger ones."""
    errors, build = compare(config), functools.partial(Problem, config, config.channels, config.heads, "float32")
    lean = both_ways((LINEAR, FACTORISED, LINEAR_ATTENTION, SOFTMAX))
    alone = measure_alone(build, config.points, lean, config.options, rounds=1)
    names: dict[str, Sequence[Direction]] = {**lean, WRITTEN: DIRECTIONS, PLAIN: ("forward",)}
    for sides in in_turn(build(config.points), config.points, names, config.options, alone):
        for ours in GATES:
            for peer in sides.timed:
                if peer != ours:
                    yield sides.against(ours, peer, error=errors[ours] if peer == GATES[ours] else None)
        for peer in (LINEAR_ATTENTION, SOFTMAX):
            yield Row.alone(peer, config.points, sides.direction, alone[peer][sides.direction])
    large = functools.partial(Problem, config, config.own_channels, config.own_heads, config.own_precision)
    for n in config.own_points:
        yield from rows_alone(large, n, {side: f"{side}, {_shape_label(config)}" for side in GATES}, config.options)


def _shape_label(config: Config) -> str:
    """Heads, channels and precision of the larger sizes, for the names of their rows."""
    heads = "one head" if config.own_heads == 1 else f"{config.own_heads} heads"
    return f"{heads} of {config.own_channels // config.own_heads} channels, {config.own_precision}"


def compare(config: Config) -> dict[str, float]:
    """The gate before any timing, at a size with incomplete blocks."""
    build = functools.partial(Problem, config, config.channels, config.heads, "float32")
    n = min(301, config.points - 1)
    return {side: require_same(build, n, side, [gate], config.tolerance) for side, gate in GATES.items()}


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Time of the factorised series over linear infinite attention at larger sizes, then the growth of costs."""
    own = [row for row in rows if row.case.startswith(tuple(f"{side}, " for side in GATES))]
    seconds = {(row.case, row.n, row.direction): row.ours_s for row in own}
    for (case, n, direction), time in seconds.items():
        if case.startswith(FACTORISED):
            ratio = time / seconds[case.replace(FACTORISED, LINEAR), n, direction]
            yield f"{case}, n = {n}, {direction}: {ratio:.1f} times the time of {LINEAR}"
    yield from growth(own)


BENCHMARK = Benchmark(
    name="linear_infinite_attention",
    purpose="infinite attention in linear time against linear and softmax attention",
    config=Config,
    measure=measure,
    notes=notes,
)
