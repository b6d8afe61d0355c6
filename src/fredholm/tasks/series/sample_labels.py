"""Classes of the samples of series."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.tasks.targets import UNKNOWN, ElementCounts
from fredholm.tasks.targets.class_names import ClassNames

UNKNOWN_WORDS = ("", "?", "nan")
"""Texts in place of an unknown class, in lower case; none and null are classes, as of samples without any activity."""


@final
@dataclass(frozen=True, kw_only=True)
class SampleLabels:
    """The class of each sample of n series, padded to the longest.

    Args:
        names: the classes.
        values: int64 `(n, T)`, each in `0 .. len(names) - 1`, or `UNKNOWN`, as after the end of a series.

    Raises:
        ValueError: values of another type, shape or range.
    """

    names: tuple[str, ...]
    values: Tensor

    def __post_init__(self) -> None:
        values = self.values
        if values.dtype != torch.int64 or values.ndim != 2:
            raise ValueError(f"labels of samples are {values.dtype} {tuple(values.shape)}; pass int64 (n, T)")
        wrong = (values != UNKNOWN) & ~((values >= 0) & (values < len(self.names)))
        for i, k in wrong.nonzero()[:1].tolist():
            raise ValueError(
                f"series {i}, sample {k}: class {int(values[i, k])}, but {len(self.names)} classes are named"
            )

    @property
    def is_known(self) -> Tensor:
        """Whether the class of each sample is known, bool `(n, T)`."""
        return self.values != UNKNOWN

    @property
    def counts(self) -> ElementCounts:
        """Numbers of samples of each class."""
        return ElementCounts(names=self.names, counts=self.values[self.is_known].bincount(minlength=len(self.names)))

    def of(self, values: Tensor) -> Self:
        """Other labels of these classes."""
        return replace(self, values=values)


def sample_labels(
    words: Sequence[np.ndarray], known: tuple[str, ...] | None, place: Callable[[int, int], str]
) -> SampleLabels:
    """Numbers the classes of samples.

    Args:
        words: of each series the classes of its samples as texts, `(length,)`; those of UNKNOWN_WORDS are unknown.
        known: the classes, in their order; None: those that occur, sorted.
        place: location of a sample, by the numbers of its series and of the sample, for messages.

    Raises:
        ValueError: a class is unknown.
    """
    every = np.concatenate([np.char.strip(own.astype(np.str_)) for own in words])
    texts, inverse = np.unique(every, return_inverse=True)
    given = [text for text in texts.tolist() if text.lower() not in UNKNOWN_WORDS]
    names = ClassNames(known)
    starts = np.cumsum([0, *map(len, words)])
    for text in given:
        try:
            names.check(text)
        except ValueError as error:
            at = int(np.flatnonzero(every == text)[0])
            i = int(np.searchsorted(starts, at, "right")) - 1
            raise ValueError(f"{place(i, at - int(starts[i]))}: {error}") from error
    numbers, classes = names.number(given)
    number = dict(zip(given, numbers, strict=True))
    codes = torch.tensor([number.get(text, UNKNOWN) for text in texts.tolist()], dtype=torch.int64)
    labels = codes[torch.from_numpy(inverse.reshape(-1))]
    return SampleLabels(names=classes, values=padded(labels.split([*map(len, words)])))


def padded(labels: Sequence[Tensor]) -> Tensor:
    """Labels of series of different lengths, `(n, T)`, `UNKNOWN` after their ends."""
    longest = max(map(len, labels), default=0)
    return torch.stack([F.pad(own, (0, longest - len(own)), value=UNKNOWN) for own in labels])
