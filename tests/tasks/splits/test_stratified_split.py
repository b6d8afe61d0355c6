import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fredholm.tasks.splits.stratified_split import grouped_folds, grouped_split, newest_split, stratified_split

label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def names_for(labels: list[int]) -> list[str]:
    return [f"{label}/{index}.png" for index, label in enumerate(labels)]


@given(label_lists, st.floats(0.01, 0.99), st.integers(0, 3))
def test_shares_hold_in_every_class(labels: list[int], fraction: float, seed: int) -> None:
    sizes = {label: labels.count(label) for label in set(labels)}
    if max(sizes.values()) == 1:
        with pytest.raises(ValueError, match=r"leaves? none to hold out"):
            stratified_split(names_for(labels), labels, fraction, seed)
        return
    train, test = stratified_split(names_for(labels), labels, fraction, seed)
    assert sorted(train + test) == list(range(len(labels)))
    assert (train, test) == (sorted(train), sorted(test))
    for label, size in sizes.items():
        in_test = sum(labels[index] == label for index in test)
        assert in_test < size
        assert in_test <= math.floor(fraction * size) + 1
        assert in_test >= min(math.floor(fraction * size), size - 1)
    room = sum(min(math.floor(fraction * size) + 1, size - 1) for size in sizes.values())
    assert len(test) == min(math.ceil(round(fraction * len(labels), 9)), room)


@given(st.permutations(range(40)))
def test_a_split_depends_on_names_not_on_their_order(order: list[int]) -> None:
    labels = [index % 3 for index in range(40)]
    names = names_for(labels)
    _, test = stratified_split(names, labels, 0.25, seed=0)
    _, shuffled = stratified_split([names[i] for i in order], [labels[i] for i in order], 0.25, seed=0)
    assert sorted(order[i] for i in shuffled) == test


def test_the_seed_changes_the_split() -> None:
    labels = [0] * 50 + [1] * 50
    splits = [stratified_split(names_for(labels), labels, 0.2, seed)[1] for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]


def test_a_split_is_stable_across_versions() -> None:
    labels = [0] * 10 + [1] * 5
    assert stratified_split(names_for(labels), labels, 0.2, seed=0)[1] == [5, 8, 14]


def test_an_exact_share_is_not_rounded_up() -> None:
    assert len(stratified_split(names_for([0] * 100), [0] * 100, 0.07, seed=0)[1]) == 7


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_bad_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match="pass a number above 0 and below 1"):
        stratified_split(["a", "b"], [0, 0], fraction, seed=0)


group_lists = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2)), min_size=1, max_size=60)


def unevenness(labels: list[int], away: list[int], fraction: float) -> float:
    """The sum that `grouped_split` minimises, written out."""
    total = (len(away) - fraction * len(labels)) ** 2 / len(labels)
    for label in set(labels):
        of_class = labels.count(label)
        total += (sum(labels[i] == label for i in away) - fraction * of_class) ** 2 / of_class
    return total


@given(group_lists, st.floats(0.05, 0.95), st.integers(0, 2))
def test_groups_stay_whole_and_no_single_move_evens_out_the_shares(
    rows: list[tuple[int, int]], fraction: float, seed: int
) -> None:
    groups, labels = [f"g{group}" for group, _ in rows], [label for _, label in rows]
    own_labels = [{label for group, label in rows if group == own} for own in {group for group, _ in rows}]
    if all(any(sum(label in other for other in own_labels) == 1 for label in own) for own in own_labels):
        with pytest.raises(ValueError, match="leave none to hold out: give one class at least two groups"):
            grouped_split(groups, labels, fraction, seed)
        return
    left, off = grouped_split(groups, labels, fraction, seed)
    assert sorted(left + off) == list(range(len(rows)))
    assert (left, off) == (sorted(left), sorted(off))
    assert off
    assert {groups[i] for i in left}.isdisjoint(groups[i] for i in off)
    assert {labels[i] for i in left} == set(labels)
    away = {groups[i] for i in off}
    here = unevenness(labels, off, fraction)
    for group in set(groups):
        moved = [i for i, own in enumerate(groups) if own in away ^ {group}]
        if moved and {labels[i] for i in range(len(rows)) if i not in moved} == set(labels):
            assert unevenness(labels, moved, fraction) >= here - 1e-6


