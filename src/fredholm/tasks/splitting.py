"""Which examples a model learns from, which it is measured on, and which are left for the end."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, final

import torch
from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.tasks.splits import Part
from fredholm.tasks.stratified_split import DEFAULT_TEST_FRACTION, stratified_folds, stratified_split
from fredholm.tasks.task import SplitTask

DEFAULT_VALID_FRACTION = 0.1


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """Numbers of examples, increasing, int64; the test part may be empty."""

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
        valid_fraction: likewise; of the training part, where the data have a split without a validation part.
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
    if not 0 < valid_fraction < 1 or share >= 1:
        raise ValueError(f"valid_fraction is {valid_fraction}; pass a number above 0 that leaves some to train on")
    rest: list[int] = train.tolist()
    left, off = stratified_split([names[i] for i in rest], [labels[i] for i in rest], share, seed)
    return Parts(train=train[left], valid=train[off], test=test)


class ValidatedTask(SplitTask[Part]):
    """A task that is measured on a validation split, and leaves the test split alone until it is asked for.

    There always is a validation split: the data's own, or a share of what would be learnt from.

    Args:
        config: the settings.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """A set of examples, how it is split, and which split is measured on.

        Args:
            valid_fraction: share of the validation split where the data bring none.
            evaluated: the split that is measured on; the other one is left alone.
        """

        valid_fraction: float = DEFAULT_VALID_FRACTION
        evaluated: Literal["valid", "test"] = "valid"

        def __post_init__(self) -> None:
            if self.evaluated not in ("valid", "test"):
                raise ValueError(f"evaluated is {self.evaluated!r}; expected 'valid' or 'test'")

    def __init__(self, config: Config) -> None:
        self._splitting = config

    @final
    @property
    def measured(self) -> str:
        """The evaluated split."""
        return self._splitting.evaluated

    @cached_property
    @abstractmethod
    def _split(self) -> Parts:
        """The numbers of the examples of each split."""

    @final
    @property
    def _measured_part(self) -> Tensor:
        """The numbers of the examples that are measured on; raises ValueError where there are none."""
        parts = self._split
        if self._splitting.evaluated == "valid":
            return parts.valid
        if len(parts.test) == 0:
            raise ValueError(f"{self._splitting.data} has no test split; evaluate on 'valid', or pass data with one")
        return parts.test

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
