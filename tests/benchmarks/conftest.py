"""Shared by the tests of benchmarks."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from benchmarks.harness import instance, sides


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory is measured here, since a process for every measurement would take most of the time; and threads stay.

    What a process of its own would be sent goes through pickle all the same.
    """

    def here(function: Callable[..., Any], *given: Any) -> Any:
        function, given = pickle.loads(pickle.dumps((function, given)))  # noqa: S301
        return function(*given)

    monkeypatch.setattr(instance, "in_fresh_process", here)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where sides are timed in spite of their gate."""
    monkeypatch.setattr(sides, "interleave", lambda *_, **__: pytest.fail("timed in spite of the gate"))
