"""Strict conversion of nested dataclasses and `Rebuildable` objects to JSON and back; files cannot trigger imports."""

import dataclasses
import inspect
import math
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from fredholm.storage.rebuildable import Rebuildable

TYPE_KEY = "type"
NOT_FINITE = ("inf", "-inf", "nan")
"""Spellings of floats that JSON lacks."""


def to_json(value: Any, *, with_words: bool = True) -> Any:
    """Converts a config to JSON values; every dataclass carries its qualified name, which distinguishes union members.

    A `Rebuildable`, such as an encoder, is written as its class and arguments, without weights. NumPy numbers become
    Python numbers.

    Args:
        value: the config.
        with_words: whether floats that JSON lacks become the words inf, -inf and nan, which `from_json` reads; else
            they stay floats.

    Raises:
        TypeError: a value that is no plain value, tuple, list, dictionary with text keys, path, dataclass or
            Rebuildable.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {TYPE_KEY: type(value).__qualname__, **to_json(fields, with_words=with_words)}
    if isinstance(value, Rebuildable):
        return {TYPE_KEY: type(value).__qualname__, **to_json(dict(value.arguments), with_words=with_words)}
    if isinstance(value, np.number | np.bool_):
        value = value.item()
    if isinstance(value, tuple | list):
        return [to_json(item, with_words=with_words) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: to_json(item, with_words=with_words) for key, item in value.items()}
    if with_words and isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"a config holds a {type(value).__name__}; expected plain values, tuples, paths, dataclasses or "
        "modules of the library"
    )


def from_json(data: Any, expected: Any, known: Sequence[type], where: str = "config") -> Any:
    """Reads the config that ``to_json`` wrote.

    A field missing from the file takes its default, so that older runs stay readable; an unknown field is an error.

    Args:
        data: parsed JSON.
        expected: the annotated type.
        known: classes, dataclasses or `Rebuildable`, that may appear where ``expected`` is one of their bases.
        where: name of the value in messages.

    Raises:
        ValueError: the data does not fit; the message names the field.
    """
    if get_origin(expected) is Annotated:
        return from_json(data, get_args(expected)[0], known, where)
    if get_origin(expected) in (Union, types.UnionType):
        return _from_union(data, get_args(expected), known, where)
    if get_origin(expected) is tuple:
        return _from_list(data, get_args(expected), known, where)
    if get_origin(expected) is Sequence:
        return _from_list(data, (*get_args(expected), ...), known, where)
    if get_origin(expected) is dict:
        if not isinstance(data, dict):
            raise ValueError(f"{where} is {_shown(data)}; expected an object")
        return {
            key: from_json(item, get_args(expected)[1], known, f"{where}[{_shown(key)}]") for key, item in data.items()
        }
    if isinstance(expected, type) and (
        dataclasses.is_dataclass(expected) or any(issubclass(kind, expected) for kind in known)
    ):
        return _from_object(data, expected, known, where)
    if get_origin(expected) is Literal:
        fits = data in get_args(expected)
    elif expected is type(None):
        fits = data is None
    elif expected is Path:
        fits = isinstance(data, str)
    elif expected is float:
        fits = type(data) is float or data in NOT_FINITE or (type(data) is int and abs(data) < 2**1000)
    else:
        fits = type(data) is expected
    if not fits:
        one_of = ", ".join(map(repr, get_args(expected))) if get_origin(expected) is Literal else ""
        name = one_of or getattr(expected, "__name__", str(expected))
        raise ValueError(f"{where} is {_shown(data)}; expected {name}")
    if expected is Path:
        return Path(str(data))
    return float(data) if expected is float else data


def _from_union(data: Any, members: tuple[Any, ...], known: Sequence[type], where: str) -> Any:
    reasons = []
    for member in members:
        try:
            return from_json(data, member, known, where)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError(reasons[0] if len(reasons) == 1 else f"{where} fits no allowed type: {'; '.join(reasons)}")


def _from_list(data: Any, items: tuple[Any, ...], known: Sequence[type], where: str) -> tuple[Any, ...]:
    variadic = len(items) == 2 and items[1] is Ellipsis
    if not isinstance(data, list) or (not variadic and len(data) != len(items)):
        length = "any number of" if variadic else str(len(items))
        raise ValueError(f"{where} is {_shown(data)}; expected a list of {length} values")
    hints = items[:1] * len(data) if variadic else items
    pairs = zip(data, hints, strict=True)
    return tuple(from_json(item, hint, known, f"{where}[{i}]") for i, (item, hint) in enumerate(pairs))


def _from_object(data: Any, expected: type, known: Sequence[type], where: str) -> Any:
    if not isinstance(data, dict) or TYPE_KEY not in data:
        raise ValueError(f"{where} is {_shown(data)}; expected an object with a {TYPE_KEY!r}")
    kinds = (kind for kind in (expected, *known) if issubclass(kind, expected) and not inspect.isabstract(kind))
    candidates = {kind.__qualname__: kind for kind in kinds}
    named = data[TYPE_KEY]
    kind: Any = candidates.get(named) if isinstance(named, str) else None
    if kind is None:
        raise ValueError(f"{where} is of type {_shown(named)}; expected one of {', '.join(sorted(candidates))}")
    if issubclass(kind, Rebuildable):
        hints = kind.parameter_types()
        fields = set(hints)
    else:
        hints = get_type_hints(kind)
        fields = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(data.keys() - fields - {TYPE_KEY}):
        raise ValueError(
            f"{where} has unknown fields {', '.join(map(_shown, unknown[:5]))}; was it written by another version?"
        )
    values = {name: from_json(data[name], hints[name], known, f"{where}.{name}") for name in fields & data.keys()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where} is incomplete: {error}") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _shown(data: Any) -> str:
    """Formats a value for messages: one line of limited length, whatever a file holds."""
    try:
        text = repr(data)
    except RecursionError:
        text = f"a deeply nested {type(data).__name__}"
    return text if len(text) <= 120 else f"{text[:117]}..."
