"""The contract of a setting: another value changes the behaviour, or is refused with the setting's name."""

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
    """A value that is built anew, from the same seed, for each object that takes it."""

    make: Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A class whose settings are tested one by one.

    Args:
        of: class, or dataclass, whose signature lists the settings.
        base: small settings to start from.
        others: other values, for every setting of the signature.
        probe: function that yields an object's behaviour as tensors or plain values; an error that it raises counts as
            a value.
        make: function that builds the object from settings; None: `of` itself.
        modes: changes of the base by name; the settings are tested again from each.
    """

    of: Callable[..., Any]
    base: dict[str, Any]
    others: dict[str, tuple[Any, ...]]
    probe: Probe
    make: Callable[..., Any] | None = None
    modes: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The qualified name of the class."""
        return self.of.__qualname__

    def starts(self) -> dict[str, dict[str, Any]]:
        """The base, and the base of each mode."""
        return {"base": self.base} | {name: self.base | change for name, change in self.modes.items()}


def settings_of(owner: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The settings in a signature."""
    return dict(inspect.signature(owner).parameters)


def unread(subject: Subject, start: dict[str, Any]) -> dict[str, str]:
    """Values `setting=value` that change nothing, or whose refusal lacks the setting's name, with the finding."""
    found: dict[str, str] = {}
    defaults = {name: parameter.default for name, parameter in settings_of(subject.of).items()}
    base = _Outcome(subject, start)
    assert base.refusal is None, f"{subject.name} at {start}: {base.refusal}"
    for setting, values in subject.others.items():
        for value in values:
            if not isinstance(value, Tensor) and value == start.get(setting, defaults[setting]):
                continue
            changed = _Outcome(subject, start | {setting: value})
            if changed.refusal is not None and setting.lower() not in changed.refusal.lower():
                found[f"{setting}={value!r}"] = f"is refused without its name: {changed.refusal}"
            elif changed.refusal is None and changed.equals(base):
                found[f"{setting}={value!r}"] = "changes nothing"
    return found


class _Outcome:
    """The outcome of settings: a refusal, or an object with its state and behaviour."""

    def __init__(self, subject: Subject, settings: dict[str, Any]) -> None:
        self._probe, self.refusal = subject.probe, None
        torch.manual_seed(0)
        values = {name: value.make() if isinstance(value, Made) else value for name, value in settings.items()}
        torch.manual_seed(0)
        try:
            self._built = (subject.make or subject.of)(**values)
        except (ValueError, TypeError) as error:
            self.refusal = str(error)

    @functools.cached_property
    def all(self) -> list[object]:
        """The observations as a list."""
        return list(self.observations())

    def observations(self) -> Iterator[object]:
        """The initial parameters and buffers of a module, and its behaviour in evaluation and in training.

        Of other objects, their behaviour. Parameters are noise when a module is probed, since initial values hide
        mistakes.
        """
        built = self._built
        if isinstance(built, nn.Module):
            for name, parameter in built.named_parameters():
                yield from (name, parameter.requires_grad, parameter.detach().clone())
            for name, buffer in built.named_buffers():
                yield from (name, buffer.clone())
            _add_noise(built)
        for is_training in (False, True) if isinstance(built, nn.Module) else (False,):
            if isinstance(built, nn.Module):
                built.train(is_training)
            torch.manual_seed(1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield from _until_refused(self._probe(built))

    def equals(self, other: "_Outcome") -> bool:
        """Whether all observations of the two agree; stops at the first difference."""
        return all(equal(a, b) for a, b in itertools.zip_longest(self.observations(), other.all, fillvalue=_MISSING))


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


def equal(a: object, b: object) -> bool:
    """Whether two observations agree."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    return type(a) is type(b) and a == b
