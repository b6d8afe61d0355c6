from dataclasses import dataclass
from typing import Any, ClassVar, final

import pytest
import torch

from fredholm.tasks.splits.splits import Divisible, Splits
from fredholm.tasks.splits.splitting import divided, split_examples
from fredholm.tasks.splits.stratified_split import SplitKeys
from fredholm.tasks.task import SplitTask, Task
from tests.refusals import refused

NAMES = [f"g{i}" for i in range(50)]
LABELS = [0] * 30 + [1] * 20
KEYS = SplitKeys(names=NAMES, strata=LABELS)


def test_fractions_hold_in_every_class() -> None:
    parts = split_examples(KEYS, None, test_fraction=0.2, valid_fraction=0.1)
    counts = [[int((torch.tensor(LABELS)[part] == label).sum()) for label in (0, 1)] for part in vars(parts).values()]
    assert counts == [[21, 14], [3, 2], [6, 4]]
    assert sorted(torch.cat(list(vars(parts).values())).tolist()) == list(range(50))


def test_folds_partition_the_examples_and_every_class() -> None:
    tests = []
    for fold in range(5):
        parts = split_examples(KEYS, None, num_folds=5, fold=fold, valid_fraction=0.1)
        assert len(parts.valid) == 5
        assert sorted(torch.cat(list(vars(parts).values())).tolist()) == list(range(50))
        assert torch.tensor(LABELS)[parts.test].bincount().tolist() == [6, 4]
        tests.append(parts.test)
    assert sorted(torch.cat(tests).tolist()) == list(range(50))


def test_a_split_depends_only_on_names_and_seed() -> None:
    parts = split_examples(KEYS, None, num_folds=5, fold=1)
    turned = split_examples(SplitKeys(names=NAMES[::-1], strata=LABELS[::-1]), None, num_folds=5, fold=1)
    assert {NAMES[i] for i in parts.test} == {NAMES[::-1][i] for i in turned.test}
    other = split_examples(KEYS, None, num_folds=5, fold=1, seed=1)
    assert parts.test.tolist() != other.test.tolist()


def test_a_split_of_the_data_takes_precedence() -> None:
    given = torch.tensor([0] * 20 + [1] * 5 + [2] * 10 + [-1] * 15)
    parts = split_examples(KEYS, given)
    assert (parts.train.tolist(), parts.valid.tolist()) == (list(range(20)), list(range(20, 25)))
    assert parts.test.tolist() == list(range(25, 35))


