"""Splits that depend on names alone: no random generator, no library version."""

import hashlib
import math
from collections.abc import Sequence

DEFAULT_TEST_FRACTION = 0.2
DEFAULT_VALID_FRACTION = 0.1


def stratified_split(
    names: Sequence[str], labels: Sequence[int], test_fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Split indices so that every class gives the same share to the test set, as nearly as whole examples allow.

    ``ceil(test_fraction * n)`` examples are wanted for the test set. They are shared out over the classes by largest
    remainder (ties to the smaller label), and every class keeps at least one example to train on, so that a set of many
    one-example classes may yield fewer. Within a class the examples are ordered by the BLAKE2 hash of ``seed`` and name
    and the first ones go to the test set: the same names give the same split on every machine, whatever the order they
    were listed in.

    Args:
        names: one distinct name an example.
        labels: one label an example.
        test_fraction: share of the test set, above 0 and below 1.
        seed: picks one of many such splits.

    Returns:
        The train and the test indices, each in increasing order.

    Raises:
        ValueError: the fraction is out of range, or no class has an example to spare.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}; pass a number above 0 and below 1")
    members: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)

    exact = {label: test_fraction * len(members[label]) for label in sorted(members)}
    counts = {label: math.floor(share) for label, share in exact.items()}
    wanted = math.ceil(round(test_fraction * len(names), 9))  # 0.07 * 100 is a little above 7
    for label in sorted(exact, key=lambda label: (counts[label] - exact[label], label)):
        if sum(counts.values()) < wanted and counts[label] < len(members[label]) - 1:
            counts[label] += 1
    if sum(counts.values()) == 0:
        raise ValueError(
            f"{len(names)} examples in {len(members)} classes leave none to test on: give one class at least "
            "two examples"
        )

    test: list[int] = []
    for label, count in counts.items():
        test += sorted(members[label], key=lambda index: _digest(seed, names[index]))[:count]
    chosen = set(test)
    return [index for index in range(len(names)) if index not in chosen], sorted(test)


def stratified_folds(names: Sequence[str], labels: Sequence[int], num_folds: int, seed: int) -> list[list[int]]:
    """Split indices into folds of like size, over which every class is spread as evenly as whole examples allow.

    Within a class examples are in the order of `stratified_split`; they are dealt to the folds in turn, class after
    class.

    Args:
        names, labels, seed: as there.
        num_folds: at least 2, and at most as many as there are examples.

    Returns:
        The indices of each fold in increasing order.

    Raises:
        ValueError: the number of folds is out of range.
    """
    if not 2 <= num_folds <= len(names):
        raise ValueError(f"num_folds is {num_folds}; pass a number from 2 to the {len(names)} examples")
    dealt = sorted(range(len(names)), key=lambda index: (labels[index], _digest(seed, names[index])))
    return [sorted(dealt[fold::num_folds]) for fold in range(num_folds)]


def some_of_each(names: Sequence[str], labels: Sequence[int], count: int, seed: int) -> list[int]:
    """The indices of `count` examples of every class, or all of a smaller one, in increasing order.

    They are the first ones in the order of `stratified_split`, so that more of them are those and others.
    """
    members: dict[int, list[int]] = {}
    for index in sorted(range(len(names)), key=lambda index: _digest(seed, names[index])):
        members.setdefault(labels[index], []).append(index)
    return sorted(index for group in members.values() for index in group[:count])


def _digest(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}:{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
