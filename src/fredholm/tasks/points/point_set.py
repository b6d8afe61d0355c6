"""Point clouds with their labels or targets: the frozen value that every reader returns."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.cells import LARGEST, as_kept, as_single
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Examples
from fredholm.tasks.targets import Answers, ClassAnswers, NumberAnswers
from fredholm.tasks.targets.class_names import ClassNames

AXES = ("x", "y", "z")
NORMAL = ("nx", "ny", "nz")
"""The channels that are components of a direction."""


@final
@dataclass(frozen=True, kw_only=True)
class Cloud:
    """One cloud as it was read.

    Args:
        pos: `(N, 3)`.
        features: `(N, F)`.
        channels: the names of the features.
        weights: mass of each point, `(N,)`; None: all weigh the same.
        point_labels: class of each point, `(N,)`, as text; None: not known.
        name: origin of the cloud, for messages.
        is_sampled: whether the points were drawn on a surface.
    """

    pos: np.ndarray
    features: np.ndarray
    channels: tuple[str, ...] = ()
    weights: np.ndarray | None = None
    point_labels: np.ndarray | None = None
    name: str
    is_sampled: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class PointSet(Examples):
    """n clouds, whose numbers of points may differ, one after the other.

    Args:
        pos: float64 `(total, 3)`.
        features: float32 or float64 `(total, F)`.
        offsets: int64 `(n + 1,)`, rising from 0 to total: cloud i has the points `offsets[i]` to `offsets[i + 1]`.
        weights: mass of each point, float32 `(total,)`, at least 0 and not all 0 in a cloud; None: all weigh the same.
        labels: int64 `(n,)`, each in `0 .. len(classes) - 1`; None: clouds have none.
        classes: the class names of clouds.
        targets: float64 `(n, T)`, finite numbers to predict of clouds; None: clouds have none.
        target_names: names of the T numbers.
        point_labels: int64 `(total,)`, each in `0 .. len(point_classes) - 1`; None: points have none.
        point_classes: the class names of points.
        channels: the features' names.
        marks: splits, groups and times of the clouds.
        names: origin of each cloud, for messages.

    Raises:
        ValueError: shapes or types do not agree, a cloud is empty, a coordinate or feature is no finite number, a
            weight is negative, a label has no class.
    """

    shared: ClassVar[tuple[str, ...]] = ("classes", "target_names", "point_classes", "channels")

    pos: Tensor
    features: Tensor
    offsets: Tensor
    weights: Tensor | None = None
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    targets: Tensor | None = None
    target_names: tuple[str, ...] = ()
    point_labels: Tensor | None = None
    point_classes: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    marks: SplitMarks = NO_MARKS
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        total = len(self.pos)
        if self.pos.dtype != torch.float64 or self.pos.shape != (total, 3):
            raise ValueError(f"pos is {self.pos.dtype} {tuple(self.pos.shape)}; pass float64 (total, 3)")
        is_float = self.features.dtype in (torch.float32, torch.float64)
        if not is_float or self.features.shape != (total, len(self.channels)):
            raise ValueError(
                f"features are {self.features.dtype} {tuple(self.features.shape)}; pass float32 "
                f"or float64 ({total}, {len(self.channels)}), a column a channel"
            )
        if self.offsets.shape != (len(self) + 1,) or int(self.offsets[0]) != 0 or int(self.offsets[-1]) != total:
            raise ValueError(f"offsets do not rise from 0 to the {total} points, one more than {len(self)} names")
        for i in (self.sizes < 1).nonzero()[:1, 0].tolist():
            raise ValueError(f"{self.names[i]}: has no points; expected at least one")
        for what, values in (("coordinates", self.pos), ("features", self.features)):
            for i in (~values.isfinite()).nonzero()[:1, 0].tolist():
                point = ", ".join(f"{value:g}" for value in values[i].tolist())
                raise ValueError(
                    f"{self._place(i)}: its {what} are {point}; expected finite numbers of at most {LARGEST:.2g} in "
                    "size"
                )
        self._check_weights()
        self._check_labels("labels", self.labels, len(self), self.classes)
        self._check_labels("point labels", self.point_labels, total, self.point_classes)
        if self.labels is not None and self.targets is not None:
            raise ValueError("clouds have labels and targets; give one of them")
        if self.targets is not None and len(self.targets) != len(self):
            raise ValueError(f"targets are {tuple(self.targets.shape)}; pass ({len(self)}, {len(self.target_names)})")
        _ = self.answers  # raises a ValueError where targets are invalid
        self.marks.check(len(self))

    def _check_weights(self) -> None:
        if self.weights is None:
            return
        if self.weights.dtype != torch.float32 or self.weights.shape != self.pos.shape[:1]:
            raise ValueError(
                f"weights are {self.weights.dtype} {tuple(self.weights.shape)}; pass float32 ({len(self.pos)},)"
            )
        for i in (~((self.weights >= 0) & self.weights.isfinite())).nonzero()[:1, 0].tolist():
            raise ValueError(
                f"{self._place(i)}: its weight is {float(self.weights[i]):g}; expected a finite mass of at least 0"
            )
        mass = torch.zeros(len(self)).index_add(0, self.cloud_of_each, self.weights)
        for i in (mass == 0).nonzero()[:1, 0].tolist():
            raise ValueError(f"{self.names[i]}: all its weights are 0; expected some mass")

    def _check_labels(self, what: str, labels: Tensor | None, count: int, classes: tuple[str, ...]) -> None:
        if labels is None:
            return
        if labels.dtype != torch.int64 or labels.shape != (count,):
            raise ValueError(f"{what} are {labels.dtype} {tuple(labels.shape)}; pass int64 ({count},)")
        for i in (~((labels >= 0) & (labels < len(classes)))).nonzero()[:1, 0].tolist():
            place = self.names[i] if count == len(self) else self._place(i)
            raise ValueError(f"{place}: label {int(labels[i])}, but {len(classes)} classes are named")

    def _place(self, point: int) -> str:
        """Name of a point for messages: its cloud, and its index there from 0."""
        i = int(self.cloud_of_each[point])
        return f"{self.names[i]}: point {point - int(self.offsets[i])}"

    def __len__(self) -> int:
        """The number of clouds."""
        return len(self.names)

    @property
    def answers(self) -> Answers | None:
        """The labels or the targets of the clouds; None: there are none."""
        if self.labels is not None:
            return ClassAnswers(names=self.classes, values=self.labels)
        return None if self.targets is None else NumberAnswers(names=self.target_names, values=self.targets)

    @property
    def sizes(self) -> Tensor:
        """Points of each cloud, `(n,)`."""
        return self.offsets.diff()

    @property
    def cloud_of_each(self) -> Tensor:
        """The cloud of each point, `(total,)`."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def select(self, indices: Tensor) -> Self:
        """The clouds at `indices`, int64 `(m,)`."""
        sizes = self.sizes[indices]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        within = torch.arange(int(offsets[-1])) - offsets[:-1].repeat_interleave(sizes)
        points = within + self.offsets[indices].repeat_interleave(sizes)
        return replace(
            self,
            pos=self.pos[points],
            features=self.features[points],
            offsets=offsets,
            weights=None if self.weights is None else self.weights[points],
            labels=None if self.labels is None else self.labels[indices],
            targets=None if self.targets is None else self.targets[indices],
            point_labels=None if self.point_labels is None else self.point_labels[points],
            marks=self.marks.select(indices),
            names=tuple(self.names[i] for i in indices.tolist()),
        )

    @staticmethod
    def pack(
        clouds: Sequence[Cloud],
        *,
        labels: Sequence[str] | None = None,
        classes: tuple[str, ...] | None = None,
        numbers: NumberAnswers | None = None,
        point_classes: tuple[str, ...] | None = None,
        marks: SplitMarks = NO_MARKS,
    ) -> "PointSet":
        """Clouds as one set.

        Args:
            clouds: at least one.
            labels: the class of each cloud; None: not known.
            classes: the known classes of clouds, in their order; None: those of the training clouds, sorted.
            numbers: targets of each cloud; None: not known.
            point_classes: likewise of points.
            marks: splits, groups and times of the clouds; without splits, all are training clouds.

        Raises:
            ValueError: clouds differ in their features, only some have weights or labels of points, or a class is
                unknown.
        """
        first = clouds[0]
        for cloud in clouds:
            if cloud.channels != first.channels:
                came, expected = (", ".join(each.channels) or "none" for each in (cloud, first))
                raise ValueError(f"{cloud.name}: has the features {came}; {first.name} has {expected}; make them equal")
            for what in ("weights", "point_labels"):
                if (getattr(cloud, what) is None) != (getattr(first, what) is None):
                    one, other = (first, cloud) if getattr(cloud, what) is None else (cloud, first)
                    labels_name = what.replace("_labels", " labels").replace("point labels", "labels of points")
                    raise ValueError(f"{other.name}: has no {labels_name}, but {one.name} has some; give all or none")
        learnt = [True] * len(clouds) if marks.given is None else (marks.given == 0).tolist()
        if labels is not None and classes is None:
            _, classes = ClassNames(None).number([*itertools.compress(labels, learnt)])
        names = ClassNames(classes)
        for cloud, label in zip(clouds, labels or (), strict=False):
            try:
                names.check(label)
            except ValueError as error:
                raise ValueError(f"{cloud.name}: {error}") from error
        of_each, classes = (None, classes or ()) if labels is None else names.number(labels)
        point_labels = None
        if first.point_labels is not None:
            point_labels, point_classes = _numbered(clouds, learnt, point_classes)
        sizes = [len(cloud.pos) for cloud in clouds]
        weights = [cloud.weights for cloud in clouds if cloud.weights is not None]
        return PointSet(
            pos=torch.from_numpy(np.concatenate([cloud.pos for cloud in clouds]).astype(np.float64)),
            features=torch.from_numpy(as_kept(np.concatenate([cloud.features for cloud in clouds]))),
            offsets=torch.tensor([0, *np.cumsum(sizes).tolist()], dtype=torch.int64),
            weights=torch.from_numpy(as_single(np.concatenate(weights))) if weights else None,
            labels=None if of_each is None else torch.tensor(of_each, dtype=torch.int64),
            classes=classes,
            targets=None if numbers is None else numbers.values,
            target_names=() if numbers is None else numbers.names,
            point_labels=point_labels,
            point_classes=point_classes or (),
            channels=first.channels,
            marks=marks,
            names=tuple(cloud.name for cloud in clouds),
        )


def _numbered(
    clouds: Sequence[Cloud], learnt: Sequence[bool], known: tuple[str, ...] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """The labels of all points as class indices, and the classes: the known ones, or those of the training clouds."""
    words = [cloud.point_labels.astype(str) for cloud in clouds if cloud.point_labels is not None]
    if known is None:
        _, known = ClassNames(None).number(np.unique(np.concatenate([*itertools.compress(words, learnt)])).tolist())
    names = ClassNames(known)
    for cloud, own in zip(clouds, words, strict=True):
        for word in np.unique(own).tolist():
            try:
                names.check(word)
            except ValueError as error:
                at = int(np.flatnonzero(own == word)[0])
                raise ValueError(f"{cloud.name}: point {at}: {error}") from error
    values, inverse = np.unique(np.concatenate(words), return_inverse=True)
    numbers, classes = names.number(values.tolist())
    return torch.tensor(numbers, dtype=torch.int64)[torch.from_numpy(inverse.reshape(-1))], classes
