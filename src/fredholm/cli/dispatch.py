"""Dispatches the words after `fredholm` to a command."""

import contextlib
import difflib
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import final

from fredholm._version import __version__
from fredholm.cli.streams import USER_ERROR, printed, settle_streams


@final
@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: the module of its name in this folder has `run_command`, which takes the words after the name.

    The module is imported only when the command runs, since importing torch takes seconds.

    Args:
        name: name of the command.
        operands: its operands in the overview.
        summary: its description in the overview.
        is_shared: whether several processes carry it out together.
    """

    name: str
    operands: str = ""
    summary: str
    is_shared: bool = False


COMMANDS = (
    Command(name="train", operands="RECIPE_OR_TASK", summary="train a model in a run folder", is_shared=True),
    Command(
        name="compare",
        operands="TASK [DATA]",
        summary="train one network with several kernels, and say which is best",
    ),
    Command(name="evaluate", operands="RUN", summary="measure a trained model on held-out data"),
    Command(name="predict", operands="RUN FILES...", summary="apply a trained model to files and folders"),
    Command(name="generate", operands="RUN", summary="let a trained language model go on with a text"),
    Command(
        name="push",
        operands="RUN TO",
        summary="give a trained model away, to a folder or the Hugging Face hub",
    ),
    Command(
        name="export",
        operands="RUN",
        summary="write a trained model as a file that runs without this library",
    ),
    Command(name="report", operands="RUN ...", summary="show runs on a page that opens without a network"),
    Command(name="tune", operands="RUN", summary="which tiles of the fused kernels are fastest on this GPU"),
    Command(name="verify", summary="check that every classical layer is an exact instance"),
    Command(name="info", summary="versions, devices, evaluation routes, extras"),
)
"""All commands; add new ones here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0; 2 for invalid input, 1 for a run that failed (loss not finite, disk full, out of memory), 128 + N after
        signal N, such as 130 after Ctrl-C. Errors are one line on stderr.
    """
    settle_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        return printed(_usage(), 0 if words else USER_ERROR)
    if words[0] == "--version":
        return printed(f"fredholm {__version__}", 0)
    commands = {command.name: command for command in COMMANDS}
    with _ending_at_ctrl_c():  # while torch is imported
        from fredholm.cli.error_reporting import exit_code

        if words[0] in commands:
            importlib.import_module(f"{__package__}.{words[0]}")
    code = exit_code(lambda: _run(words, commands), ends_process=argv is None)
    if argv is None:
        gc.freeze()  # Python need not search hundreds of thousands of objects for cycles as it ends
    return code


def _run(words: list[str], commands: dict[str, Command]) -> int:
    """Runs the command named by the first word on the other words."""
    from fredholm.distributed.processes import num_started

    name, *others = words
    if name not in commands:
        close = difflib.get_close_matches(name, commands, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(commands)}"
        raise ValueError(f"no command {name!r}; {hint}")
    if num_started() > 1 and not commands[name].is_shared:
        if os.environ["RANK"] != "0":
            return USER_ERROR
        raise ValueError(
            f"torchrun started {num_started()} processes, and fredholm {name} takes one; leave torchrun out"
        )
    try:
        importlib.import_module(f"{__package__}.{name}").run_command(others)
    except SystemExit as end:  # help was printed, or the command ends with its own code
        return int(end.code or 0)
    return 0


@contextlib.contextmanager
def _ending_at_ctrl_c() -> Iterator[None]:
    """A context in which Ctrl-C ends the process; an error raised during an import may be taken for an import error."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def _usage() -> str:
    rows = {f"{command.name} {command.operands}": command.summary for command in COMMANDS}
    width = max(map(len, rows)) + 2
    listing = "\n".join(f"  {words:<{width}} {summary}" for words, summary in rows.items())
    return f"""usage: fredholm COMMAND ...

{listing}

`fredholm COMMAND --help` says more. With FREDHOLM_TRACEBACK=1 in the environment errors show where they arose."""
