"""Compare ITNets and neural operators with Fourier neural operators on Darcy flow and Burgers' equation.

Command:   python recipes/operators.py
           fredholm train darcy_operator   (one of these networks, by the training engine)
Modality:  functions
Data:      Darcy flow in ../shared/data/neuralop_pde
Get:       darcy_*.pt of https://github.com/neuraloperator/neuraloperator, saved by numpy as neuralop_pde.npz with the
           arrays darcy_train_16_x, darcy_train_16_y and so on; then --task.data PATH/neuralop_pde.npz
Hardware:  one core for each process; float32; needs neuraloperator 2.0: pip install neuraloperator
Time:      100 s of processor time per training run of Darcy flow, 60 s of Burgers' equation; 4 runs per side
Score:     relative L2 error on Darcy flow 0.0758 against FNO's 0.0902, before layers had an MLP; see
           docs/studies/operators.md
"""

import copy
import dataclasses
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import tyro
from torch import Tensor, nn

from fredholm.encoders import FunctionBatch
from fredholm.models import (
    AttentionConfig,
    ITNet,
    KernelConfig,
    LowRankConfig,
    NeuralOperator,
    SpectralConfig,
)
from fredholm.tasks import OperatorLearning
from fredholm.tasks.fields import Problem, neuralop
from fredholm.tasks.splits.splits import HeldOut
from fredholm.training import Run, TrainingConfig
from fredholm.training.progress import print_line

SECONDS: dict[Problem, float] = {"darcy": 100.0, "burgers": 60.0, "burgers-steps": 60.0}
"""Processor time of a training run in seconds."""
BATCH = 16
WEIGHT_DECAY = 1e-4


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Data, sides, and the folder of the results."""

    data: Path = Path("../shared/data/neuralop_pde/neuralop_pde.npz")
    """The small sets of the neuraloperator library."""
    problems: tuple[Problem, ...] = tuple(SECONDS)
    only: tuple[str, ...] = ()
    """Sides to run; none: all."""
    out: Path = Path("runs/operators")
    """Folder of results.json, which keeps the results of other sides."""
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: tuple[float, ...] = (4e-3, 8e-3)
    """Peak learning rates; the one with the best validation error of the first seed is chosen."""


def darcy_operator() -> Run.Config:
    """Train the default neural operator on Darcy flow, rotated and mirrored at random.

    Time:  about 2,000 steps, 100 s of processor time
    """
    task = OperatorLearning.Config(
        data="../shared/data/neuralop_pde/neuralop_pde.npz", symmetries=("mirror", "exchange")
    )
    training = TrainingConfig(
        epochs=35, batch_size=BATCH, learning_rate=8e-3, weight_decay=WEIGHT_DECAY, ema_decay=0.99
    )
    return Run.Config(task=task, training=training)


def neural_operator(kernel: KernelConfig, **changes: Any) -> NeuralOperator.Config:
    """The task's default with another kernel."""
    return NeuralOperator.Config(kernel=kernel, **changes)


def itnet(kernel: KernelConfig, **changes: Any) -> ITNet.Config:
    """A small ITNet."""
    sizes: dict[str, Any] = {"embed_dim": 64, "depth": 4, "expansion": 2} | changes
    return ITNet.Config(kernel=kernel, dropout=0.0, drop_path=0.0, **sizes)


class OnGrid(nn.Module):
    """Adapts a peer's network of images to a task of functions on a grid."""

    def __init__(self, network: nn.Module, times: int | None) -> None:
        super().__init__()
        self.network, self.times = network, times

    def forward(self, inputs: FunctionBatch, at: object = None) -> Tensor:
        """Values `(B, N, m)` on a square, or at ``times`` times on a line, to `(B, N, m')`."""
        values = inputs.values.mT
        rows = self.times or math.isqrt(values.shape[-1])
        return self.network(values.unflatten(-1, (rows, -1))).flatten(2).mT


