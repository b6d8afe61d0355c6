"""Files that a prediction writes; only who asks for the prediction names them, never the settings of a run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, final

PICTURES = (".png", ".pdf", ".svg")
"""What a picture's name may end in."""


@final
@dataclass(kw_only=True)
class Outputs:
    """The files of a prediction beside its rows.

    Args:
        save: predictions as a file or, of some tasks, as a file of each input in this folder; None: nowhere.
        picture: what is predicted, drawn.
        comparison: input, answer and truth, drawn side by side.
        overwrite: whether files that exist may be replaced.
    """

    save: Path | None = None
    picture: Path | None = None
    comparison: Path | None = None
    overwrite: bool = False
    written: list[Path] = field(default_factory=list)
    """What was written so far."""

    @property
    def named(self) -> dict[str, Path]:
        """Those that are asked for."""
        every = {"save": self.save, "picture": self.picture, "comparison": self.comparison}
        return {name: path for name, path in every.items() if path is not None}

    def settled(self, task: str, kinds: Mapping[str, Sequence[str]], inputs: Sequence[Path]) -> Self:
        """The same with whole names, which are checked before anything is computed.

        Args:
            task: its word, for messages.
            kinds: what it writes, by name, with the endings that the file may have, of which the first is the default;
                none of a folder.
            inputs: the files that are read.

        Raises:
            ValueError: the task writes no such thing, or a file cannot be there.
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
        """Raises ValueError, in the name of an option, where a file cannot be written, or is one of the inputs."""
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
        """Writes a file, whole or not at all.

        Raises:
            ValueError: it exists and may not be replaced, or is one that this prediction wrote.
            OSError: it cannot be written.
        """
        if path in self.written:
            raise ValueError(f"{option}: {path} would hold the predictions of two inputs; predict them one by one")
        partial = path.with_name(f".partial-{path.name}")
        is_own = False
        try:
            if not self.overwrite:
                path.open("xb").close()  # from here on the name is nobody else's
                is_own = True
            partial.unlink(missing_ok=True)
            with partial.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except FileExistsError:
            raise ValueError(f"{option}: {path} exists; name another file, or pass --overwrite") from None
        except OSError as error:
            partial.unlink(missing_ok=True)
            if is_own:
                path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error
        self.written.append(path)

    def check_folder(self, names: Sequence[tuple[Path, str]]) -> None:
        """Makes the folder `save`, and refuses what it cannot hold before anything is computed.

        Args:
            names: inputs, each with the name of its file there.

        Raises:
            ValueError: a file exists and may not be replaced, is an input, or would hold the predictions of two.
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
    """The path with the first of the endings where it has none; raises ValueError on another one."""
    if not path.name:
        raise ValueError(f"{option} is {str(path)!r}; expected the name of a file")
    if not path.suffix:
        return path.with_name(f"{path.name}{endings[0]}")
    if path.suffix.lower() not in endings:
        raise ValueError(f"{option}: {path} ends in {path.suffix}; expected {' or '.join(endings)}")
    return path


def refuse_absent_parent(option: str, path: Path) -> None:
    """Raises ValueError where there is no folder that the path lies in."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option}: there is no folder {str(path.parent)!r}; make it first")
