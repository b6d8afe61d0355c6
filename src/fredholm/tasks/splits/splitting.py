"""Which examples a model learns from, which choices are made on, and which are left for the end."""

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
    """Numbers of examples, increasing, int64; the validation and the test part may be empty."""

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
    """A training, a validation and a test part.

    The data's own split counts where there is one; a validation part that it lacks is split off from the training
    part. Else one of `num_folds` parts of like size and shares of labels is the test part, or `test_fraction`; and
    `valid_fraction` of all, from what is left, the validation part. No group is in two parts. A split by shares depends
    on names, strata, groups and the seed; one by time takes the newest as the test part, and the next newest as the
    validation part.

    Args:
        keys: what the examples are split by.
        given: 0 train, 1 valid, 2 test, -1 none, one an example; None: the data have no split.
        test_fraction: above 0 and below 1.
        valid_fraction: at least 0 and below 1, of all or, where the data have a split without a validation part, of the
            training part; 0: there is none.
        num_folds: at least 2; None: no folds.
        fold: from 0 on.
        seed: picks one of many such splits by shares.
        by: shares, or time.

    Raises:
        ValueError: a part is empty that must not be, shares are out of range, the data's own split parts a group, or
            there are no times.
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
    """A task whose data are one set of examples, which numbers divide: a split of their own, or one by shares.

    Args:
        config: the settings.
    """

    def __init__(self, config: SplitTask.Config) -> None:
        self._splitting = config

    @cached_property
    @abstractmethod
    def _split(self) -> Parts:
        """The numbers of the examples of each split."""

    @abstractmethod
    def _part(self, numbers: Tensor) -> Part:
        """The examples of these numbers, at least one, all of one split."""

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
        """`split_examples` by the settings, which are refused where a split of the data's own leaves them idle.

        `without_split` are further settings that count for data without a split alone. Without `needs_valid` no
        validation part is split off.
        """
        config = self._splitting
        if not (needs_valid or (given is not None and bool((given == 1).any()))):
            config = replace(config, valid_fraction=0.0)
        return _by_settings(keys, given, config, num_folds=num_folds, fold=fold, without_split=without_split)


def divided(splits: Splits[Whole], config: SplitTask.Config, *, needs_valid: bool = True) -> Splits[Whole]:
    """The splits of data by settings.

    Args:
        splits: the data's own, of which a validation set may be missing; or, where `is_given` is False, all examples as
            the training set.
        config: the settings.
        needs_valid: whether a validation set is split off where the data bring none.

    Raises:
        ValueError: what `split_examples` refuses, or a setting that has no effect.
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
    """Raises ValueError where a group is in two splits."""
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
    """See `DividedTask._divided`."""
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