def fno(problem: Problem) -> nn.Module:
    """A Fourier neural operator with about the ITNet's number of parameters (complex ones count twice)."""
    from neuralop.models import FNO  # pyright: ignore[reportMissingImports]  (a peer that is installed separately)

    if problem == "burgers-steps":
        return OnLine(FNO(n_modes=(12,), in_channels=1, out_channels=1, hidden_channels=64, n_layers=4))
    network = FNO(n_modes=(12, 12), in_channels=1, out_channels=1, hidden_channels=32, n_layers=4)
    return OnGrid(network, 17 if problem == "burgers" else None)


class OnLine(nn.Module):
    """Adapts a peer's network to a task of functions on a line."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: FunctionBatch, at: object = None) -> Tensor:
        """Values `(B, N, m)` to `(B, N, m')`."""
        return self.network(inputs.values.mT).mT


def uno(problem: Problem) -> nn.Module:
    """A U-shaped neural operator with about the ITNet's number of parameters."""
    from neuralop.models import UNO  # pyright: ignore[reportMissingImports]  (a peer that is installed separately)

    network = UNO(
        in_channels=1,
        out_channels=1,
        hidden_channels=32,
        n_layers=4,
        uno_out_channels=[32, 32, 32, 32],
        uno_n_modes=[[10, 10], [8, 8], [8, 8], [10, 10]],
        uno_scalings=[[1.0, 1.0], [0.5, 0.5], [1.0, 1.0], [2.0, 2.0]],
        channel_mlp_skip="linear",
    )
    return OnGrid(network, 17 if problem == "burgers" else None)


@final
@dataclass(frozen=True)
class Side:
    """One network and its settings of the task."""

    task: dict[str, Any] = dataclasses.field(default_factory=dict)
    peer: Callable[[Problem], nn.Module] | None = None


TURNED: dict[str, Any] = {"symmetries": ("mirror", "exchange")}
CIRCLE = SpectralConfig(period=(2.0, 1.0))
"""A line in time times a circle in space."""
LOW_RANK = LowRankConfig(rank=8, width=32, num_frequencies=8, sigma=1.0)
SIDES: dict[Problem, dict[str, Side]] = {
    "darcy": {
        "FNO": Side(peer=fno),
        "UNO": Side(peer=uno),
        "neural operator, spectral": Side(),
        "neural operator, spectral, turned": Side(TURNED),
        "neural operator, spectral, turned, half drawn": Side(TURNED | {"min_shown": 0.4}),
        "ITNet, spectral, turned": Side(TURNED | {"model": itnet(SpectralConfig(), embed_dim=32)}),
        "ITNet, attention, turned": Side(TURNED | {"model": itnet(AttentionConfig())}),
        "ITNet, low rank, turned": Side(TURNED | {"model": itnet(LOW_RANK)}),
    },
    "burgers": {
        "FNO": Side(peer=fno),
        "UNO": Side(peer=uno),
        "neural operator, spectral": Side({"model": neural_operator(CIRCLE)}),
        "ITNet, spectral": Side({"model": itnet(CIRCLE, embed_dim=32)}),
        "ITNet, attention": Side({"model": itnet(AttentionConfig())}),
    },
    "burgers-steps": {
        "FNO": Side({"unroll": 4}, peer=fno),
        "neural operator, spectral": Side(
            {"unroll": 4, "is_periodic": True, "model": neural_operator(SpectralConfig(), embed_dim=64)}
        ),
    },
}


def relative_error(task: OperatorLearning, split: HeldOut, model: nn.Module) -> float:
    """The task's metric on a held-out split."""
    from fredholm.training.scoring import score_split

    model.eval()
    found = score_split(task, split, model, batch_size=25, device=torch.device("cpu"), dtype=torch.float32)
    return found["relative_l2"]


def trained(task: OperatorLearning, model: nn.Module, *, seconds: float, rate: float, seed: int) -> int:
    """Trains for ``seconds`` of processor time with a cosine schedule; returns the number of steps."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    model.train()
    start, steps = time.process_time(), 0
    while True:
        for indices in torch.randperm(task.num_train, generator=generator).split(BATCH):
            share = (time.process_time() - start) / seconds
            if share >= 1:
                return steps
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1, (steps + 1) / 50) * 0.5 * (1 + math.cos(math.pi * share))
            loss = task.loss(model, task.train_batch(indices, generator)) / len(indices)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            steps += 1


def real_parameters(model: nn.Module) -> int:
    """Number of real parameters; complex ones count twice."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters())


