"""Parsing of a command's arguments; a mistake becomes a one-line error."""

import contextlib
import dataclasses
import functools
import io
import math
import operator
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from fredholm._settings import check_seed

Arguments = TypeVar("Arguments")
Flag = tyro.conf.FlagCreatePairsOff[bool]
_registry = ConstructorRegistry()
_NARROWEST, _WIDEST = 40, 10_000
"""Terminal width for help, and for output that is parsed again, in which no word may be broken."""
_WORDED = {
    re.compile(theirs): ours
    for theirs, ours in {
        r"Error parsing (--\S+): invalid literal for int\(\) with base 10: (.*)": r"\1 is \2; expected a whole number",
        r"Error parsing (--\S+): could not convert string to float: ('.*')": r"\1 is \2; expected a number",
        r"Error parsing (--\S+|\w+\.\.\.): Could not find valid parse for arguments: \[(.*)\]": r"\1 cannot be \2",
        r"Error parsing (--\S+): no type matching (.*) could be .* from \[(.*)\]": r"\1 is \3; expected \2",
        r"Error parsing (--.*)": r"\1",
        r"invalid choice ('.*') for argument '(--.*)'\. Expected one of \('(.*?)'(?:, 'None')?\)\.": (
            r"\2 is \1; expected one of \3"
        ),
        r"Missing value for argument '(--.*)'\. Expected (\S+) values?\.": r"\1 lacks a value; expected \2",
        r"Missing from fredholm [^:]*: (--\S+ \S+|\S+) ((?:(?!\(required\)).)*?)\.? \(required\)": r"\1 is missing: \2",
    }.items()
}
"""Patterns of tyro's messages, and their replacements."""
_MISSING = re.compile(r"(--\S+ \S+|\S+) (?:(?!\(required\)).)*\(required\) ?")
"""Matches the name of a missing argument, with its description."""
_UNKNOWN = "Unrecognized options: "


@_registry.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A setting that may be None: help shows only its other form, such as PATH, but the word None is accepted."""
    kinds = get_args(info.type)
    if NoneType not in kinds:
        return None
    other = functools.reduce(operator.or_, (kind for kind in kinds if kind is not NoneType))
    inner = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(other, info.markers))
    if not isinstance(inner, PrimitiveConstructorSpec):
        return None
    counts = inner.nargs if isinstance(inner.nargs, tuple) else (inner.nargs,)

    def from_words(words: list[str]) -> Any:
        if words == ["None"]:
            return None
        try:
            if "*" in counts or len(words) in counts:
                return inner.instance_from_str(words)
        except ValueError:
            pass
        got = " ".join(word or "''" for word in words)
        raise ValueError(f"expected {inner.metavar}; got {got}")

    return PrimitiveConstructorSpec(
        nargs="*" if "*" in counts else tuple({1, *counts}) if {*counts} != {1} else 1,  # pyright: ignore
        metavar=inner.metavar,
        instance_from_str=from_words,
        is_instance=lambda value: value is None or inner.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else inner.str_from_instance(value),
        choices=None if inner.choices is None else (*inner.choices, "None"),
    )


@_registry.primitive_rule
def _path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
    """A path, which must not be empty, as from an unset shell variable: that would be the current folder."""
    if info.type is not Path:
        return None

    def from_words(words: list[str]) -> Path:
        if not words[0].strip():
            raise ValueError(f"expected a file or folder; got {words[0]!r}")
        return Path(words[0])

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=from_words,
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda value: [str(value)],
    )


_is_nested = False
"""Whether `_settings` is calling tyro's own rules, so that it does not call itself."""


