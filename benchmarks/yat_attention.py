"""Tiled Yat attention against its dense form and fused softmax attention: ``python -m benchmarks yat_attention``.

All sides get the same queries, keys and values. The gate is the dense form, the same function written out with
autograd: for float32 in float32, and for bfloat16 in float64 on the same rounded numbers, by norm. PyTorch's softmax
attention is another function of the same shape, as a reference time.
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
    GateError,
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
from benchmarks.itnet_problem import Precision
from fredholm import domains
from fredholm.evaluation import AUTO, Integral
from fredholm.kernels import Softmax
from fredholm.kernels.attention.scored import ScoreForm
from fredholm.kernels.attention.yat import YatScored

OURS, DENSE, SOFTMAX = "Yat attention", "dense form", "softmax attention"
DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on two cores, on a GPU 20 seconds with compilation."""

    options: Options = field(default_factory=lambda: Options(budget_s=20.0))
    precisions: tuple[Precision, ...] | None = None
    """Precisions of queries, keys and values; default: bfloat16, then float32 on a GPU, float32 on a CPU."""
    batch: int | None = None
    """Sequences at a time; default: 16 in bfloat16, which keep a GPU busy, 1 in float32."""
    channels: int = 384
    """Channels of all heads."""
    heads: tuple[int, ...] | None = None
    """Numbers of heads; default: 6 and 1, on a GPU 6 and 3, since it cannot hold wider heads."""
    points: int = 4096
    """Points at which all sides are measured."""
    own_points: tuple[int, ...] = (8192, 16384)
    """Points at which only the library is timed, in the first precision and with the first number of heads."""
    tolerance: float = 2e-5
    """Largest relative difference, of output and every gradient, that is timed in float32."""
    rounded_tolerance: float = 1e-2
    """Largest relative difference in bfloat16, of norms."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return dataclasses.replace(self, channels=12, points=32, own_points=(48, 64), batch=1)

    @property
    def all_precisions(self) -> tuple[Precision, ...]:
        """The precisions to measure, in this order."""
        return self.precisions or (("bfloat16", "float32") if self._on_gpu else ("float32",))

    @property
    def all_heads(self) -> tuple[int, ...]:
        """The numbers of heads to measure, in this order."""
        return self.heads or (6, 3 if self._on_gpu else 1)

    @property
    def _on_gpu(self) -> bool:
        return self.options.torch_device.type == "cuda"


@final
class ConcatenatedQKV(YatScored):
    """Yat attention on a signal that concatenates queries, keys and values."""

    pos_dim, is_causal, reads_query = None, False, True

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.in_dim, self.out_dim, self.num_heads = 3 * channels, channels, heads
        self.normaliser = Softmax()

    @property
    def product_dim(self) -> int:
        """Channels of a head."""
        return self.out_dim // self.num_heads

    def value_matrices(self) -> Tensor:
        """The last third of the signal, head by head."""
        return torch.eye(self.in_dim)[-self.out_dim :].unflatten(0, (self.num_heads, -1))

    def score_form(self, u: Tensor, domain: domains.Domain, query: Tensor, query_domain: domains.Domain) -> ScoreForm:
        """Queries, keys and values: the thirds of the signal."""
        q, k, v = u.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return ScoreForm(q, k, v, softening=torch.ones((), device=u.device))


@final
class Problem(Instance):
    """Random queries, keys and values of ``n`` points, the same in every process and on every machine."""

    def __init__(self, config: Config, heads: int, n: int, precision: Precision = "float32") -> None:
        self.n, self.device, dtype = n, config.options.torch_device, DTYPES[precision]
        batch = config.batch or (1 if precision == "float32" else 16)
        torch.manual_seed(config.options.seed)
        self.kernel = ConcatenatedQKV(config.channels, heads)
        self.u = torch.randn(batch, n, 3 * config.channels).to(self.device, dtype).requires_grad_()
        self.cotangent = torch.randn(batch, n, config.channels).to(self.device, dtype)
        self.domain = domains.Sequence(n).to(self.device)

    def step(self, name: str, direction: Direction) -> Step:
        """One side, forward or with the gradient of the signal."""
        return directed(
            {OURS: self._ours, DENSE: self._dense, SOFTMAX: self._softmax}[name], direction, [self.u], self.cotangent
        )

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> None:
        """None: sides are checked beforehand, at a size where the dense form is small."""

    def in_float64(self) -> None:
        """Converts the signal to float64."""
        self.u = self.u.detach().double().requires_grad_()

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
    """Compares, then times all sides at one size, then the library alone at larger ones."""
    for precision in config.all_precisions:
        for heads in config.all_heads:
            yield from side_by_side_with(config, heads, precision)
    heads, precision = config.all_heads[0], config.all_precisions[0]
    build = functools.partial(Problem, config, heads, precision=precision)
    for n in config.own_points:
        yield from rows_alone(build, n, {OURS: case_name(OURS, heads, precision)}, config.options)


def side_by_side_with(config: Config, heads: int, precision: Precision) -> Iterator[Row]:
    """All sides at one size, in one precision; the dense form only in float32, because of its memory."""
    rounded_error = compare(config, heads, precision)
    build, case = functools.partial(Problem, config, heads, precision=precision), case_name(OURS, heads, precision)
    peers = (SOFTMAX, DENSE) if precision == "float32" else (SOFTMAX,)
    # a multiple of 16 points, as in the measured sizes: a GPU compiles separate kernels for other numbers
    for sides in side_by_side(build, config.points, both_ways((OURS, *peers)), config.options, tiny=16):
        for peer in peers:
            error = None
            if peer == DENSE:
                error = sides.require_agreement(OURS, DENSE, config.tolerance, case=case)
            elif precision != "float32":
                error = rounded_error
            yield sides.against(OURS, peer, case=case, error=error)
            yield sides.own(peer, case=f"{peer}{'' if precision == 'float32' else ' bf16'}, {heads}")


def case_name(side: str, heads: int, precision: Precision) -> str:
    """Name of a side in the report."""
    return f"{side}{'' if precision == 'float32' else ' bf16'}, {heads} head{'s' if heads > 1 else ''}"


def compare(config: Config, heads: int, precision: Precision = "float32") -> float:
    """The gate before any timing: output and gradients against the dense form, at a size with incomplete tiles."""
    build, n = functools.partial(Problem, config, heads, precision=precision), min(784, config.points - 1)
    if precision == "float32":
        return require_same(build, n, OURS, [DENSE], config.tolerance)
    problem = build(n)
    actual = problem.step(OURS, "forward+backward")()
    problem.in_float64()
    expected = problem.step(DENSE, "forward+backward")()
    error = max(float((a.double() - b).norm() / b.norm()) for a, b in zip(actual, expected, strict=True))
    if not error <= config.rounded_tolerance:
        label = f"{case_name(OURS, heads, precision)} against {DENSE} in float64, n={n}"
        raise GateError(f"{label}: error {error:.2e} of the norm exceeds {config.rounded_tolerance:.0e}")
    return error


BENCHMARK = Benchmark(
    name="yat_attention",
    purpose="tiled Yat attention against its dense form and fused softmax attention",
    config=Config,
    measure=measure,
    notes=growth,
)
