from typing import Any

import pytest
import torch

from fredholm.tasks.splitting import split_examples
from tests.refusals import refused

NAMES = [f"g{i}" for i in range(50)]
LABELS = [0] * 30 + [1] * 20


def test_fractions_of_every_class() -> None:
    parts = split_examples(NAMES, LABELS, None, test_fraction=0.2, valid_fraction=0.1)
    counts = [[int((torch.tensor(LABELS)[part] == label).sum()) for label in (0, 1)] for part in vars(parts).values()]
    assert counts == [[21, 14], [3, 2], [6, 4]]
    assert sorted(torch.cat(list(vars(parts).values())).tolist()) == list(range(50))


def test_folds_part_the_examples_and_every_class() -> None:
    tests = []
    for fold in range(5):
        parts = split_examples(NAMES, LABELS, None, num_folds=5, fold=fold, valid_fraction=0.1)
        assert len(parts.valid) == 5
        assert sorted(torch.cat(list(vars(parts).values())).tolist()) == list(range(50))
        assert torch.tensor(LABELS)[parts.test].bincount().tolist() == [6, 4]
        tests.append(parts.test)
    assert sorted(torch.cat(tests).tolist()) == list(range(50))


def test_a_split_depends_on_names_and_seed_alone() -> None:
    parts = split_examples(NAMES, LABELS, None, num_folds=5, fold=1)
    turned = split_examples(NAMES[::-1], LABELS[::-1], None, num_folds=5, fold=1)
    assert {NAMES[i] for i in parts.test} == {NAMES[::-1][i] for i in turned.test}
    other = split_examples(NAMES, LABELS, None, num_folds=5, fold=1, seed=1)
    assert parts.test.tolist() != other.test.tolist()


def test_the_datas_own_split_counts() -> None:
    given = torch.tensor([0] * 20 + [1] * 5 + [2] * 10 + [-1] * 15)
    parts = split_examples(NAMES, LABELS, given)
    assert (parts.train.tolist(), parts.valid.tolist()) == (list(range(20)), list(range(20, 25)))
    assert parts.test.tolist() == list(range(25, 35))


def test_a_missing_validation_part_is_split_off() -> None:
    given = torch.tensor([0] * 40 + [2] * 10)
    parts = split_examples(NAMES, LABELS, given, valid_fraction=0.25)
    assert (len(parts.train), len(parts.valid), parts.test.tolist()) == (
        30,
        10,
        list(range(40, 50)),
    )


@pytest.mark.parametrize(
    ("given", "settings", "told"),
    [
        (None, {"valid_fraction": -0.1}, "valid_fraction is -0.1; pass 0, or a number that leaves some"),
        (None, {"valid_fraction": 0.9, "test_fraction": 0.2}, "valid_fraction is 0.9"),
        (None, {"test_fraction": 1.5}, "test_fraction is 1.5"),
        (None, {"num_folds": 51}, "num_folds is 51; pass a number from 2 to the 50 examples"),
        (torch.full((50,), 1), {}, "the split has nothing to train on"),
    ],
)
def test_what_is_refused(given: torch.Tensor | None, settings: dict[str, Any], told: str) -> None:
    with refused(ValueError, told):
        split_examples(NAMES, LABELS, given, **settings)
