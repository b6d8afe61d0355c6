"""Training processes that are killed: at every file operation, in the middle of writes, and at random moments.

Each run is killed once or several times, resumed until it ends, and compared with an undisturbed one.
"""

import dataclasses
import itertools
import json
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from fredholm.cli.error_reporting import exit_code
from fredholm.cli.streams import settle_streams
from fredholm.tasks import TASKS, Task
from fredholm.training import Run, RunFolder, TrainingConfig, train
from fredholm.training.progress import print_line
from tests.contracts.task_settings import small_tasks
from tests.faults.forking import Ended, forked
from tests.faults.guillotine import Guillotine
from tests.faults.outcome import Outcome
from tests.training.toy_task import ToyTask

OF_TIME = {"examples_per_second", "unix_time", "sha256", "bytes"}
"""JSON entries that differ between runs: the speed, and checksums and sizes of lines that contain it."""


class Kill(NamedTuple):
    """When a process is killed: before or during file operation `number`, or after some seconds."""

    operation: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Case:
    """A run.

    Args:
        name: identifies a broken run.
        config: of the run.
        compiled: whether its model is compiled.
    """

    name: str
    config: Run.Config
    compiled: bool = False

    def train(self, path: Path, log: Path, kill: Kill | None = None, enter: Callable[[], None] | None = None) -> Ended:
        """Trains or resumes in a separate process, which prints the number of its file operations at the end.

        Args:
            path: the run folder.
            log: a folder for its output.
            kill: when the process is killed.
            enter: called first in the process, to limit its resources.
        """

        def run() -> int:
            guillotine = Guillotine(path, None if kill is None else kill.operation)
            guillotine.install()
            if self.compiled:
                _compile_models()
            train(self.config, path, resume=path.exists(), tasks=(*TASKS, ToyTask))
            print_line(str(guillotine.count))
            return 0

        def program() -> int:
            if enter is not None:
                enter()
            settle_streams()
            return exit_code(run)

        return forked(program, log, kill_after=None if kill is None else kill.seconds)


@dataclass(frozen=True)
class Whole:
    """An undisturbed run of a case.

    Args:
        case: the case that was trained.
        content: its files, by `content`.
        operations: number of its file operations.
        seconds: its duration.
    """

    case: Case
    content: dict[str, Any]
    operations: int
    seconds: float

    @classmethod
    def of(cls, case: Case, place: Path) -> "Whole":
        """Trains a case in an empty folder."""
        start = time.perf_counter()
        ended = case.train(place / "run", place)
        if ended.code:
            raise RuntimeError(f"{case.name} does not train: {ended.err}")
        return cls(case, content(place / "run"), int(ended.out.split()[-1]), time.perf_counter() - start)


