import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fredholm.tasks.stratified_split import stratified_split

label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def names_for(labels: list[int]) -> list[str]:
    return [f"{label}/{index}.png" for index, label in enumerate(labels)]


@given(label_lists, st.floats(0.01, 0.99), st.integers(0, 3))
def test_shares(labels: list[int], fraction: float, seed: int) -> None:
    sizes = {label: labels.count(label) for label in set(labels)}
    if max(sizes.values()) == 1:
        with pytest.raises(ValueError, match="leave none to test on"):
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
def test_depends_on_names_not_on_their_order(order: list[int]) -> None:
    labels = [index % 3 for index in range(40)]
    names = names_for(labels)
    _, test = stratified_split(names, labels, 0.25, seed=0)
    _, shuffled = stratified_split([names[i] for i in order], [labels[i] for i in order], 0.25, seed=0)
    assert sorted(order[i] for i in shuffled) == test


def test_seed_picks_the_split() -> None:
    labels = [0] * 50 + [1] * 50
    splits = [stratified_split(names_for(labels), labels, 0.2, seed)[1] for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]


def test_is_the_same_for_ever() -> None:
    labels = [0] * 10 + [1] * 5
    assert stratified_split(names_for(labels), labels, 0.2, seed=0)[1] == [5, 8, 14]


def test_round_share_is_not_rounded_up() -> None:
    assert len(stratified_split(names_for([0] * 100), [0] * 100, 0.07, seed=0)[1]) == 7


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_bad_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match="pass a number above 0 and below 1"):
        stratified_split(["a", "b"], [0, 0], fraction, seed=0)
