"""The command line: one command a file, and the table of them in `dispatch`."""

from fredholm.cli.dispatch import main

__all__ = ["main"]
