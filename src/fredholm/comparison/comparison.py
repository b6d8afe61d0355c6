"""What a comparison of kernels found, and the file in which it is kept."""

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fredholm.kernels import KernelInputs, PointInputs
from fredholm.models.kernel_configs import KERNELS, KernelConfig
from fredholm.storage.atomic import write_file
from fredholm.storage.config_json import from_json, to_json
from fredholm.storage.integrity import seal, unseal
from fredholm.tasks.objective import Objective
from fredholm.tasks.splits.splits import HeldOut

from .spread import differ

COMPARISON = "comparison.json"
"""The file of a comparison's folder; the runs lie in folders beside it."""
SCHEMA = 1
SPLITS: tuple[HeldOut, ...] = ("valid", "test")


@final
@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """A finished run of a kernel with one seed.

    Args:
        seed: of the run.
        folder: of the run, below that of the comparison.
        valid: the objective of the chosen weights on the validation split; None where a model that is computed at once
            had none.
        test: likewise on the test split; None where there is none.
        metrics: all of the test split, or without one of the validation split.
    """

    seed: int
    folder: str
    valid: float | None
    test: float | None
    metrics: dict[str, float]


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel, as far as it is known.

    Args:
        name: as `--kernels` takes it; `default` is the task's own model.
        title: for people.
        kernel: None of the task's own model.
        embed_dim: channels of the network; None of another model.
        expansion: hidden width of its feed-forward networks, in multiples of these; likewise.
        parameters: of the model.
        learns_by_steps: whether it is trained; else it is computed at once, which no seed changes.
        learning_rate: that was chosen; None: not yet, or there is none.
        tried: learning rates with the epochs and the best value on the validation split, which is None where a run
            ended without one.
        runs: one a seed.
        valid_mean, valid_deviation, test_mean, test_deviation: over the seeds; deviations from two on (N - 1).
        seconds_per_step: of training, measured alone.
        examples_per_second: in these steps.
        memory_bytes: that torch holds more at the peak of a step than before it.
        differs_from_best: whether the 95 % interval of the difference to the best row (Welch) leaves 0 out; None:
            not known, or this is the best.
        reason: why there is no result, in one line; empty where there is one, or may still be.
    """

    name: str
    title: str
    kernel: KernelConfig | None
    embed_dim: int | None
    expansion: float | None
    parameters: int
    learns_by_steps: bool = True
    learning_rate: float | None = None
    tried: tuple[tuple[float, int, float | None], ...] = ()
    runs: tuple[SeedResult, ...] = ()
    valid_mean: float | None = None
    valid_deviation: float | None = None
    test_mean: float | None = None
    test_deviation: float | None = None
    seconds_per_step: float | None = None
    examples_per_second: float | None = None
    memory_bytes: int | None = None
    differs_from_best: bool | None = None
    reason: str = ""

    @property
    def is_default(self) -> bool:
        """Whether it is the task's own model, of its own size, and not one of the kernels' networks."""
        return self.kernel is None

    def with_runs(self, runs: tuple[SeedResult, ...]) -> "Row":
        """The same with these results, and what follows from them."""
        valid, test = ([value for run in runs if (value := getattr(run, split)) is not None] for split in SPLITS)
        return dataclasses.replace(
            self,
            runs=runs,
            valid_mean=statistics.mean(valid) if valid else None,
            valid_deviation=statistics.stdev(valid) if len(valid) > 1 else None,
            test_mean=statistics.mean(test) if test else None,
            test_deviation=statistics.stdev(test) if len(test) > 1 else None,
        )


@final
@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A kernel that is not compared, and why, in one line."""

    name: str
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class BaselineRow:
    """A model without a network, whose setting was chosen on the validation split.

    Args:
        name: for people.
        valid: the objective on the validation split; None where there is no result.
        test: on the test split; likewise.
        seconds: that it took.
        reason: why there is no result; empty where there is one.
    """

    name: str
    valid: float | None = None
    test: float | None = None
    seconds: float = 0.0
    reason: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long each kernel is trained.

    Args:
        minutes: that were asked for; None where epochs were.
        epochs: E, of each final run.
        rungs: epochs of the runs that search a learning rate, stage by stage.
        rates: the learning rates of the first stage.
    """

    minutes: float | None
    epochs: int
    rungs: tuple[int, ...]
    rates: tuple[float, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Kernels under one protocol.

    Args:
        task: its word on the command line.
        data: the set.
        request: what was asked for, as JSON; a comparison goes on only where it is the same.
        command_line: the words after `fredholm`.
        created: when it began, in UTC (ISO 8601).
        version: of the library.
        machine: what digits and times depend on, in words.
        objective: the metric that decides.
        seeds: of the final runs.
        budget: how long each kernel is trained.
        num_train, num_valid, num_test: examples.
        target_parameters: that every kernel's network was brought to.
        rows: the kernels.
        left_out: kernels that are not compared.
        baselines: models without a network.
        best: the row that is best on the validation split; None: not known yet.
        is_complete: whether nothing is left to do.
    """

    task: str
    data: str
    request: str
    command_line: tuple[str, ...]
    created: str
    version: str
    machine: dict[str, str]
    objective: Objective
    seeds: tuple[int, ...]
    budget: Budget
    num_train: int
    num_valid: int
    num_test: int
    target_parameters: int
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...] = ()
    baselines: tuple[BaselineRow, ...] = ()
    best: str | None = None
    is_complete: bool = False

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def num_runs(self, row: Row) -> int:
        """How many runs a row has in the end."""
        return len(self.seeds) if row.learns_by_steps else 1

    def with_row(self, row: Row) -> "Comparison":
        """The same with this row in place of that of its name, and with what follows for all."""
        rows = tuple(row if each.name == row.name else each for each in self.rows)
        return dataclasses.replace(self, rows=rows)._judged()

    def _judged(self) -> "Comparison":
        """Which row is best, and which others differ from it: once all seeds of all kernels are known."""
        done = [row for row in self.rows if len(row.runs) == self.num_runs(row) and row.valid_mean is not None]
        is_open = any(not row.reason and len(row.runs) < self.num_runs(row) for row in self.rows)
        if is_open or not done:
            plain = tuple(dataclasses.replace(row, differs_from_best=None) for row in self.rows)
            return dataclasses.replace(self, rows=plain, best=None)
        sign = 1 if self.objective.maximise else -1
        best = max(done, key=lambda row: sign * (row.valid_mean or 0.0))  # the first of equal ones
        split: HeldOut = "valid" if best.test_mean is None else "test"
        values = {row.name: [value for run in row.runs if (value := getattr(run, split)) is not None] for row in done}
        rows = tuple(
            dataclasses.replace(
                row,
                differs_from_best=None
                if row.name == best.name or row.name not in values
                else differ(values[row.name], values[best.name]),
            )
            for row in self.rows
        )
        return dataclasses.replace(self, rows=rows, best=best.name)


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Writes a comparison's file, so that at every moment it is the old or the new one.

    Raises:
        OSError: it cannot be written.
    """
    write_file(folder / COMPARISON, seal({"schema": SCHEMA, "comparison": to_json(comparison)}))


def read_comparison(folder: str | Path) -> Comparison:
    """The comparison in a folder.

    Raises:
        ValueError: there is none, or its file is damaged or of another version.
        OSError: it cannot be read.
    """
    file = Path(folder) / COMPARISON
    content = unseal(file)
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{file} has schema {content.get('schema')!r:.80}; this version reads {SCHEMA}")
    try:
        return from_json(content.get("comparison"), Comparison, (*KERNELS, KernelInputs, PointInputs), "comparison")
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
