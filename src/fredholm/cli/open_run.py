"""The trained run that a command works on."""

from pathlib import Path

from fredholm.pretrained.checkpoint import find_folder
from fredholm.storage.hub import is_hub_id
from fredholm.tasks import TASKS
from fredholm.training.device import choose_device
from fredholm.training.recipes import open_recipe
from fredholm.training.run import Run


def find_run(path: Path) -> Path:
    """The folder of that path, or the files of the hub repository of that name, where no folder has it.

    Raises:
        ModuleNotFoundError, OSError: it is neither, or the hub cannot be reached.
    """
    return find_folder(path.as_posix()) if is_hub_id(path.as_posix()) else path


def open_run(path: Path, recipe: str | None, device: str) -> Run:
    """The run, or a saved model there or on the hub, whose task is the library's or of the file of `recipe`.

    Raises:
        ValueError: the folder is no run, or its config cannot be used; the message names the folder.
    """
    tasks = open_recipe(recipe).tasks if recipe else TASKS
    choose_device(device)
    path = find_run(path)
    try:
        return Run(path, tasks=tasks, device=device)
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error
    except (TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        # settings that no run was made with, such as sizes of 0, fail wherever they are first used
        raise ValueError(f"{path}: its config cannot be used ({type(error).__name__}: {error})") from error
