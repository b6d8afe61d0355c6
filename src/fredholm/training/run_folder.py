"""The layout of a run folder and its config file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from fredholm._version import __version__
from fredholm.tasks.task import Task
from fredholm.training.atomic import write_file
from fredholm.training.checkpoint import Checkpoints
from fredholm.training.config_json import from_json, to_json
from fredholm.training.lock import LOCK

SCHEMA = 1
DATA = "data"
"""What a run learns from may lie in a folder of this name in its own, which is then still new."""


@final
class RunFolder:
    """config.json, files of the facts, metrics.jsonl, tensorboard/, checkpoints/ under one path.

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")

    @property
    def config_file(self) -> Path:
        """The complete, reloadable config."""
        return self.path / "config.json"

    def is_new(self) -> bool:
        """Whether nothing is there yet, but for the data.

        Raises:
            ValueError: the path is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; expected a run folder")
        return not self.path.exists() or all(entry.name in (DATA, LOCK) for entry in self.path.iterdir())

    def write(self, config: Any, facts: Task.Facts, others: Mapping[str, str] | None = None) -> None:
        """Makes the folder with its config file, or replaces that of a run.

        Args:
            config: the run's.
            facts: the task's, with further files.
            others: texts of more files of the run's own, by name.

        Raises:
            OSError: it cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        content = {"schema": SCHEMA, "version": __version__, "run": to_json(config), "facts": to_json(facts)}
        for name, text in {**facts.files, **(others or {})}.items():
            write_file(self.path / name, text.encode())
        write_file(self.config_file, (json.dumps(content, indent=2) + "\n").encode())

    def text(self, name: str) -> str | None:
        """A file of the run's own; None if it has none of that name.

        Raises:
            OSError: it cannot be read.
        """
        file = self.path / name
        return file.read_text(encoding="utf-8") if file.exists() else None

    def read(self, expected: type, tasks: Sequence[type[Task]]) -> tuple[Any, Task.Facts]:
        """The config, an ``expected``, and the task's facts.

        Args:
            expected: the run config's class.
            tasks: the tasks the run may be of.

        Raises:
            ValueError: the folder is no run, or its config does not fit.
        """
        content = self._content()
        if content.get("schema") != SCHEMA:
            raise ValueError(f"{self.config_file} has schema {content.get('schema')!r}; this version reads {SCHEMA}")
        known = [kind for task in tasks for kind in (task.Config, task.Facts, *task.parts)]
        try:
            config = from_json(content.get("run"), expected, known, "run")
            facts = from_json(content.get("facts"), Task.Facts, known, "facts")
        except ValueError as error:
            raise ValueError(f"{self.config_file}: {error}") from error
        return config, facts

    def _content(self) -> dict[str, Any]:
        if not self.path.is_dir():
            raise ValueError(f"{self.path} is no folder; expected a run folder")
        if not self.config_file.is_file():
            raise ValueError(f"{self.path} is no run folder: it has no config.json")
        try:
            content = json.loads(self.config_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{self.config_file} is not valid JSON: {error}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{self.config_file} holds a {type(content).__name__}; expected an object")
        return content
