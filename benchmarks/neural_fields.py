"""Fields from samples, and attention without a normaliser: ``python -m benchmarks neural_fields``.

A pass of the field operator takes samples of some functions and gives the values of all fields at as many positions.
The operator's gate is the same model with all N x N attention weights by their definition; the gate of attention
without a normaliser is its formula with all N x N products.
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
from benchmarks.written_out import WrittenWeights
from fredholm import IntegralOperator, domains, fields
from fredholm.evaluation import AUTO, Evaluation, Integral
from fredholm.kernels import UnnormalisedAttention
from fredholm.models.fields.neural_field import FieldOperator

SOFTMAX, LINEAR, ALL_WEIGHTS = "softmax", "linear", "softmax, all weights"
SUM, WRITTEN, FUSED = "BilinearSum", "q kᵀ v written out", "softmax attention, fused"


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take a minute or two on two cores."""

    batch: int = 16
    """Functions at a time."""
    samples: int = 784
    """Samples of each function, and positions at which its field is evaluated."""
    model: FieldOperator.Config = field(default_factory=FieldOperator.Config)
    """The field operator without its kind of attention; the defaults are the paper's."""
    width: int = 64
    """Hidden units of the field, a SIREN of three layers in the plane."""
    points: int = 4096
    """Points at which attention without a normaliser is measured against other forms."""
    own_points: tuple[int, ...] = (4096, 16384, 65536, 262144)
    """Points at which it is measured alone."""
    tolerance: float = 2e-5
    """Largest relative difference, of output and every gradient, that is timed."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        model = FieldOperator.Config(embed_dim=16, depth=1, num_heads=2, num_seeds=2, head_dim=8, num_frequencies=4)
        return dataclasses.replace(
            self,
            batch=2,
            samples=20,
            model=model,
            width=8,
            points=32,
            own_points=(48, 64),
        )


@final
class FieldProblem(Instance):
    """A batch of random functions, and operators with random weights, equal for softmax and "all weights"."""

    def __init__(self, config: Config, batch: int) -> None:
        device = config.options.torch_device
        torch.manual_seed(config.options.seed)
        self.operators = {
            SOFTMAX: _operator(config, "softmax").to(device),
            LINEAR: _operator(config, "linear").to(device),
        }
        self.operators[ALL_WEIGHTS] = _operator(config, "softmax").to(device)
        self.operators[ALL_WEIGHTS].load_state_dict(self.operators[SOFTMAX].state_dict())
        _evaluate_by(self.operators[ALL_WEIGHTS], WrittenWeights())
        self.u = torch.randn(batch, config.samples, 1).to(device).requires_grad_()
        self.domain = domains.Points(torch.rand(batch, config.samples, 2)).to(device)
        self.positions = torch.rand(batch, config.samples, 2).to(device)
        self.cotangent, self.device = torch.randn(batch, config.samples, 1).to(device), device

    def step(self, name: str, direction: Direction) -> Step:
        """One operator: samples to the values of all fields, forward or with the gradients of samples and weights."""
        operator = self.operators[name]

        def apply() -> Tensor:
            return operator(self.u, self.domain)(self.positions)

        return directed(apply, direction, [self.u, *operator.parameters()], self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> None:
        """None: operators are checked beforehand."""


@final
class SumProblem(Instance):
    """A random signal of ``n`` points and attention without a normaliser."""

    def __init__(self, config: Config, n: int) -> None:
        device = config.options.torch_device
        torch.manual_seed(config.options.seed)
        channels = config.model.embed_dim
        self.kernel = UnnormalisedAttention(channels, config.model.num_heads).to(device)
        self.u = torch.randn(1, n, channels).to(device).requires_grad_()
        self.cotangent, self.device = torch.randn(1, n, channels).to(device), device
        self.domain = domains.Sequence(n).to(device)
        self._sides: dict[str, Callable[[], Tensor]] = {
            SUM: self._selected,
            WRITTEN: self._written,
            FUSED: self._fused,
        }

    def step(self, name: str, direction: Direction) -> Step:
        """One side, forward or with the gradients of the signal and all weights."""
        return directed(self._sides[name], direction, [self.u, *self.kernel.parameters()], self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> None:
        """None: sides are checked beforehand, at a size where all N x N products are small."""

    def _selected(self) -> Tensor:
        return AUTO.integrate(Integral(self.kernel, self.u, self.domain))

    def _written(self) -> Tensor:
        q, k, v = self.kernel.bilinear_form(self.u, self.u)
        return (q @ k.mT @ v).transpose(1, 2).flatten(2)

    def _fused(self) -> Tensor:
        q, k, v = self.kernel.bilinear_form(self.u, self.u)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times field operators, then attention without a normaliser with its peers and alone."""
    fields_error, sum_error = compare(config)
    yield from _measure_operators(config, fields_error)
    yield from _measure_sum(config, sum_error)


def compare(config: Config) -> tuple[float, float]:
    """The gates before any timing: largest errors of the operator and of attention without a normaliser."""
    operators, sums = functools.partial(FieldProblem, config), functools.partial(SumProblem, config)
    n, tolerance = min(301, config.points - 1), config.tolerance
    return (
        require_same(operators, 2, SOFTMAX, [ALL_WEIGHTS], tolerance, case="field operator"),
        require_same(sums, n, SUM, [WRITTEN], tolerance, case="sum without a normaliser"),
    )


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Fields per minute, and the growth of attention without a normaliser."""
    rates = {row.case: row for row in rows if row.per_second is not None and row.direction == "forward"}
    for case, row in rates.items():
        assert row.per_second is not None
        yield f"{case}, {row.n} at a time: {60 * row.per_second:,.0f} fields a minute"
    yield from growth([row for row in rows if row.case == f"{SUM}, alone"])


def _measure_operators(config: Config, error: float) -> Iterator[Row]:
    build, own = functools.partial(FieldProblem, config), both_ways((SOFTMAX, LINEAR))
    alone = measure_alone(build, config.batch, own, config.options, rounds=1, tiny=1)
    names = {**own, ALL_WEIGHTS: DIRECTIONS}
    for sides in in_turn(build(config.batch), config.batch, names, config.options, alone):
        for ours, peer, found in ((SOFTMAX, ALL_WEIGHTS, error), (LINEAR, SOFTMAX, None)):
            row = sides.against(ours, peer, case=f"field operator, {ours}", error=found)
            yield dataclasses.replace(row, per_second=config.batch / row.ours_s)


def _measure_sum(config: Config, error: float) -> Iterator[Row]:
    build, names = functools.partial(SumProblem, config), both_ways((SUM, WRITTEN, FUSED))
    for sides in in_turn(build(config.points), config.points, names, config.options):
        yield sides.against(SUM, WRITTEN, error=error)
        yield sides.against(SUM, FUSED)
    for n in config.own_points:
        yield from rows_alone(build, n, {SUM: f"{SUM}, alone"}, config.options)


def _operator(config: Config, attention: str) -> FieldOperator:
    model = dataclasses.replace(config.model, attention=attention)
    return FieldOperator(2, fields.SIREN(2, width=config.width), fields.Isotropic(), model).eval()


def _evaluate_by(operator: FieldOperator, route: Evaluation) -> None:
    for module in operator.modules():
        if isinstance(module, IntegralOperator):
            module.evaluation = route


BENCHMARK = Benchmark(
    name="neural_fields",
    purpose="fields from samples, and attention without a normaliser",
    config=Config,
    measure=measure,
    notes=notes,
)
