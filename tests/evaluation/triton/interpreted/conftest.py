"""Fixtures of the tests that `test_interpreted.py` runs in a separate process with Triton's interpreter on."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def patch_language_once_per_launch() -> Iterator[None]:
    """Patches Triton's language once per launch and module of helpers.

    The interpreter patches it again at every call of a helper, which takes half of its time.
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
