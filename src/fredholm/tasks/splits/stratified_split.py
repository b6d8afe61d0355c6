"""Reproducible splits that depend only on names, independent of random generators and library versions."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor

DEFAULT_TEST_FRACTION = 0.2
DEFAULT_VALID_FRACTION = 0.1


SplitBy = Literal["shares", "time"]
"""Whether a split takes equal shares of every stratum, or the newest examples."""


@final
@dataclass(frozen=True, kw_only=True)
class SplitKeys:
    """Keys that n examples are split by.

    Args:
        names: a distinct name for each example.
        strata: a number for each example; a split takes equal shares of all numbers.
        groups: a group name for each example, such as its patient; examples of a group stay together. None: each
            example is its own group.
        times: float64 `(n,)`, the time of each example, in any unit; None: unknown.

    Raises:
        ValueError: their lengths differ, or a time is not finite.
    """

    names: Sequence[str]
    strata: Sequence[int]
    groups: Sequence[str] | None = None
    times: Tensor | None = None

    def __post_init__(self) -> None:
        for what in ("strata", "groups", "times"):
            given = getattr(self, what)
            if given is not None and len(given) != len(self):
                raise ValueError(f"there are {len(given)} {what} of {len(self)} examples; expected one each")
        if self.times is not None:
            for i in (~self.times.isfinite()).nonzero()[:1, 0].tolist():
                raise ValueError(f"the time of {self.names[i]} is {float(self.times[i])}; expected a finite number")

    def __len__(self) -> int:
        return len(self.names)

    def select(self, indices: Sequence[int]) -> "SplitKeys":
        """Returns the keys of some examples."""
        return SplitKeys(
            names=_Some(self.names, indices),
            strata=[self.strata[i] for i in indices],
            groups=None if self.groups is None else [self.groups[i] for i in indices],
            times=None if self.times is None else self.times[list(indices)],
        )

    def split_off(self, fraction: float, seed: int, by: SplitBy = "shares") -> tuple[list[int], list[int]]:
        """Splits off a share by `stratified_split`, `grouped_split` or `newest_split`; returns rest and share."""
        if by == "time":
            if self.times is None:
                raise ValueError("the data have no times; give each example one, or leave split_by at 'shares'")
            return newest_split(self.times, fraction, self.groups)
        if self.groups is not None:
            return grouped_split(self.groups, self.strata, fraction, seed)
        return stratified_split(self.names, self.strata, fraction, seed)

    def folds(self, num_folds: int, seed: int) -> list[list[int]]:
        """Returns `stratified_folds`, or `grouped_folds` where there are groups."""
        if self.groups is not None:
            return grouped_folds(self.groups, self.strata, num_folds, seed)
        return stratified_folds(self.names, self.strata, num_folds, seed)

    def check_parts(self, split: Tensor) -> None:
        """Raises a ValueError where a group is in two splits of `(n,)` numbers; negative numbers mean none."""
        first: dict[str, int] = {}
        for i, part in enumerate(split.tolist()) if self.groups is not None else ():
            group = self.groups[i]  # pyright: ignore[reportOptionalSubscript]
            if part >= 0 and split[first.setdefault(group, i)] != part:
                raise ValueError(
                    f"the group {group!r} is in two splits, by {self.names[first[group]]} and {self.names[i]}; "
                    "keep all of a group in one"
                )


@final
class _Some(Sequence[str]):
    """A subset of names, which may be generated on access."""

    def __init__(self, names: Sequence[str], indices: Sequence[int]) -> None:
        self._names, self._indices = names, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return self._names[self._indices[index]]


def stratified_split(
    names: Sequence[str], labels: Sequence[int], test_fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Split indices so that every class gives the same share to the test set, as nearly as whole examples allow.

    A test set of ``ceil(test_fraction * n)`` examples is divided among the classes by largest remainder (ties to the
    smaller label). Every class keeps at least one example to train on, so a set of many one-example classes may yield
    fewer. Within a class the examples are ordered by the BLAKE2 hash of ``seed`` and name, and the first
    ones go to the test set: the same names give the same split on every machine, in whatever order they are listed.

    Args:
        names: a distinct name for each example.
        labels: a label for each example.
        test_fraction: share of the test set, above 0 and below 1.
        seed: selects one of many such splits.

    Returns:
        The train and the test indices, each in increasing order.

    Raises:
        ValueError: the fraction is out of range, or no class has an example to spare.
    """
    _check_fraction(test_fraction)
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
        if len(members) < 2:  # also for examples without classes
            raise ValueError(f"{len(names)} example leaves none to hold out: give at least two")
        raise ValueError(
            f"{len(names)} examples in {len(members)} classes leave none to hold out: give one class at least two "
            "examples"
        )

    test: list[int] = []
    for label, count in counts.items():
        test += sorted(members[label], key=lambda index: _digest(seed, names[index]))[:count]
    chosen = set(test)
    return [index for index in range(len(names)) if index not in chosen], sorted(test)


