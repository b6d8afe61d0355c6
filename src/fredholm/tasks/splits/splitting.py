"""Splitting examples into parts for training, for choices, and for the final measurement."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from fredholm._settings import check_number, refuse_idle
from fredholm.tasks.task import SplitTask

from .splits import Part, Splits, Whole
from .stratified_split import (
    DEFAULT_TEST_FRACTION,
    DEFAULT_VALID_FRACTION,
    SplitBy,
    SplitKeys,
)


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """Indices of examples, increasing, int64; the validation and the test part may be empty."""

    train: Tensor
    valid: Tensor
    test: Tensor


def split_examples(
    keys: SplitKeys,
    given: Tensor | None,
    *,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    valid_fraction: float = DEFAULT_VALID_FRACTION,
    num_folds: int | None = None,
    fold: int = 0,
    seed: int = 0,
    by: SplitBy = "shares",
) -> Parts:
    """Splits examples into a training, a validation and a test part.

    The given split is used where there is one; a missing validation part is split off from its training part. Else the
    test part is one of `num_folds` parts of similar sizes and class shares, or `test_fraction` of all; and the
    validation part is `valid_fraction` of all, from the rest. Groups stay together. A split by shares depends on names,
    strata, groups and the seed; one by time takes the newest examples as the test part, and the next newest as the
    validation part.

    Args:
        keys: keys that the examples are split by.
        given: split of each example, 0 train, 1 valid, 2 test, -1 none; None: the data have no split.
        test_fraction: above 0 and below 1.
        valid_fraction: at least 0 and below 1, relative to all examples or, where a given split lacks a validation
            part, to its training part; 0: no validation part.
        num_folds: number of folds, at least 2; None: no folds.
        fold: index of the test fold, from 0 on.
        seed: selects one of many such splits by shares.
        by: split by shares or by time.

    Raises:
        ValueError: a required part is empty, fractions are out of range, the given split divides a group, or times are
            missing.
    """
    for name, share in (("test_fraction", test_fraction), ("valid_fraction", valid_fraction)):
        check_number("split", name, share)
    whole = torch.arange(len(keys))
    if given is not None:
        keys.check_parts(given)
        train, valid, test = (whole[given == part] for part in range(3))
        if len(train) == 0:
            raise ValueError("the split has nothing to train on; expected 'train' at least once")
        if len(valid):
            return Parts(train=train, valid=valid, test=test)
        share = valid_fraction
    elif num_folds is not None:
        test = torch.tensor(keys.folds(num_folds, seed)[fold])
        train, share = whole[~torch.isin(whole, test)], valid_fraction * num_folds / (num_folds - 1)
    else:
        train, test = (torch.tensor(part) for part in keys.split_off(test_fraction, seed, by))
        share = valid_fraction / (1 - test_fraction)
    if not 0 <= valid_fraction < 1 or share >= 1:
        raise ValueError(f"valid_fraction is {valid_fraction}; pass 0, or a number that leaves some to train on")
    if valid_fraction == 0:
        return Parts(train=train, valid=train[:0], test=test)
    try:
        left, off = keys.select(train.tolist()).split_off(share, seed, by)
    except ValueError as error:
        raise ValueError(f"too few examples to choose by ({error}); or pass valid_fraction 0") from error
    return Parts(train=train[left], valid=train[off], test=test)


class DividedTask(SplitTask[Part]):
    """A task whose data are one set of examples, divided by a given split or by shares.

    Args:
        config: settings of the task.
    """

    def __init__(self, config: SplitTask.Config) -> None:
        self._splitting = config

    @cached_property
    @abstractmethod
    def _split(self) -> Parts:
        """Returns the indices of the examples of each split."""

    @abstractmethod
    def _part(self, numbers: Tensor) -> Part:
        """Returns the examples at these indices, at least one, all of one split."""

    def _open(self) -> Splits[Part]:
        parts = self._split
        train, valid, test = (self._part(own) if len(own) else None for own in (parts.train, parts.valid, parts.test))
        assert train is not None
        return Splits(train, test, valid)

    @final
    def _divided(
        self,
        keys: SplitKeys,
        given: Tensor | None,
        *,
        num_folds: int | None = None,
        fold: int = 0,
        without_split: tuple[str, ...] = (),
        needs_valid: bool = True,
    ) -> Parts:
        """Applies `split_examples` with the task's settings; refuses settings that a given split leaves without effect.

        `without_split` names further settings that only affect data without a split. Without `needs_valid` no
        validation part is split off.
        """
        config = self._splitting
        if not (needs_valid or (given is not None and bool((given == 1).any()))):
            config = replace(config, valid_fraction=0.0)
        return _by_settings(keys, given, config, num_folds=num_folds, fold=fold, without_split=without_split)


def divided(splits: Splits[Whole], config: SplitTask.Config, *, needs_valid: bool = True) -> Splits[Whole]:
    """Splits data by a task's settings.

    Args:
        splits: given splits, where the validation set may be missing; or, where `is_given` is False, all examples as
            the training set.
        config: settings of the task.
        needs_valid: whether to split off a validation set where the data have none.

    Raises:
        ValueError: as of `split_examples`, or a setting has no effect.
    """
    _check_groups(splits, config.data)
    if splits.valid is not None:
        _refuse_idle(config, ("test_fraction", *_OF_VALIDATION))
        return splits
    if not needs_valid:
        config = replace(config, valid_fraction=0.0)
    own = splits.train
    parts = _by_settings(own.keys, torch.zeros(len(own), dtype=torch.int64) if splits.is_given else None, config)
    if len(parts.train) == len(own):
        return splits
    valid = own.select(parts.valid) if len(parts.valid) else None
    return replace(
        splits,
        train=own.select(parts.train),
        test=splits.test if splits.is_given else own.select(parts.test),
        valid=valid,
        is_given=True,
    )


def _check_groups(splits: Splits[Whole], data: str) -> None:
    """Raises a ValueError where a group is in two splits."""
    seen: dict[str, str] = {}
    for name, part in (("training", splits.train), ("validation", splits.valid), ("test", splits.test)):
        groups = None if part is None else part.keys.groups
        for group in dict.fromkeys(groups or ()):
            if seen.setdefault(group, name) != name:
                raise ValueError(
                    f"{data}: the group {group!r} is in the {seen[group]} and the {name} split; keep all of it in one"
                )


_OF_VALIDATION = ("valid_fraction", "split_seed", "split_by")


def _by_settings(
    keys: SplitKeys,
    given: Tensor | None,
    config: SplitTask.Config,
    *,
    num_folds: int | None = None,
    fold: int = 0,
    without_split: tuple[str, ...] = (),
) -> Parts:
    """Implements `DividedTask._divided`."""
    if given is not None:
        idle = (*without_split, "test_fraction")
        if bool((given == 1).any()):
            idle += _OF_VALIDATION
        elif config.valid_fraction == 0:
            idle += ("split_seed", "split_by")
        _refuse_idle(config, idle)
    if config.split_by == "time":
        refuse_idle("", type(config), "split_by='time'", "leave split_by out", split_seed=config.split_seed)
        if num_folds is not None:
            raise ValueError(f"{config.data}: folds are not of times; leave num_folds or split_by='time' out")
    try:
        return split_examples(
            keys,
            given,
            test_fraction=config.test_fraction,
            valid_fraction=config.valid_fraction,
            num_folds=num_folds,
            fold=fold,
            seed=config.split_seed,
            by=config.split_by,
        )
    except ValueError as error:
        raise ValueError(f"{config.data}: {error}") from error


def _refuse_idle(config: SplitTask.Config, names: tuple[str, ...]) -> None:
    own, values = f"{config.data}, which has its own split", {name: getattr(config, name) for name in names}
    refuse_idle("", type(config), own, "pass data without a split", **values)
