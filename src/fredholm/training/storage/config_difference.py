"""Differences between configs."""

import json
from typing import Any

from fredholm.tasks.files.data_files import user_path


def first_difference(saved: Any, given: Any, where: str = "") -> str | None:
    """Returns the first leaf in which two JSON values differ, as ``training.epochs was 5, is 6``."""
    if isinstance(saved, dict) and isinstance(given, dict) and saved.keys() == given.keys():
        inner = (first_difference(saved[key], given[key], f"{where}.{key}".lstrip(".")) for key in saved)
        return next((difference for difference in inner if difference), None)
    if saved == given or _is_one_path(saved, given):
        return None
    return f"{where} was {_named(saved)}, is {_named(given)}"


def _named(value: Any) -> str:
    """A value as JSON, or the name of its kind where it is a config."""
    if isinstance(value, dict) and isinstance(kind := value.get("type"), str):
        return kind.removesuffix("Config").rstrip(".")
    return f"{json.dumps(value):.150}"


def _is_one_path(saved: Any, given: Any) -> bool:
    """Whether two settings are spellings of one path."""
    if not (isinstance(saved, str) and isinstance(given, str)):
        return False
    try:
        return user_path(saved).samefile(user_path(given))
    except (OSError, ValueError):
        return False
