"""JSON output that every reader accepts and every terminal shows safely."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fredholm.tasks.files.terminal_text import is_order


def json_text(value: object, *, indent: int | None = None) -> str:
    """Returns a value as JSON; numbers that are not finite, which JSON lacks, become null.

    Text stays readable, except that control characters, which terminals act on, are escaped. Both mean the same.
    """
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    if text.isprintable():
        return text
    keep = "" if indent is None else "\n"  # between values, since within text it is escaped already
    return "".join(json.dumps(c)[1:-1] if is_order(c) and c not in keep else c for c in text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return value
