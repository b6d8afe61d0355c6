"""What a prediction is asked for: files, found in folders, and read such that one that is broken does not stop all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, final

from fredholm.tasks.splits.split_files import Split

from .files.data_files import refuse_archive
from .outputs import Outputs

Found = TypeVar("Found")
Failed = Callable[[Path, Exception], None]


@final
@dataclass(frozen=True)
class Inputs:
    """The files of a prediction.

    Args:
        files: one or more.
        part: the part to read of files that hold several, such as a training and a test set; None: see `choose_part`.
        failed: is called with a file that cannot be read, which is then left out; None: the error is raised.
        outputs: the files to write.
        at: a file of the places to answer at, where the task `answers_at` places; None: the task says where.
    """

    files: Sequence[Path]
    part: Split | None = None
    failed: Failed | None = None
    outputs: Outputs = field(default_factory=Outputs)
    at: Path | None = None

    def read(self, reader: Callable[[Path], Found]) -> Iterator[tuple[Path, Found]]:
        """Each file and what the reader makes of it, one after the other.

        All that can be wrong with a file is to be found by the reader.

        Raises:
            ValueError, OSError, ImportError: a file cannot be read, and nobody is to be told.
        """
        for file in self.files:
            try:
                found = reader(file)
            except (ValueError, OSError, ImportError) as error:
                if self.failed is None:
                    raise
                self.failed(file, error)
            else:
                yield file, found


@final
@dataclass
class Listed:
    """What some paths stand for.

    Args:
        files: what is to be read.
        skipped: files of other kinds in folders.
        failures: paths that stand for nothing, each with the reason.
    """

    files: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    failures: list[tuple[Path, ValueError]] = field(default_factory=list)


@final
@dataclass(frozen=True, kw_only=True)
class Kinds:
    """What files a task predicts.

    Args:
        suffixes: how their names end, in lower case.
        has_parts: whether some of them may hold a training set and others.
        is_one: whether a folder is read as one; None: no folder is.
    """

    suffixes: tuple[str, ...]
    has_parts: bool = False
    is_one: Callable[[Path], bool] | None = None

    def listed(self, paths: Sequence[Path]) -> Listed:
        """The files that the paths stand for: a file itself, whatever its name, and those of these kinds in a folder.

        A folder is searched at any depth, in the order of names; what is hidden in it is left out.
        """
        found = Listed()
        for path in paths:
            before = len(found.files)
            try:
                path.stat()
                refuse_archive(path)
                self._add(path, found)
                if len(found.files) == before:
                    raise ValueError(f"{path}: holds no file that this task reads ({', '.join(self.suffixes)})")
            except ValueError as error:
                found.failures.append((path, error))
            except (FileNotFoundError, NotADirectoryError):
                found.failures.append((path, ValueError(f"{path}: there is no such file or folder")))
            except PermissionError as error:
                reason = ValueError(f"{error.filename}: may not be read ({error.strerror}); change its permissions")
                found.failures.append((path, reason))
            except OSError as error:
                found.failures.append((path, ValueError(f"{path}: cannot be read ({error.strerror})")))
        return found

    def _add(self, path: Path, found: Listed) -> None:
        waiting, seen = [path], set[tuple[int, int]]()
        while waiting:
            entry = waiting.pop()
            is_folder = entry.is_dir()
            if is_folder and not (self.is_one is not None and self.is_one(entry)):
                status = entry.stat()
                if (status.st_dev, status.st_ino) in seen:  # a link to a folder that it lies in, or another name of one
                    continue
                seen.add((status.st_dev, status.st_ino))
                listed = sorted((each for each in entry.iterdir() if not each.name.startswith(".")), reverse=True)
                waiting += listed
            elif is_folder or entry == path or entry.name.lower().endswith(self.suffixes):
                found.files.append(entry)
            else:
                found.skipped.append(entry)
