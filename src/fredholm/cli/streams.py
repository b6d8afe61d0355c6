"""What is printed, and the exit code of a process that prints; torch is not imported here."""

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TextIO

USER_ERROR, FAILURE = 2, 1


def settle_streams() -> None:
    """Has standard streams take whatever is printed.

    A process that was started without one gets one that leads nowhere: else the next file that is opened takes its
    number, and what is printed goes into that file. A letter that the encoding lacks is written as its code.
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
    """The code, once the text has left; `FAILURE` in place of 0 where it could not."""
    try:
        print(text, flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            say(f"error: {error.strerror}")
        discard(sys.stdout)
        return code or FAILURE
    return code


def say(line: str) -> None:
    """A line on stderr, if anybody can still read it."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Has what is still to be written lead nowhere."""
    # The reader has gone; without this Python complains once more at exit.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
