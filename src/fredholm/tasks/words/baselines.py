"""Models of each word by itself, to judge whether its neighbours and features are needed."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from fredholm.models.fitted.conditional_random_field import UNKNOWN
from fredholm.tasks.baselines import LEAST_CHANCE, Baseline
from fredholm.tasks.splits.splits import HeldOut

if TYPE_CHECKING:
    from .word_learning import WordLearning
    from .word_set import WordSet


def word_baselines(task: WordLearning) -> tuple[Baseline, ...]:
    """The baselines of a task."""
    return (CommonestOfWord(task), Commonest(task))


class _OfCounts(Baseline):
    """Shares of the labels of some words of the training split."""

    settings = (0.0,)

    def __init__(self, task: WordLearning) -> None:
        self._task = task

    @abstractmethod
    def _key(self, word: str) -> str:
        """Words with equal keys are counted together; of other words, all are."""

    @final
    def fitted(self, setting: float) -> Callable[[HeldOut], float]:
        """See `Baseline.fitted`; the setting has no effect."""
        task, counts = self._task, dict[str, Counter[int]]()
        for sentence, targets in zip(task.splits.train.sentences, task.splits.train.targets, strict=True):
            for word, target in zip(sentence.words, targets.tolist(), strict=True):
                if target != UNKNOWN:
                    counts.setdefault(self._key(word), Counter())[target] += 1
        whole = task.splits.train.counts.double()

        def shares(words: Sequence[str]) -> Tensor:
            found = whole.repeat(len(words), 1)
            for row, word in zip(found, words, strict=True):
                if (own := counts.get(self._key(word))) is not None:
                    row.zero_()
                    row[list(own)] = torch.tensor(list(own.values()), dtype=row.dtype)
            return (found / found.sum(1, keepdim=True)).clamp_min(LEAST_CHANCE)

        return lambda split: self._value(task.held_out(split), shares)

    def _value(self, examples: WordSet, shares: Callable[[Sequence[str]], Tensor]) -> float:
        metrics = self._task.metrics()
        for sentence, targets in zip(examples.sentences, examples.targets, strict=True):
            found, is_known = shares(sentence.words), targets != UNKNOWN
            if bool(is_known.any()):
                metrics["loss"].update(-found[is_known].log().gather(1, targets[is_known][:, None]))
                self._task.score_labels(found.argmax(1)[None], targets[None], metrics)
        return float(metrics[self._task.objective.metric].compute())


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
