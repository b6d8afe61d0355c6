"""Numbering of the class names in a file by the classes of a model."""

import math
from collections.abc import Sequence
from typing import final

from fredholm.tasks.files.cells import parse_number


@final
class ClassNames:
    """Numbers classes in sorted order, or by a given list.

    Args:
        known: class names in order; None: the names that occur, sorted.
    """

    def __init__(self, known: tuple[str, ...] | None) -> None:
        self._known = known
        self._members = frozenset(known or ())

    def check(self, name: str) -> str:
        """Returns the name after checking it.

        Raises:
            ValueError: the class is unknown.
        """
        if self._known is not None and name not in self._members:
            raise ValueError(f"class {name!r} is none of {', '.join(self._known)}")
        return name

    def number(self, names: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
        """Returns the class number of each name, and the class names in order."""
        classes = self._known if self._known is not None else tuple(sorted(set(names), key=_order))
        place = {name: label for label, name in enumerate(classes)}
        return [place[name] for name in names], classes


def _order(name: str) -> tuple[int, float, str]:
    """Sort key: numbers by size, before all other names."""
    try:
        number = parse_number(name)
    except ValueError:
        number = math.nan
    return (0, number, name) if math.isfinite(number) else (1, 0.0, name)
