"""Dispatches the words after `fredholm` to a command."""

import difflib
import os
import sys
from collections.abc import Sequence

from fredholm._version import __version__
from fredholm.cli.compare import COMPARE
from fredholm.cli.error_reporting import USER_ERROR, exit_code, settle_streams
from fredholm.cli.evaluate import EVALUATE
from fredholm.cli.export import EXPORT
from fredholm.cli.generate import GENERATE
from fredholm.cli.info import INFO
from fredholm.cli.predict import PREDICT
from fredholm.cli.push import PUSH
from fredholm.cli.report import REPORT
from fredholm.cli.train import TRAIN
from fredholm.cli.tune import TUNE
from fredholm.cli.verify import VERIFY
from fredholm.distributed.processes import num_started

COMMANDS = (TRAIN, COMPARE, EVALUATE, PREDICT, GENERATE, PUSH, EXPORT, REPORT, TUNE, VERIFY, INFO)
"""Every command; a new one is added here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0; 2 for invalid input, 1 for a run that failed (loss not finite, disk full, out of memory), 128 + N after
        signal N, such as 130 after Ctrl-C. Errors are one line on stderr.
    """
    settle_streams()
    return exit_code(lambda: _dispatch(list(sys.argv[1:] if argv is None else argv)), ends_process=argv is None)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return 0 if argv else USER_ERROR
    if argv[0] == "--version":
        print(f"fredholm {__version__}")
        return 0
    commands = {command.name: command for command in COMMANDS}
    if argv[0] not in commands:
        close = difflib.get_close_matches(argv[0], commands, n=1) or [", ".join(commands)]
        raise ValueError(f"no command {argv[0]!r}; expected {close[0]}")
    if num_started() > 1 and not commands[argv[0]].is_shared:
        if os.environ["RANK"] != "0":
            return USER_ERROR
        raise ValueError(
            f"torchrun started {num_started()} processes, and fredholm {argv[0]} takes one; leave torchrun out"
        )
    try:
        commands[argv[0]].run(argv[1:])
    except SystemExit as end:  # help was printed, or the command ends with a code of its own
        return int(end.code or 0)
    return 0


def _usage() -> str:
    rows = {f"{command.name} {command.operands}": command.summary for command in COMMANDS}
    width = max(map(len, rows)) + 2
    listing = "\n".join(f"  {words:<{width}} {summary}" for words, summary in rows.items())
    return f"""usage: fredholm COMMAND ...

{listing}

`fredholm COMMAND --help` says more. With FREDHOLM_TRACEBACK=1 in the environment errors show where they arose."""
