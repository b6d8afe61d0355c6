"""One run of a study: trained once, measured once, then read from its folder."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fredholm.storage.atomic import write_file
from fredholm.storage.integrity import is_missing, seal, unseal
from fredholm.tasks import TASKS
from fredholm.tasks.task import Task
from fredholm.training.storage.run_folder import RunFolder

from .run import Run, refuse_other, train

RESULT_FILE = "result.json"


def kept_result(
    config: Run.Config,
    path: str | Path,
    measure: Callable[[Run], dict[str, Any]],
    *,
    tasks: Sequence[type[Task]] = TASKS,
) -> dict[str, Any]:
    """Returns the result of `measure` on a trained run, stored in the run's folder as result.json.

    An interrupted run continues. A run that is finished and measured is only read.

    Args:
        config: config of the run.
        path: its folder; see `train`.
        measure: maps the trained run to a JSON-serialisable result.
        tasks: known task classes; add custom tasks here.

    Raises:
        ValueError: the folder holds something else, a run of another config, or a result that is damaged or of another
            run; further errors as raised by `train`.
    """
    path = Path(path)
    file, folder = path / RESULT_FILE, RunFolder(path)
    if not folder.is_new():
        refuse_other(path, config, tasks)
        if not is_missing(file):
            return read_result(path)
    train(config, path, resume=True, tasks=tasks)
    result = measure(Run(path, tasks=tasks, device=config.training.device))
    write_file(file, seal({"run": folder.run, "result": result}))
    return result


def read_result(path: Path) -> dict[str, Any]:
    """Reads the result that `kept_result` stored in a run folder.

    Raises:
        ValueError: there is none, or it is damaged or of another run.
    """
    file = path / RESULT_FILE
    try:
        content = unseal(file)
        if content.get("run") != RunFolder(path).run:
            raise ValueError(f"{file} is the result of another run")
    except ValueError as error:
        raise ValueError(f"{error}; remove it to measure this run again") from error
    return content["result"]


def best_on_both(run: Run, **settings: Any) -> dict[str, dict[str, float]]:
    """Returns the metrics of the checkpoint that was best on the validation split, on `valid` and on `test`.

    Args:
        run: a run of a task with both splits.
        settings: task settings that are changed for the measurement.
    """
    if settings:
        run.task = dataclasses.replace(run.config.task, **settings).build(run.task.facts)
    return {"valid": run.evaluate("valid"), "test": run.evaluate("test")}
