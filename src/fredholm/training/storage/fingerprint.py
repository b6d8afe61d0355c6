"""Identifies the data of a run by the name, size and digest of every file that it read.

Names are relative to the folder of the data where they lie below it, so that data may be moved, copied, touched and
spelt differently; others are absolute. A file whose path, size and modification time are unchanged is not read again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, final

from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.files.read_record import FileState, ReadRecord

FINGERPRINT = "data.json"
"""Name of the fingerprint file in a run folder."""
SCHEMA = 1
_CHUNK = 1 << 20
"""Bytes per read."""
_SHOWN, _LONGEST = 3, 100
"""Limits of a message: number of names, and letters of all of them."""


Plain = TypeVar("Plain", str, int)


@final
class DataFile(NamedTuple):
    """A file that was read."""

    size: int
    """Size in bytes."""
    modified: int
    """Modification time, in nanoseconds since 1970."""
    digest: str
    """BLAKE2b of its content, 128 bits."""


@final
@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Fingerprint of all data that a run reads.

    Args:
        place: folder that names are relative to; empty where there is none.
        files: files by name.
        contents: digests by name of data that are not files of their own.
        start: files that only a new run reads, such as another run's weights, by absolute path.
    """

    place: str
    files: dict[str, DataFile]
    contents: dict[str, str]
    start: dict[str, DataFile]

    @classmethod
    def of(cls, read: ReadRecord, data: str, before: Self | None = None) -> Self:
        """Computes the fingerprint of the recorded reads.

        Args:
            read: record of `recording_reads`.
            data: the setting `data` of the task.
            before: an earlier fingerprint, whose digests are reused where path, size and modification time are equal.

        Raises:
            ValueError: a file changed since it was opened.
            OSError: a file cannot be read.
        """
        place = _place(data)
        named = {_name(path, place): (path, state) for path, state in read.files.items()}
        start = {os.path.realpath(path): (path, state) for path, state in read.start.items()}
        has_place = not all(Path(name).is_absolute() for name in named)
        where = os.path.realpath(place) if has_place else ""
        return cls(
            place=where,
            files=_digested(named, before.files if before and before.place == where else {}),
            contents=dict(sorted(read.contents.items())),
            start=_digested(start, before.start if before else {}),
        )

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Parses a fingerprint from its `text`.

        Raises:
            ValueError: it is not the text of a fingerprint.
        """
        try:
            content = json.loads(text)
            if content.get("schema") == SCHEMA:
                return cls(
                    place=_checked(content["place"], str),
                    files=_files_of(content["files"]),
                    contents={name: _checked(digest, str) for name, digest in content["contents"].items()},
                    start=_files_of(content["start"]),
                )
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError("it is no list of the files of a run") from error
        raise ValueError(f"it has schema {content.get('schema')!r:.80}; this version reads {SCHEMA}")

    @property
    def digest(self) -> str:
        """A digest of all names and contents, without the files that only a new run reads."""
        digests = sorted((_digests(self.files) | self.contents).items())
        return hashlib.blake2b(json.dumps(digests).encode(), digest_size=16).hexdigest()

    @property
    def text(self) -> str:
        """The fingerprint as JSON, one file a line."""
        parts = {"schema": SCHEMA, "place": self.place, "contents": self.contents}
        lines = [f"{json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items()]
        for name, files in (("files", self.files), ("start", self.start)):
            rows = [f"{json.dumps(file)}: {json.dumps(list(entry))}" for file, entry in files.items()]
            inner = ",\n  ".join(rows)
            lines.append(f'"{name}": {{\n  {inner}\n}}' if rows else f'"{name}": {{}}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


@final
class Difference(NamedTuple):
    """Changes of data since a fingerprint, as names of files."""

    changed: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    renamed: tuple[str, ...]

    @classmethod
    def between(cls, before: Fingerprint, now: Fingerprint, part_of: str | None = None) -> Self:
        """Computes the difference of two fingerprints, empty where they are equal.

        Files that only a new run reads are compared only where `now` has them.

        Args:
            before: fingerprint of the run.
            now: fingerprint of the data that were read now.
            part_of: the setting `data` if only a part of the data was read; then only missing files count as removed.
        """
        starts = {name: file for name, file in before.start.items() if name in now.start}
        old = _digests(before.files) | before.contents | _digests(starts)
        new = _digests(now.files) | now.contents | _digests(now.start)
        changed = tuple(name for name in old if name in new and old[name] != new[name])
        removed = dict.fromkeys(name for name in old if name not in new)
        if part_of is not None:
            place = _place(part_of)
            removed = {name: None for name in removed if name in before.files and not (place / name).exists()}
        added = dict.fromkeys(name for name in new if name not in old)
        by_digest: dict[str, list[str]] = {}
        for name in added:
            by_digest.setdefault(new[name], []).append(name)
        renamed = {name: others.pop(0) for name in removed if (others := by_digest.get(old[name]))}
        for name, other in renamed.items():
            del removed[name], added[other]
        moves = tuple(f"{name} to {other}" for name, other in renamed.items())
        return cls(changed, tuple(removed), tuple(added), moves)

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return any(map(len, self))

    def __str__(self) -> str:
        """Counts with the first names, such as ``2 files changed (a.csv, b.csv), 1 removed (c.csv)``."""
        differences = [
            f"{len(names)} {what} ({_some(names)})" for what, names in zip(self._fields, self, strict=True) if names
        ]
        first, *others = differences
        count, _, rest = first.partition(" ")
        return ", ".join([f"{count} file{'s' if count != '1' else ''} {rest}", *others])


def _checked(value: object, kind: type[Plain]) -> Plain:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} is no {kind.__name__}")
    return value


def _files_of(entries: dict[str, Any]) -> dict[str, DataFile]:
    return {
        name: DataFile(_checked(size, int), _checked(modified, int), _checked(digest, str))
        for name, (size, modified, digest) in entries.items()
    }


def _place(data: str) -> Path:
    """Returns the folder of the data: the data itself, or its parent."""
    path = user_path(data).absolute()
    return path if path.is_dir() else path.parent


def _name(path: Path, place: Path) -> str:
    """Returns the name of a file, independent of the folder of the data."""
    whole, start = os.path.normpath(path), os.path.join(os.path.normpath(place), "")  # noqa: PTH118 - of many files
    return whole.removeprefix(start).replace(os.sep, "/") if whole.startswith(start) else os.path.realpath(path)


def _digested(files: Mapping[str, tuple[Path, FileState]], known: Mapping[str, DataFile]) -> dict[str, DataFile]:
    """Returns files by name, sorted; known files that are unchanged are not read."""

    def digested(names: Sequence[str]) -> dict[str, DataFile]:
        return {name: _read(*files[name]) for name in names}

    found = {name: known[name] for name, (_, state) in files.items() if name in known and known[name][:2] == state}
    new = [name for name in files if name not in found]
    count = min(8, os.cpu_count() or 1, len(new))
    if count < 2:
        found |= digested(new)  # without a thread, whose failed start for lack of memory would hang Python
    else:
        with ThreadPoolExecutor(count) as pool:
            for part in pool.map(digested, [new[i::count] for i in range(count)]):  # a task per small file costs more
                found |= part
    return {name: found[name] for name in sorted(found)}


def _read(path: Path, state: FileState) -> DataFile:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as opened:
        while part := opened.read(_CHUNK):
            digest.update(part)
    if FileState.of(path) != state:
        raise ValueError(f"{path}: changed while it was read; leave the data as they are and begin again")
    return DataFile(state.size, state.modified, digest.hexdigest())


def _digests(files: Mapping[str, DataFile]) -> dict[str, str]:
    return {name: file.digest for name, file in files.items()}


def _some(names: Iterable[str]) -> str:
    """Returns the first names, for a message."""
    shown, rest = list[str](), list(names)
    while rest and len(shown) < _SHOWN and sum(map(len, shown)) + len(rest[0]) <= _LONGEST:
        shown.append(rest.pop(0))
    if not shown:  # the end of a long name identifies it better than the beginning
        shown.append(f"...{rest.pop(0)[3 - _LONGEST :]}")
    listed = ", ".join(name if name.isprintable() else repr(name) for name in shown)
    return f"{listed}, ..." if rest else listed
