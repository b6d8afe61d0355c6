"""A set of sentences with a label for each word."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from fredholm.models.fitted.conditional_random_field import UNKNOWN
from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_files import SPLITS, Split, find_split_files
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks, marks_of_cells
from fredholm.tasks.splits.splits import Divisible, Splits
from fredholm.tasks.splits.stratified_split import SplitKeys
from fredholm.tasks.targets.class_names import ClassNames

from .word_file import WORD_SUFFIXES, LabelledWords, WordColumns, choose_columns, has_lists, read_words


@final
@dataclass(frozen=True, kw_only=True)
class WordSet(Divisible):
    """Sentences of words with labels.

    Args:
        sentences: the sentences, each with labels.
        names: names of the labels, in order.
        marks: splits, groups and times of the sentences.
    """

    shared: ClassVar[tuple[str, ...]] = ("names",)

    sentences: tuple[LabelledWords, ...]
    names: tuple[str, ...]
    marks: SplitMarks = NO_MARKS

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.sentences)

    @cached_property
    def lengths(self) -> Tensor:
        """Words of each sentence, int64 `(n,)`."""
        return torch.tensor([len(sentence.words) for sentence in self.sentences], dtype=torch.int64)

    @cached_property
    def targets(self) -> list[Tensor]:
        """The number of the label of each word of each sentence, int64 `(N,)`, UNKNOWN where it is not known."""
        number: dict[str | None, int] = {name: i for i, name in enumerate(self.names)}
        return [
            torch.tensor([number.get(label, UNKNOWN) for label in sentence.labels or ()], dtype=torch.int64)
            for sentence in self.sentences
        ]

    @cached_property
    def counts(self) -> Tensor:
        """Words of each label, int64 `(K,)`."""
        known = torch.cat([*self.targets, torch.empty(0, dtype=torch.int64)])
        return known[known != UNKNOWN].bincount(minlength=len(self.names))

    @property
    def keys(self) -> SplitKeys:
        """Distinct names by the words, groups and times; strata are of the rarest label of each sentence."""
        seen, names, strata = Counter[str](), list[str](), list[int]()
        for sentence, targets in zip(self.sentences, self.targets, strict=True):
            text = " ".join(sentence.words)
            names.append(f"{text}, {seen[text]}")
            seen[text] += 1
            known = targets[targets != UNKNOWN]
            strata.append(int(known[self.counts[known].argmin()]) if len(known) else len(self.names))
        return self.marks.keys(names, strata)

    def select(self, indices: Tensor) -> Self:
        """The sentences at `indices`, int64 `(m,)`."""
        chosen = tuple(self.sentences[i] for i in indices.tolist())
        return replace(self, sentences=chosen, marks=self.marks.select(indices))


def word_set(sentences: Sequence[LabelledWords], known: tuple[str, ...] | None = None) -> WordSet:
    """A set of sentences, whose labels are those that occur, in order, or the known ones.

    Raises:
        ValueError: a label is not known, or marks are refused; the message names file and line.
    """
    names = ClassNames(known)
    for sentence in sentences:
        for line, label in zip(sentence.lines, sentence.labels or (), strict=True):
            if label is not None and known is not None and label not in known:
                raise ValueError(
                    f"{sentence.path}, line {line}: label {label!r} is none of those in training, {', '.join(known)}; "
                    "correct it, or mark it as not known (_, or null in lists)"
                )
    _, found = names.number([label for each in sentences for label in each.labels or () if label is not None])
    first = sentences[0].marks
    for sentence in sentences:
        if sentence.marks.keys() != first.keys():
            raise ValueError(f"{sentence.place}: has the marks {list(sentence.marks)}, but the first has {list(first)}")
    cells = {name: [sentence.marks[name] for sentence in sentences] for name in first}
    marks = marks_of_cells(cells, lambda i, name: f"{sentences[i].place}: {name!r}")
    return WordSet(sentences=tuple(sentences), names=found, marks=marks)


@reads_data
def open_words(
    data: str | Path, *, word_column: str | None = None, label_column: str | None = None
) -> tuple[Splits[WordSet], WordColumns]:
    """Opens sentences of labelled words with their splits, or all as one set, and the columns that they are read from.

    Splits follow from the names of files or, where these name none, from `split` beside lists.

    Args:
        data: a file (`read_words`), a folder of them, or the start of the names of files with splits
            (`find_split_files`).
        word_column, label_column: see `choose_columns`.

    Raises:
        ValueError: there is no such file or folder, files are of both kinds, or are refused.
    """
    path = data_path(data)
    files = find_split_files(path, WORD_SUFFIXES, what="file of words", example=".conll", may_be_alone=True)
    if len(kinds := {has_lists(file): file.name for file in files.every}) > 1:
        raise ValueError(f"{path}: has lists and columns of words ({kinds[True]} and {kinds[False]}); keep one kind")
    columns = choose_columns(files.every[0], word_column, label_column)
    parts = dict[Split, WordSet]()
    for split in SPLITS:
        if split in files.parts:
            found = [each for file in files.parts[split] for each in read_words(file, columns, is_labelled=True)]
            parts[split] = word_set(found, parts["train"].names if parts else None)
    if files.by_split:
        return Splits(parts["train"], parts.get("test"), parts.get("valid")), columns
    whole = parts["train"]
    return whole.marks.divided(whole), columns