def stratified_folds(names: Sequence[str], labels: Sequence[int], num_folds: int, seed: int) -> list[list[int]]:
    """Split indices into folds of similar size, over which every class is spread as evenly as whole examples allow.

    Within a class examples are in the order of `stratified_split`; they are dealt to the folds in turn, class after
    class.

    Args:
        names, labels, seed: as of `stratified_split`.
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


def newest_split(times: Tensor, fraction: float, groups: Sequence[str] | None = None) -> tuple[list[int], list[int]]:
    """Split off the newest examples, so that all of them are newer than all others.

    Examples of equal times stay together. So do those of a group, whose time is that of its newest example (its other
    examples may then be older than the rest). Among the possible cuts, the one whose share is nearest to `fraction` is
    taken; of two, the one with the smaller share.

    Args:
        times: finite `(n,)`.
        fraction: share to split off, above 0 and below 1.
        groups: a group name for each example; None: no groups.

    Returns:
        Indices of the older and of the newest examples, each in increasing order.

    Raises:
        ValueError: the fraction is out of range, or all times are equal.
    """
    _check_fraction(fraction)
    when: list[float] = times.tolist()
    if groups is not None:
        newest: dict[str, float] = {}
        for group, time in zip(groups, when, strict=True):
            newest[group] = max(time, newest.get(group, time))
        when = [newest[group] for group in groups]
    order = sorted(range(len(when)), key=lambda index: -when[index])
    cuts = [count for count in range(1, len(order)) if when[order[count - 1]] != when[order[count]]]
    if not cuts:
        raise ValueError(f"{len(when)} examples are all of one time, which leave none to hold out")
    cut = min(cuts, key=lambda count: (abs(count - fraction * len(order)), count))
    return sorted(order[cut:]), sorted(order[:cut])


def grouped_split(
    groups: Sequence[str], labels: Sequence[int], fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Split off whole groups with about a share of every class.

    Legend: n_k examples of class k, s_k of them split off, n and s their sums, f the share. The objective to minimise
    is

        (s - f n)² / n + Σ_k (s_k - f n_k)² / n_k

    Groups are visited in the order of the BLAKE2 hash of `seed` and name. Each moves to the other side where that
    reduces the objective and leaves an example of each class to train on; this repeats until no group moves. If nothing
    is split off by then, since all groups are large, the group that adds least is split off.

    Args:
        groups: a group name for each example.
        labels: a label for each example.
        fraction: f, above 0 and below 1.
        seed: selects one of many such splits.

    Returns:
        Indices of the rest and of the part that is split off, each in increasing order.

    Raises:
        ValueError: the fraction is out of range, or every group has all examples of a class.
    """
    _check_fraction(fraction)
    sizes, members = Counter(labels), _members(groups, labels, seed)
    away: Counter[int] = Counter()
    chosen: dict[str, bool] = dict.fromkeys(members, False)

    def added(group: str, sign: int) -> float:
        """Returns the change of the objective where a group is split off (1) or taken back (-1)."""
        own = members[group]
        parts = [(own.total(), away.total(), len(groups))]
        parts += [(count, away[label], sizes[label]) for label, count in own.items()]
        # a plain sum would round by the order of the examples, which must not decide between equal groups
        return math.fsum((2 * sign * m * (s - fraction * n) + m * m) / n for m, s, n in parts)

    def may_go(group: str) -> bool:
        return all(away[label] + count < sizes[label] for label, count in members[group].items())

    def move(group: str) -> None:
        sign = -1 if chosen[group] else 1
        for label, count in members[group].items():
            away[label] += sign * count
        chosen[group] = not chosen[group]

    has_moved = True
    while has_moved:
        has_moved = False
        for group in members:
            if added(group, -1 if chosen[group] else 1) < -1e-9 and (chosen[group] or may_go(group)):
                move(group)
                has_moved = True
    if not any(chosen.values()):
        large = [group for group in members if may_go(group)]
        if not large:
            raise ValueError(
                f"{len(members)} groups of {len(sizes)} classes leave none to hold out: give one class at least two "
                "groups"
            )
        move(min(large, key=lambda group: added(group, 1)))
    parts: tuple[list[int], list[int]] = ([], [])
    for index, group in enumerate(groups):
        parts[chosen[group]].append(index)
    return parts


