"""The trained run that a command works on."""

from pathlib import Path

from fredholm.tasks import TASKS
from fredholm.training.device import choose_device
from fredholm.training.recipes import open_recipe
from fredholm.training.run import Run


def open_run(path: Path, recipe: str | None, device: str) -> Run:
    """The run in the folder, whose task is the library's or of the file of `recipe`.

    Raises:
        ValueError: the folder is no run, or its config cannot be used; the message names the folder.
    """
    tasks = open_recipe(recipe).tasks if recipe else TASKS
    choose_device(device)
    try:
        return Run(path, tasks=tasks, device=device)
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error
    except (TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        # settings that no run was made with, such as sizes of 0, fail wherever they are first used
        raise ValueError(f"{path}: its config cannot be used ({type(error).__name__}: {error})") from error
