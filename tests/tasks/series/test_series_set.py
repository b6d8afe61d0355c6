import dataclasses
import math
from typing import Any

import pytest
import torch

from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import ClassAnswers
from tests.refusals import refused
from tests.tasks.series.build import NAN, regular, timed


def test_series_of_different_lengths_are_padded_with_missing_values() -> None:
    found = regular([[1, 2], [3, NAN]], [[5, 6]], labels=[1, 0], spacing=0.5)
    assert found.values.shape == (2, 2, 2)
    assert found.values[1, 1].isnan().all()
    assert found.exists.tolist() == [[True, True], [True, False]]
    assert found.extents.tolist() == [0.5, 0.0]
    assert len(found) == 2


def test_evenly_spaced_times_become_a_spacing() -> None:
    assert timed([(0, 1), (0.5, 2), (1, 3)], [(7, 1), (7.5, 1)]).spacing == 0.5
    assert timed([(0, 1), (0.5, 2), (1, 3)], [(7, 1), (7.5, 1)]).times is None
    assert timed([(0, 1), (0.5, 2)], [(0, 1), (1, 1)]).times is not None
    assert timed([(0, 1)]).times is not None
    irregular = timed([(2, 1), (3, 2), (7, 3)], [(1, 1), (9, 1)])
    assert irregular.times is not None
    assert irregular.times.tolist() == [[2, 3, 7], [1, 9, 0]]
    assert irregular.extents.tolist() == [5, 8]


def test_selected_series_keep_all_attributes_and_are_padded_to_the_longest() -> None:
    whole = regular([[1], [2], [3]], [[4]], [[5], [6]], labels=[0, 1, 0])
    part = whole.select(torch.tensor([2, 1]))
    assert part.values[..., 0].nan_to_num(-1).tolist() == [[5, 6], [4, -1]]
    assert part.answers is not None
    assert (part.answers.values.tolist(), part.lengths.tolist(), part.names) == ([0, 1], [2, 1], ("s2", "s1"))
    assert len(whole.select(torch.tensor([], dtype=torch.int64))) == 0
    late = timed([(0, 1), (2, 1), (3, 1)], [(5, 1), (9, 1)]).select(torch.tensor([1]))
    assert late.times is not None
    assert late.times.tolist() == [[5, 9]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"values": torch.zeros(2, 2, 1, dtype=torch.int64)}, "values are torch.int64 (2, 2, 1); pass float32 or"),
        ({"values": torch.zeros(2, 2)}, "values are torch.float32 (2, 2)"),
        ({"channels": ("a", "b")}, "2 channels; give one of each a series"),
        ({"names": ("a",)}, "for 1 names"),
        ({"lengths": torch.tensor([2, 0])}, "s1: has 0 samples; expected at least one"),
        ({"lengths": torch.tensor([3, 1])}, "s0: has 3 samples"),
        ({"values": torch.tensor([[[1.0], [math.inf]]] * 2)}, "s0: sample 1 of channel 'c0' is infinite"),
        ({"spacing": 0.0}, "the spacing of samples is 0.0; expected a finite number above 0"),
        ({"spacing": NAN}, "the spacing of samples is nan"),
        ({"times": torch.zeros(2, 2)}, "times are torch.float32 (2, 2); pass float64 (2, 2)"),
        ({"times": torch.tensor([[0.0, NAN], [0, 0]]).double()}, "s0: the time of sample 1 is nan; expected a number"),
        ({"times": torch.tensor([[0.0, 1], [3, 2]]).double()}, "s1: the time of sample 1 is 2 after 3; sort"),
        ({"times": torch.tensor([[0.0, 1], [3, 3]]).double()}, "s1: the time of sample 1 is 3 after 3"),
        ({"answers": ClassAnswers(names=("a",), values=torch.tensor([0]))}, "there are 1 answers for 2 series"),
    ],
)
def test_misfits_are_refused(changed: dict[str, Any], message: str) -> None:
    whole = regular([[1], [2]], [[3], [4]], labels=[0, 1])
    with refused(ValueError, message):
        dataclasses.replace(whole, **changed)


def test_times_of_padding_are_ignored() -> None:
    times = torch.tensor([[0.0, 1], [3, NAN]]).double()
    whole = dataclasses.replace(regular([[1], [2]], [[3]]), times=times)
    alone = whole.select(torch.tensor([1]))
    assert alone.times is not None
    assert alone.times.tolist() == [[3.0]]
    with refused(ValueError, "s1: the time of sample 1 is nan"):
        dataclasses.replace(whole, lengths=torch.tensor([2, 2]))


def test_splits_must_fit_together_and_have_labels() -> None:
    whole = regular([[1]], [[3]], labels=[0, 1])
    assert isinstance(whole.answers, ClassAnswers)
    with refused(ValueError, "channels differ: ('c0',) in training, ('x',) in test"):
        Splits(whole, dataclasses.replace(whole, channels=("x",)))
    with refused(ValueError, "answer names differ: ('a', 'b') in training, ('a', 'b', 'c') in test"):
        Splits(whole, dataclasses.replace(whole, answers=dataclasses.replace(whole.answers, names=("a", "b", "c"))))
    with refused(ValueError, "the test set has no labels"):
        Splits(whole, dataclasses.replace(whole, answers=None))
    with refused(ValueError, "the training set is empty"):
        Splits(whole.select(torch.tensor([], dtype=torch.int64)), whole)


def test_one_permutation_is_applied_to_all_series() -> None:
    whole = regular(*[[[100.0 * i + k] for k in range(9)] for i in range(3)], spacing=0.5)
    mixed, again, other = (whole.permuted(seed, 9) for seed in (4, 4, 5))
    order = mixed.values[0, :, 0].long()
    assert sorted(order.tolist()) == list(range(9))
    assert order.tolist() != list(range(9))
    for i in range(3):
        assert torch.equal(mixed.values[i], whole.values[i, order])
    assert torch.equal(mixed.values, again.values)
    assert not torch.equal(mixed.values, other.values)
    assert mixed.spacing == 0.5


def test_irregular_or_shorter_series_are_not_permuted() -> None:
    with refused(ValueError, "s1: has 1 samples", "needs 2"):
        regular([[1.0], [2.0]], [[3.0]]).permuted(0, 2)
    with refused(ValueError, "s0: has 2 samples", "needs 3"):
        regular([[1.0], [2.0]]).permuted(0, 3)
    with refused(ValueError, "irregular times"):
        timed([(0, 0), (1, 1), (5, 2)]).permuted(0, 3)
