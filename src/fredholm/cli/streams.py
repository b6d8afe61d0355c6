"""Printing to the standard streams, and exit codes; torch is not imported here."""

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TextIO

USER_ERROR, FAILURE = 2, 1


def settle_streams() -> None:
    """Makes the standard streams accept any output.

    A process without standard streams gets null ones, since the next opened file would take their descriptor and
    receive the output. Characters that the encoding lacks are written as escapes.
    """
    with contextlib.suppress(OSError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(descriptor, True)
        os.close(descriptor)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that cannot be encoded ends no command


def printed(text: str, code: int) -> int:
    """Prints a text and returns the code; `FAILURE` in place of 0 where printing fails."""
    try:
        print(text, flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"error: {error.strerror}")
        discard(sys.stdout)
        return code or FAILURE
    return code


def say(line: str) -> None:
    """Prints a line on stderr, unless its reader has gone."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Discards the remaining output of a stream whose reader has gone."""
    # otherwise Python prints another error at exit
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
