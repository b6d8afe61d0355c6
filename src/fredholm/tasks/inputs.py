"""Inputs of a prediction: files, found in folders, and read such that a broken file does not stop the others."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, final

from fredholm.tasks.splits.split_files import Split

from .files.data_files import refuse_archive
from .files.delimited import AS_FOUND, CsvSettings
from .outputs import Outputs

Found = TypeVar("Found")
Failed = Callable[[Path, Exception], None]


@final
@dataclass(frozen=True)
class Inputs:
    """Inputs and outputs of a prediction.

    Args:
        files: at least one file.
        part: part to read from files with several parts, such as a training and a test set; None: see `choose_part`.
        failed: called with each file that cannot be read, which is then skipped; None: the error is raised.
        outputs: files to write.
        at: file with the points to predict at, for tasks that `answers_at` points; None: by the task's settings.
    """

    files: Sequence[Path]
    part: Split | None = None
    failed: Failed | None = None
    outputs: Outputs = field(default_factory=Outputs)
    at: Path | None = None

    def read(self, reader: Callable[[Path], Found], csv: CsvSettings = AS_FOUND) -> Iterator[tuple[Path, Found]]:
        """Yields each file with the result of the reader.

        The reader must detect everything that can be wrong with a file.

        Args:
            reader: reads a file.
            csv: how .csv files are written.

        Raises:
            ValueError, OSError, ImportError: a file cannot be read, and `failed` is None.
        """
        for file in self.files:
            try:
                with csv.reading_any():
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
    """Files found at some paths.

    Args:
        files: files to read.
        skipped: files of other kinds in folders.
        failures: paths without any file, each with the reason.
    """

    files: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    failures: list[tuple[Path, ValueError]] = field(default_factory=list)


@final
@dataclass(frozen=True, kw_only=True)
class Kinds:
    """Kinds of files that a task predicts.

    Args:
        suffixes: suffixes of the files, in lower case.
        has_parts: whether some of them may hold several parts, such as a training set.
        is_one: whether a folder is read as a single input; None: never.
        apart_from: names of files in folders that are not inputs.
    """

    suffixes: tuple[str, ...]
    has_parts: bool = False
    is_one: Callable[[Path], bool] | None = None
    apart_from: tuple[str, ...] = ()

    def listed(self, paths: Sequence[Path]) -> Listed:
        """Finds the files at some paths: a file itself, whatever its name, and files of these kinds in a folder.

        A folder is searched at any depth, in the order of names, except for hidden entries.
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

    def _is_input(self, name: str) -> bool:
        return name.lower().endswith(self.suffixes) and name not in self.apart_from

    def _add(self, path: Path, found: Listed) -> None:
        waiting, seen = [path], set[tuple[int, int]]()
        while waiting:
            entry = waiting.pop()
            is_folder = entry.is_dir()
            if is_folder and not (self.is_one is not None and self.is_one(entry)):
                status = entry.stat()
                if (status.st_dev, status.st_ino) in seen:  # a link to a parent folder, or to a folder seen before
                    continue
                seen.add((status.st_dev, status.st_ino))
                listed = sorted((each for each in entry.iterdir() if not each.name.startswith(".")), reverse=True)
                waiting += listed
            elif is_folder or entry == path or self._is_input(entry.name):
                found.files.append(entry)
            else:
                found.skipped.append(entry)
