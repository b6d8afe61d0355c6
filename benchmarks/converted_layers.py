"""Converted layers against torch's own: ``python -m benchmarks.converted_layers [--json FILE]``.

Each case builds a layer of torch.nn, converts it with `fredholm.operators.from_torch`, and runs both on one signal in
turn. Before a case is timed, outputs and gradients, those of all parameters included, are compared; so is every timed
result. The ratio is torch's time over the converted layer's: 1 means that conversion costs nothing.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final, get_args

import torch
import tyro
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from tqdm import tqdm

from benchmarks.harness import Report, Row, interleave, require_agreement
from benchmarks.harness.report import Direction, report_of
from benchmarks.harness.timing import Step
from fredholm import operators

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
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
class Config:
    """What is measured. The defaults take about a minute on two cores."""

    json: Path | None = None
    """Where to write the report."""
    quick: bool = False
    """Tiny layers, in seconds: checks the benchmark itself, its numbers mean nothing."""
    cases: tuple[Case, ...] = get_args(Case)
    """Which layers are measured."""
    rounds: int = 25
    """Counted rounds of each interleaved measurement."""
    budget_s: float = 10.0
    """Seconds after which a step sits out further rounds."""
    threads: int | None = None
    """Threads of every computation; default: as PyTorch chooses."""
    device: str = "cpu"
    """Where the layers run."""
    seed: int = 0
    """Of weights and signals."""


@final
class Problem:
    """One layer of torch, its conversion, a signal for both, and the number of points of that signal.

    Args:
        case: which layer.
        config: where it runs, from which seed, and whether it is tiny.
    """

    def __init__(self, case: Case, config: Config):
        torch.manual_seed(config.seed)
        batch, length, width, side, channels = (2, 9, 8, 6, 4) if config.quick else (16, 128, 128, 32, 64)
        self._call: Callable[[nn.Module, Tensor], Tensor] = lambda layer, u: layer(u)
        if case == "packed LSTM":
            lengths = torch.randint(length // 2, length + 1, (batch,))
            self._call = lambda layer, u: _run_packed(layer, u, lengths)
        elif case in get_args(Case)[:4]:
            self._call = lambda layer, u: layer(u)[0]
        elif case.startswith("attention"):
            self._call = lambda layer, u: layer(u, u, u, need_weights="weights" in case)[0]
        native, shape = _layer(case, batch, length, width, side, channels)
        self.device = torch.device(config.device)
        self.native = native.to(self.device)
        self.converted = operators.from_torch(self.native)
        self.signal = torch.randn(shape).to(self.device).requires_grad_()
        self.num_points = side**2 if case.endswith("2d") else length
        with torch.no_grad():
            self._cotangent = torch.randn_like(self._call(self.native, self.signal))

    def step(self, layer: nn.Module, direction: Direction) -> Step:
        """The output, and for forward+backward the gradients of the signal and of the layer's parameters."""

        def forward() -> Sequence[Tensor]:
            with torch.no_grad():
                return [self._call(layer, self.signal)]

        def both() -> Sequence[Tensor]:
            out = self._call(layer, self.signal)
            return [out.detach(), *torch.autograd.grad(out, [self.signal, *layer.parameters()], self._cotangent)]

        return forward if direction == "forward" else both

    def in_torchs_layout(self, result: Sequence[Tensor]) -> Sequence[Tensor]:
        """The converted layer's result with its parameter gradients converted as the parameters are."""
        if len(result) == 1:
            return result
        holder = copy.deepcopy(self.converted)
        for parameter, gradient in zip(holder.parameters(), result[2:], strict=True):
            parameter.data = gradient
        return [*result[:2], *(parameter.detach() for parameter in operators.to_torch(holder).parameters())]


def _layer(
    case: Case, batch: int, length: int, width: int, side: int, channels: int
) -> tuple[nn.Module, tuple[int, ...]]:
    """torch's layer, and the shape of its signal."""
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


def run(config: Config) -> Report:
    """Compare, then time; the report of all rows.

    Raises `GateError` where two results disagree.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    rows: list[Row] = []
    for case in tqdm(config.cases, desc="layers", disable=None):
        rows += against_torch(case, config)
    report = report_of(rows, torch.device(config.device))
    if config.json is not None:
        report.write_json(config.json)
    return report


def against_torch(case: Case, config: Config) -> Iterator[Row]:
    """Both directions of one case."""
    problem = Problem(case, config)
    for direction in DIRECTIONS:
        steps = {"ours": problem.step(problem.converted, direction), "torch": problem.step(problem.native, direction)}
        _agree(case, problem, steps["ours"](), steps["torch"]())
        timed = interleave(
            steps,
            device=problem.device,
            rounds=2 if config.quick else config.rounds,
            budget_s=config.budget_s,
            label=f"{case} {direction}",
        )
        error = _agree(case, problem, timed["ours"].result, timed["torch"].result)
        ours_s, torch_s = timed["ours"].median, timed["torch"].median
        yield Row(
            case=case,
            n=problem.num_points,
            direction=direction,
            ours_s=ours_s,
            peer=type(problem.native).__name__,
            peer_s=torch_s,
            ratio=torch_s / ours_s,
            peak_mb=None,
            max_rel_error=error,
        )


def _agree(case: Case, problem: Problem, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    return require_agreement(f"{case} against torch", problem.in_torchs_layout(ours), theirs, TOLERANCE)


def main(config: Config) -> None:
    """Measure converted layers and print the table; ``--json FILE`` keeps it."""
    print(run(config).markdown())


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))
