"""These tests run in a process of their own, started by `test_interpreted.py` with the interpreter on."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def language_replaced_once_a_launch() -> Iterator[None]:
    """The interpreter replaces Triton's language at every call of a helper, and that again and again is half its time.

    Within a launch the replacements stay, so one for each module of helpers is enough.
    """
    from triton.runtime import interpreter

    replace, execute = interpreter._patch_lang, interpreter.GridExecutor.__call__
    replaced: set[int] = set()

    def replace_once(function: Callable[..., Any]) -> Any:
        if id(function.__globals__) in replaced:
            return None
        replaced.add(id(function.__globals__))
        return replace(function)

    def launch(executor: Any, *arguments: Any, **options: Any) -> None:
        replaced.clear()
        execute(executor, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", replace_once)
        patch.setattr(interpreter.GridExecutor, "__call__", launch)
        yield
