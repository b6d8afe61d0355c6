"""A computation in a process of its own, so that nothing computed before is in its memory."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """``function(*arguments)`` in a new interpreter.

    Raises whatever the function raised, and `BrokenProcessPool` where the process was killed, for want of memory say.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()
