"""Imports of what needs torchmetrics, which only measuring does."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def importing_metrics() -> Iterator[None]:
    """While entered, an import that fails tells what to install.

    Raises:
        ImportError: torchmetrics is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError('metrics need torchmetrics; get it with: pip install "fredholm[train]"') from error
