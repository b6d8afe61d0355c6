"""What the command line knows of a command before it runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class Command:
    """A word after `fredholm`.

    Args:
        name: the word.
        operands: what the overview shows behind the name.
        summary: what the overview says of it.
        run: runs it on the words after the name; raises what `error_reporting.exit_code` knows, or SystemExit.
        is_shared: whether several processes run it together.
    """

    name: str
    operands: str = ""
    summary: str
    run: Callable[[list[str]], None]
    is_shared: bool = False
