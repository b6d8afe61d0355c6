"""Sentences with their labels or targets."""

import functools
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

from torch import Tensor

from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks, marks_of_cells
from fredholm.tasks.splits.splits import Divisible
from fredholm.tasks.splits.stratified_split import SplitKeys
from fredholm.tasks.splits.weights import weights_of_cells
from fredholm.tasks.targets import Answers, Kind, answers_of_cells

from .sentence import SentenceCells, Sentences


@final
@dataclass(frozen=True, kw_only=True)
class SentenceSet(Divisible):
    """n sentences or pairs, each with an answer.

    Args:
        sentences: the sentences or pairs.
        answers: one answer for each sentence or pair.
        marks: splits, groups, times and weights of the sentences.
    """

    shared: ClassVar[tuple[str, ...]] = ("answer_names",)

    sentences: Sentences
    answers: Answers
    marks: SplitMarks = NO_MARKS

    def __len__(self) -> int:
        """The number of sentences or pairs."""
        return len(self.sentences)

    @property
    def example_weights(self) -> Tensor | None:
        """See `Examples.example_weights`."""
        return self.marks.relative_weights

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Names of the classes, labels or numbers."""
        return self.answers.names

    @property
    def keys(self) -> SplitKeys:
        """Distinct names by the texts, the strata of the answers, groups and times."""
        return self.marks.keys(self.sentences.distinct_names(), self.answers.strata.tolist())

    def select(self, indices: Tensor) -> Self:
        """The sentences at `indices`, int64 `(m,)`."""
        return replace(
            self,
            sentences=self.sentences.select(indices),
            answers=self.answers.select(indices),
            marks=self.marks.select(indices),
        )


def with_answers(cells: SentenceCells, kind: Kind | None, known: tuple[str, ...] | None = None) -> SentenceSet:
    """Sentences with the answers of their labels, without those of weight 0; see `answers_of_cells`.

    Raises:
        ValueError: `answers_of_cells`, `marks_of_cells` or `weights_of_cells` refuse the cells. The message names file
            and line.
    """
    given = None
    for name, column in cells.weights.items():
        weights = weights_of_cells(column, functools.partial(cells.place, name=name))
        kept = weights.nonzero()[:, 0]
        cells, given = cells.select(kept), weights[kept]
    answers = answers_of_cells(cells.labels, kind, cells.place, known)
    marks = replace(marks_of_cells(cells.marks, cells.place), weights=given)
    return SentenceSet(sentences=cells.sentences, answers=answers, marks=marks)
