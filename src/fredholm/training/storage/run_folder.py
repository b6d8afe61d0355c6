"""The layout of a run folder, and its own files."""

import errno
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
"""Folder for training data within a run folder; a run folder with nothing else still counts as new."""


class _Manifest(NamedTuple):
    """Manifest of the folder's own files."""

    run: str
    files: dict[str, dict[str, Any]]
    pending: dict[str, str]
    """Texts of files that may not be written yet."""


@final
class RunFolder:
    """config.json, further files of the run's own, metrics.jsonl, tensorboard/, checkpoints/ under one path.

    manifest.json lists the run's own files with their sizes and SHA-256. They change together: first the manifest is
    replaced, with the new texts in it, and then the files, so that a kill at any moment leaves all old or all new ones.

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config_file(self) -> Path:
        """File of the complete, reloadable config."""
        return self.path / CONFIG

    @property
    def run(self) -> str:
        """Identifier of the run: the SHA-256 of the config that it began with.

        Raises:
            ValueError: the folder is no run folder.
        """
        return self._manifest().run

    @property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints of this run; raises as ``run``."""
        return Checkpoints(self.path / "checkpoints", self.run)

    def is_new(self) -> bool:
        """Whether the folder is empty, except for the data and for incomplete files of a crash.

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
            config: config of the run.
            facts: facts of the task, with further files.
            others: texts of more files of the run, by name; see ``put``.

        Raises:
            OSError: it cannot be written.
        """
        content = {"schema": SCHEMA, "version": __version__, "run": to_json(config), "facts": to_json(facts)}
        self.put({CONFIG: json.dumps(content, indent=2) + "\n", **facts.files, **(others or {})})

    def put(self, texts: Mapping[str, str]) -> None:
        """Adds or replaces files of the run, all at once; others stay.

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
        """Finishes interrupted writes and removes incomplete files; for the process that trains.

        Raises:
            OSError: the folder cannot be written.
        """
        self._finish()
        clear_partial(self.path)
        self.checkpoints.clear_partial()

    def refuse_removed(self) -> None:
        """Raises a FileNotFoundError where the folder of a run that trains is gone: checkpoints alone are no run."""
        if is_missing(self.path / MANIFEST):
            message = "is gone: the folder was removed or emptied during training; train again"
            raise FileNotFoundError(errno.ENOENT, message, str(self.path / MANIFEST))

    def text(self, name: str) -> str | None:
        """Reads a file of the run; None if it has none of that name.

        Raises:
            ValueError: the folder is no run folder, or one of its own files is damaged.
            OSError: a file cannot be read.
        """
        data = self._own_files().get(name)
        return None if data is None else data.decode()

    def read(self, expected: type, tasks: Sequence[type[Task]]) -> tuple[Any, Task.Facts]:
        """Reads the config, of type ``expected``, and the task's facts.

        Args:
            expected: class of the run config.
            tasks: known task classes.

        Raises:
            ValueError: the folder is no run folder, one of its own files is damaged, or its config does not fit.
            OSError: a file cannot be read.
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
        """Reads all files that the manifest lists."""
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
        """Writes the texts that are only in the manifest so far."""
        manifest = self._manifest()
        if manifest.pending:
            for name, text in manifest.pending.items():
                write_file(self.path / name, text.encode())
            self._write_manifest(manifest._replace(pending={}))

    def _inner_runs(self) -> str:
        """Returns the end of a message that names run folders within this one, in case the path lacks its last part."""
        paths = [path for pattern in (f"*/{CONFIG}", f"*/*/{CONFIG}") for path in self.path.glob(pattern)]
        found = sorted(str(path.parent) for path in paths if not is_missing(path.with_name(MANIFEST)))
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return f"; it holds the run{'s' * (len(found) > 1)} {', '.join(found[:3])}{more}" if found else ""

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
                raise ValueError(f"{self.path} is no run folder: it has no {CONFIG}{self._inner_runs()}")
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
    """Decodes a run's config and its task's facts from JSON; see `RunFolder.read`."""
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
    """Raises a ValueError, which names the setting, where a config would not survive being written and read."""
    from_json(json.loads(json.dumps(to_json(config))), type(config), _known(tasks), "run")


def _known(tasks: Sequence[type[Task]]) -> list[type]:
    """Returns the classes that a config and facts may contain besides those in their annotations."""
    return [kind for task in tasks for kind in (task.Config, task.Facts, *task.parts)]


def _kind_of_task(content: Mapping[str, Any]) -> object:
    """Returns the class name of a config's task; None where the config is damaged."""
    run = content.get("run")
    task = run.get("task") if isinstance(run, dict) else None
    return task.get(TYPE_KEY) if isinstance(task, dict) else None
