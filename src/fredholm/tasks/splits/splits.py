"""Data sets in splits: for training, for choices, and for the final measurement."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, Self, TypeVar, final, get_args

from torch import Tensor

from .stratified_split import SplitKeys

HeldOut = Literal["valid", "test"]
"""A split without training: choices are made on `valid`, and `test` is read once, after all choices."""


def check_held_out(split: str) -> None:
    """Raises a ValueError unless the name is one of `HeldOut`."""
    if split not in (known := get_args(HeldOut)):
        raise ValueError(f"split is {split!r}; expected one of {', '.join(known)}")


class Examples(ABC):
    """Examples of one problem, identified by their index."""

    shared: ClassVar[tuple[str, ...]]
    """Attributes that must be equal in every split, since one model serves them all."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @property
    def example_weights(self) -> Tensor | None:
        """Weight of each example in losses and metrics, float64 `(n,)`, above 0 and of mean 1; None: all are 1."""
        return None

    def check_split(self, name: str) -> None:
        """Raises a ValueError unless the examples can be the split of that name."""
        if len(self) == 0:
            raise ValueError(f"the {name} set is empty; expected at least one example")


class Divisible(Examples):
    """Examples of which subsets can be taken."""

    @property
    @abstractmethod
    def keys(self) -> SplitKeys:
        """Keys that the examples are split by."""

    @abstractmethod
    def select(self, indices: Tensor) -> Self:
        """Returns the examples at `indices`, int64 `(n,)`, in that order."""


Part = TypeVar("Part", bound=Examples)
Whole = TypeVar("Whole", bound=Divisible)


@final
@dataclass(frozen=True)
class Splits(Generic[Part]):
    """Data sets that one model can serve; `valid` and `test` are None where there is none.

    Raises:
        ValueError: a set is empty, or their shared attributes differ.
    """

    train: Part
    test: Part | None = None
    valid: Part | None = None
    is_given: bool = field(default=True, kw_only=True)
    """Whether the data have splits; else all examples are in `train` for now."""
    sizes: tuple[tuple[int, int], tuple[int, int]] | None = field(default=None, kw_only=True)
    """Smallest and largest size of images of several sizes for which a common one was chosen."""

    @staticmethod
    def of_rows(whole: Whole, split: Tensor | None) -> "Whole | Splits[Whole]":
        """Divides examples by split numbers, 0 train, 1 valid, 2 test, others none; None: returns them undivided.

        Raises:
            ValueError: there are no training examples.
        """
        if split is None:
            return whole
        train, valid, test = (
            whole.select(rows) if len(rows := (split == n).nonzero()[:, 0]) else None for n in range(3)
        )
        if train is None:
            raise ValueError("the split has nothing to train on; expected 'train' at least once")
        return Splits(train, test, valid)

    def __post_init__(self) -> None:
        self.train.check_split("training")
        for split, part in (("test", self.test), ("validation", self.valid)):
            if part is None:
                continue
            part.check_split(split)
            for name in self.train.shared:
                own, other = getattr(self.train, name), getattr(part, name)
                if own != other:
                    what = name.replace("_", " ")
                    raise ValueError(f"{what} differ: {own} in training, {other} in {split}; make them equal")

    def held_out(self, split: HeldOut) -> Part:
        """Returns the validation or the test set; raises a ValueError where there is none."""
        check_held_out(split)
        part = self.valid if split == "valid" else self.test
        if part is None:
            raise ValueError(f"the data have no {split} split; take the other one, or pass data with one")
        return part

    def check_facts(self, facts: object, data: str, *, apart_from: tuple[str, ...] = ()) -> None:
        """Raises a ValueError where attributes that splits share differ from the facts of a run on `data`."""
        for name in self.train.shared:
            if name in apart_from:
                continue
            got, expected = getattr(self.train, name), getattr(facts, name)
            if got != expected:
                raise ValueError(f"the {name} of {data} are {got}; the run was made with {expected}")


Prepared = TypeVar("Prepared")


@final
class OfEachSplit(Generic[Prepared]):
    """A value for each held-out split, which a function makes at its first use."""

    def __init__(self, make: Callable[[HeldOut], Prepared]) -> None:
        self._make, self._made = make, dict[HeldOut, Prepared]()

    def __getitem__(self, split: HeldOut) -> Prepared:
        if split not in self._made:
            self._made[split] = self._make(split)
        return self._made[split]
