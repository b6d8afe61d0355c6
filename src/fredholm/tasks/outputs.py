"""Output files of a prediction, which are named in the call, never by settings of a run."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, final

from fredholm.storage.atomic import of_place

PICTURES = (".png", ".pdf", ".svg")
"""Suffixes of pictures."""


@final
@dataclass(kw_only=True)
class Outputs:
    """Output files of a prediction beside its rows.

    Args:
        save: predictions as a file or, for some tasks, a folder with a file for each input; None: not saved.
        picture: drawing of the predictions.
        comparison: drawing of inputs, predictions and truth side by side.
        overwrite: whether existing files may be replaced.
    """

    save: Path | None = None
    picture: Path | None = None
    comparison: Path | None = None
    overwrite: bool = False
    written: list[Path] = field(default_factory=list)
    """Files written so far."""

    @property
    def named(self) -> dict[str, Path]:
        """The requested files."""
        every = {"save": self.save, "picture": self.picture, "comparison": self.comparison}
        return {name: path for name, path in every.items() if path is not None}

    def settled(self, task: str, kinds: Mapping[str, Sequence[str]], inputs: Sequence[Path]) -> Self:
        """Returns the outputs with complete names, after checking them before any computation.

        Args:
            task: command of the task, for messages.
            kinds: outputs of the task by name, with their allowed suffixes, of which the first is the default; no
                suffixes for a folder.
            inputs: files that are read.

        Raises:
            ValueError: the task has no such output, or a file cannot be written there.
        """
        paths: dict[str, Path] = {}
        for name, path in self.named.items():
            if name not in kinds:
                raise ValueError(f"--{name} has no effect: the task {task!r} writes no such file; leave it out")
            if kinds[name]:
                path = paths[name] = with_ending(f"--{name}", path, kinds[name])
                self.check(f"--{name}", path, inputs)
            elif not path.is_dir():
                refuse_absent_parent(f"--{name}", path)
                if os.path.lexists(path):
                    raise ValueError(f"--{name}: {path} is a file; expected a folder")
        if len({path.absolute() for path in paths.values()}) < len(paths):
            raise ValueError(f"{' and '.join(f'--{name}' for name in paths)} name one file; give each its own")
        return replace(self, **paths)

    def check(self, option: str, path: Path, inputs: Sequence[Path] = ()) -> None:
        """Raises a ValueError about an option whose file cannot be written, or is one of the inputs."""
        refuse_absent_parent(option, path)
        self._check_existing(option, path, inputs)

    def _check_existing(self, option: str, path: Path, inputs: Sequence[Path]) -> None:
        if path.is_dir():
            raise ValueError(f"{option}: {path} is a folder; name a file")
        if os.path.lexists(path):
            if not self.overwrite:
                raise ValueError(f"{option}: {path} exists; name another file, or pass --overwrite")
            if path.exists() and any(file.exists() and path.samefile(file) for file in inputs):
                raise ValueError(f"{option}: {path} is one of the files to predict; name another file")

    def write(self, option: str, path: Path, content: bytes) -> None:
        """Writes a file, completely or not at all.

        Raises:
            ValueError: it exists and may not be replaced, or was written by this prediction.
            OSError: it cannot be written.
        """
        if path in self.written:
            raise ValueError(f"{option}: {path} would hold the predictions of two inputs; predict them one by one")
        partial = path.with_name(f".partial-{path.name}")
        is_own = False
        try:
            if not self.overwrite:
                path.open("xb").close()  # reserves the name
                is_own = True
            partial.unlink(missing_ok=True)
            with partial.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except FileExistsError:
            raise ValueError(f"{option}: {path} exists; name another file, or pass --overwrite") from None
        except BaseException as error:
            for file in (partial, *((path,) if is_own else ())):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise of_place(error, path) from error
            raise
        self.written.append(path)

    def check_folder(self, names: Sequence[tuple[Path, str]]) -> None:
        """Makes the folder `save`, and checks its future files before any computation.

        Args:
            names: inputs with the names of their output files.

        Raises:
            ValueError: a file exists and may not be replaced, is an input, or would hold the predictions of two inputs.
        """
        assert self.save is not None
        taken: dict[str, Path] = {}
        for file, name in names:
            if name in taken:
                raise ValueError(
                    f"--save: {self.save / name} would hold the predictions of {taken[name]} and {file}; predict them "
                    "one by one"
                )
            taken[name] = file
        inputs = [file for file, _ in names]
        for name in taken:
            self._check_existing("--save", self.save / name, inputs)
        self.save.mkdir(exist_ok=True)


def with_ending(option: str, path: Path, endings: Sequence[str]) -> Path:
    """Returns the path with the first suffix where it has none; raises a ValueError for an unknown one."""
    if not path.name:
        raise ValueError(f"{option} is {str(path)!r}; expected the name of a file")
    if not path.suffix:
        return path.with_name(f"{path.name}{endings[0]}")
    if path.suffix.lower() not in endings:
        raise ValueError(f"{option}: {path} ends in {path.suffix}; expected {' or '.join(endings)}")
    return path


def refuse_absent_parent(option: str, path: Path) -> None:
    """Raises a ValueError where the parent folder of the path does not exist."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option}: there is no folder {str(path.parent)!r}; make it first")
