"""The trained run that a command works on."""

from pathlib import Path

from fredholm.tasks import TASKS
from fredholm.training.recipes import open_recipe
from fredholm.training.run import Run


def open_run(path: Path, recipe: str | None, device: str) -> Run:
    """The run in the folder, whose task is the library's or of the file of `recipe`."""
    tasks = open_recipe(recipe).tasks if recipe else TASKS
    return Run(path, tasks=tasks, device=device)