@_registry.struct_rule
def _settings(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Settings whose help omits empty defaults, and None and '' where the description names the default."""
    global _is_nested
    if _is_nested or not dataclasses.is_dataclass(info.type):
        return None
    _is_nested = True
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _is_nested = False
    if not isinstance(spec, StructConstructorSpec):
        return None
    missing = dataclasses.MISSING
    required = {
        each.name
        for each in dataclasses.fields(info.type)
        if each.default is missing and each.default_factory is missing
    }

    def hinted(field: StructFieldSpec) -> StructFieldSpec:
        if field.name not in required and field.default not in (None, (), ""):
            return field
        hint = _default_hint(field.helptext, is_required=field.name in required)
        return dataclasses.replace(field, type=Annotated[field.type, tyro.conf.arg(help_behavior_hint=hint)])

    return dataclasses.replace(spec, fields=tuple(map(hinted, spec.fields)))


def _default_hint(description: Any, *, is_required: bool) -> Callable[[str], str]:
    """Returns a function that formats a default for help; a description may be a function that returns the text."""

    def hint(default: str) -> str:
        if not default:
            return "(required)" if is_required else ""
        text = description() if callable(description) else description
        is_named = default in ("None", "''") and "efault:" in str(text)
        return "" if is_named else f"(default: {default})"

    return hint


def parse(kind: type[Arguments], command: str, argv: list[str], default: Arguments | None = None) -> Arguments:
    """Parses the arguments. Help is printed and exits; a mistake becomes a one-line ValueError."""
    given: dict[str, Any] = {} if default is None else {"default": default}
    _refuse_repeated(default or kind, argv)
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught), _wide_enough(_NARROWEST if {"-h", "--help"} & {*argv} else _WIDEST):
            return tyro.cli(kind, prog=f"fredholm {command}", args=argv, registry=_registry, **given)
    except SystemExit as end:
        if not end.code:
            raise
        line = _one_line(caught.getvalue())
        if get_type_hints(kind).get("task") == tuple[str, ...]:  # settings of a trained run are words of --task
            dotted = [word.removeprefix("--task.") for word in argv if word.startswith("--task.")]
            line += "".join(f" (perhaps --task {word}{'' if '=' in word else '=VALUE'})" for word in dotted[:1])
        raise ValueError(f"{line}; see fredholm {command} --help") from None


def typed_settings(options: Sequence[str], owner: str) -> list[str]:
    """Returns the names of an owner's settings, such as model.dropout of the task, that options set."""
    start = f"--{owner}."
    named = (option.partition("=")[0].removeprefix(start) for option in options if option.startswith(start))
    return [re.sub(r"(^|\.)no_", r"\1", name.replace("-", "_")) for name in named]


def refuse_unknown_homes(words: Sequence[str]) -> None:
    """Raises a ValueError where a word, or the text behind an option's =, begins with the home of an unknown user."""
    for word in (part for option in words for part in option.split("=", 1)):
        if word.startswith("~") and os.path.expanduser(word) == word:  # noqa: PTH111 - which says so by returning it
            raise ValueError(f"{word}: there is no home folder of that user; write the path in full")


def check_minutes(minutes: float) -> None:
    """Raises a ValueError for an invalid value of `--minutes`."""
    if not 0 < minutes < math.inf:
        raise ValueError(f"--minutes is {minutes}; expected a finite number above 0")


def check_seeds(seeds: Sequence[int]) -> None:
    """Raises a ValueError unless `--seeds` has at least one seed, each valid and none repeated."""
    if not seeds:
        raise ValueError("--seeds is empty; name one or more, or leave it out")
    for seed in seeds:
        try:
            check_seed(seed)
        except ValueError as error:
            raise ValueError(f"--seeds: {error}") from error
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds names a seed twice: {' '.join(map(str, seeds))}; name each once")


def takes_several(owner: Any, name: str) -> bool:
    """Whether a setting may be a tuple; see `_type_of`."""
    kind = _type_of(owner, name)
    return tuple in (get_origin(kind), *map(get_origin, get_args(kind)))


def is_switch(owner: Any, name: str) -> bool:
    """Whether a setting is on or off, and is typed without a value; see `_type_of`."""
    return _type_of(owner, name) is bool


def _type_of(owner: Any, name: str) -> Any:
    """Returns the type of a setting; None where there is no such setting.

    Args:
        owner: the settings, or their class.
        name: the name of the setting, also of one of its parts, such as augmentation.scale.
    """
    *parts, last = name.replace("-", "_").split(".")
    owner = functools.reduce(lambda owner, part: getattr(owner, part, None), parts, owner)
    return get_type_hints(owner if isinstance(owner, type) else type(owner)).get(last)


def _refuse_repeated(arguments: Any, argv: Sequence[str]) -> None:
    """Raises a ValueError where an option with several values is given twice; the parser would drop the first ones."""
    counts = Counter(word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--"))
    # options of the recipe of a run are written without their prefix
    owners = (arguments, getattr(arguments, "run", None))
    for option, count in counts.items():
        if count > 1 and any(takes_several(owner, option.removeprefix("--")) for owner in owners):
            raise ValueError(f"{option} is given twice; give it once, with all values behind it: {option} ONE TWO")


@contextlib.contextmanager
def _wide_enough(columns: int) -> Iterator[None]:
    """Sets the terminal width while entered; help for a few columns would never end."""
    if shutil.get_terminal_size().columns >= columns:
        yield
        return
    given = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        yield
    finally:
        if given is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = given


def _one_line(box: str) -> str:
    """Returns the message of an error box and the options that it suggests.

    A box is a title and sections between rules; on terminals without line-drawing characters the title is a section.
    """
    lines = [line.strip(" │") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    sections: list[list[str]] = [[]]
    for line in filter(None, lines):
        if set(line) <= set("─-"):
            sections.append([])
        else:
            sections[-1].append(line)
    if "╭" not in box and len(sections) > 1:
        sections.pop(0)
    text = " ".join(sections[0]).partition(". Got errors:")[0]  # the rest explains why no member of a union fits
    suggested = (line for part in sections if part[:1] == ["Perhaps you meant:"] for line in part if line[0] == "-")
    # a switch has two spellings, separated by a comma, and one suffices
    spellings = [re.findall(r"--[^\s,]+", line) for line in suggested]
    typed_no = re.search(r"(--|\.)no-", text) is not None
    near = list(dict.fromkeys(words[typed_no and len(words) > 1] for words in spellings if words))
    if len(missing := _MISSING.findall(text.partition(": ")[2])) > 1:
        return f"{' and '.join(missing)} are missing"
    if text.startswith(_UNKNOWN):
        words = text.removeprefix(_UNKNOWN).split(", ")
        options = [word for word in words if word.startswith("-")]  # the others are their values
        text = f"unknown option {' and '.join(options)}" if options else f"unexpected argument {', '.join(words)}"
    for theirs, ours in _WORDED.items():
        if found := theirs.fullmatch(text):
            text = found.expand(ours).replace("', '", ", ")
            break
    return f"{text} (perhaps {' or '.join(near)})" if near else text
