"""One run of a study: trained once, measured once, and read again ever after."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fredholm.tasks import TASKS
from fredholm.tasks.task import Task
from fredholm.training.atomic import write_file
from fredholm.training.run import Run, facts_of_same, train
from fredholm.training.scoring import score_test_split

RESULT_FILE = "result.json"


def kept_result(
    config: Run.Config,
    path: Path,
    measure: Callable[[Run], dict[str, Any]],
    *,
    tasks: Sequence[type[Task]] = TASKS,
) -> dict[str, Any]:
    """What `measure` makes of a trained run, kept in its folder as result.json.

    A run that was interrupted goes on, and one that is done and measured is only read.

    Args:
        config: the whole run.
        path: its folder; see `train`.
        measure: from the trained run to what JSON can hold.
        tasks: the tasks that the run may be of.

    Raises:
        ValueError: the folder holds something else, or a run of another config; and what `train` refuses.
    """
    file = path / RESULT_FILE
    if file.is_file():
        facts_of_same(config, path, tasks)
        return json.loads(file.read_text())
    train(config, path, resume=True, tasks=tasks)
    result = measure(Run(path, tasks=tasks, device=config.training.device))
    write_file(file, json.dumps(result).encode())
    return result


def best_on_both(run: Run, **settings: Any) -> dict[str, dict[str, float]]:
    """The metrics of the checkpoint that was best on the validation split, of the splits `valid` and `test`.

    Args:
        run: of a task that is measured on its validation split.
        settings: of the task, which measuring may take otherwise than training.
    """
    numbers, model, found = run.config.training, run.model("best"), dict[str, dict[str, float]]()
    for split in ("valid", "test"):
        task = dataclasses.replace(run.config.task, evaluated=split, **settings).build(run.task.facts)  # pyright: ignore[reportCallIssue]
        found[split] = score_test_split(
            task, model, batch_size=numbers.test_batch_size, device=run.device, dtype=numbers.dtype
        )
    return found
