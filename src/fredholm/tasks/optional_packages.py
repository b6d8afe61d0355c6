"""Imports of packages that extras bring, which not every use of a task needs."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def _importing(need: str, extra: str) -> Iterator[None]:
    """While entered, an import that fails says what needs it, and which extra brings it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f'{need}; get it with: pip install "fredholm[{extra}]"') from error


def importing_metrics() -> contextlib.AbstractContextManager[None]:
    """While entered, an import that fails is an ImportError that says how to install torchmetrics."""
    return _importing("metrics need torchmetrics", "train")


def importing_kornia() -> contextlib.AbstractContextManager[None]:
    """While entered, an import that fails is an ImportError that says how to install kornia."""
    return _importing("augmentation uses kornia", "augment")
