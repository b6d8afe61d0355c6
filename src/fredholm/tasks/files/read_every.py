"""Reading of many files, with one error that names all that are broken."""

import os.path
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from fredholm._progress import ProgressBar

Source = TypeVar("Source")
Found = TypeVar("Found")

SHOWN = 10
"""Broken files that a message names."""
MOST = 100
"""Broken files after which no others are read: the fault may be a setting's."""


def read_every(sources: Iterable[Source], read: Callable[[Source], Found], desc: str) -> list[Found]:
    """Reads files, each with its own reader.

    Args:
        sources: the files, or whatever stands for them.
        read: reads one; its errors begin with the path of the file and a colon.
        desc: label of the progress bar.

    Raises:
        ValueError: files are broken; the error is that of the file, or names up to SHOWN of several, and their number.
    """
    found, broken = list[Found](), list[ValueError]()
    bar = ProgressBar(sources, desc=desc, unit="file", delay=1.0, leave=False, disable=None)
    for source in bar:
        try:
            found.append(read(source))
        except ValueError as error:
            broken.append(error)
            if len(broken) == MOST:
                break
    if len(broken) == 1:
        raise broken[0]
    if broken:
        count, start = len(found) + len(broken), "the first " if len(broken) == MOST else ""
        raise ValueError(f"{len(broken)} of {start}{count:,} files {_listed(list(map(str, broken)))}") from broken[0]
    return found


def _listed(messages: Sequence[str]) -> str:
    """The folder of some files, and their names below it by the faults that they share."""
    parts = [message.partition(": ") for message in messages]
    folder = os.path.commonpath([os.path.dirname(name) for name, _, _ in parts])  # noqa: PTH120 - of any text
    files = dict[str, list[str]]()
    for name, _, fault in parts[:SHOWN]:
        files.setdefault(fault, []).append(os.path.relpath(name, folder) if folder else name)
    faults = "; ".join(f"{', '.join(names)} ({fault})" for fault, names in files.items())
    others = f"; and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return f"in {folder or '.'} cannot be used: {faults}{others}"
