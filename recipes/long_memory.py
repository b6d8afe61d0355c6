"""How far a network of continuous convolutions remembers: copy memory and the adding problem (CKConv, table 2, E.4).

Command:   python recipes/long_memory.py
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      copy memory 82 s of processor time for T = 100, 878 s for T = 1000
Score:     see docs/studies/continuous_series.md

Deviations: training sequences are drawn anew in every step, and an epoch is 10,000 of them for copying and 50,000 for
adding, since the paper names no size. Training ends as soon as the task is solved on 1,000 sequences of their own.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro
from torch import Tensor, nn

from fredholm.encoders import Series
from fredholm.models import CKCNN
from fredholm.training.progress import print_line

Problem = Literal["copy", "adding"]
PROBLEMS: tuple[Problem, ...] = Problem.__args__
LENGTHS = (100, 200, 1000, 3000, 6000)
RECALLED = 10
"""Digits to copy."""
SOLVED_LOSS = 1e-4
"""Mean squared error at which adding counts as solved."""


class Published(NamedTuple):
    """The paper's settings for one problem, and for each of `LENGTHS`."""

    embed_dim: int
    learning_rate: float
    epoch_size: int
    omega_0: tuple[float, ...]
    epochs: tuple[int, ...]


PUBLISHED: dict[Problem, Published] = {
    "copy": Published(10, 5e-4, 10_000, (19.20, 34.71, 68.69, 43.65, 69.97), (50, 50, 100, 200, 300)),
    "adding": Published(25, 1e-3, 50_000, (14.55, 18.19, 2.03, 2.23, 4.3), (20, 20, 30, 50, 50)),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is run, and where the results go."""

    out: Path = Path("runs/long_memory")
    """Folder of results.json, which keeps what is done."""
    problems: tuple[Problem, ...] = PROBLEMS
    """Which problems."""
    lengths: tuple[int, ...] = LENGTHS
    """Which T, of those in the paper."""
    seeds: tuple[int, ...] = (0,)
    """A run for each."""
    batch_size: int = 32
    """Sequences a step."""
    test_size: int = 1000
    """Sequences that decide whether a problem is solved."""
    epoch_size: int | None = None
    """Sequences an epoch; None: see the top of this file."""
    epochs: int | None = None
    """At most so many; None: the paper's number for the length."""
    learning_rate: float | None = None
    """Of Adam; None: the paper's."""
    omega_0: float | None = None
    """Frequency of the kernels' sines; None: the paper's for the length."""
    cosine: bool = False
    """Whether the learning rate falls to 0 along a cosine over the epochs; else it is constant."""
    device: str = "cpu"
    """Where it runs."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "test_size", "epochs", "learning_rate", "omega_0"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"long_memory: {name} must be above 0; got {value}")
        if self.epoch_size is not None and self.epoch_size < self.batch_size:
            raise ValueError(f"long_memory: an epoch of {self.epoch_size} sequences has no batch of {self.batch_size}")
        if unknown := [length for length in self.lengths if length not in LENGTHS]:
            raise ValueError(f"long_memory: T is one of {LENGTHS}, which the paper has settings for; got {unknown[0]}")


def omega_0_of(problem: Problem, length: int, config: Config) -> float:
    """The frequency of the sines: the one asked for, or the paper's."""
    return PUBLISHED[problem].omega_0[LENGTHS.index(length)] if config.omega_0 is None else config.omega_0


def rate_of(problem: Problem, config: Config) -> float:
    """The learning rate: the one asked for, or the paper's."""
    return PUBLISHED[problem].learning_rate if config.learning_rate is None else config.learning_rate


def copy_sequences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Digits `(count, T + 20, 1)`, and at each place the digit to tell `(count, T + 20)`, int64.

    Ten digits from 1 to 8, T - 1 zeros and eleven nines; to be told are zeros, and over the last ten nines the digits.
    """
    digits = torch.randint(1, 9, (count, RECALLED), generator=generator)
    given = torch.cat([digits, digits.new_zeros(count, length - 1), digits.new_full((count, RECALLED + 1), 9)], dim=1)
    told = torch.cat([digits.new_zeros(count, length + RECALLED), digits], dim=1)
    return given[..., None].float(), told


def adding_sequences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Numbers in [0, 1) and marks, 1 at two places, `(count, T, 2)`; and the sum of the two numbers `(count,)`."""
    numbers = torch.rand(count, length, generator=generator)
    places = torch.rand(count, length, generator=generator).topk(2, dim=1).indices
    marks = torch.zeros(count, length).scatter_(1, places, 1.0)
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(1)


SEQUENCES = {"copy": copy_sequences, "adding": adding_sequences}


def network(problem: Problem, length: int, omega_0: float) -> CKCNN:
    """The paper's: two blocks, kernels of 32 hidden units, no dropout."""
    copying = problem == "copy"
    config = CKCNN.Config(
        embed_dim=PUBLISHED[problem].embed_dim,
        omega_0=omega_0,
        dropout=0.0,
        pool="none" if copying else "last",
    )
    samples = length + 2 * RECALLED if copying else length
    encoder = Series(1 if copying else 2, spacing=1.0)
    return CKCNN(encoder, 10 if copying else 1, config, extent=float(samples), spacing=1.0)


def loss_of(problem: Problem, out: Tensor, told: Tensor) -> Tensor:
    """Cross-entropy of all places, or the mean squared error of the sums."""
    if problem == "copy":
        return nn.functional.cross_entropy(out.flatten(0, 1), told.flatten())
    return nn.functional.mse_loss(out[:, 0], told)


def measure(problem: Problem, net: CKCNN, test: tuple[Tensor, Tensor], batch_size: int) -> dict[str, float]:
    """Mean loss, and for copying the percentage of the ten digits that are told, on sequences of its own."""
    losses, right = [], []
    with torch.no_grad():
        for given, told in zip(test[0].split(batch_size), test[1].split(batch_size), strict=True):
            out = net(given)
            losses.append(loss_of(problem, out, told).item() * len(given))
            if problem == "copy":
                right.append((out[:, -RECALLED:].argmax(-1) == told[:, -RECALLED:]).flatten())
    found = {"loss": sum(losses) / len(test[0])}
    return found | ({"accuracy": 100 * torch.cat(right).double().mean().item()} if right else {})


def solved(problem: Problem, found: dict[str, float]) -> bool:
    """All digits told, or a loss of at most 10⁻⁴."""
    return found["accuracy"] == 100 if problem == "copy" else found["loss"] <= SOLVED_LOSS


def run(problem: Problem, length: int, seed: int, config: Config) -> dict[str, Any]:
    """Trains until the problem is solved or the epochs are over."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    own = PUBLISHED[problem]
    draw = SEQUENCES[problem]
    test = draw(config.test_size, length, torch.Generator().manual_seed(10_000 + seed))
    test = test[0].to(config.device), test[1].to(config.device)
    rate, omega_0 = rate_of(problem, config), omega_0_of(problem, length, config)
    net = network(problem, length, omega_0).to(config.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    steps = (config.epoch_size or own.epoch_size) // config.batch_size
    epochs = config.epochs or own.epochs[LENGTHS.index(length)]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps) if config.cosine else None
    started, curve = time.process_time(), []
    for epoch in range(epochs):
        net.train()
        for _ in range(steps):
            given, told = (t.to(config.device) for t in draw(config.batch_size, length, generator))
            loss = loss_of(problem, net(given), told)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
        found = measure(problem, net.eval(), test, config.batch_size)
        curve.append(found)
        print_line(f"{problem} {length}, seed {seed}, epoch {epoch + 1}: {found}")
        if solved(problem, found):
            break
    return {
        "problem": problem,
        "length": length,
        "seed": seed,
        "learning_rate": rate,
        "cosine": config.cosine,
        "omega_0": omega_0,
        "epochs": len(curve),
        "solved": solved(problem, curve[-1]),
        "processor_s": round(time.process_time() - started),
        "parameters": sum(p.numel() for p in net.parameters()),
        "device": config.device,
        "curve": curve,
    }


def main(config: Config) -> None:
    """Runs what results.json does not have yet, with these settings."""
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.out / "results.json"
    results: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    done = {(r["problem"], r["length"], r["seed"], r["learning_rate"], r["cosine"], r["omega_0"]) for r in results}
    for problem in config.problems:
        for length in config.lengths:
            for seed in config.seeds:
                settings = rate_of(problem, config), config.cosine, omega_0_of(problem, length, config)
                if (problem, length, seed, *settings) not in done:
                    results.append(run(problem, length, seed, config))
                    path.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    for r in results:
        outcome = f"solved in {r['epochs']} epochs" if r["solved"] else f"not solved in {r['epochs']} epochs"
        print_line(f"{r['problem']:<7} T = {r['length']:<5} {outcome}, {r['curve'][-1]}, {r['parameters']} parameters")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
