"""Imports of optional packages, with messages that name the extra."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def _importing(need: str, extra: str) -> Iterator[None]:
    """Turns a failed import into an error that names its use and the extra."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f'{need}; get it with: pip install "fredholm[{extra}]"') from error


def importing_metrics() -> contextlib.AbstractContextManager[None]:
    """Turns a failed import into an ImportError that explains how to install torchmetrics."""
    return _importing("metrics need torchmetrics", "train")


def importing_kornia() -> contextlib.AbstractContextManager[None]:
    """Turns a failed import into an ImportError that explains how to install kornia."""
    return _importing("augmentation uses kornia", "augment")
