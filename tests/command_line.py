"""The command line, called in this process."""

from pathlib import Path

import pytest

from fredholm import cli


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit code, and what was printed to both streams."""
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def check_refused(capsys: pytest.CaptureFixture[str], folder: Path, message: str, *arguments: str) -> None:
    """Asserts one line that starts with the message, the exit code 2, and nothing new in the folder."""
    before = sorted(folder.iterdir())
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert err.startswith(f"error: {message}"), err
    assert err.count("\n") == 1, err
    assert sorted(folder.iterdir()) == before
