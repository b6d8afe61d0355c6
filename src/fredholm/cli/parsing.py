"""Arguments of a command from its words; a mistake in them is one line."""

import contextlib
import io
from typing import Any, TypeVar

import tyro

Arguments = TypeVar("Arguments")
Flag = tyro.conf.FlagCreatePairsOff[bool]


def parse(kind: type[Arguments], command: str, argv: list[str], default: Arguments | None = None) -> Arguments:
    """The arguments; help is printed and exits, a mistake becomes a one-line ValueError."""
    given: dict[str, Any] = {} if default is None else {"default": default}
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            return tyro.cli(kind, prog=f"fredholm {command}", args=argv, **given)
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(f"{_one_line(caught.getvalue())}; see fredholm {command} --help") from None


def _one_line(box: str) -> str:
    """The message of an error box and the options it suggests.

    A box is a title and sections between rules; on terminals without line-drawing characters the title is a section.
    """
    lines = [line.strip(" │") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    sections: list[list[str]] = [[]]
    for line in filter(None, lines):
        if set(line) <= set("─-"):
            sections.append([])
        else:
            sections[-1].append(line)
    if "╭" not in box and len(sections) > 1:
        sections.pop(0)
    text = " ".join(sections[0]).partition(". Got errors:")[0]  # what follows is why each member of a union is not it
    near = [
        line.split()[0] for part in sections if part[:1] == ["Perhaps you meant:"] for line in part if line[0] == "-"
    ]
    return f"{text} (perhaps {' or '.join(near)})" if near else text
