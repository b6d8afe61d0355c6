"""From the names of classes in a file to those that a model knows."""

import math
from collections.abc import Sequence
from typing import final

from fredholm.tasks.files.cells import parse_number


@final
class ClassNames:
    """Numbers classes as they come, or by a given list.

    Args:
        known: the class names, whose order decides; None: the ones that come, sorted.
    """

    def __init__(self, known: tuple[str, ...] | None) -> None:
        self._known = known
        self._members = frozenset(known or ())

    def check(self, name: str) -> str:
        """The name.

        Raises:
            ValueError: the class is not a known one.
        """
        if self._known is not None and name not in self._members:
            raise ValueError(f"class {name!r} is none of {', '.join(self._known)}")
        return name

    def number(self, names: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
        """A label each, and the class names that they count in."""
        classes = self._known if self._known is not None else tuple(sorted(set(names), key=_order))
        place = {name: label for label, name in enumerate(classes)}
        return [place[name] for name in names], classes


def _order(name: str) -> tuple[int, float, str]:
    """Numbers by size, before all other names."""
    try:
        number = parse_number(name)
    except ValueError:
        number = math.nan
    return (0, number, name) if math.isfinite(number) else (1, 0.0, name)