def test_groups_depend_on_names_not_on_their_order_and_the_seed_changes_them() -> None:
    groups, labels = [f"g{i // 3}" for i in range(60)], [i // 3 % 2 for i in range(60)]
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    _, off = grouped_split(groups, labels, 0.25, 0)
    _, shuffled = grouped_split([groups[i] for i in order], [labels[i] for i in order], 0.25, 0)
    assert sorted(order[i] for i in shuffled) == off
    assert grouped_split(groups, labels, 0.25, 1)[1] != off
    assert sum(labels[i] for i in off) in (6, 9)
    assert len(off) == 15


@pytest.mark.parametrize(
    ("split", "groups", "labels"),
    [
        (lambda groups, labels: grouped_split(groups, labels, 0.25, 0)[1], "cabccaaaccaac", "2010322323023"),
        (lambda groups, labels: grouped_folds(groups, labels, 2, 0)[0], "bbcbcabacbacbcab", "2012011022013123"),
    ],
    ids=["split", "folds"],
)
def test_the_order_of_examples_does_not_decide_between_groups_by_rounding(
    split: Callable[[str, list[int]], list[int]], groups: str, labels: str
) -> None:
    classes = [int(label) for label in labels]
    of_reversed = split(groups[::-1], classes[::-1])
    assert sorted(len(groups) - 1 - i for i in of_reversed) == split(groups, classes)


@given(group_lists, st.integers(2, 5), st.integers(0, 2))
def test_folds_of_groups(rows: list[tuple[int, int]], num_folds: int, seed: int) -> None:
    groups, labels = [f"g{group}" for group, _ in rows], [label for _, label in rows]
    if len(set(groups)) < num_folds:
        with pytest.raises(ValueError, match=f"pass a number from 2 to the {len(set(groups))} groups"):
            grouped_folds(groups, labels, num_folds, seed)
        return
    folds = grouped_folds(groups, labels, num_folds, seed)
    assert sorted(i for fold in folds for i in fold) == list(range(len(rows)))
    assert all(fold == sorted(fold) and fold for fold in folds)
    assert sum(len({groups[i] for i in fold}) for fold in folds) == len(set(groups))


def test_folds_of_equal_groups_are_balanced() -> None:
    groups, labels = [f"g{i // 2}" for i in range(40)], [int(i >= 24) for i in range(40)]
    for fold in grouped_folds(groups, labels, 4, seed=0):
        assert sorted(labels[i] for i in fold) == [0] * 6 + [1] * 4
    assert grouped_folds(groups, labels, 4, seed=0) != grouped_folds(groups, labels, 4, seed=1)


@pytest.mark.parametrize(
    ("times", "fraction", "groups", "newest"),
    [
        ([3, 1, 2, 5, 4], 0.4, None, [3, 4]),
        ([3, 1, 2, 5, 4], 0.1, None, [3]),
        ([1, 1, 2, 2, 2], 0.2, None, [2, 3, 4]),
        ([1, 2, 2, 3, 3, 3], 0.4, None, [3, 4, 5]),
        ([1, 2, 2, 3], 0.5, None, [3]),  # one and three of four are equally near: the fewer
        ([1, 5, 2, 3], 0.5, ["a", "a", "b", "c"], [0, 1]),
        ([1, 2, 3, 3], 0.4, ["a", "b", "c", "b"], [1, 2, 3]),
    ],
)
def test_the_newest_examples_are_held_out_with_their_groups(
    times: list[float], fraction: float, groups: list[str] | None, newest: list[int]
) -> None:
    old, new = newest_split(torch.tensor(times).double(), fraction, groups)
    assert (old, new) == ([i for i in range(len(times)) if i not in newest], newest)


def test_too_few_examples_cannot_be_divided_with_one_class_or_several() -> None:
    with pytest.raises(ValueError, match=r"^1 example leaves none to hold out: give at least two$"):
        stratified_split(["a"], [0], 0.5, 0)
    with pytest.raises(ValueError, match=r"^2 examples in 2 classes leave none to hold out: give one class at least"):
        stratified_split(["a", "b"], [0, 1], 0.5, 0)


def test_examples_of_one_time_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="3 examples are all of one time, which leave none to hold out"):
        newest_split(torch.ones(3), 0.3)
    for split in (lambda: newest_split(torch.arange(3.0), 1.0), lambda: grouped_split(["a", "b"], [0, 0], 0.0, 0)):
        with pytest.raises(ValueError, match="pass a number above 0 and below 1"):
            split()
