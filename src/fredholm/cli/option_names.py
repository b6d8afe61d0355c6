"""Settings in messages, by the options that set them."""

import dataclasses
import re
from typing import Any

_NAME = re.compile(r"(?<![\w./'\"\\-])[a-z]\w*(?:\.[a-z]\w*)*(?![\w/'\"\\-]|\.\w)")
_PARSING = re.compile(r"Error parsing (\w+(?:\.\w+)*): ")
_CLASS = re.compile(r"^(?:[a-z]\w*\.[A-Z]\w*|[a-z-]+): ")
_SUBJECT = re.compile(r" is | are | must | has | divides? ")
"""What follows a name of one word where it is a setting, and no word."""
_VERB = re.compile(r"\b(?:give|pass|leave|raise|lower) $")


def with_option_names(text: str, config: object) -> str:
    """A message in which settings such as image_size have the names of their options, --task.image-size.

    A message on a part of the settings that could not be made, as "Error parsing run.task.model: depth must be ...",
    tells them by their options alone. Names within paths and quotation marks are left, and so are names of one word
    that are no setting of that part, which mean other things too.

    Args:
        text: the message.
        config: whose fields the options set, those of inner configs by their paths; of equal names the outermost's.
    """
    part: list[str] = []
    parsing = _PARSING.match(text)
    if parsing:
        part = [name for name in parsing[1].split(".") if name != "run"]
        text = _CLASS.sub("", text[parsing.end() :])
    options = {name: option for _, fields in _levels(config) for name, option in fields.items()}
    by_path = dict(_levels(config))
    own = by_path.get(tuple(part), {}) if parsing else {}

    def option(found: re.Match[str]) -> str:
        name = found[0]
        *inner, last = name.split(".")
        if inner:
            starts = [*(part[:count] for count in range(len(part), -1, -1)), ["task"]]
            fields = (by_path.get((*start, *inner), {}) for start in starts)
            return next((each[last] for each in fields if last in each), name)
        is_setting = "_" in name or text.startswith("=", found.end())
        if is_setting or _SUBJECT.match(text, found.end()) or _VERB.search(text, 0, found.start()):
            return own.get(name, options.get(name, name) if is_setting else name)
        return name

    told = _NAME.sub(option, text)
    if parsing and "--" not in told.partition("; see ")[0]:
        return f"--{'.'.join(part).replace('_', '-')}: {told}" if part else told
    return told


def _levels(config: object) -> list[tuple[tuple[str, ...], dict[str, str]]]:
    """The options of the settings of each part of a config, by name, with the part's path; the innermost first."""
    found: list[tuple[tuple[str, ...], dict[str, str]]] = []
    waiting: list[tuple[tuple[str, ...], Any]] = [((), config)]
    for path, owner in waiting:
        names = [field.name for field in dataclasses.fields(owner)]
        found.insert(0, (path, {name: f"--{'.'.join((*path, name))}".replace("_", "-") for name in names}))
        inner = ((name, getattr(owner, name)) for name in names)
        waiting += [((*path, name), value) for name, value in inner if dataclasses.is_dataclass(value)]
    return found
