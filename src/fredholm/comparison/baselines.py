"""Models without a network beside the kernels, each with the setting that is best on the validation split."""

import time
from collections.abc import Iterator

from fredholm.tasks.baselines import Baseline
from fredholm.tasks.task import Task

from .comparison import BaselineRow

NONE = "baselines"
"""The name of the row that says why there is none."""


def baseline_rows(task: Task) -> Iterator[BaselineRow]:
    """What they reach: the test split is read once for each, with the setting that was chosen before."""
    try:
        found = task.baselines
    except (ValueError, ImportError) as error:
        yield BaselineRow(name=NONE, reason=str(error))
        return
    for baseline in found:
        start = time.perf_counter()
        try:
            row = _row(baseline, task)
        except (ValueError, ImportError, MemoryError) as error:
            row = BaselineRow(name=baseline.name, reason=str(error) or "ran out of memory")
        yield BaselineRow(**{**vars(row), "seconds": time.perf_counter() - start})


def _row(baseline: Baseline, task: Task) -> BaselineRow:
    objective, best, chosen = task.objective, None, None
    for setting in baseline.settings:
        learnt = baseline.learnt(setting)
        value = learnt("valid")
        if objective.is_better(value, best):
            best, chosen = value, learnt
    assert chosen is not None
    return BaselineRow(name=baseline.name, valid=best, test=chosen("test") if task.num_held_out("test") else None)
