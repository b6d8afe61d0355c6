"""The layout of a run folder, and its own files."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from fredholm._version import __version__
from fredholm.storage.atomic import PARTIAL_PREFIX, clear_partial, write_file
from fredholm.storage.config_json import TYPE_KEY, from_json, to_json
from fredholm.storage.integrity import check_listing, is_missing, listed, parse_object, read_listed, seal, unseal
from fredholm.storage.model_folder import ModelFolder
from fredholm.tasks.task import Task

from .checkpoint import Checkpoints
from .lock import LOCK

SCHEMA = 2
CONFIG, MANIFEST = "config.json", "manifest.json"
DATA = "data"
"""What a run learns from may lie in a folder of this name in its own, which is then still new."""


class _Manifest(NamedTuple):
    """What the folder's own files are."""

    run: str
    files: dict[str, dict[str, Any]]
    pending: dict[str, str]
    """Texts of files that may not have been written yet."""


@final
class RunFolder:
    """config.json, further files of the run's own, metrics.jsonl, tensorboard/, checkpoints/ under one path.

    manifest.json lists the run's own files with their sizes and SHA-256. They change together: the manifest is replaced
    first, with the new texts in it, and then the files, so that a kill at any moment leaves all old or all new ones.

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config_file(self) -> Path:
        """The complete, reloadable config."""
        return self.path / CONFIG

    @property
    def run(self) -> str:
        """What tells this run from others: the SHA-256 of the config that it began with.

        Raises:
            ValueError: the folder is no run.
        """
        return self._manifest().run

    @property
    def checkpoints(self) -> Checkpoints:
        """Those of this run; errors as of ``run``."""
        return Checkpoints(self.path / "checkpoints", self.run)

    def is_new(self) -> bool:
        """Whether nothing is there yet, but for the data and what a crash left half-written.

        Raises:
            ValueError: the path is a file, or lies below one.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; expected a run folder")
        for parent in self.path.parents:
            if parent.is_file():
                raise ValueError(f"{parent} is a file; expected a folder, for the run folder {self.path} in it")
        return not self.path.exists() or all(
            entry.name in (DATA, LOCK) or entry.name.startswith(PARTIAL_PREFIX) for entry in self.path.iterdir()
        )

    def write(self, config: Any, facts: Task.Facts, others: Mapping[str, str] | None = None) -> None:
        """Makes the folder with its config file, or replaces that of a run.

        Args:
            config: the run's.
            facts: the task's, with further files.
            others: texts of more files of the run's own, by name; see ``put``.

        Raises:
            OSError: it cannot be written.
        """
        content = {"schema": SCHEMA, "version": __version__, "run": to_json(config), "facts": to_json(facts)}
        self.put({CONFIG: json.dumps(content, indent=2) + "\n", **facts.files, **(others or {})})

    def put(self, texts: Mapping[str, str]) -> None:
        """Adds files of the run's own, or replaces them, all at once; others stay.

        Raises:
            OSError: they cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        data = {name: text.encode() for name, text in texts.items()}
        if not is_missing(self.path / MANIFEST):
            self._finish()
            run, files, _ = self._manifest()
        else:
            run, files = hashlib.sha256(data[CONFIG]).hexdigest(), {}
        listing = {name: listed(content) for name, content in data.items()}
        pending = {name: texts[name] for name, entry in listing.items() if files.get(name) != entry}
        if pending:
            self._write_manifest(_Manifest(run, files | listing, pending))
            self._finish()

    def recover(self) -> None:
        """Finishes what a kill interrupted, and removes what it left half-written; for the process that trains.

        Raises:
            OSError: it cannot be written.
        """
        self._finish()
        clear_partial(self.path)
        self.checkpoints.clear_partial()

    def text(self, name: str) -> str | None:
        """A file of the run's own; None if it has none of that name.

        Raises:
            ValueError: the folder is no run, or one of its own files is damaged.
            OSError: one cannot be read.
        """
        data = self._own_files().get(name)
        return None if data is None else data.decode()

    def read(self, expected: type, tasks: Sequence[type[Task]]) -> tuple[Any, Task.Facts]:
        """The config, an ``expected``, and the task's facts.

        Args:
            expected: the run config's class.
            tasks: the tasks the run may be of.

        Raises:
            ValueError: the folder is no run, one of its own files is damaged, or its config does not fit.
            OSError: one cannot be read.
        """
        own = self._own_files()
        if CONFIG not in own:
            raise ValueError(f"{self.path / MANIFEST} lists no {CONFIG}")
        content = parse_object(self.config_file, own[CONFIG])
        if content.get("schema") != SCHEMA:
            raise ValueError(
                f"{self.config_file} has schema {content.get('schema')!r:.80}; this version reads {SCHEMA}"
            )
        return config_and_facts(content, self.config_file, expected, tasks)

    def _own_files(self) -> dict[str, bytes]:
        """The contents of all, as the manifest lists them."""
        manifest = self._manifest()
        try:
            pending = {name: text.encode() for name, text in manifest.pending.items()}
            written = {name: entry for name, entry in manifest.files.items() if name not in pending}
            return {name: read_listed(self.path / name, entry) for name, entry in written.items()} | pending
        except ValueError as error:
            if self._manifest() != manifest:  # another process has replaced them in between
                return self._own_files()
            raise ValueError(f"{error}; put the file back as it was, or train again in another folder") from error

    def _finish(self) -> None:
        """Writes the texts that are only in the manifest yet."""
        manifest = self._manifest()
        if manifest.pending:
            for name, text in manifest.pending.items():
                write_file(self.path / name, text.encode())
            self._write_manifest(manifest._replace(pending={}))

    def _write_manifest(self, manifest: _Manifest) -> None:
        write_file(self.path / MANIFEST, seal({"schema": SCHEMA, **manifest._asdict()}))

    def _manifest(self) -> _Manifest:
        path = self.path / MANIFEST
        if ModelFolder.is_one(self.path):
            raise ValueError(
                f"{self.path} holds a finished model, which is not trained further in its place; begin a run from its "
                "weights with --init, in another folder"
            )
        if not self.path.is_dir():
            raise ValueError(f"{self.path} is no folder; expected a run folder")
        if is_missing(path):
            if is_missing(self.config_file):
                raise ValueError(f"{self.path} is no run folder: it has no {CONFIG}")
            if any(self.path.glob("*.safetensors")):
                raise ValueError(
                    f"{self.path} is no run folder: it has weights beside a {CONFIG} that fredholm did not write, or "
                    "that is damaged; fetch a model that fredholm saved again, and begin a run from a checkpoint of "
                    "another library with --task.model pretrained"
                )
            raise ValueError(
                f"{self.path} has no {MANIFEST}: it is a run of an older version, which this one does not read, or "
                "lost that file; train it again in another folder"
            )
        content = unseal(path)
        if content.get("schema") != SCHEMA:
            raise ValueError(f"{path} has schema {content.get('schema')!r:.80}; this version reads {SCHEMA}")
        files = check_listing(path, content.get("files"))
        run: Any = content.get("run")
        pending: Any = content.get("pending")
        try:
            is_listed = {name: listed(text.encode()) for name, text in pending.items()}.items() <= files.items()
        except (AttributeError, ValueError):  # no object of texts
            is_listed = False
        if not (is_listed and isinstance(run, str)):
            raise ValueError(f"{path} describes no run, or holds texts of files that it does not list")
        return _Manifest(run, files, pending)


def config_and_facts(
    content: Mapping[str, Any], file: Path, expected: type, tasks: Sequence[type[Task]]
) -> tuple[Any, Task.Facts]:
    """A run's config and its task's facts from the object in a file; see `RunFolder.read`."""
    known = _known(tasks)
    try:
        config = from_json(content.get("run"), expected, known, "run")
        facts = from_json(content.get("facts"), Task.Facts, known, "facts")
    except ValueError as error:
        kind = _kind_of_task(content)
        is_own = isinstance(kind, str) and kind not in {task.Config.__qualname__ for task in tasks}
        instead = "; where it is a task of your own, give --recipe FILE.py:FUNCTION, or Run(path, tasks=[...])"
        raise ValueError(f"{file}: {error}{instead if is_own else ''}") from error
    return config, facts


def check_settings(config: Any, tasks: Sequence[type[Task]]) -> None:
    """Raises a ValueError, which names the setting, where a config could not be read as it would be written."""
    from_json(json.loads(json.dumps(to_json(config))), type(config), _known(tasks), "run")


def _known(tasks: Sequence[type[Task]]) -> list[type]:
    """The classes that a config and facts may be made of, beside those that their fields name."""
    return [kind for task in tasks for kind in (task.Config, task.Facts, *task.parts)]


def _kind_of_task(content: Mapping[str, Any]) -> object:
    """What a config calls its task; None: it is damaged there."""
    run = content.get("run")
    task = run.get("task") if isinstance(run, dict) else None
    return task.get(TYPE_KEY) if isinstance(task, dict) else None
