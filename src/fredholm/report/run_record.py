"""Reads the parts of a run folder that exist and are readable, for a report page."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fredholm.storage.config_json import TYPE_KEY, to_json
from fredholm.tasks import TASKS
from fredholm.tasks.files.data_files import is_there
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Task
from fredholm.training.run import COMMANDS, Run
from fredholm.training.storage.machine import MACHINE
from fredholm.training.storage.run_folder import RunFolder
from fredholm.training.trained_folder import SavedRun, TrainedFolder
from fredholm.training.trainer import Progress, read_progress

METRICS = "metrics.jsonl"
MOST_BYTES = 64 * 2**20
"""Most bytes of a log that are read, from its end."""


@final
@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The readable contents of a run folder.

    Args:
        path: path of the folder.
        name: distinct name of the run on a page.
        group: colour group of its curves; runs of one kernel share it.
        run: the run with its model; None if it cannot be opened.
        lines: lines of its log, in order.
        is_saved: whether it is a saved model, without log and checkpoints.
        progress: progress of the training; None without a readable checkpoint.
        machine: versions and hardware that its results depend on.
        commands: the commands that started and resumed it; empty if it was trained from Python.
        missing: one sentence for each part that cannot be shown.
    """

    path: Path
    name: str
    group: str
    run: Run | None
    lines: tuple[dict[str, Any], ...]
    is_saved: bool
    progress: Progress | None
    machine: dict[str, str]
    commands: tuple[str, ...]
    missing: tuple[str, ...]

    @staticmethod
    def read(path: Path, name: str, tasks: Sequence[type[Task]] = TASKS, device: str = "auto") -> "RunRecord":
        """Reads a run folder.

        Raises:
            ValueError: there is no run, or neither its settings nor its log can be read.
        """
        missing, run, progress, machine, commands = list[str](), None, None, dict[str, str](), ""
        is_saved = isinstance(TrainedFolder.at(path), SavedRun)
        lines, faults = ([], []) if is_saved else read_log(path / METRICS)
        try:
            run = Run(path, tasks=tasks, device=device)
        except (ValueError, TypeError, OSError, LookupError, AttributeError, ArithmeticError, ImportError) as error:
            if not lines:
                raise ValueError(f"{path}: nothing of it can be shown: {error}") from error
            missing.append(f"The settings and the model cannot be read, so that only the log is shown: {error}.")
        missing += faults
        if is_saved:
            missing.append("It is a model without its run, which its README.md describes.")
        elif run is not None:
            folder = RunFolder(path)
            try:
                machine = {str(key): str(value) for key, value in json.loads(folder.text(MACHINE) or "{}").items()}
                commands = folder.text(COMMANDS) or ""
            except (ValueError, OSError, AttributeError) as error:
                missing.append(f"Its machine and its commands cannot be read: {error}.")
            try:
                last = folder.checkpoints.last_step()
                progress = None if last is None else read_progress(folder.checkpoints, last)
            except (ValueError, OSError) as error:
                missing.append(f"Its checkpoints cannot be read: {error}.")
            if progress is None and not any("checkpoints" in each for each in missing):
                missing.append("It has no checkpoint yet, so that there is no model to evaluate.")
            elif progress is not None and not progress.is_done:
                missing.append(
                    f"It was interrupted, or is still training: it is at epoch {progress.epoch} of {progress.epochs}. "
                    "`fredholm train ... --resume` continues it."
                )
        return RunRecord(
            path=path,
            name=name,
            group=name,
            run=run,
            is_saved=is_saved,
            lines=tuple(lines),
            progress=progress,
            machine=machine,
            commands=tuple(commands.splitlines()),
            missing=tuple(missing),
        )

    @property
    def best_step(self) -> int | None:
        """The step of the chosen weights; None if unknown."""
        if self.progress is None:
            return self.run.step() if self.run is not None and self.is_saved else None
        return self.progress.step if self.progress.best_step < 0 else self.progress.best_step

    @property
    def command_facts(self) -> dict[str, str]:
        """The commands that started and last resumed the run, by their role; empty where no command did."""
        found = {"command": self.commands[0]} if self.commands else {}
        return found | ({"gone on with": self.commands[-1]} if len(self.commands) > 1 else {})

    def explain_data_error(self, error: Exception) -> str:
        """Message of an error while reading data: that the data are missing, or else the error itself."""
        if self.run is None or is_there(data := self.run.config.task.data):
            return str(error)
        try:
            _ = self.run.task.num_train
        except (ValueError, OSError):
            return f"nothing is at {data!r}, relative to the folder in which the page was written"
        except ImportError:
            pass
        return str(error)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Lines of the log of one kind: training, or a split."""
        return [line for line in self.lines if line.get("kind") == kind]

    def logged(self, split: HeldOut) -> float | None:
        """The objective of the chosen weights on a whole split, from the log; None where it is not there."""
        if self.run is None:
            return None
        name = self.run.task.objective.metric
        lines = [line for line in self.of_kind(split) if name in line]
        if split == "valid":
            lines = [line for line in lines if line["step"] == self.best_step]
        return lines[-1][name] if lines else None

    @property
    def settings(self) -> dict[str, str]:
        """Settings that differ from their defaults, by their names on the command line."""
        if self.run is None:
            return {}
        config, found = self.run.config, dict[str, str]()
        for prefix, own in (("task", config.task), ("training", config.training)):
            _differences(to_json(own), to_json(type(own)()), prefix, found)
        return found


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Distinct names of folders: the last parts of their paths, as many as are needed."""
    parts = [path.absolute().parts for path in paths]
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(own[-count:]) for own in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(path) for path in paths]


def read_log(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The readable lines of a log, and sentences about missing ones."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - MOST_BYTES))
            data = file.read()
    except OSError as error:
        return [], [f"The log {path.name} cannot be read ({error.strerror}), so that there are no curves."]
    lines, broken = list[dict[str, Any]](), 0
    for text in data.splitlines()[1 if size > MOST_BYTES else 0 :]:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            broken += 1
            continue
        if isinstance(line, dict) and _is_number(line.get("step")) and isinstance(line.get("kind"), str):
            lines.append({key: value for key, value in line.items() if key == "kind" or _is_number(value)})
        else:
            broken += 1
    faults = [f"{broken} lines of the log {path.name} are damaged and left out."] if broken else []
    return lines, faults


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _differences(own: Any, default: Any, name: str, found: dict[str, str]) -> None:
    """Collects the leaves of a JSON value that differ from their defaults."""
    if own == default:
        return
    if isinstance(own, dict):
        before = default if isinstance(default, dict) and default.get(TYPE_KEY) == own.get(TYPE_KEY) else {}
        for key, value in own.items():
            _differences(value, before.get(key), name if key == TYPE_KEY else f"{name}.{key}", found)
    else:
        found[f"--{name.replace('_', '-')}"] = own if isinstance(own, str) else json.dumps(own)
