"""Measure the memory of a network of continuous convolutions: copying and adding (CKConv, table 2, E.4).

Command:   python recipes/long_memory.py
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      copy memory 82 s of processor time for T = 100, 147 s for 200, 878 s for 1000; adding 2,498 s for T = 1000
           (--problems adding --lengths 1000 --first-length 50 --learning-rate 4e-3 --cosine --epochs 16)
Score:     see docs/studies/continuous_series.md

Deviations: training sequences are drawn anew in every step, and an epoch is 10,000 of them for copying and 50,000 for
adding, since the paper names no size. Training ends as soon as the task is solved on 1,000 test sequences. With
--first-length training starts with short sequences: two numbers among 1,000 give so weak a signal that adding is hardly
learned at that length from the start, while a continuous kernel transfers to any length.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro
from torch import Tensor, nn

from fredholm.encoders.series import Series
from fredholm.models.series.ckcnn import CKCNN
from fredholm.training.progress import print_line

Problem = Literal["copy", "adding"]
PROBLEMS: tuple[Problem, ...] = Problem.__args__
LENGTHS = (100, 200, 1000, 3000, 6000)
RECALLED = 10
"""Digits to copy."""
SOLVED_LOSS = 1e-4
"""Mean squared error at which adding counts as solved."""
LEARNED_LOSS = 1e-2
"""Mean squared error over `WINDOW` steps at which training sequences double in length."""
WINDOW = 250


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
    """Runs of the study, and the folder of the results."""

    out: Path = Path("runs/long_memory")
    """Folder of results.json, which keeps finished runs."""
    problems: tuple[Problem, ...] = PROBLEMS
    """Problems to run."""
    lengths: tuple[int, ...] = LENGTHS
    """Lengths T to run, among those of the paper."""
    seeds: tuple[int, ...] = (0,)
    """Seeds, with a run for each."""
    batch_size: int = 32
    """Sequences per step."""
    test_size: int = 1000
    """Sequences that decide whether a problem is solved."""
    epoch_size: int | None = None
    """Sequences per epoch; None: 10,000 for copying, 50,000 for adding."""
    epochs: int | None = None
    """Largest number of epochs; None: the paper's number for the length."""
    learning_rate: float | None = None
    """Learning rate of Adam; None: the paper's."""
    omega_0: float | None = None
    """Frequency of the kernels' sines; None: the paper's for the length."""
    cosine: bool = False
    """Whether the learning rate falls to 0 along a cosine over the epochs; otherwise it is constant."""
    first_length: int | None = None
    """For adding: length of the first training sequences, which doubles as they are learned, up to T; None: T."""
    device: str = "cpu"
    """Device of the runs."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "test_size", "epochs", "learning_rate", "omega_0"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"long_memory: {name} must be above 0; got {value}")
        if self.epoch_size is not None and self.epoch_size < self.batch_size:
            raise ValueError(f"long_memory: an epoch of {self.epoch_size} sequences has no batch of {self.batch_size}")
        if self.first_length is not None and ("copy" in self.problems or self.first_length < 2):
            raise ValueError(
                f"long_memory: first_length is for adding only (--problems adding), and at least 2; got "
                f"{self.first_length} with {', '.join(self.problems)}"
            )
        if unknown := [length for length in self.lengths if length not in LENGTHS]:
            raise ValueError(f"long_memory: T must be one of {LENGTHS}, the paper's lengths; got {unknown[0]}")


class Settings(NamedTuple):
    """Settings that a result depends on, besides its problem, length and seed."""

    learning_rate: float
    cosine: bool
    omega_0: float
    first_length: int
    max_epochs: int
    epoch_size: int
    batch_size: int

    @classmethod
    def of(cls, problem: Problem, length: int, config: Config) -> "Settings":
        """The given settings, and the paper's for those that are None."""
        own, at = PUBLISHED[problem], LENGTHS.index(length)
        return cls(
            learning_rate=config.learning_rate or own.learning_rate,
            cosine=config.cosine,
            omega_0=config.omega_0 or own.omega_0[at],
            first_length=min(config.first_length or length, length),
            max_epochs=config.epochs or own.epochs[at],
            epoch_size=config.epoch_size or own.epoch_size,
            batch_size=config.batch_size,
        )


class GrowingLength:
    """Length of the training sequences, which doubles whenever the loss falls below `LEARNED_LOSS`."""

    def __init__(self, first: int, last: int) -> None:
        self.now, self.last = first, last
        self._losses: list[Tensor] = []

    def record(self, loss: Tensor) -> None:
        """Records the loss of a step; losses stay on their device until `WINDOW` of them are read."""
        if self.now < self.last:
            self._losses.append(loss.detach())
            if len(self._losses) == WINDOW:
                if torch.stack(self._losses).mean().item() <= LEARNED_LOSS:
                    self.now = min(2 * self.now, self.last)
                self._losses.clear()


