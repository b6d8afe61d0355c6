"""Count-based baselines for tokens: n-grams, and models of a token between two neighbours."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, final

from fredholm.tasks.baselines import Baseline
from fredholm.tasks.splits.splits import HeldOut

MOST_TOKENS = 1_000_000
"""Largest number of training tokens; the first ones are used."""


@final
class NGrams(Baseline):
    """Interpolated n-gram model of tokens; the setting is the longest n.

        p(c | a b) = (N(a b c) + T(a b) p(c | b)) / (N(a b) + T(a b))

    where N counts occurrences and T counts the different tokens that followed a context (Witten and Bell, 1991); the
    shortest context backs off to 1 / V.

    Args:
        train: returns the training tokens.
        held_out: returns the tokens of a split; all but the first are predicted.
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
        """For each context length: counts of tokens after contexts, of contexts, and of different tokens after them."""
        tokens, found = list(self._train()), []
        for n in range(int(max(self.settings))):
            counts = Counter(tuple(tokens[end - n : end + 1]) for end in range(n, len(tokens)))
            before, kinds = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
            for longer, times in counts.items():
                before[longer[:-1]] += times
                kinds[longer[:-1]] += 1
            found.append((counts, before, kinds))
        return found

    def fitted(self, setting: float) -> Callable[[HeldOut], float]:
        """See `Baseline.fitted`; the value is the perplexity."""
        return lambda split: math.exp(-_mean(self._logarithms(list(self._held_out(split)), int(setting))))

    def _logarithms(self, tokens: list[int], order: int) -> Iterator[float]:
        for end in range(1, len(tokens)):
            p = 1 / self._size
            for n, (counts, before, kinds) in enumerate(self._counts[: min(order, end + 1)]):
                context = tuple(tokens[end - n : end])
                if context not in before:
                    break
                p = (counts[*context, tokens[end]] + kinds[context] * p) / (before[context] + kinds[context])
            yield math.log(p)


@final
class TwoSidedNGrams(Baseline):
    """p(token | previous, next) with stepwise smoothing: by both, by the mean over either, and by the token alone.

    Each step is (n p + k q) / (n + k) for n occurrences with relative frequencies p and the next step's q; k is the
    setting. Masked tokens are not used as neighbours.

    Args:
        train: returns the training tokens.
        held_out: yields, for each masked token of a split, the previous token, the token, and the next one.
        hidden: the mask token.
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
        """See `Baseline.fitted`; the value is the perplexity of masked tokens."""
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
    """Counts of tokens, of pairs, of triples, and of the outer tokens of triples."""

    alone: Counter[int]
    following: Counter[tuple[int, int]]
    between: Counter[tuple[int, int, int]]
    outside: Counter[tuple[int, int]]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)
