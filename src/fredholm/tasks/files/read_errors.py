"""Errors of reading data: one short line that names the file and has no control characters."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from .terminal_text import one_line

Settings = ParamSpec("Settings")
Found = TypeVar("Found")


def reads_data(read: Callable[Settings, Found]) -> Callable[Settings, Found]:
    """Wraps a reader so that its errors are one line that names the data.

    Args:
        read: its first argument is the path of the data. Disk errors, a lack of memory and too deep nesting become
            ValueError.
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
    """Returns an error's message with the path of the file in front, once."""
    message = str(error)
    if message.startswith(f"{path.name}, "):  # one of the examples, by its name
        return f"{path}{message.removeprefix(path.name)}"
    return message if str(path) in message else f"{path}: {message}"


def _reason(error: Exception) -> str | None:
    """Returns the message of an error; None where the error is not about the data."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "it does not fit into memory; read less of it at once, or give the process more"
    if isinstance(error, RecursionError):
        return "it is nested too deeply; make it flatter"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: cannot be read ({error.strerror})" if error.filename else error.strerror
    if isinstance(error, RuntimeError):
        return None
    return str(error)
