"""Fixtures for the tests of benchmarks."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from benchmarks.harness import instance, sides


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Measures memory in this process, as a process per measurement would take most of the time; keeps the threads.

    Functions and arguments still go through pickle, as if sent to a separate process.
    """

    def call(function: Callable[..., Any], *args: Any) -> Any:
        function, args = pickle.loads(pickle.dumps((function, args)))  # noqa: S301
        return function(*args)

    monkeypatch.setattr(instance, "in_fresh_process", call)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if sides are timed in spite of their gate."""
    monkeypatch.setattr(sides, "interleave", lambda *_, **__: pytest.fail("timed in spite of the gate"))
