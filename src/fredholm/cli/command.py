"""A command of the command line, as the dispatcher lists and calls it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, called by the word after `fredholm`.

    Args:
        name: name of the command.
        operands: its operands in the overview.
        summary: its description in the overview.
        run: carries it out on the words after the name; raises errors that `error_reporting.exit_code` handles, or
            SystemExit.
        is_shared: whether several processes carry it out together.
    """

    name: str
    operands: str = ""
    summary: str
    run: Callable[[list[str]], None]
    is_shared: bool = False
