"""What is said of data that cannot be read: one short line, which names the file and shows no control character."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from .terminal_text import one_line

Settings = ParamSpec("Settings")
Found = TypeVar("Found")


def reads_data(read: Callable[Settings, Found]) -> Callable[Settings, Found]:
    """A reader whose errors are one line that names the data.

    Args:
        read: its first argument is the path of the data. Errors of the disk, too little memory and too deep nesting
            become ValueError.
    """

    @functools.wraps(read)
    def reader(*args: Settings.args, **settings: Settings.kwargs) -> Found:
        try:
            return read(*args, **settings)
        except (ValueError, OSError, OverflowError, RecursionError, MemoryError, RuntimeError) as error:
            reason = _reason(error)
            if reason is None:
                raise
            data = str(next(iter((*args, *settings.values()))))
            name = Path(data).name or data
            message = one_line(reason if name in reason else f"{data}: {reason}")
            if isinstance(error, ValueError) and message == str(error):
                raise
            raise ValueError(message) from error

    return reader


def message_of(path: Path, error: ValueError) -> str:
    """What is wrong with a file, after its path, which stands there once."""
    message = str(error)
    if message.startswith(f"{path.name}, "):  # one of the examples, by its name
        return f"{path}{message.removeprefix(path.name)}"
    return message if str(path) in message else f"{path}: {message}"


def _reason(error: Exception) -> str | None:
    """What went wrong; None of an error that is none of the data's."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "it does not fit into memory; read less of it at once, or give the process more"
    if isinstance(error, RecursionError):
        return "it is nested too deeply; make it flatter"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: cannot be read ({error.strerror})" if error.filename else error.strerror
    if isinstance(error, RuntimeError):
        return None
    return str(error)
