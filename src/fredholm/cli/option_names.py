"""Names of options in messages, in place of names of settings."""

import ast
import contextlib
import dataclasses
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

_TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_VALUE = rf"{_TEXT}|\([^()]*\)|[A-Za-z_]\w*(?:\.\w+)*(?:\([\w, ]*\))?|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_NAME = re.compile(
    rf"(?<![\w./'\"\\-])(?P<name>[a-z]\w*(?:\.[a-z]\w*)*)(?![\w/'\"\\-]|\.\w)(?:=(?:(?P<value>{_VALUE})(?![\w(])|(?=[),;])))?"
)
_KIND = re.compile(r"(?P<kind>[A-Z]\w*?)(?:\.?Config)?(?:\((?P<inner>.*)\))?")
_KINDS = re.compile(r"([A-Z]\w*?)(?:Config)?\b")
_CAUSE = re.compile(r"(?<=has no effect with )(?P<option>--[\w.-]+)")
_PARSING = re.compile(r"Error parsing (\w+(?:\.\w+)*): ")
_CLASS = re.compile(r"^(?:[a-z]\w*\.[A-Z]\w*|[a-z-]+): ")
_SUBJECT = re.compile(r" is | are | must | has | divides? ")
"""Pattern of the text after a one-word setting, which distinguishes it from an ordinary word."""
_VERB = re.compile(r"\b(?:give|pass|leave|raise|lower) $")


def with_option_names(
    text: str, config: object, given: Sequence[str] | None = None, *, usual: str = "the default", is_pair: bool = False
) -> str:
    """Returns a message in which settings such as image_size have the names of their options, --task.image-size.

    Values behind a name are spelt as typed: `--task.model filter-bank` for model=FilterBank. Where a setting has no
    effect with another that was not typed, the message names the origin of the other.

    A message about an invalid part of the settings, as "Error parsing run.task.model: depth must be ...", names them by
    their options alone. Names within paths and quotation marks are left unchanged, and so are one-word names that are
    no settings of that part, since they may be ordinary words.

    Args:
        text: the message.
        config: config whose fields the options set, fields of inner configs by their paths; of equal names the
            outermost.
        given: words of the command line; None: unknown.
        usual: origin of settings that were not typed.
        is_pair: whether settings of the task are typed as `--task image-size=64,64`.
    """
    part: list[str] = []
    parsing = _PARSING.match(text)
    if parsing:
        part = [name for name in parsing[1].split(".") if name != "run"]
        text = _CLASS.sub("", text[parsing.end() :])
    options = {name: option for _, fields in _levels(config) for name, option in fields.items()}
    by_path = dict(_levels(config))
    own = by_path.get(tuple(part), {}) if parsing else {}

    def option(name: str, value: str | None, start: int, end: int) -> str:
        *inner, last = name.split(".")
        if inner:
            starts = [*(part[:count] for count in range(len(part), -1, -1)), ["task"]]
            fields = (by_path.get((*start, *inner), {}) for start in starts)
            return next((each[last] for each in fields if last in each), name)
        is_setting = "_" in name or value is not None or text.startswith("=", end)
        if is_setting or _SUBJECT.match(text, end) or _VERB.search(text, 0, start):
            return own.get(name, options.get(name, name) if is_setting else name)
        return name

    def typed(found: re.Match[str]) -> str:
        value = found["value"]
        found_option = option(found["name"], value, found.start(), found.end("name"))
        if not found_option.startswith("--"):
            return found[0]
        if is_pair and found_option.startswith("--task."):
            return _pair(found_option, value)
        return found_option if value is None else _typed(found_option, value)

    message = _NAME.sub(typed, text)
    if (named := _CLASS.match(message)) and message.startswith("--", named.end()):
        message = message[named.end() :]  # the option shows its owner
    if given is not None:
        typed_options = {_bare(word.partition("=")[0]) for word in given if word.startswith("--")}
        message = _CAUSE.sub(
            lambda found: found[0] if _bare(found[0]) in typed_options else f"{usual} {found[0]}", message
        )
    if parsing and "--" not in message.partition("; see ")[0]:
        return f"--{'.'.join(part).replace('_', '-')}: {message}" if part else message
    return message


@contextlib.contextmanager
def naming_options(arguments: object) -> Iterator[None]:
    """A context in which a ValueError about a command's arguments names their options, for one-word names too."""
    try:
        yield
    except ValueError as error:
        error.args = (with_option_names(f"Error parsing run: {error}", arguments),)
        raise


def kind_name(name: str) -> str:
    """Returns a kind's name as it is typed: low-rank for LowRank."""
    return re.sub(r"(?<=[a-z])(?=[A-Z][a-z]{2})", "-", name).lower()


def _typed(option: str, value: str) -> str:
    """Returns an option with its value, given as a Python literal, as typed."""
    if value in ("True", "False"):
        *path, last = option.split(".")
        return option if value == "True" else ".".join([*path, f"no-{last}"])
    words = _words(value)
    return f"{option}={value}" if words is None else " ".join([option, *words])


def _pair(option: str, value: str | None) -> str:
    """Returns a task option with its value, given as a Python literal, in the form `--task NAME=VALUE`."""
    option = f"--task {option.removeprefix('--task.')}"
    words = None if value is None else _words(value)
    return option if value is None or value == "True" else f"{option}={value if words is None else ','.join(words)}"


def _words(value: str) -> list[str] | None:
    """Returns the words that are typed for a value, given as a Python literal; None where unknown."""
    kind = _KIND.fullmatch(value)
    if kind and value not in ("None", "True", "False"):
        inner = [f"({', '.join(kind_name(each) for each in _KINDS.findall(kind['inner']))})"] if kind["inner"] else []
        return [kind_name(kind["kind"]), *inner]
    try:
        plain = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return None
    return [shlex.quote(str(each)) for each in (plain if isinstance(plain, tuple) else (plain,))]


def _bare(option: str) -> str:
    """Returns a normal form of an option, equal for all its spellings."""
    return option.replace("_", "-").replace(".no-", ".").replace("--no-", "--")


def _levels(config: object) -> list[tuple[tuple[str, ...], dict[str, str]]]:
    """Returns the options of the settings in each part of a config by name, with the part's path; innermost first."""
    found: list[tuple[tuple[str, ...], dict[str, str]]] = []
    waiting: list[tuple[tuple[str, ...], Any]] = [((), config)]
    for path, owner in waiting:
        names = [field.name for field in dataclasses.fields(owner)]
        found.insert(0, (path, {name: f"--{'.'.join((*path, name))}".replace("_", "-") for name in names}))
        inner = ((name, getattr(owner, name)) for name in names)
        waiting += [((*path, name), value) for name, value in inner if dataclasses.is_dataclass(value)]
    return found