def kill_runs(count: int, seed: int) -> list[Outcome]:
    """Kills runs `count` times: at every operation of one run first, then over all tasks, with workers, some compiled.

    Args:
        count: number of kills.
        seed: of what is drawn.
    """
    drawn = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def whole(case: Case) -> Whole:
            return Whole.of(case, _emptied(place / "whole"))

        toy = whole(toy_case())
        operations = list(range(1, toy.operations + 1))
        swept = operations if count >= 2 * len(operations) else sorted(drawn.sample(operations, -(-count // 3)))
        rest = count - len(swept)
        tasks = [Case(type(task).__qualname__.split(".")[0], _numbered(task)) for task in small_tasks(place / "data")]
        tasks = [whole(case) for case in drawn.sample(tasks, min(len(tasks), -(-rest // 3)))]
        working = whole(dataclasses.replace(toy.case, name="workers", config=_with_workers(toy.case.config)))
        num_working, num_compiled = max(1, rest // 8), rest // 20
        num_operations = (rest - num_working - num_compiled) // 2
        num_moments = rest - num_working - num_compiled - num_operations
        rows = {
            "at every file operation of a run": (len(swept), ((toy, [Kill(operation)]) for operation in swept)),
            "at file operations, all tasks": (num_operations, _plans(tasks, drawn, at_operations=True)),
            "at random moments, all tasks": (num_moments, _plans(tasks, drawn, at_operations=False)),
            "with workers": (num_working, _plans([working], drawn, at_operations=False)),
        }
        if num_compiled:
            compiled = whole(dataclasses.replace(toy.case, name="compiled", compiled=True))
            rows["with torch.compile"] = (num_compiled, _plans([compiled], drawn, at_operations=True))
        killed = place / "killed"
        return [_outcome(f"kill -9 {name}", number, plans, killed) for name, (number, plans) in rows.items()]


def toy_case() -> Case:
    """A run of six steps, four checkpoints and every feature that a resumed run could get wrong."""
    return Case("toy", _numbered(ToyTask.Config(num_examples=24), checkpoint_every=2))


def content(path: Path) -> dict[str, Any]:
    """The content of a run folder by file: bytes, or for JSON the values that do not depend on the time."""
    found: dict[str, Any] = {}
    for file in sorted(path.rglob("*")):
        name, data = str(file.relative_to(path)), b"" if file.is_dir() else file.read_bytes()
        if file.suffix == ".jsonl":
            found[name] = [_timeless(json.loads(line)) for line in data.splitlines()]
        else:
            found[name] = _timeless(json.loads(data)) if file.suffix == ".json" else data
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(each) for name, each in value.items() if name not in OF_TIME}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


def _plans(wholes: list[Whole], drawn: random.Random, *, at_operations: bool) -> Iterator[tuple[Whole, list[Kill]]]:
    """Runs in turn without end, each with up to three kills."""
    for whole in itertools.cycle(wholes):
        moments = [drawn.random() for _ in range(drawn.randint(1, 3))]
        if at_operations:
            yield whole, [Kill(operation=1 + int(moment * whole.operations)) for moment in moments]
        else:
            yield whole, [Kill(seconds=moment * whole.seconds) for moment in moments]


def _outcome(fault: str, count: int, plans: Iterator[tuple[Whole, list[Kill]]], place: Path) -> Outcome:
    """The outcome of at least `count` kills, or of all that are planned."""
    tried, held, broken = 0, 0, list[str]()
    for whole, kills in plans:
        number, wrong = _survive(whole, kills[: count - tried], _emptied(place))
        tried += max(number, 1) if wrong else number
        held += 0 if wrong else number
        if wrong:
            broken.append(f"{whole.case.name}, {', '.join(map(str, kills))}: {wrong}")
        if tried >= count:
            break
    return Outcome(fault, tried, held, tuple(broken))


def _survive(whole: Whole, kills: list[Kill], place: Path) -> tuple[int, str]:
    """The number of kills, and what is wrong with the run after resuming it; empty if nothing is."""
    path = place / "run"
    number, last = 0, None
    for kill in (*kills, None):
        try:
            ended = whole.case.train(path, place, kill)
        except TimeoutError as error:
            return number, str(error)
        if last and f"going on at step {last} of" not in ended.out and ended.code != -signal.SIGKILL:
            return number, f"the checkpoint of step {last} was not read: {ended.out} {ended.err}"
        if ended.code == 0:
            break
        if ended.code != -signal.SIGKILL or kill is None:
            return number, f"it ended with {ended.code}: {ended.err}"
        number += 1
        before, last = last, last_step(path)
        if before and (last is None or last < before):
            return number, f"the checkpoint of step {before} is gone"
    else:
        return number, "it was killed without a plan"
    found = content(path)
    names = [name for name in sorted(found.keys() | whole.content.keys()) if found.get(name) != whole.content.get(name)]
    return number, f"{', '.join(names)} differ" if names else ""


def last_step(path: Path) -> int | None:
    """The step of the newest checkpoint; None if there is none."""
    try:
        return RunFolder(path).checkpoints.last_step()
    except ValueError:  # the run had not begun
        return None


def _numbered(task: Task.Config, **training: Any) -> Run.Config:
    """A run of two epochs, or of none if the model is fitted in closed form."""
    numbers = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-2, "log_every": 1, "device": "cpu"}
    settings = TrainingConfig(**numbers | {"tensorboard": False, "checkpoint_every": 1, **training})
    return Run.Config(
        task=task, training=settings if task.build().learns_by_steps else settings.without_steps(), seed=3
    )


def _with_workers(config: Run.Config) -> Run.Config:
    return dataclasses.replace(config, training=dataclasses.replace(config.training, num_workers=2))


def _compile_models() -> None:
    """Makes the toy task compile its models, without the worker processes of the compiler."""
    import torch._inductor.config as inductor

    inductor.compile_threads = 1
    original = ToyTask.model

    def model(self: ToyTask) -> nn.Module:
        made = original(self)
        made.compile(dynamic=False)  # otherwise the compiled code depends on the sizes of earlier batches
        return made

    ToyTask.model = model


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
