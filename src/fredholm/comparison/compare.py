"""The comparison of kernels in one network, under one budget, with choices on validation data."""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

from fredholm._settings import check_count
from fredholm._version import __version__
from fredholm.storage.atomic import write_file
from fredholm.storage.config_json import to_json
from fredholm.storage.integrity import is_missing
from fredholm.tasks import TASKS
from fredholm.tasks.baselines import Baseline
from fredholm.tasks.files.read_record import recording_reads
from fredholm.tasks.files.terminal_text import counted
from fredholm.tasks.task import Task
from fredholm.training.device import choose_device
from fredholm.training.interruption import InterruptedRunError, signal_number
from fredholm.training.progress import print_line
from fredholm.training.run import Run, refuse_unusable
from fredholm.training.storage.config_difference import first_difference
from fredholm.training.storage.fingerprint import FINGERPRINT, Difference, Fingerprint
from fredholm.training.storage.lock import only_writer
from fredholm.training.storage.machine import describe_numerics

from .budget import FACTORS, epochs_within, rungs
from .comparison import COMPARISON, BaselineRow, Budget, Comparison, Row, SeedResult, read_comparison, write_comparison
from .job import Job, Outcome
from .protocol import Protocol, Request
from .search import Rung, best_rate, next_rung, ranked
from .workers import carry_out_beside, carry_out_here, one_thread

LOG = "runs.log"
"""Name of the file with the output of the worker processes."""
NO_BASELINES = "baselines"
"""Name of the row with the reason why there is no baseline."""
SEARCH = "search"
"""Name of the folder of a kernel's learning-rate search, which is removed once the rate is found."""


