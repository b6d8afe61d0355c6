"""Computations in a fresh process, whose memory holds nothing of earlier ones."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """``function(*arguments)`` in a new interpreter.

    Raises the exception of the function, and `BrokenProcessPool` if the process was killed, for example out of memory.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()
