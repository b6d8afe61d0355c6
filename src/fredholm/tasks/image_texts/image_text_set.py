"""Images with a text and a label each: the frozen value that every reader returns."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from fredholm.tasks.files.mapped import shards_of_some
from fredholm.tasks.images import ImageDataset
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Examples
from fredholm.tasks.targets import ClassAnswers
from fredholm.tasks.targets.class_names import ClassNames


@final
@dataclass(frozen=True, kw_only=True)
class Example:
    """One text with its images, as read.

    Args:
        images: identifiers of the images, such as their paths as the file has them.
        text: the text, not blank.
        label: the class; None: not known.
        marks: split, group and time, by the words of `MARKS`.
        path: the file.
        line: the line in the file, from 1; in an .npz file the index of the example.
    """

    images: tuple[str, ...]
    text: str
    label: str | None
    marks: Mapping[str, str] = field(default_factory=dict)
    path: Path
    line: int

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.line}"


@final
@dataclass(frozen=True, kw_only=True)
class ImageTextSet(Examples):
    """n texts with M images each.

    Args:
        examples: the texts.
        pictures: all images, each once; only their pixels are read.
        index: int64 `(n, M)`, the pictures of each example.
        labels: int64 `(n,)`, each in `0 .. len(classes) - 1`; None: they have none.
        classes: the class names.
        marks: splits, groups and times of the examples.
    """

    shared: ClassVar[tuple[str, ...]] = ("classes", "channels", "image_size", "num_images")

    examples: tuple[Example, ...]
    pictures: ImageDataset
    index: Tensor
    labels: Tensor | None
    classes: tuple[str, ...]
    marks: SplitMarks = NO_MARKS

    def __len__(self) -> int:
        """The number of texts."""
        return len(self.examples)

    @property
    def channels(self) -> int:
        """Channels of each image, 1 (grey) or 3 (RGB)."""
        return self.pictures.channels

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pictures.image_size

    @property
    def num_images(self) -> int:
        """M, the number of images of each text."""
        return self.index.shape[1]

    @property
    def shards(self) -> Tensor | None:
        """Sizes of shards on disk, in texts; see `Task.train_shards`."""
        return shards_of_some(self.pictures.shards, self.index[:, 0])

    @property
    def names(self) -> tuple[str, ...]:
        """A distinct name for each text, independent of the folder and of the order of different examples."""
        seen: Counter[str] = Counter()
        found = []
        for example in self.examples:
            name = repr((example.text, example.images))
            found.append(f"{name}, {seen[name]}")
            seen[name] += 1
        return tuple(found)

    @property
    def answers(self) -> ClassAnswers | None:
        """The labels of the texts; None: there are none."""
        return None if self.labels is None else ClassAnswers(names=self.classes, values=self.labels)

    def images(self, indices: Tensor) -> Tensor:
        """The images at `indices`, int64 `(m,)`, as uint8 `(m, M, C, H, W)`; errors as those of the pictures."""
        index = self.index[indices]
        return self.pictures.images(index.flatten()).unflatten(0, index.shape)

    def select(self, indices: Tensor) -> Self:
        """The examples at `indices`, int64 `(m,)`."""
        return replace(
            self,
            examples=tuple(self.examples[i] for i in indices.tolist()),
            index=self.index[indices],
            labels=None if self.labels is None else self.labels[indices],
            marks=self.marks.select(indices),
        )


def numbered(examples: Sequence[Example], split: Tensor | None) -> tuple[Tensor | None, tuple[str, ...]]:
    """The labels of examples, None where none has one, and the classes of the training examples.

    Args:
        examples: the texts.
        split: int64 `(n,)`, the split of each: 0 train, 1 valid, 2 test; None: all are training examples.

    Raises:
        ValueError: some have labels and others none, or a class is not in the training examples.
    """
    labelled = [example for example in examples if example.label is not None]
    if not labelled:
        return None, ()
    if len(labelled) < len(examples):
        bare = next(example for example in examples if example.label is None)
        raise ValueError(f"{bare.place}: has no 'label', but {labelled[0].place} has one; give each one")
    words = [str(example.label) for example in examples]
    learnt = words if split is None else [words[i] for i in (split == 0).nonzero()[:, 0].tolist()]
    _, known = ClassNames(None).number(learnt)
    names = ClassNames(known)
    for example, word in zip(examples, words, strict=True):
        try:
            names.check(word)
        except ValueError as error:
            raise ValueError(f"{example.place}: label: {error}, those of the training data") from error
    numbers, classes = names.number(words)
    return torch.tensor(numbers, dtype=torch.int64), classes
