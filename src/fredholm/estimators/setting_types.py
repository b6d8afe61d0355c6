"""Checks of the types of settings that are given by name, as the parser of the command line checks words."""

import numbers
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_PLAIN: dict[Any, tuple[type, str, str]] = {
    int: (int, "a whole number", "whole numbers"),
    float: (numbers.Real, "a number", "numbers"),
    str: (str, "a text", "texts"),
    bool: (bool, "True or False", "truth values"),
    types.NoneType: (types.NoneType, "None", "None"),
}
"""By annotation: the accepted type, and its name, for one value and for several."""


def check_types(what: str, given: Mapping[str, Any], owner: type) -> None:
    """Raises a TypeError where a setting has another type than the dataclass states.

    Lists are accepted as tuples.

    Args:
        what: name of the mapping, for messages.
        given: settings by name, which the dataclass has.
        owner: the dataclass.
    """
    kinds = get_type_hints(owner)
    for name, value in given.items():
        if not _fits(value, kinds[name]):
            raise TypeError(f"{what}[{name!r}] is {value!r}; expected {_in_words(kinds[name])}")


def _fits(value: object, kind: Any) -> bool:
    inner = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if get_origin(kind) is Literal:
        return value in inner
    if get_origin(kind) is tuple:
        if not isinstance(value, tuple | list):
            return False
        each = inner[:1] * len(value) if inner[-1] is ... else inner
        return len(value) == len(each) and all(map(_fits, value, each))
    if kind in _PLAIN:
        return isinstance(value, _PLAIN[kind][0]) and isinstance(value, bool) == (kind is bool)
    return isinstance(value, kind)


def _in_words(kind: Any) -> str:
    inner = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(map(_in_words, inner))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if get_origin(kind) is tuple:
        several = _PLAIN[inner[0]][2] if inner[0] in _PLAIN else f"elements, each {_in_words(inner[0])}"
        return f"a tuple of {several}" if inner[-1] is ... else f"a tuple of {len(inner)} {several}"
    return _PLAIN[kind][1] if kind in _PLAIN else f"{kind.__qualname__}(...)"