def compare(
    request: Request,
    folder: str | Path,
    *,
    resume: bool = False,
    processes: int | None = None,
    command_line: Sequence[str] = (),
    tasks: Sequence[type[Task]] = TASKS,
) -> Comparison:
    """Compares kernels in a folder.

    Equal requests with equal epochs give equal numbers on one machine, except for times, whatever the number of
    processes, and whether or not the comparison was interrupted.

    Args:
        request: settings of the comparison.
        folder: a new or empty folder; with `resume` also that of the same comparison, which continues.
        resume: continue if the folder holds a comparison.
        processes: processes that train side by side, with one thread each; None: one per core, and one in all on a GPU.
        command_line: words after `fredholm`, to be recorded.
        tasks: known task classes; tasks outside the library train in this process only.

    Raises:
        ValueError: the folder is not empty, or holds another comparison or one of other data; data without a validation
            split; a task without kernels, or fewer than two kernels that can run; minutes too few for one epoch each.
        InterruptedRunError: on SIGINT, SIGTERM or SIGHUP, after all runs are saved, or at once outside of a run.
        OSError: the disk is full; files written before are intact.
    """
    folder = Path(folder)
    if processes is not None:
        check_count("comparison.compare", "processes", processes)
    is_new = _check_folder(folder, resume=resume)
    if is_new and resume:
        print_line(f"{folder} holds no comparison to go on with; a new one begins")
    device = choose_device(request.run.training.device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = processes or (1 if device.type == "cuda" else cores)
    with one_thread():
        kept = None if is_new else _kept(folder, request)
        with recording_reads() as read:
            protocol = Protocol(request, request.epochs if kept is None else kept.budget.epochs)
        data = Fingerprint.of(read, request.run.task.data)
        if kept is None:
            machine = describe_numerics(device) | {"cores": f"{cores} core{'s' if cores > 1 else ''}"}
            protocol, comparison = _planned(protocol, count, command_line, machine)
        else:
            _check_data(folder, data, request)
            comparison = kept
        with only_writer(folder):
            if is_new:
                write_file(folder / FINGERPRINT, data.text.encode())
                write_comparison(folder, comparison)
            for line in _plan_lines(comparison, protocol):
                print_line(line)
            run = _Run(folder, protocol, comparison)
            with _naming_resume(run):
                run.learn_baselines()
                if count == 1 or tuple(tasks) != TASKS:
                    carry_out_here(run.first_jobs(), run.done, tasks)
                else:
                    carry_out_beside(run.first_jobs(), run.done, count, folder / LOG)
            return run.finish()


def _check_folder(folder: Path, *, resume: bool) -> bool:
    """Returns whether the folder is new; raises a ValueError where it holds something else; see `refuse_unusable`."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected a folder")
    if not is_missing(folder / COMPARISON):
        if not resume:
            raise ValueError(f"{folder} holds a comparison; choose another --run-dir, or go on with --resume")
        return False
    entries = [entry.name for entry in folder.iterdir()] if folder.exists() else []
    if any(not name.startswith(".") and name != FINGERPRINT for name in entries):
        raise ValueError(f"{folder} is not empty and holds no {COMPARISON}; choose another --run-dir")
    refuse_unusable(folder)
    return True


def _planned(
    protocol: Protocol, processes: int, command_line: Sequence[str], machine: dict[str, str]
) -> tuple[Protocol, Comparison]:
    """Plans a new comparison: kernels, widths and epochs; returns it with the protocol for these epochs."""
    request, task = protocol.request, protocol.task
    print_line(f"measuring a training step of each of {len(request.kernels)} kernels")
    measured, left_out = protocol.rows(request.kernels)
    epochs = request.epochs
    if epochs is None:
        assert request.minutes is not None
        costs = [each.epoch_seconds for each in measured if each.row.learns_by_steps]
        epochs = epochs_within(request.minutes, len(request.seeds), costs, processes, protocol.max_epochs)
        protocol = Protocol(request, epochs)
    return protocol, Comparison(
        task=task.command,
        data=request.run.task.data,
        request=_text_of(request),
        command_line=tuple(command_line),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        version=__version__,
        machine=machine,
        objective=task.objective,
        seeds=request.seeds,
        budget=Budget(
            minutes=request.minutes if request.epochs is None else None,
            epochs=epochs,
            rungs=rungs(epochs),
            rates=tuple(factor * protocol.usual_rate for factor in FACTORS),
        ),
        num_train=task.num_train,
        num_valid=task.num_held_out("valid"),
        num_test=task.num_held_out("test"),
        target_parameters=protocol.wanted_parameters,
        rows=tuple(each.row for each in measured),
        left_out=tuple(left_out),
    )


def _kept(folder: Path, request: Request) -> Comparison:
    """Reads the comparison in a folder, to continue it.

    Raises:
        ValueError: it is damaged, or differs from the request.
    """
    comparison = read_comparison(folder)
    difference = first_difference(json.loads(comparison.request), json.loads(_text_of(request)))
    if difference:
        raise ValueError(f"{folder} holds another comparison: {difference}; choose another --run-dir")
    return comparison


def _check_data(folder: Path, data: Fingerprint, request: Request) -> None:
    """Raises a ValueError where the data differ from those that the comparison in a folder read."""
    before = Fingerprint.of_text((folder / FINGERPRINT).read_text())
    if difference := Difference.between(before, data):
        raise ValueError(f"{request.run.task.data} is not as the comparison in {folder} read it: {difference}")


def _text_of(request: Request) -> str:
    """Returns the part of a request that affects the numbers, as JSON; the device is left out."""
    training = dataclasses.replace(request.run.training, device="auto")
    fixed = dataclasses.replace(request, run=dataclasses.replace(request.run, training=training), default="")
    return json.dumps(to_json(fixed))


def _plan_lines(comparison: Comparison, protocol: Protocol) -> Iterator[str]:
    """A readable summary of the planned runs, one fact a line."""
    budget = comparison.budget
    yield from protocol.notes
    yield (
        f"data: {comparison.num_train:,} examples to learn from, {comparison.num_valid:,} for validation and "
        f"{comparison.num_test:,} for testing"
    )
    names = ", ".join(row.name for row in comparison.rows)
    yield f"models: {names}; networks of {comparison.target_parameters:,} parameters, within 5 %"
    yield from (f"left out: {each.name}: {each.reason}" for each in comparison.left_out)
    search = " and ".join(map(str, budget.rungs))
    yield (
        f"epochs: {search} for {len(budget.rates)} learning rates by halving, then {budget.epochs} with the "
        f"seed{'s' if len(comparison.seeds) > 1 else ''} {' '.join(map(str, comparison.seeds))}"
    )


@final
class _Run:
    """A comparison in progress: schedules its jobs and records their outcomes."""

    def __init__(self, folder: Path, protocol: Protocol, comparison: Comparison) -> None:
        self.folder, self._protocol, self.comparison = folder, protocol, comparison
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[str, Callable[[Outcome], None]]] = {}
        """Row and outcome handler of each unfinished job."""

    @property
    def progress(self) -> str:
        """How many kernels are done, for messages."""
        rows = self.comparison.rows
        done = [row for row in rows if row.reason or len(row.runs) == len(self._seeds(row))]
        return f"{len(done)} of {counted(len(rows), 'kernel')} {'is' if len(done) == 1 else 'are'} done"

    def _seeds(self, row: Row) -> tuple[int, ...]:
        """The seeds that a row is trained with."""
        return self.comparison.seeds if row.learns_by_steps else self.comparison.seeds[:1]

    def learn_baselines(self) -> None:
        """Adds the rows of models without a network that are still missing."""
        if self.comparison.baselines:
            return
        rows = tuple(baseline_rows(self._protocol.task))
        objective = self.comparison.objective
        for row in rows:
            outcome = row.reason or ", ".join(
                f"{split} {objective.metric} {objective.format(value)}"
                for split, value in (("valid", row.valid), ("test", row.test))
                if value is not None
            )
            print_line(f"{row.name}: {outcome}")
        self._keep(dataclasses.replace(self.comparison, baselines=rows))

    def first_jobs(self) -> list[tuple[int, Job]]:
        """Returns the jobs that depend on no other, those of the slowest kernels first."""
        slowest = sorted(self.comparison.rows, key=lambda row: -(row.seconds_per_step or 0.0))
        return [job for row in slowest for job in self._next(row.name)]

    def done(self, number: int, outcome: Outcome) -> list[tuple[int, Job]]:
        """Records a job's outcome, and returns the jobs that follow from it."""
        name, take = self._waiting.pop(number)
        take(outcome)
        return [] if any(other == name for other, _ in self._waiting.values()) else self._next(name)

    def finish(self) -> Comparison:
        """Returns the complete comparison, once all jobs are done."""
        self._keep(dataclasses.replace(self.comparison, is_complete=True))
        return self.comparison

    def _next(self, name: str) -> list[tuple[int, Job]]:
        """Returns the next jobs of a row."""
        row, budget = self.comparison.row(name), self.comparison.budget
        if row.reason:
            return []
        rung = next_rung(row, budget) if row.learns_by_steps else None
        if rung is not None:
            return self._search(row, rung)
        if row.learns_by_steps and row.learning_rate is None:
            row = dataclasses.replace(row, learning_rate=best_rate(row, budget))
        if row.learns_by_steps and row.learning_rate is None:
            self._keep(self.comparison.with_row(dataclasses.replace(row, reason="no learning rate had a result")))
            return []
        self._keep(self.comparison.with_row(row))
        shutil.rmtree(self.folder / name / SEARCH, ignore_errors=True)  # the rate that it found is in the row
        found = {run.seed for run in row.runs}
        missing = [seed for seed in self._seeds(row) if seed not in found]
        jobs = list[tuple[int, Job]]()
        for seed in missing:
            run = self._protocol.run(row, seed, budget.epochs, row.learning_rate)
            jobs.append(self._job(row, run, f"seed-{seed}", functools.partial(self._take_seed, name, seed)))
        return jobs

    def _search(self, row: Row, rung: Rung) -> list[tuple[int, Job]]:
        outcomes = dict[float, Outcome]()
        jobs = list[tuple[int, Job]]()
        for rate in rung.rates:
            run = self._protocol.run(row, self.comparison.seeds[0], rung.epochs, rate)
            place = f"{SEARCH}/{rung.epochs}-epochs-rate-{rate:.3g}"
            take = functools.partial(self._take_rate, row.name, rung, outcomes, rate)
            jobs.append(self._job(row, run, place, take))
        return jobs

    def _job(self, row: Row, run: Run.Config, place: str, take: Callable[[Outcome], None]) -> tuple[int, Job]:
        number = next(self._numbers)
        self._waiting[number] = (row.name, take)
        return number, Job(run, self.folder / row.name / place, reads_test=not place.startswith(SEARCH))

    def _take_rate(self, name: str, rung: Rung, outcomes: dict[float, Outcome], rate: float, outcome: Outcome) -> None:
        outcomes[rate] = outcome
        if len(outcomes) < len(rung.rates):
            return
        objective, row = self.comparison.objective, self.comparison.row(name)
        order = ranked(outcomes, objective, self._protocol.usual_rate)
        tried = ((each, rung.epochs, outcomes[each].valid) for each in order)
        row = dataclasses.replace(row, tried=(*row.tried, *tried))
        best = outcomes[order[0]]
        if best.valid is None:
            row = dataclasses.replace(row, reason=f"no learning rate had a result: the usual one {best.reason}")
            print_line(f"{name}: {row.reason}")
        else:
            print_line(
                f"{name}: of {len(order)} learning rates {order[0]:.2g} is best after "
                f"{counted(rung.epochs, 'epoch')}, with valid {objective.metric} {objective.format(best.valid)}"
            )
        self._keep(self.comparison.with_row(row))

    def _take_seed(self, name: str, seed: int, outcome: Outcome) -> None:
        comparison, row = self.comparison, self.comparison.row(name)
        objective = comparison.objective
        if outcome.reason:
            row = dataclasses.replace(row, reason=row.reason or f"seed {seed} {outcome.reason}")
            print_line(f"{name}: {row.reason}")
        else:
            measured = outcome.metrics[objective.metric]
            test = measured if comparison.num_test and not math.isnan(measured) else None
            result = SeedResult(
                seed=seed, folder=f"{name}/seed-{seed}", valid=outcome.valid, test=test, metrics=outcome.metrics
            )
            row = row.with_runs(tuple(sorted((*row.runs, result), key=lambda run: comparison.seeds.index(run.seed))))
            values = ", ".join(
                f"{split} {objective.metric} {objective.format(value)}"
                for split, value in (("valid", outcome.valid), ("test", test))
                if value is not None
            )
            print_line(f"{name}, seed {seed}: {values}")
        self._keep(comparison.with_row(row))

    def _keep(self, comparison: Comparison) -> None:
        self.comparison = comparison
        write_comparison(self.folder, comparison)


@contextlib.contextmanager
def _naming_resume(run: _Run) -> Iterator[None]:
    """Makes errors of signals say what is done, where it is, and how to go on."""
    try:
        yield
    except (InterruptedRunError, KeyboardInterrupt) as error:
        is_at_once = isinstance(error, KeyboardInterrupt)
        saved = "all runs are saved" + " as of their last checkpoints" * is_at_once
        message = f"interrupted; {run.progress}, {saved} in {run.folder}, and the same command with --resume goes on"
        raise InterruptedRunError(signal_number(error) if is_at_once else error.signal_number, message) from None


def baseline_rows(task: Task) -> Iterator[BaselineRow]:
    """Yields the scores of models without a network, each with the setting that is best on the validation split.

    The test split is read once for each model, after its setting is chosen.
    """
    try:
        found = task.baselines
    except (ValueError, ImportError) as error:
        yield BaselineRow(name=NO_BASELINES, reason=str(error))
        return
    for baseline in found:
        start = time.perf_counter()
        try:
            row = _baseline_row(baseline, task)
        except (ValueError, ImportError, MemoryError) as error:
            row = BaselineRow(name=baseline.name, reason=str(error) or "ran out of memory")
        yield BaselineRow(**{**vars(row), "seconds": time.perf_counter() - start})


def _baseline_row(baseline: Baseline, task: Task) -> BaselineRow:
    objective, best, chosen = task.objective, None, None
    for setting in baseline.settings:
        learnt = baseline.fitted(setting)
        value = learnt("valid")
        if objective.is_better(value, best):
            best, chosen = value, learnt
    if best is None or chosen is None:
        raise ValueError(f"valid {objective.metric} is not a number")
    test = chosen("test") if task.num_held_out("test") else math.nan
    return BaselineRow(name=baseline.name, valid=best, test=None if math.isnan(test) else test)
