"""The command line: one command a file, and the table of them in `dispatch`."""

from .dispatch import main

__all__ = ["main"]
