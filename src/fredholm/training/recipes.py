"""Finding recipes: functions outside the library that return a complete run config.

A bare name stands for a recipe shipped with the library; other code runs only where its file is given.
"""

import ast
import difflib
import functools
import importlib.util
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import final

from fredholm.tasks import TASKS
from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.task import Task

from .config import TrainingConfig
from .run import Run

PACKAGE = Path(__file__).resolve().parents[1]
MODALITIES = ("images", "text", "series", "points", "graphs", "functions")
"""Modalities in the order of a list of recipes."""


@final
@dataclass(frozen=True)
class Listing:
    """A recipe that was found but not run, described by its docstring and the head of its file.

    An entry is a line ``Name:  text``, continued by indented lines. Entries of the function take precedence over those
    of its file; entries in neither are empty.

    Args:
        file: path of its file.
        summary: the first line of the function's docstring.
        modality: the entry ``Modality``, one of `MODALITIES` for the library's own recipes.
        data: the entry ``Data``, the training data.
        source: the entry ``Get``, where to download the data and how to name them; empty where no download is needed.
        time: the entry ``Time``.
    """

    file: Path
    summary: str
    modality: str = ""
    data: str = ""
    source: str = ""
    time: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named run.

    Args:
        name: name of the function, or command of the task.
        config: the config that it returned.
        tasks: tasks that the run may use: the library's and those of its file.
        listing: description in its file; None for a task's default run.
    """

    name: str
    config: Run.Config
    tasks: tuple[type[Task], ...] = TASKS
    listing: Listing | None = None

    def refuse_absent_data(self, chosen: Run.Config) -> None:
        """Raises an error that explains how to get the recipe's data, if a run would read them and they are absent.

        Args:
            chosen: config of the run, in which other data may be named.

        Raises:
            ValueError: no file has the name of the recipe's data, or a name that begins with it.
        """
        path = user_path(self.config.task.data)
        is_own = chosen.task.data != self.config.task.data
        if self.listing is None or not self.listing.source or is_own or any(path.parent.glob(f"{path.name}*")):
            return
        raise ValueError(f"nothing is at {path}, the data of {self.name}; to get them: {self.listing.source}")


def recipes_by_modality(folders: Sequence[Path] | None = None) -> dict[str, dict[str, Listing]]:
    """Returns the recipes of `list_recipes` by modality and name: `MODALITIES` first, then others and ``""``."""
    listed = sorted(list_recipes(folders).items())
    others = sorted({listing.modality for _, listing in listed} - {*MODALITIES, ""})
    groups = {
        modality: {name: listing for name, listing in listed if listing.modality == modality}
        for modality in (*MODALITIES, *others, "")
    }
    return {modality: recipes for modality, recipes in groups.items() if recipes}


def shipped_folders() -> list[Path]:
    """Folders of the library's own recipes, in its checkout or in the installed package."""
    checkout = PACKAGE.parents[1]
    is_checkout = PACKAGE.parent.name == "src" and (checkout / "pyproject.toml").is_file()
    return [*([checkout / "recipes"] if is_checkout else []), PACKAGE / "_recipes"]


def list_recipes(folders: Sequence[Path] | None = None) -> dict[str, Listing]:
    """Returns the recipes in some folders by name, of equal names the first; None: the library's own folders alone.

    Files are parsed, not run: a recipe is a public function without required arguments that is annotated to
    return ``Run.Config``.
    """
    folders = shipped_folders() if folders is None else folders
    found: dict[str, Listing] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.py"))):
        for name, listing in _recipes_in(file).items():
            found.setdefault(name, listing)
    return found


def open_recipe(reference: str) -> Recipe:
    """Returns the recipe ``NAME`` or ``path/to/file.py:function``, or a task's default run for the task's command.

    Raises:
        ValueError: no recipe has that name; the message suggests the nearest ones.
    """
    file, separator, name = reference.rpartition(":")
    if separator:
        return _run_recipe(Path(file), name)
    listed = list_recipes()
    if reference in listed:
        return _run_recipe(listed[reference].file, reference)
    words = {task.command: task for task in TASKS}
    if reference in words:
        # Every field of a task's config has a default.
        return Recipe(name=reference, config=Run.Config(task=words[reference].Config(), training=TrainingConfig()))  # pyright: ignore[reportAbstractUsage, reportCallIssue]
    raise ValueError(f"no recipe or task called {reference!r}; {_nearest(reference, [*listed, *words])}")


def _run_recipe(file: Path, name: str) -> Recipe:
    module = _load(file)
    function = getattr(module, name, None)
    if not inspect.isfunction(function):
        raise ValueError(f"{file} has no function {name!r}; {_nearest(name, list(_recipes_in(file)))}")
    config = function()
    if not isinstance(config, Run.Config):
        raise ValueError(f"{file}:{name} returned a {type(config).__name__}; expected a fredholm.training.Run.Config")
    own = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, Task)]
    listing = _recipes_in(file).get(name)
    return Recipe(name=name, config=config, tasks=tuple(dict.fromkeys([*TASKS, *own])), listing=listing)


def _load(file: Path) -> ModuleType:
    if not file.is_file() or file.suffix != ".py":
        raise ValueError(f"{file} is no Python file; expected path/to/file.py:function")
    name = f"fredholm_recipe_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name
    if b"\0" in file.read_bytes():
        raise ValueError(f"{file} is not valid Python: it has a NUL character")
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ValueError(f"{file}:{error.lineno} is not valid Python: {error.msg}") from error
    return module


def _recipes_in(file: Path) -> dict[str, Listing]:
    return _parsed(file, file.read_bytes())


@functools.cache
def _parsed(file: Path, source: bytes) -> dict[str, Listing]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    head = _entries(ast.get_docstring(tree) or "")
    listings: dict[str, Listing] = {}
    for node in functions:
        is_recipe = node.returns is not None and ast.unparse(node.returns).endswith("Run.Config")
        if is_recipe and len(node.args.args) == len(node.args.defaults):
            text = ast.get_docstring(node) or ""
            entries_by_name = head | _entries(text)
            fields = {"modality": "Modality", "data": "Data", "source": "Get", "time": "Time"}
            entries = {field: entries_by_name.get(name, "") for field, name in fields.items()}
            listings[node.name] = Listing(file, text.partition("\n")[0], **entries)
    return listings


def _entries(docstring: str) -> dict[str, str]:
    """Returns the entries ``Name:  text`` of a docstring, each in one line."""
    found = re.findall(r"^([A-Z]\w*):[ \t]+(\S.*(?:\n[ \t]+\S.*)*)", docstring, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(sorted(known)) or 'none'}"
