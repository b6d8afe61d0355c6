"""Assertion on error messages: one line that names the bad value and what was expected."""

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def refused(error: type[Exception], *fragments: str) -> Iterator[None]:
    """Asserts that exactly this error is raised, in one line that holds all of `fragments`."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert type(caught.value) is error
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message
