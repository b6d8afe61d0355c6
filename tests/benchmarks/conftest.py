"""Fixtures of the tests of benchmarks."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from benchmarks.harness import instance, sides


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Measures memory in this process, which is faster than one process per measurement, and keeps its threads.

    Functions and arguments are pickled as for a separate process.
    """

    def here(function: Callable[..., Any], *given: Any) -> Any:
        function, given = pickle.loads(pickle.dumps((function, given)))  # noqa: S301
        return function(*given)

    monkeypatch.setattr(instance, "in_fresh_process", here)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def timing_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which sides are timed despite their gate."""
    monkeypatch.setattr(sides, "interleave", lambda *_, **__: pytest.fail("timed in spite of the gate"))
