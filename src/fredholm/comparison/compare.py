"""The same network with one kernel after the other, under one budget, chosen on validation data."""

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
from fredholm.tasks.task import Task
from fredholm.training.device import choose_device
from fredholm.training.interruption import InterruptedRunError
from fredholm.training.progress import counted, print_line
from fredholm.training.run import Run
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
"""What the runs of processes side by side print."""
NO_BASELINES = "baselines"
"""The name of the row that says why there is no model without a network."""
SEARCH = "search"
"""The folder of a kernel's runs that search a learning rate; it goes once the rate is found."""


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

    Equal requests with equal epochs give equal numbers on one machine, but for times, however many processes there
    are, and whether or not the comparison was interrupted.

    Args:
        request: what is to be compared.
        folder: a new or empty one; with `resume` also that of the same comparison, which goes on.
        resume: go on if there is something to go on from.
        processes: that train side by side, with one thread each; None: as many as there are cores, and one on a GPU.
        command_line: the words after `fredholm`, to be kept.
        tasks: the tasks that runs may be of; others than the library's train in this process alone.

    Raises:
        ValueError: the folder holds something else, another comparison or one of other data; data without a validation
            split; a task without kernels, or fewer than two kernels that can run; minutes too few for one epoch each.
        InterruptedRunError: on SIGINT, SIGTERM or SIGHUP, after all runs were saved.
        OSError: a full disk; what was written before is intact.
    """
    folder = Path(folder)
    if processes is not None:
        check_count("comparison.compare", "processes", processes)
    is_new = _check_folder(folder, resume=resume)
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
            run.learn_baselines()
            with _naming_resume(folder):
                if count == 1 or tuple(tasks) != TASKS:
                    carry_out_here(run.first_jobs(), run.done, tasks)
                else:
                    carry_out_beside(run.first_jobs(), run.done, count, folder / LOG)
            return run.finish()


def _check_folder(folder: Path, *, resume: bool) -> bool:
    """Whether the folder is new; raises a ValueError where it holds something else."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected a folder")
    if not is_missing(folder / COMPARISON):
        if not resume:
            raise ValueError(f"{folder} holds a comparison; choose another --folder, or pass --resume to go on with it")
        return False
    entries = [entry.name for entry in folder.iterdir()] if folder.exists() else []
    if any(not name.startswith(".") and name != FINGERPRINT for name in entries):
        raise ValueError(f"{folder} is not empty and holds no {COMPARISON}; choose another --folder")
    return True


def _planned(
    protocol: Protocol, processes: int, command_line: Sequence[str], machine: dict[str, str]
) -> tuple[Protocol, Comparison]:
    """A new comparison: which kernels, how wide, and how long; and what its epochs make of the protocol."""
    request, task = protocol.request, protocol.task
    print_line(f"measuring a training step of each of {len(request.kernels)} kernels")
    measured, left_out = protocol.rows(request.kernels)
    epochs = request.epochs
    if epochs is None:
        assert request.minutes is not None
        costs = [each.epoch_seconds for each in measured if each.row.learns_by_steps]
        epochs = epochs_within(request.minutes, len(request.seeds), costs, processes, protocol.most_epochs)
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
    """The comparison in a folder, which is to go on.

    Raises:
        ValueError: it is damaged, or another one.
    """
    comparison = read_comparison(folder)
    difference = first_difference(json.loads(comparison.request), json.loads(_text_of(request)))
    if difference:
        raise ValueError(f"{folder} holds another comparison: {difference}; choose another --folder")
    return comparison


def _check_data(folder: Path, data: Fingerprint, request: Request) -> None:
    """Raises a ValueError where the data are others than those that the comparison in a folder read."""
    before = Fingerprint.of_text((folder / FINGERPRINT).read_text())
    if difference := Difference.between(before, data):
        raise ValueError(f"{request.run.task.data} is not as the comparison in {folder} read it: {difference}")


def _text_of(request: Request) -> str:
    """What decides about the numbers of a comparison, as JSON; the place of data does not."""
    training = dataclasses.replace(request.run.training, device="auto")
    asked = dataclasses.replace(request, run=dataclasses.replace(request.run, training=training), default="")
    return json.dumps(to_json(asked))


def _plan_lines(comparison: Comparison, protocol: Protocol) -> Iterator[str]:
    """What is about to happen, for people."""
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


@contextlib.contextmanager
def _naming_resume(folder: Path) -> Iterator[None]:
    try:
        yield
    except InterruptedRunError as error:
        message = f"interrupted; all runs are saved in {folder}, and the same command with --resume goes on"
        raise InterruptedRunError(error.signal_number, message) from None


@final
class _Run:
    """A comparison that is under way: which jobs come next, and what became of them."""

    def __init__(self, folder: Path, protocol: Protocol, comparison: Comparison) -> None:
        self._folder, self._protocol, self.comparison = folder, protocol, comparison
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[str, Callable[[Outcome], None]]] = {}
        """Of each job that is not done its row, and what takes the outcome."""

    def learn_baselines(self) -> None:
        """Adds the rows of models without a network, where they are not known yet."""
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
        """Those that need no other, of the slowest kernels first."""
        slowest = sorted(self.comparison.rows, key=lambda row: -(row.seconds_per_step or 0.0))
        return [job for row in slowest for job in self._next(row.name)]

    def done(self, number: int, outcome: Outcome) -> list[tuple[int, Job]]:
        """Takes a job's outcome, and says which jobs come in addition."""
        name, take = self._waiting.pop(number)
        take(outcome)
        return [] if any(other == name for other, _ in self._waiting.values()) else self._next(name)

    def finish(self) -> Comparison:
        """The whole comparison, once all jobs are done."""
        self._keep(dataclasses.replace(self.comparison, is_complete=True))
        return self.comparison

    def _next(self, name: str) -> list[tuple[int, Job]]:
        """The jobs that follow on what is known of a row."""
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
        shutil.rmtree(self._folder / name / SEARCH, ignore_errors=True)  # what it found stands in the row
        seeds, found = self.comparison.seeds, {run.seed for run in row.runs}
        missing = [seed for seed in (seeds if row.learns_by_steps else seeds[:1]) if seed not in found]
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
        return number, Job(run, self._folder / row.name / place, reads_test=not place.startswith(SEARCH))

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
        write_comparison(self._folder, comparison)


def baseline_rows(task: Task) -> Iterator[BaselineRow]:
    """What models without a network reach, each with the setting that is best on the validation split.

    The test split is read once for each, with the setting that was chosen before.
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
