"""Settings whose value is one of several kinds, chosen by name."""

import dataclasses
import functools
import inspect
import re
from typing import Any, get_type_hints

from fredholm.cli.option_names import kind_name
from fredholm.models.signal_model import replaced
from fredholm.training.run import Run

_UNKNOWN = re.compile(r"unknown option --(task(?:\.(?!no-)[a-z][\w-]*)+)")


def with_kinds(config: Run.Config, options: list[str], known: list[type]) -> tuple[Run.Config, list[str]]:
    """Returns the config with the kinds that options name, such as ``--task.model gpt2``, and the remaining options.

    A setting of an abstract type takes the name of a kind. It starts at the task's default where that is of this kind,
    otherwise at the kind's defaults, which options such as ``--task.model.depth`` then change.

    Raises:
        ValueError: no kind has that name.
    """
    rest = [word for option in options for word in (option.split("=", 1) if option.startswith("--") else [option])]
    kinds = {name for name in rest if name.startswith("--task.")}
    for name in sorted(kinds, key=lambda name: name.count(".")):  # a model before its kernel
        path, at = name.removeprefix("--").replace("-", "_").split("."), rest.index(name)
        named = _kinds_at(config, path, known)
        if named and rest.count(name) > 1:
            raise ValueError(f"{name} is given twice; give it once, with one kind")
        if named and at + 1 < len(rest) and not rest[at + 1].startswith("--"):
            kind = _kind_called(rest[at + 1], named, name)
            if len(named) > 1 and type(functools.reduce(getattr, path, config)) is not kind:
                config = _replaced(config, path, kind())
            del rest[at : at + 2]
    return config, rest


def with_kinds_needed(message: str, config: Run.Config, known: list[type]) -> str:
    """Returns a message about an unknown option with the kinds that have such an option, if there are any."""
    if (found := _UNKNOWN.match(message)) is None:
        return message
    path = found[1].replace("-", "_").split(".")
    for end in range(len(path) - 1, 1, -1):
        if len(kinds := _kinds_at(config, path[:end], known)) > 1:
            setting = "--" + ".".join(path[:end]).replace("_", "-")
            fitting = [f"{setting} {kind_name(name)}" for name, kind in kinds.items() if _has(kind(), path[end:])]
            needed = f" (it needs {' or '.join(fitting)}); see" if fitting else "; see"
            return message.replace("; see", needed, 1)
    return message


def _has(config: Any, path: list[str]) -> bool:
    """Whether a config has a setting."""
    first, *others = path
    names = {field.name for field in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else set[str]()
    return first in names and (not others or _has(getattr(config, first), others))


def list_kinds(config: Run.Config, known: list[type]) -> None:
    """Prints the settings that take the name of a kind, with the names of their kinds."""
    waiting: list[tuple[str, ...]] = [("task",)]
    print("\nkinds, whose options are listed above once they are chosen:")
    for path in waiting:
        owner = functools.reduce(getattr, path, config)
        inner = [
            field.name for field in dataclasses.fields(owner) if dataclasses.is_dataclass(getattr(owner, field.name))
        ]
        waiting += [(*path, name) for name in inner]
        for name in inner:
            kinds = _kinds_at(config, [*path, name], known)
            if len(kinds) > 1 or (kinds and path == ("task",)):
                now = type(getattr(owner, name))
                words = [kind_name(kind) + (" (now)" if each is now else "") for kind, each in kinds.items()]
                print(f"  --{'.'.join((*path, name)).replace('_', '-')} {', '.join(words)}")


def _kinds_at(config: Any, path: list[str], known: list[type]) -> dict[str, type]:
    """Returns the possible kinds of a setting by name: all of an abstract type, or the one of a fixed model or kernel.

    Empty for other settings.
    """
    for part in path[:-1]:
        config = getattr(config, part, None)
    kind = get_type_hints(type(config)).get(path[-1])
    if not isinstance(kind, type) or not (inspect.isabstract(kind) or kind in known):
        return {}
    fitting = [one for one in known if issubclass(one, kind)]
    return {one.__qualname__.removesuffix("Config").rstrip("."): one for one in fitting}


def _kind_called(word: str, kinds: dict[str, type], option: str) -> type:
    """Returns the kind of that name, or the only one whose name begins with it; case and hyphens are ignored."""

    def bare(name: str) -> str:
        return name.replace("-", "").replace("_", "").lower()

    exact = [name for name in kinds if bare(name) == bare(word)]
    found = exact or [name for name in kinds if bare(name).startswith(bare(word))]
    if len(found) != 1:
        within = next((name for name in kinds if name.endswith("Stack")), None)
        hint = "" if within is None else f"; a network is {option} {kind_name(within)} {option}.stack NAME"
        raise ValueError(f"{option} is {word!r}; expected one of {', '.join(map(kind_name, found or kinds))}{hint}")
    return kinds[found[0]]


def _replaced(config: Any, path: list[str], value: Any) -> Any:
    """Returns the config with the value at a path of settings replaced."""
    first, *others = path
    inner = _replaced(getattr(config, first), others, value) if others else value
    # heads that the options do not name are those of another kernel
    heads = {"num_heads": config.num_heads} if hasattr(config, "num_heads") else {}
    return replaced(config, **heads | {first: inner})
