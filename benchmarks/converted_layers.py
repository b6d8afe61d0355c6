"""Converted layers against the layers of torch.nn: ``python -m benchmarks converted_layers``.

Each case builds a layer of torch.nn, converts it with `fredholm.layers.from_torch`, and runs both in turn on one
signal. Before a case is timed, outputs and gradients, including those of all parameters, are compared; so is every
timed result. The ratio is torch's time over the converted layer's: 1 means that conversion costs nothing.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final, get_args

import torch
import tyro
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from tqdm import tqdm

from benchmarks.harness import (
    DIRECTIONS,
    Benchmark,
    Direction,
    Options,
    Row,
    Settings,
    Sides,
    Step,
    directed,
    require_agreement,
)
from fredholm import layers

TOLERANCE = 1e-5

Case = Literal[
    "RNN",
    "LSTM",
    "GRU",
    "bidirectional LSTM",
    "packed LSTM",
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "attention",
    "attention with weights",
]


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take about a minute on two cores."""

    options: Options = field(default_factory=lambda: Options(rounds=25, budget_s=10.0))
    cases: tuple[Case, ...] = get_args(Case)
    """Layers to measure."""
    tiny: tyro.conf.Suppress[bool] = False
    """Tiny layers, set by ``quick``."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return replace(self, tiny=True)


@final
class Problem:
    """One layer of torch, its conversion, a signal for both, and the number of points of that signal.

    Args:
        case: name of the layer.
        config: device, seed, and whether the layer is tiny.
    """

    def __init__(self, case: Case, config: Config) -> None:
        torch.manual_seed(config.options.seed)
        batch, length, width, side, channels = (2, 9, 8, 6, 4) if config.tiny else (16, 128, 128, 32, 64)
        self._call: Callable[[nn.Module, Tensor], Tensor] = lambda layer, u: layer(u)
        if case == "packed LSTM":
            lengths = torch.randint(length // 2, length + 1, (batch,))
            self._call = lambda layer, u: _run_packed(layer, u, lengths)
        elif case in get_args(Case)[:4]:
            self._call = lambda layer, u: layer(u)[0]
        elif case.startswith("attention"):
            self._call = lambda layer, u: layer(u, u, u, need_weights="weights" in case)[0]
        native, shape = _layer(case, batch, length, width, side, channels)
        self.device = config.options.torch_device
        self.native = native.to(self.device)
        self.converted = layers.from_torch(self.native)
        self.signal = torch.randn(shape).to(self.device).requires_grad_()
        self.num_points = side**2 if case.endswith("2d") else length
        with torch.no_grad():
            self._cotangent = torch.randn_like(self._call(self.native, self.signal))

    def step(self, layer: nn.Module, direction: Direction) -> Step:
        """The output, and for forward+backward the gradients of the signal and of the layer's parameters."""
        leaves = [self.signal, *layer.parameters()]
        return directed(lambda: self._call(layer, self.signal), direction, leaves, self._cotangent)

    def in_torchs_layout(self, result: Sequence[Tensor]) -> Sequence[Tensor]:
        """The converted layer's result with its parameter gradients in the layout of torch's parameters."""
        if len(result) == 1:
            return result
        holder = copy.deepcopy(self.converted)
        for parameter, gradient in zip(holder.parameters(), result[2:], strict=True):
            parameter.data = gradient
        return [*result[:2], *(parameter.detach() for parameter in layers.to_torch(holder).parameters())]


def _layer(
    case: Case, batch: int, length: int, width: int, side: int, channels: int
) -> tuple[nn.Module, tuple[int, ...]]:
    """The layer of torch.nn, and the shape of its signal."""
    sequence, image = (batch, length, width), (batch // 2, channels, side, side)
    options = {"batch_first": True, "num_layers": 2}
    match case:
        case "RNN":
            return nn.RNN(width, width, **options), sequence
        case "LSTM" | "packed LSTM":
            return nn.LSTM(width, width, **options), sequence
        case "GRU":
            return nn.GRU(width, width, **options), sequence
        case "bidirectional LSTM":
            return nn.LSTM(width, width, bidirectional=True, **options), sequence
        case "Conv1d":
            return nn.Conv1d(channels, channels, 9, padding="same"), (batch, channels, length)
        case "Conv2d":
            return nn.Conv2d(channels, channels, 3, padding=1), image
        case "ConvTranspose2d":
            return nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1), image
        case "attention" | "attention with weights":
            return nn.MultiheadAttention(width, 4, batch_first=True), sequence


def _run_packed(layer: nn.Module, u: Tensor, lengths: Tensor) -> Tensor:
    packed: PackedSequence = pack_padded_sequence(u, lengths, batch_first=True, enforce_sorted=False)
    return layer(packed)[0].data


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times, layer by layer."""
    for case in tqdm(config.cases, desc="layers", disable=None):
        yield from against_torch(case, config)


def against_torch(case: Case, config: Config) -> Iterator[Row]:
    """Both directions of one case."""
    problem = Problem(case, config)
    peer = type(problem.native).__name__
    for direction in DIRECTIONS:
        steps = {"ours": problem.step(problem.converted, direction), peer: problem.step(problem.native, direction)}
        _agree(case, problem, *(step() for step in steps.values()))
        sides = Sides.of(steps, problem.num_points, direction, config.options)
        error = _agree(case, problem, *(timed.result for timed in sides.timed.values()))
        yield sides.against("ours", peer, case=case, error=error)


def _agree(case: Case, problem: Problem, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    return require_agreement(f"{case} against torch", problem.in_torchs_layout(ours), theirs, TOLERANCE)


BENCHMARK = Benchmark(
    name="converted_layers",
    purpose="layers of torch.nn against their conversions by from_torch",
    config=Config,
    measure=measure,
    notes=lambda rows: iter(()),
)