def grouped_folds(groups: Sequence[str], labels: Sequence[int], num_folds: int, seed: int) -> list[list[int]]:
    """Split indices into folds of whole groups, over which every class is spread about evenly.

    Groups are dealt from the largest on (ties by hash, as in `grouped_split`), each to the fold that has least of its
    classes, by Σ_k c_k s_k / n_k over its c_k examples of class k and the s_k that the fold has; ties go to the fold
    with the fewest examples.

    Args:
        groups, labels, seed: as of `grouped_split`.
        num_folds: at least 2, and at most as many as there are groups.

    Returns:
        The indices of each fold in increasing order.

    Raises:
        ValueError: the number of folds is out of range.
    """
    sizes, members = Counter(labels), _members(groups, labels, seed)
    if not 2 <= num_folds <= len(members):
        raise ValueError(f"num_folds is {num_folds}; pass a number from 2 to the {len(members)} groups")
    dealt: list[Counter[int]] = [Counter() for _ in range(num_folds)]
    fold_of: dict[str, int] = {}
    for group in sorted(members, key=lambda group: -members[group].total()):
        own = members[group]
        crowded = [
            (math.fsum(count * fold[label] / sizes[label] for label, count in own.items()), fold.total())
            for fold in dealt
        ]
        fold_of[group] = crowded.index(min(crowded))
        dealt[fold_of[group]] += own
    return [[index for index, group in enumerate(groups) if fold_of[group] == fold] for fold in range(num_folds)]


def _members(groups: Sequence[str], labels: Sequence[int], seed: int) -> dict[str, Counter[int]]:
    """Returns the class counts of every group, in the order of hashes."""
    found: dict[str, Counter[int]] = {
        group: Counter() for group in sorted(set(groups), key=lambda group: _digest(seed, group))
    }
    for group, label in zip(groups, labels, strict=True):
        found[group][label] += 1
    return found


def some_of_each(names: Sequence[str], labels: Sequence[int], count: int, seed: int) -> list[int]:
    """Returns the indices of `count` examples of every class, or all of a smaller one, in increasing order.

    They are the first ones in the order of `stratified_split`, so that a larger `count` extends a smaller one.
    """
    members: dict[int, list[int]] = {}
    for index in sorted(range(len(names)), key=lambda index: _digest(seed, names[index])):
        members.setdefault(labels[index], []).append(index)
    return sorted(index for group in members.values() for index in group[:count])


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(f"test_fraction is {fraction}; pass a number above 0 and below 1")


def _digest(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}:{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
