"""The result of a comparison of kernels, and its file."""

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
"""Name of the file of a comparison, in the folder that also holds the run folders."""
SCHEMA = 1
SPLITS: tuple[HeldOut, ...] = ("valid", "test")


@final
@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """A finished run of a kernel with one seed.

    Args:
        seed: seed of the run.
        folder: folder of the run, relative to that of the comparison.
        valid: objective of the chosen weights on the validation split; None where a model in closed form had none.
        test: objective on the test split; None where there is none.
        metrics: all metrics on the test split, or without one on the validation split.
    """

    seed: int
    folder: str
    valid: float | None
    test: float | None
    metrics: dict[str, float]


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of one kernel so far.

    Args:
        name: name for `--kernels`; `default` is the task's own model.
        title: display name.
        kernel: config of the kernel; None for the task's own model.
        embed_dim: channels of the network; None for another model.
        expansion: hidden width of its feed-forward networks relative to the channels; None for another model.
        parameters: number of parameters.
        learns_by_steps: whether the model is trained; else it is computed in closed form, and seeds have no effect.
        learning_rate: chosen learning rate; None: not chosen yet, or not applicable.
        tried: learning rates with their epochs and best values on the validation split; the value is None where a run
            ended without one.
        runs: one result per seed.
        valid_mean, valid_deviation, test_mean, test_deviation: over the seeds; deviations (N - 1) from two seeds on.
        seconds_per_step: time of a training step, measured alone.
        examples_per_second: throughput in these steps.
        memory_bytes: rise of torch's memory during a step, at its peak.
        differs_from_best: whether the 95 % interval of the difference to the best row (Welch) excludes 0; None:
            unknown, or this is the best row.
        reason: reason why there is no result, in one line; empty where there is or may still be one.
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
        """Whether the row is the task's own model at its own size, rather than a network with one of the kernels."""
        return self.kernel is None

    def with_runs(self, runs: tuple[SeedResult, ...]) -> "Row":
        """Returns the row with these runs and the statistics over them."""
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
    """A kernel that is not compared, with the reason in one line."""

    name: str
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class BaselineRow:
    """A model without a network, whose setting was chosen on the validation split.

    Args:
        name: display name.
        valid: objective on the validation split; None where there is no result.
        test: objective on the test split; None where there is no result.
        seconds: time that it took.
        reason: reason why there is no result; empty where there is one.
    """

    name: str
    valid: float | None = None
    test: float | None = None
    seconds: float = 0.0
    reason: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """Training budget of each kernel.

    Args:
        minutes: requested minutes; None where epochs were requested.
        epochs: E, epochs of each final run.
        rungs: epochs of the runs of the learning-rate search, rung by rung.
        rates: learning rates of the first rung.
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
        task: command of the task.
        data: name or path of the data.
        request: the request as JSON; a comparison continues only if it is unchanged.
        command_line: words after `fredholm`.
        created: start time in UTC (ISO 8601).
        version: version of the library.
        machine: hardware and software that rounding and times depend on.
        objective: metric that decides.
        seeds: seeds of the final runs.
        budget: training budget of each kernel.
        num_train, num_valid, num_test: numbers of examples.
        target_parameters: number of parameters that every kernel's network approximates.
        rows: results by kernel.
        left_out: kernels that are not compared.
        baselines: models without a network.
        best: name of the row that is best on the validation split; None: not known yet.
        is_complete: whether all runs are done.
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
        """Returns the row of that name."""
        return next(row for row in self.rows if row.name == name)

    def num_runs(self, row: Row) -> int:
        """Returns the number of runs of a complete row."""
        return len(self.seeds) if row.learns_by_steps else 1

    def with_row(self, row: Row) -> "Comparison":
        """Returns the comparison with the row of this name replaced, and the verdicts updated."""
        rows = tuple(row if each.name == row.name else each for each in self.rows)
        return dataclasses.replace(self, rows=rows)._judged()

    def _judged(self) -> "Comparison":
        """Returns the comparison with its best row and the rows that differ from it, once all runs are done."""
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
    """Writes the file of a comparison atomically.

    Raises:
        OSError: the file cannot be written.
    """
    write_file(folder / COMPARISON, seal({"schema": SCHEMA, "comparison": to_json(comparison)}))


def read_comparison(folder: str | Path) -> Comparison:
    """Reads the comparison in a folder.

    Raises:
        ValueError: there is none, or its file is damaged or of another version.
        OSError: the file cannot be read.
    """
    file = Path(folder) / COMPARISON
    content = unseal(file)
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{file} has schema {content.get('schema')!r:.80}; this version reads {SCHEMA}")
    try:
        return from_json(content.get("comparison"), Comparison, (*KERNELS, KernelInputs, PointInputs), "comparison")
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