def test_a_missing_validation_split_is_taken_from_training() -> None:
    given = torch.tensor([0] * 40 + [2] * 10)
    parts = split_examples(KEYS, given, valid_fraction=0.25)
    assert (len(parts.train), len(parts.valid), parts.test.tolist()) == (
        30,
        10,
        list(range(40, 50)),
    )


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        (None, {"valid_fraction": -0.1}, "valid_fraction is -0.1; pass 0, or a number that leaves some"),
        (None, {"valid_fraction": 0.9, "test_fraction": 0.2}, "valid_fraction is 0.9"),
        (None, {"test_fraction": 1.5}, "test_fraction is 1.5"),
        (None, {"num_folds": 51}, "num_folds is 51; pass a number from 2 to the 50 examples"),
        (torch.full((50,), 1), {}, "the split has nothing to train on"),
    ],
)
def test_bad_settings_are_refused(given: torch.Tensor | None, settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        split_examples(KEYS, given, **settings)


GROUPS = [f"p{i // 4}" for i in range(50)]
TIMES = torch.tensor([(7 * i) % 50 for i in range(50)]).double()


def test_no_group_is_in_two_splits() -> None:
    keys = SplitKeys(names=NAMES, strata=LABELS, groups=GROUPS)
    for parts in (
        split_examples(keys, None, test_fraction=0.2, valid_fraction=0.2),
        split_examples(keys, None, num_folds=3, fold=1),
        split_examples(keys, torch.tensor([0] * 40 + [2] * 10)),
    ):
        own = [{GROUPS[i] for i in part.tolist()} for part in vars(parts).values()]
        assert all(own)
        assert sum(map(len, own)) == len(set(GROUPS))
        assert sorted(torch.cat(list(vars(parts).values())).tolist()) == list(range(50))


def test_a_given_split_that_divides_a_group_is_refused() -> None:
    keys = SplitKeys(names=NAMES, strata=LABELS, groups=GROUPS)
    with refused(ValueError, "the group 'p5' is in two splits, by g20 and g22; keep all of a group in one"):
        split_examples(keys, torch.tensor([0] * 22 + [2] * 28))
    split_examples(keys, torch.tensor([0] * 20 + [-1] * 2 + [2] * 28))  # examples outside every split divide no group


def test_the_newest_examples_are_the_test_split_and_the_next_newest_the_validation_split() -> None:
    keys = SplitKeys(names=NAMES, strata=LABELS, times=TIMES)
    parts = split_examples(keys, None, by="time", test_fraction=0.2, valid_fraction=0.1)
    assert sorted(TIMES[parts.test].tolist()) == list(range(40, 50))
    assert sorted(TIMES[parts.valid].tolist()) == list(range(35, 40))
    assert sorted(TIMES[parts.train].tolist()) == list(range(35))
    of_rest = split_examples(keys, torch.tensor([0] * 40 + [2] * 10), by="time", valid_fraction=0.25)
    assert sorted(TIMES[of_rest.valid].tolist()) == sorted(TIMES[:40].tolist())[-10:]


def test_keys_of_other_lengths_are_refused() -> None:
    with refused(ValueError, "there are 49 groups of 50 examples; expected one each"):
        SplitKeys(names=NAMES, strata=LABELS, groups=GROUPS[1:])
    with refused(ValueError, "the time of g3 is nan; expected a finite number"):
        SplitKeys(names=NAMES[:4], strata=LABELS[:4], times=torch.tensor([0, 1, 2, torch.nan]))
    with refused(ValueError, "the data have no times", "leave split_by at 'shares'"):
        split_examples(KEYS, None, by="time")


@final
@dataclass(frozen=True)
class Rows(Divisible):
    """Some of the examples named above."""

    shared: ClassVar[tuple[str, ...]] = ()

    numbers: torch.Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def keys(self) -> SplitKeys:
        every = SplitKeys(names=NAMES, strata=LABELS, times=TIMES)
        return every.select(self.numbers.tolist())

    def select(self, indices: torch.Tensor) -> "Rows":
        return Rows(self.numbers[indices])


@dataclass(frozen=True, kw_only=True)
class Config(SplitTask.Config):
    data: str = "rows"

    def build(self, facts: object = None) -> Task:
        raise NotImplementedError


ALL = Rows(torch.arange(50))


def numbers_of(splits: Splits[Rows]) -> list[list[int]]:
    return [[] if part is None else part.numbers.tolist() for part in (splits.train, splits.valid, splits.test)]


def test_missing_splits_are_made() -> None:
    whole = divided(Splits(ALL, is_given=False), Config())
    parts = split_examples(KEYS, None)
    assert numbers_of(whole) == [part.tolist() for part in vars(parts).values()]
    assert whole.is_given
    none = divided(Splits(ALL, is_given=False), Config(valid_fraction=0.0, test_fraction=0.5))
    assert list(map(len, numbers_of(none))) == [25, 0, 25]
    first, last = Rows(torch.arange(40)), Rows(torch.arange(40, 50))
    tested = numbers_of(divided(Splits(first, last), Config(valid_fraction=0.25, split_by="time")))
    newest = sorted(range(40), key=lambda i: float(TIMES[i]))[-10:]
    assert tested[1:] == [sorted(newest), list(range(40, 50))]
    kept = Splits(first, None, last)
    assert divided(kept, Config()) is kept
    alone = Splits(first, last)
    assert divided(alone, Config(valid_fraction=0.0)) is alone


@pytest.mark.parametrize(
    ("splits", "settings", "message"),
    [
        (Splits(ALL, None, ALL), {"test_fraction": 0.3}, "test_fraction=0.3 has no effect with rows, which has its"),
        (Splits(ALL, None, ALL), {"valid_fraction": 0.3}, "valid_fraction=0.3 has no effect"),
        (Splits(ALL, None, ALL), {"split_by": "time"}, "split_by='time' has no effect"),
        (Splits(ALL, ALL), {"test_fraction": 0.3}, "test_fraction=0.3 has no effect"),
        (Splits(ALL, ALL), {"valid_fraction": 0.0, "split_seed": 1}, "split_seed=1 has no effect"),
        (Splits(ALL, ALL), {"valid_fraction": 0.0, "split_by": "time"}, "split_by='time' has no effect"),
        (
            Splits(ALL, is_given=False),
            {"split_by": "time", "split_seed": 1},
            "split_seed=1 has no effect with split_by='time'",
        ),
        (Splits(ALL, is_given=False), {"valid_fraction": 0.8}, "rows: valid_fraction is 0.8; pass 0, or a number"),
    ],
)
def test_settings_of_splits_that_have_no_effect_are_refused(
    splits: Splits[Rows], settings: dict[str, Any], message: str
) -> None:
    with refused(ValueError, message):
        divided(splits, Config(**settings))
