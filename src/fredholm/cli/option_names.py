"""Settings in messages, by the options that set them."""

import dataclasses
import re
from typing import Any

_WORD = re.compile(r"(?<![\w./'\"\\-])[a-z]+(?:_[a-z0-9]+)+(?![\w/'\"\\-]|\.\w)")


def with_option_names(text: str, config: object) -> str:
    """A message in which settings such as image_size have the names of their options, --task.image-size.

    Names within paths and quotation marks are left, and so are names of one word, which mean other things too.

    Args:
        text: the message.
        config: whose fields the options set, those of inner configs by their paths; of equal names the outermost's.
    """
    options = _options(config)
    return _WORD.sub(lambda found: options.get(found[0], found[0]), text)


def _options(config: object) -> dict[str, str]:
    """The option that sets a field, by the field's name."""
    found: dict[str, str] = {}
    level: list[tuple[str, Any]] = [("--", config)]
    while level:
        inner: list[tuple[str, Any]] = []
        for start, owner in level:
            for field in dataclasses.fields(owner):
                option, value = f"{start}{field.name.replace('_', '-')}", getattr(owner, field.name)
                found.setdefault(field.name, option)
                if dataclasses.is_dataclass(value):
                    inner.append((f"{option}.", value))
        level = inner
    return found
