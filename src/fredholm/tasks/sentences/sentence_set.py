"""Sentences with what is to be told of them: the value that a task learns from and is measured on."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fredholm.tasks.cells import parse_value
from fredholm.tasks.series.naming import ClassNames
from fredholm.tasks.splits import Examples

from .sentence import Sentence


@final
@dataclass(frozen=True)
class SentenceSet(Examples):
    """n sentences or pairs, each with a class or a number.

    Args:
        sentences: they.
        targets: int64 `(n,)`, each in `0 .. len(classes) - 1`, or float64 `(n,)` numbers.
        classes: the class names; () where targets are numbers.
    """

    shared: ClassVar[tuple[str, ...]] = ("classes",)

    sentences: tuple[Sentence, ...]
    targets: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        """The number of sentences or pairs."""
        return len(self.sentences)

    @property
    def digest(self) -> str:
        """What tells one set from another: a hash of all texts and labels in their order."""
        found = hashlib.blake2b(digest_size=16)
        for sentence in self.sentences:
            found.update(repr((sentence.first, sentence.second, sentence.label)).encode())
        return found.hexdigest()

    @staticmethod
    def of_classes(sentences: Sequence[Sentence], column: str, known: tuple[str, ...] | None) -> "SentenceSet":
        """Sentences whose labels, in a column of that name, are `known` classes; None: those that they are, sorted.

        Raises:
            ValueError: a label is empty or none of the known ones.
        """
        names = ClassNames(known)
        for sentence in sentences:
            if not sentence.label:
                raise sentence.error(column, "is empty; expected a class")
            try:
                names.check(sentence.label)
            except ValueError as error:
                raise sentence.error(column, f"{error}, those of the training data") from error
        numbers, classes = names.number([str(sentence.label) for sentence in sentences])
        return SentenceSet(tuple(sentences), torch.tensor(numbers, dtype=torch.int64), classes)

    @staticmethod
    def of_numbers(sentences: Sequence[Sentence], column: str) -> "SentenceSet":
        """Sentences whose labels, in a column of that name, are finite numbers.

        Raises:
            ValueError: one is none.
        """
        numbers = []
        for sentence in sentences:
            word = str(sentence.label)
            try:
                number = parse_value(word)
            except ValueError:
                number = math.nan
            if math.isnan(number):
                raise sentence.error(column, f"{word!r} is no finite number; write one, or leave the row out")
            numbers.append(number)
        return SentenceSet(tuple(sentences), torch.tensor(numbers, dtype=torch.float64), ())
