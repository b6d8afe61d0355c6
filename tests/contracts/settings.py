"""The contract of a setting: another value of it gives another thing, or is refused by name."""

import dataclasses
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Probe = Callable[[Any], Iterable[object]]


@dataclasses.dataclass(frozen=True)
class Made:
    """A value that is built anew for each thing that it is given to, from the same seed."""

    make: Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A class whose settings are walked over.

    Args:
        of: whose signature states the settings: a class, or the dataclass that holds them.
        base: the settings at which the walk starts, small.
        others: other values, for every setting of the signature.
        probe: what a thing does, as tensors or plain values; an error that it raises counts as a value.
        make: builds the thing from settings; None: `of` itself.
        modes: changes to the base by name; the walk starts anew at each.
    """

    of: Callable[..., Any]
    base: dict[str, Any]
    others: dict[str, tuple[Any, ...]]
    probe: Probe
    make: Callable[..., Any] | None = None
    modes: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The class' name, with that of the class around it."""
        return self.of.__qualname__

    def starts(self) -> dict[str, dict[str, Any]]:
        """The base, and the base of each mode."""
        return {"base": self.base} | {name: self.base | change for name, change in self.modes.items()}


def settings_of(owner: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The settings that a signature states."""
    return dict(inspect.signature(owner).parameters)


def unread(subject: Subject, start: dict[str, Any]) -> dict[str, str]:
    """Other values, each as `setting=value`, that change nothing or are refused without being named; what was seen."""
    found: dict[str, str] = {}
    defaults = {name: parameter.default for name, parameter in settings_of(subject.of).items()}
    base = _Outcome(subject, start)
    assert base.refusal is None, f"{subject.name} at {start}: {base.refusal}"
    for setting, values in subject.others.items():
        for value in values:
            if not isinstance(value, Tensor) and value == start.get(setting, defaults[setting]):
                continue
            other = _Outcome(subject, start | {setting: value})
            if other.refusal is not None and setting.lower() not in other.refusal.lower():
                found[f"{setting}={value!r}"] = f"is refused without its name: {other.refusal}"
            elif other.refusal is None and other.equals(base):
                found[f"{setting}={value!r}"] = "changes nothing"
    return found


class _Outcome:
    """What comes of settings: a refusal, or a thing with parts and values."""

    def __init__(self, subject: Subject, settings: dict[str, Any]) -> None:
        self._probe, self.refusal = subject.probe, None
        torch.manual_seed(0)
        given = {name: value.make() if isinstance(value, Made) else value for name, value in settings.items()}
        torch.manual_seed(0)
        try:
            self._thing = (subject.make or subject.of)(**given)
        except (ValueError, TypeError) as error:
            self.refusal = str(error)

    @functools.cached_property
    def all(self) -> list[object]:
        """Everything that tells it from another."""
        return list(self.found())

    def found(self) -> Iterator[object]:
        """What a module holds at its start, and what it does in evaluation and in training; or what another thing does.

        Parameters are noise when it acts, as a start hides much.
        """
        thing = self._thing
        if isinstance(thing, nn.Module):
            for name, parameter in thing.named_parameters():
                yield from (name, parameter.requires_grad, parameter.detach().clone())
            for name, buffer in thing.named_buffers():
                yield from (name, buffer.clone())
            _add_noise(thing)
        for is_training in (False, True) if isinstance(thing, nn.Module) else (False,):
            if isinstance(thing, nn.Module):
                thing.train(is_training)
            torch.manual_seed(1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield from _until_refused(self._probe(thing))

    def equals(self, other: "_Outcome") -> bool:
        """Whether nothing tells the two apart; stops at the first that does."""
        return all(_equal(a, b) for a, b in itertools.zip_longest(self.found(), other.all, fillvalue=_MISSING))


_MISSING = object()


def _add_noise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))


def _until_refused(values: Iterable[object]) -> Iterator[object]:
    try:
        yield from values
    except (ValueError, TypeError) as error:
        yield str(error)


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    return type(a) is type(b) and a == b