def run(
    config: Config, problem: Problem, side: Side, rate: float, seed: int
) -> tuple[dict[str, Any], Callable[[], dict[str, float]]]:
    """One training run with its validation error, and a function that computes its test errors."""
    torch.manual_seed(seed)
    settings = OperatorLearning.Config(data=str(config.data), problem=problem, **side.task)
    task = settings.build()
    model = task.model() if side.peer is None else side.peer(problem)
    steps = trained(task, model, seconds=SECONDS[problem], rate=rate, seed=seed)
    found = {"seed": seed, "rate": rate, "steps": steps, "parameters": real_parameters(model)}
    # networks trained on parts of functions are also validated on whole functions
    found["valid"] = relative_error(task, "valid", model)

    def tested() -> dict[str, float]:
        kept = copy.deepcopy(model)

        def test_error(**changes: Any) -> float:
            other = dataclasses.replace(settings, **changes).build(task.facts)
            return relative_error(other, "test", kept)

        errors = {"test": test_error()}
        if problem == "darcy":
            errors["at 32"] = test_error(resolution=32)
            if side.peer is None:
                errors["given at 16, asked at 32"] = test_error(data=str(between(config)))
                errors["half the points"] = test_error(shown=0.5, min_shown=None)
        return errors

    return found, tested


def between(config: Config) -> Path:
    """The test set of Darcy flow with coefficients on 16 x 16 nodes and solutions on 32 x 32; written once."""
    path = config.out / "between.npz"
    if not path.is_file():
        coarse, fine = neuralop(config.data).test, neuralop(config.data, resolution=32).test
        assert coarse is not None
        assert fine is not None
        parts = {"values": coarse.given.values, "pos": coarse.given.pos[0]}
        parts |= {"target_values": fine.targets.values, "target_pos": fine.targets.pos[0]}
        arrays: dict[str, Any] = {
            f"{split}_{name}": part.numpy() for split in ("train", "test") for name, part in parts.items()
        }
        names = {"coordinates": ["y", "x"], "channels": ["coefficient"], "target_channels": ["solution"]}
        arrays |= {f"{split}_{name}": given for split in ("train", "test") for name, given in names.items()}
        np.savez(path, **arrays)
    return path


def side_of(config: Config, problem: Problem, side: Side) -> dict[str, Any]:
    """The runs of all seeds at the rate chosen by validation; the test split is read once per run."""
    first = {rate: run(config, problem, side, rate, config.seeds[0]) for rate in config.rates}
    best = min(first, key=lambda rate: first[rate][0]["valid"])
    runs = []
    for seed in config.seeds:
        found, tested = first[best] if seed == config.seeds[0] else run(config, problem, side, best, seed)
        runs.append(found | tested())
    return {"rate": best, "tried": {rate: found["valid"] for rate, (found, _) in first.items()}, "runs": runs}


def summary(runs: list[dict[str, Any]], key: str) -> str:
    """Mean and standard deviation over the seeds."""
    values = [run[key] for run in runs]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ± {spread:.4f}"


def main(config: Config) -> None:
    """Runs the comparison and writes results.json after each side."""
    if importlib.util.find_spec("neuralop") is None:
        raise SystemExit("operators: the peers need neuraloperator: pip install neuraloperator")
    torch.set_num_threads(1)
    config.out.mkdir(parents=True, exist_ok=True)
    results = config.out / "results.json"
    for problem in config.problems:
        for name, side in SIDES[problem].items():
            if config.only and name not in config.only:
                continue
            found = side_of(config, problem, side)
            # read again, since another process may have written in the meantime
            report: dict[str, dict[str, Any]] = json.loads(results.read_text()) if results.is_file() else {}
            report.setdefault(problem, {})[name] = found
            results.write_text(json.dumps(report, indent=1))
            numbers = [
                key
                for key in ("valid", "test", "at 32", "given at 16, asked at 32", "half the points")
                if key in found["runs"][0]
            ]
            print_line(
                f"{problem}, {name}, rate {found['rate']:g}: "
                + ", ".join(f"{n} {summary(found['runs'], n)}" for n in numbers)
            )


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
