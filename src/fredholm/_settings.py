"""Checks of settings: numbers have the right type and range, and no setting is given where it has no effect."""

import dataclasses
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import torch


def refuse_idle(name: str, owner: Callable[..., object], because: str, instead: str, **given: object) -> None:
    """Raises ValueError for the first setting that differs from its default although it has no effect.

    A user who changes a setting expects an effect, so an idle setting is an error.

    Args:
        name: prefix of the message, such as "kernels.MLP"; "" for none.
        owner: the class or function whose signature states the defaults.
        because: the setting that makes these settings idle, such as "num_frequencies=0".
        instead: advice that gives them an effect.
        given: the settings by name.
    """
    stated = inspect.signature(owner).parameters
    for setting, value in given.items():
        default = stated[setting].default
        if value != default:
            keep = "leave it out" if default is None else f"leave it at {default!r}"
            message = f"{setting}={value!r} has no effect with {because}; {keep}, or {instead}"
            raise ValueError(f"{name}: {message}" if name else message)


Settings = TypeVar("Settings")


def filled(settings: Settings, defaults: Sequence[object], **suggested: object) -> Settings:
    """Frozen settings, with suggestions for fields that equal one of `defaults`; other fields were given and stay."""
    left_open = {
        name: value
        for name, value in suggested.items()
        if any(getattr(settings, name) == getattr(default, name) for default in defaults)
    }
    return dataclasses.replace(settings, **left_open)  # pyright: ignore[reportArgumentType, reportCallIssue]


def with_given(settings: Settings, given: object, names: Iterable[str]) -> Settings:
    """Frozen settings with the named fields, such as model.dropout, copied from `given`, which has the same fields."""
    for name in names:
        first, _, inner = name.partition(".")
        value = getattr(given, first)
        if inner:
            value = with_given(getattr(settings, first), value, [inner])
        settings = dataclasses.replace(settings, **{first: value})  # pyright: ignore[reportArgumentType, reportCallIssue]
    return settings


def class_name(config: object) -> str:
    """Name of the class that a config builds, such as ViT for ViT.Config."""
    return type(config).__qualname__.removesuffix(".Config")


def check_config(name: str, what: str, value: object, expected: type) -> None:
    """Raises a TypeError that begins with `name` unless `value` is a configuration of the type `expected`."""
    if not isinstance(value, expected):
        received = f"the class {value.__qualname__}" if isinstance(value, type) else type(value).__qualname__
        raise TypeError(f"{name}: {what} must be {expected.__qualname__}(...); got {received}")


def check_count(name: str, what: str, value: object, least: int = 1) -> None:
    """Raises an error that begins with `name` unless `value` is a whole number of at least `least`."""
    check_whole(name, what, value)
    if not is_count(value, least):
        raise ValueError(f"{name}: {what} must be at least {least}; got {value}")


def check_whole(name: str, what: str, value: object) -> None:
    """Raises a TypeError that begins with `name` unless `value` is a whole number."""
    if not isinstance(value, int | torch.SymInt) or isinstance(value, bool):  # as in is_count
        # torch.compile turns a NumPy integer into a tensor, on which it cannot branch
        instead = f"; int(...) gives the whole number {value}" if isinstance(value, np.integer) else ""
        raise TypeError(f"{name}: {what} must be a whole number; got {value!r}{instead}")


def check_rate(name: str, what: str, value: float) -> None:
    """Raises an error that begins with `name` unless `value` is a number from 0 to below 1."""
    check_number(name, what, value)
    if not 0 <= value < 1:
        raise ValueError(f"{name}: {what} must be in [0, 1); got {value}")


def check_positive(name: str, what: str, value: float) -> None:
    """Raises an error that begins with `name` unless `value` is a positive and finite number."""
    check_number(name, what, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: {what} must be positive and finite; got {value!r}")


def check_number(name: str, what: str, value: object) -> None:
    """Raises a TypeError that begins with `name` unless `value` is a number."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name}: {what} must be a number; got {value!r}")


def check_finite(name: str, what: str, value: float) -> None:
    """Raises an error that begins with `name` unless `value` is a finite number."""
    check_number(name, what, value)
    if not math.isfinite(value):
        raise ValueError(f"{name}: {what} must be finite; got {value!r}")


def check_gain(name: str, what: str, value: float) -> None:
    """Raises an error that begins with `name` unless `value`, a scale of initial weights, is finite and at least 0."""
    check_finite(name, what, value)
    if value < 0:
        raise ValueError(f"{name}: {what} must be at least 0; got {value!r}")


MAX_SEED = 2**32 - 1


def check_seed(seed: int, what: str = "seed") -> None:
    """Raises ValueError unless `seed` is in [0, MAX_SEED], and TypeError unless it is a whole number."""
    if not isinstance(seed, numbers.Integral) or isinstance(seed, bool):
        raise TypeError(f"{what} is {seed!r}; expected an integer from 0 to {MAX_SEED}")
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"{what} is {seed}; expected an integer from 0 to {MAX_SEED}")


def is_count(value: object, least: int = 1) -> bool:
    """Whether `value` is a whole number of at least `least`."""
    # sizes in torch.export are symbolic integers
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool) and value >= least
