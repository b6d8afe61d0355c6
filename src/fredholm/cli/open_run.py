"""Opening the trained run that a command works on."""

from pathlib import Path
from typing import Annotated

import tyro

from fredholm.pretrained.checkpoint import find_folder
from fredholm.storage.hub import hub_hint, hub_name
from fredholm.tasks import TASKS
from fredholm.training.device import choose_device
from fredholm.training.recipes import open_recipe
from fredholm.training.run import Run

RunPlace = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
"""Place of a run, as text: `Path` would collapse the two slashes of hf://."""


def find_run(place: str) -> Path:
    """Returns the folder at a path, or for `hf://owner/name` the folder of the files downloaded from the hub.

    Raises:
        ValueError: there is no such folder, or no repository of that name on the hub.
        ModuleNotFoundError, OSError: the hub cannot be reached.
    """
    if hub_name(place) is not None:
        return find_folder(place)
    if not place.strip():  # an unset shell variable would name the current folder
        raise ValueError("RUN is empty; expected a run folder, or hf://OWNER/NAME")
    path = Path(place)
    if not path.exists():
        raise ValueError(f"{place} is no folder; expected a run folder{hub_hint(place)}")
    return path


def open_run(place: str, recipe: str | None, device: str) -> Run:
    """Opens a run or a saved model, local or on the hub; its task is the library's or in the file of `recipe`.

    Raises:
        ValueError: the folder is no run, or its config is unusable; the message names the folder.
    """
    tasks = open_recipe(recipe).tasks if recipe is not None else TASKS
    choose_device(device)
    path = find_run(place)
    try:
        return Run(path, tasks=tasks, device=device)
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error
    except (TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        # settings that no run was made with, such as sizes of 0, fail wherever they are first used
        raise ValueError(f"{path}: its config cannot be used ({type(error).__name__}: {error})") from error
