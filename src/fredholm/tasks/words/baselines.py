"""Models of each word by itself, to judge whether its neighbours and features are needed."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fredholm.models.fitted.conditional_random_field import UNKNOWN
from fredholm.tasks.baselines import LEAST_CHANCE, Baseline
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut

from .word_set import WordSet


@final
@dataclass(frozen=True)
class WordBaselineData:
    """A task's sentences for models of each word by itself.

    Args:
        of: returns the sentences of a part.
        value: returns the objective of probabilities of the labels, `(N, K)` for each sentence of a split.
    """

    of: Callable[[Split], WordSet]
    value: Callable[[Sequence[Tensor], HeldOut], float]


def word_baselines(data: WordBaselineData) -> tuple[Baseline, ...]:
    """The baselines of a task."""
    return (CommonestOfWord(data), Commonest(data))


class _OfCounts(Baseline):
    """Shares of the labels of some words of the training split."""

    settings = (0.0,)

    def __init__(self, data: WordBaselineData) -> None:
        self._data = data

    @abstractmethod
    def _key(self, word: str) -> str:
        """Words with equal keys are counted together; of other words, all are."""

    @final
    def fitted(self, setting: float) -> Callable[[HeldOut], float]:
        """See `Baseline.fitted`; the setting has no effect."""
        data, train, counts = self._data, self._data.of("train"), dict[str, Counter[int]]()
        for sentence, targets in zip(train.sentences, train.targets, strict=True):
            for word, target in zip(sentence.words, targets.tolist(), strict=True):
                if target != UNKNOWN:
                    counts.setdefault(self._key(word), Counter())[target] += 1
        whole = train.counts.double()

        def shares(words: Sequence[str]) -> Tensor:
            found = whole.repeat(len(words), 1)
            for row, word in zip(found, words, strict=True):
                if (own := counts.get(self._key(word))) is not None:
                    row.zero_()
                    row[list(own)] = torch.tensor(list(own.values()), dtype=row.dtype)
            return (found / found.sum(1, keepdim=True)).clamp_min(LEAST_CHANCE)

        return lambda split: data.value([shares(each.words) for each in data.of(split).sentences], split)


@final
class CommonestOfWord(_OfCounts):
    """The commonest label of each word in training, and for other words the commonest one of all."""

    name = "commonest label of the word"

    def _key(self, word: str) -> str:
        return word


@final
class Commonest(_OfCounts):
    """The commonest label of all words."""

    name = "commonest label"

    def _key(self, word: str) -> str:
        return ""
