"""Which examples a model learns from, which choices are made on, and which are left for the end."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, final

import torch
from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.tasks.splits import Divisible, Part, Splits
from fredholm.tasks.stratified_split import (
    DEFAULT_TEST_FRACTION,
    DEFAULT_VALID_FRACTION,
    stratified_folds,
    stratified_split,
)
from fredholm.tasks.task import SplitTask


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """Numbers of examples, increasing, int64; the validation and the test part may be empty."""

    train: Tensor
    valid: Tensor
    test: Tensor


def split_examples(
    names: Sequence[str],
    labels: Sequence[int],
    given: Tensor | None,
    *,
    test_fraction: float = DEFAULT_TEST_FRACTION,
    valid_fraction: float = DEFAULT_VALID_FRACTION,
    num_folds: int | None = None,
    fold: int = 0,
    seed: int = 0,
) -> Parts:
    """A training, a validation and a test part.

    The data's own split counts where there is one; a validation part that it lacks is split off from the training
    part. Else one of `num_folds` parts of like size and shares of labels is the test part, or `test_fraction`; and
    `valid_fraction` of all, from what is left, the validation part. A split depends on names, labels and the seed.

    Args:
        names: one distinct name an example.
        labels: one label an example.
        given: 0 train, 1 valid, 2 test, -1 none, one an example; None: the data have no split.
        test_fraction: above 0 and below 1.
        valid_fraction: at least 0 and below 1, of all or, where the data have a split without a validation part, of the
            training part; 0: there is none.
        num_folds: at least 2; None: no folds.
        fold: from 0 on.
        seed: picks one of many such splits.

    Raises:
        ValueError: a part is empty that must not be, or shares are out of range.
    """
    whole = torch.arange(len(names))
    if given is not None:
        train, valid, test = (whole[given == part] for part in range(3))
        if len(train) == 0:
            raise ValueError("the split has nothing to train on; expected 'train' at least once")
        if len(valid):
            return Parts(train=train, valid=valid, test=test)
        share = valid_fraction
    elif num_folds is not None:
        folds = stratified_folds(names, labels, num_folds, seed)
        test = torch.tensor(folds[fold])
        train, share = whole[~torch.isin(whole, test)], valid_fraction * num_folds / (num_folds - 1)
    else:
        parts = stratified_split(names, labels, test_fraction, seed)
        train, test = (torch.tensor(part) for part in parts)
        share = valid_fraction / (1 - test_fraction)
    if not 0 <= valid_fraction < 1 or share >= 1:
        raise ValueError(f"valid_fraction is {valid_fraction}; pass 0, or a number that leaves some to train on")
    if valid_fraction == 0:
        return Parts(train=train, valid=train[:0], test=test)
    rest: list[int] = train.tolist()
    try:
        left, off = stratified_split([names[i] for i in rest], [labels[i] for i in rest], share, seed)
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
        names: Sequence[str],
        labels: Sequence[int],
        given: Tensor | None,
        *,
        num_folds: int | None = None,
        fold: int = 0,
        without_split: tuple[str, ...] = (),
    ) -> Parts:
        """`split_examples` by the settings, which are refused where a split of the data's own leaves them idle.

        `without_split` are further settings that count for data without a split alone.
        """
        config = self._splitting
        if given is not None:
            idle = (*without_split, "test_fraction")
            if bool((given == 1).any()):
                idle += ("valid_fraction", "split_seed")
            elif config.valid_fraction == 0:
                idle += ("split_seed",)
            own, values = f"{config.data}, which has its own split", {name: getattr(config, name) for name in idle}
            refuse_idle("", type(config), own, "pass data without a split", **values)
        try:
            return split_examples(
                names,
                labels,
                given,
                test_fraction=config.test_fraction,
                valid_fraction=config.valid_fraction,
                num_folds=num_folds,
                fold=fold,
                seed=config.split_seed,
            )
        except ValueError as error:
            raise ValueError(f"{config.data}: {error}") from error


Whole = TypeVar("Whole", bound=Divisible)


def with_validation(
    splits: Splits[Whole], names: Sequence[str], labels: Sequence[int], config: SplitTask.Config
) -> Splits[Whole]:
    """Splits with a validation set: the data's own, or a share of the training set, if the settings want one.

    Args:
        splits: of the data.
        names: one distinct name a training example.
        labels: one label a training example.
        config: the settings.

    Raises:
        ValueError: shares are out of range, leave nothing, or have no effect.
    """
    idle: dict[str, object] = {} if splits.valid is None else {"valid_fraction": config.valid_fraction}
    if splits.is_given and (splits.valid is not None or config.valid_fraction == 0):
        idle["split_seed"] = config.split_seed
    refuse_idle("", type(config), f"{config.data}, which has its own split", "leave it out", **idle)
    if splits.valid is not None:
        return splits
    test_fraction = 0.0 if splits.is_given else config.test_fraction
    share = config.valid_fraction / (1 - test_fraction)
    if not 0 <= share < 1:
        raise ValueError(f"valid_fraction is {config.valid_fraction}; pass 0, or a number that leaves some to train on")
    if share == 0:
        return splits
    try:
        train, valid = stratified_split(names, labels, share, config.split_seed)
    except ValueError as error:
        raise ValueError(f"{config.data}: too few examples to choose by ({error}); or pass valid_fraction 0") from error
    own = splits.train
    return replace(splits, train=own.select(torch.tensor(train)), valid=own.select(torch.tensor(valid)))
