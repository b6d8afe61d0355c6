"""One run of a comparison: trained once, and only read ever after."""

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
        run: all of it.
        folder: where.
        reads_test: whether it is measured on the test split at its end; a search never is.
    """

    run: Run.Config
    folder: Path
    reads_test: bool


@final
@dataclass(frozen=True)
class Outcome:
    """What a run reached.

    Args:
        valid: the objective of the chosen weights on the validation split; None where there is none.
        loss: likewise the loss.
        metrics: of the split that the end was measured on.
        reason: why there is no result, in one line; empty where there is one.
    """

    valid: float | None = None
    loss: float | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""


def carry_out(job: Job, tasks: Sequence[type[Task]] = TASKS) -> Outcome:
    """Trains a run, or what is left of it; one that is done is only read. Nothing is printed.

    Divergence and a lack of memory are outcomes.

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
    """The outcome of a run that is done; None of one that is not.

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
