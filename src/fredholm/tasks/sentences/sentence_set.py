"""Sentences with what is to be told of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

from torch import Tensor

from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks, marks_of_cells
from fredholm.tasks.splits.splits import Divisible
from fredholm.tasks.splits.stratified_split import SplitKeys
from fredholm.tasks.targets import Answers, Kind, answers_of_cells

from .sentence import Sentence


@final
@dataclass(frozen=True, kw_only=True)
class SentenceSet(Divisible):
    """n sentences or pairs, each with an answer.

    Args:
        sentences: they.
        answers: one each.
        marks: what the data say of splits.
    """

    shared: ClassVar[tuple[str, ...]] = ("answer_names",)

    sentences: tuple[Sentence, ...]
    answers: Answers
    marks: SplitMarks = NO_MARKS

    def __len__(self) -> int:
        """The number of sentences or pairs."""
        return len(self.sentences)

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Of the classes, labels or numbers."""
        return self.answers.names

    @property
    def keys(self) -> SplitKeys:
        """The texts, with a number where one is there again, and what the data say of splits."""
        seen: Counter[tuple[str, str | None]] = Counter()
        names = []
        for sentence in self.sentences:
            text = (sentence.first, sentence.second)
            names.append(f"{text}, {seen[text]}")
            seen[text] += 1
        return self.marks.keys(names, self.answers.strata.tolist())

    def select(self, indices: Tensor) -> Self:
        """The sentences at `indices`, int64 `(m,)`."""
        return replace(
            self,
            sentences=tuple(self.sentences[i] for i in indices.tolist()),
            answers=self.answers.select(indices),
            marks=self.marks.select(indices),
        )


def with_answers(
    sentences: Sequence[Sentence], columns: tuple[str, ...], kind: Kind | None, known: tuple[str, ...] | None = None
) -> SentenceSet:
    """Sentences with the answers in columns of these names; see `answers_of_cells`.

    Raises:
        ValueError: what that and `marks_of_cells` refuse. The message names file and line.
    """

    def place(i: int, name: str) -> str:
        return f"{sentences[i].path}, line {sentences[i].line}: column {name!r}"

    cells: dict[str, list[str]] = {name: [] for name in columns}
    marks: dict[str, list[str]] = {word: [] for word, _ in sentences[0].marks}
    for sentence in sentences:
        assert sentence.labels is not None
        for name, cell in zip(columns, sentence.labels, strict=True):
            cells[name].append(cell)
        for word, cell in sentence.marks:
            marks.setdefault(word, []).append(cell)
    for word, column in marks.items():
        if len(column) != len(sentences):
            raise ValueError(f"some files have a column {word!r}, others none; give it to all")
    answers = answers_of_cells(cells, kind, place, known)
    return SentenceSet(sentences=tuple(sentences), answers=answers, marks=marks_of_cells(marks, place))
