"""Progress bars on stderr and lines between them."""

import sys
from typing import NoReturn

from tqdm import tqdm


def progress_bar(description: str, total: int | None, *, unit: str, initial: int = 0) -> "tqdm[NoReturn]":
    """A bar to ``update()``; it draws nothing when stderr is not a terminal."""
    quiet = not sys.stderr.isatty()
    return tqdm(
        desc=description, total=total, initial=initial, unit=unit, disable=quiet, leave=False, dynamic_ncols=True
    )


def print_line(line: str) -> None:
    """A line on stdout that leaves the bars below it whole."""
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()
