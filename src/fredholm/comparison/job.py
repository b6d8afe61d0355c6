"""One run of a comparison: trained once, then only read."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fredholm.storage.config_json import to_json
from fredholm.tasks import TASKS
from fredholm.tasks.task import Task
from fredholm.training.memory import lacking_memory
from fredholm.training.progress import muted
from fredholm.training.run import Run, train
from fredholm.training.storage.run_folder import RunFolder
from fredholm.training.trainer import DivergedError, read_progress


@final
@dataclass(frozen=True)
class Job:
    """A run to train.

    Args:
        run: config of the run.
        folder: run folder.
        reads_test: whether the final model is measured on the test split; never in a search.
    """

    run: Run.Config
    folder: Path
    reads_test: bool


@final
@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Args:
        valid: objective of the chosen weights on the validation split; None where there is none.
        loss: loss on the validation split; None where there is none.
        metrics: metrics on the split that the final model was measured on.
        reason: reason why there is no result, in one line; empty where there is one.
    """

    valid: float | None = None
    loss: float | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""


def carry_out(job: Job, tasks: Sequence[type[Task]] = TASKS) -> Outcome:
    """Trains a run, or the rest of it; a finished run is only read. Nothing is printed.

    Divergence and a lack of memory are outcomes, not errors.

    Raises:
        ValueError, OSError, InterruptedRunError: see `train`.
    """
    folder = RunFolder(job.folder)
    if not folder.is_new() and (found := _found(job, folder, tasks)) is not None:
        return found
    try:
        with muted():
            train(job.run, job.folder, resume=True, tasks=tasks, reads_test=job.reads_test)
    except DivergedError as error:
        return Outcome(reason=f"diverged: {str(error).partition(';')[0]}")
    except (MemoryError, RuntimeError) as error:
        if lacking_memory(error) is None:
            raise
        return Outcome(reason="ran out of memory")
    found = _found(job, folder, tasks)
    assert found is not None
    return found


def _found(job: Job, folder: RunFolder, tasks: Sequence[type[Task]]) -> Outcome | None:
    """Returns the outcome of a finished run; None for an unfinished one.

    Raises:
        ValueError: the folder holds another run, or a damaged one.
    """
    saved, _ = folder.read(Run.Config, tasks)
    same = dataclasses.replace(saved.training, device=job.run.training.device)
    if to_json(dataclasses.replace(saved, training=same, task=job.run.task)) != to_json(job.run):
        raise ValueError(f"{job.folder} holds a run of another comparison; remove it, or compare in another folder")
    step = folder.checkpoints.last_step()
    if step is None:
        return None
    progress = read_progress(folder.checkpoints, step)
    return Outcome(progress.best_value, progress.best_loss, progress.metrics) if progress.is_done else None