def copy_sequences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Digits `(count, T + 20, 1)`, and at each position the digit to predict `(count, T + 20)`, int64.

    Ten digits from 1 to 8, T - 1 zeros and eleven nines; the targets are zeros, and at the last ten nines the digits.
    """
    digits = torch.randint(1, 9, (count, RECALLED), generator=generator)
    inputs = torch.cat([digits, digits.new_zeros(count, length - 1), digits.new_full((count, RECALLED + 1), 9)], dim=1)
    target = torch.cat([digits.new_zeros(count, length + RECALLED), digits], dim=1)
    return inputs[..., None].float(), target


def adding_sequences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Numbers in [0, 1) and marks, 1 at two positions, `(count, T, 2)`; and the sum of the two numbers `(count,)`."""
    numbers = torch.rand(count, length, generator=generator)
    marked = torch.rand(count, length, generator=generator).topk(2, dim=1).indices
    marks = torch.zeros(count, length).scatter_(1, marked, 1.0)
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(1)


SEQUENCES = {"copy": copy_sequences, "adding": adding_sequences}


def network(problem: Problem, length: int, omega_0: float) -> CKCNN:
    """The paper's network: two blocks, kernels of 32 hidden units, no dropout."""
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


def loss_of(problem: Problem, out: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy at all positions, or the mean squared error of the sums."""
    if problem == "copy":
        return nn.functional.cross_entropy(out.flatten(0, 1), target.flatten())
    return nn.functional.mse_loss(out[:, 0], target)


def measure(problem: Problem, net: CKCNN, test: tuple[Tensor, Tensor], batch_size: int) -> dict[str, float]:
    """Mean loss on test sequences, and for copying the percentage of the ten digits that are predicted."""
    losses, right = [], []
    with torch.no_grad():
        for inputs, target in zip(test[0].split(batch_size), test[1].split(batch_size), strict=True):
            out = net(inputs)
            losses.append(loss_of(problem, out, target).item() * len(inputs))
            if problem == "copy":
                right.append((out[:, -RECALLED:].argmax(-1) == target[:, -RECALLED:]).flatten())
    found = {"loss": sum(losses) / len(test[0])}
    return found | ({"accuracy": 100 * torch.cat(right).double().mean().item()} if right else {})


def solved(problem: Problem, found: dict[str, float]) -> bool:
    """Whether all digits are right, or the loss is at most 10⁻⁴."""
    return found["accuracy"] == 100 if problem == "copy" else found["loss"] <= SOLVED_LOSS


def run(problem: Problem, length: int, seed: int, config: Config) -> dict[str, Any]:
    """Trains until the problem is solved or all epochs have passed."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    settings = Settings.of(problem, length, config)
    draw, batch_size = SEQUENCES[problem], settings.batch_size
    test = draw(config.test_size, length, torch.Generator().manual_seed(10_000 + seed))
    test = test[0].to(config.device), test[1].to(config.device)
    net = network(problem, length, settings.omega_0).to(config.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=settings.learning_rate)
    steps = settings.epoch_size // batch_size
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.max_epochs * steps)
    training_length = GrowingLength(settings.first_length, length)
    started, curve = time.process_time(), []
    for epoch in range(settings.max_epochs):
        net.train()
        for _ in range(steps):
            inputs, target = (t.to(config.device) for t in draw(batch_size, training_length.now, generator))
            loss = loss_of(problem, net(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            training_length.record(loss)
            if settings.cosine:
                schedule.step()
        found = measure(problem, net.eval(), test, batch_size)
        curve.append(found)
        print_line(f"{problem} {length}, seed {seed}, epoch {epoch + 1}, on {training_length.now}: {found}")
        if solved(problem, found):
            break
    return {
        "problem": problem,
        "length": length,
        "seed": seed,
        **settings._asdict(),
        "epochs": len(curve),
        "solved": solved(problem, curve[-1]),
        "processor_s": round(time.process_time() - started),
        "parameters": sum(p.numel() for p in net.parameters()),
        "device": config.device,
        "curve": curve,
    }


def read_results(path: Path) -> list[dict[str, Any]]:
    """The finished results; read again before each write, since another process may have added to them."""
    return json.loads(path.read_text()) if path.is_file() else []


def main(config: Config) -> None:
    """Runs the problems that results.json does not hold yet with these settings."""
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.out / "results.json"
    results = read_results(path)
    done = {(r["problem"], r["length"], r["seed"], *(r[name] for name in Settings._fields)) for r in results}
    for problem in config.problems:
        for length in config.lengths:
            for seed in config.seeds:
                if (problem, length, seed, *Settings.of(problem, length, config)) not in done:
                    found = run(problem, length, seed, config)
                    results = [*read_results(path), found]
                    path.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    for r in results:
        outcome = f"solved in {r['epochs']} epochs" if r["solved"] else f"not solved in {r['epochs']} epochs"
        print_line(f"{r['problem']:<7} T = {r['length']:<5} {outcome}, {r['curve'][-1]}, {r['parameters']} parameters")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
