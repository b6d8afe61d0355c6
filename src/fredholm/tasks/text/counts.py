"""Models of tokens by counts: what comes after the last few, and what stands between two neighbours."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, final

from fredholm.tasks.baselines import Baseline
from fredholm.tasks.splits.splits import HeldOut

MOST_TOKENS = 1_000_000
"""From which is to be learnt, the first ones."""


@final
class NGrams(Baseline):
    """Interpolated n-grams of tokens; the setting is the longest n.

        p(c | a b) = (N(a b c) + T(a b) p(c | b)) / (N(a b) + T(a b))

    with N the times that something came and T the number of different tokens that came after it (Witten and Bell,
    1991); under the shortest context lies 1 / V.

    Args:
        train: tokens to learn from.
        held_out: tokens of a split; all but the first are told.
        vocab_size: V.
    """

    name = "n-grams (Witten-Bell)"
    settings = tuple(range(1, 8))

    def __init__(
        self, train: Callable[[], Sequence[int]], held_out: Callable[[HeldOut], Sequence[int]], vocab_size: int
    ) -> None:
        self._train, self._held_out, self._size = train, held_out, vocab_size

    @cached_property
    def _counts(self) -> list[tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]], Counter[tuple[int, ...]]]]:
        """Of each length of a context: how often a token came after it, how often it came, and how many kinds did."""
        tokens, found = list(self._train()), []
        for n in range(int(max(self.settings))):
            came = Counter(tuple(tokens[end - n : end + 1]) for end in range(n, len(tokens)))
            before, kinds = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
            for longer, times in came.items():
                before[longer[:-1]] += times
                kinds[longer[:-1]] += 1
            found.append((came, before, kinds))
        return found

    def fitted(self, setting: float) -> Callable[[HeldOut], float]:
        """See `Baseline.fitted`: the perplexity."""
        return lambda split: math.exp(-_mean(self._logarithms(list(self._held_out(split)), int(setting))))

    def _logarithms(self, tokens: list[int], order: int) -> Iterator[float]:
        for end in range(1, len(tokens)):
            p = 1 / self._size
            for n, (came, before, kinds) in enumerate(self._counts[: min(order, end + 1)]):
                context = tuple(tokens[end - n : end])
                if context not in before:
                    break
                p = (came[*context, tokens[end]] + kinds[context] * p) / (before[context] + kinds[context])
            yield math.log(p)


@final
class BetweenNeighbours(Baseline):
    """p(token | the one before, the one after), smoothed step by step: both, the mean of either, and the token alone.

    Each step is (n p + k q) / (n + k) for n sightings with shares p and the next step's q; k is the setting. A token
    that is hidden is no neighbour.

    Args:
        train: tokens to learn from.
        held_out: of each hidden token of a split that before it, itself, and that after it.
        hidden: the token that hides others.
        vocab_size: number of tokens.
    """

    name = "both neighbours, smoothed"
    settings = (0.5, 2.0, 8.0, 32.0)

    def __init__(
        self,
        train: Callable[[], Sequence[int]],
        held_out: Callable[[HeldOut], Iterable[tuple[int, int, int]]],
        hidden: int,
        vocab_size: int,
    ) -> None:
        self._train, self._held_out = train, held_out
        self._hidden, self._size = hidden, vocab_size

    @cached_property
    def _counts(self) -> "_Sightings":
        tokens = list(self._train())
        ring = [tokens[-1], *tokens, tokens[0]]  # so that every token has two neighbours
        around = list(zip(ring, ring[1:], ring[2:], strict=False))
        outside = Counter((before, after) for before, _, after in around)
        return _Sightings(Counter(tokens), Counter(pairwise(ring[1:])), Counter(around), outside)

    def fitted(self, setting: float) -> Callable[[HeldOut], float]:
        """See `Baseline.fitted`: the perplexity of hidden tokens."""
        return lambda split: math.exp(
            -_mean(math.log(self._chance(*places, setting)) for places in self._held_out(split))
        )

    def _chance(self, before: int, token: int, after: int, k: float) -> float:
        alone, following, between, outside = self._counts
        base = (alone[token] + 1) / (alone.total() + self._size)
        sides = []
        if before != self._hidden:
            sides.append((following[before, token] + k * base) / (alone[before] + k))
        if after != self._hidden:
            sides.append((following[token, after] + k * base) / (alone[after] + k))
        if not sides:
            return base
        either = sum(sides) / len(sides)
        if len(sides) == 1:
            return either
        return (between[before, token, after] + k * either) / (outside[before, after] + k)


class _Sightings(NamedTuple):
    """How often tokens came, pairs of them, three in a row, and the outer ones of these."""

    alone: Counter[int]
    following: Counter[tuple[int, int]]
    between: Counter[tuple[int, int, int]]
    outside: Counter[tuple[int, int]]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)
