"""A set of examples in splits: what a task learns from, what it chooses by, and what is left for the end."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, Self, TypeVar, final, get_args

from torch import Tensor

from .stratified_split import SplitKeys

HeldOut = Literal["valid", "test"]
"""A split that nothing is learnt from: choices are made on `valid`, and `test` is read once, when all is chosen."""


def check_held_out(split: str) -> None:
    """Raises ValueError unless it is a name of `HeldOut`."""
    if split not in (known := get_args(HeldOut)):
        raise ValueError(f"split is {split!r}; expected one of {', '.join(known)}")


class Examples(ABC):
    """Examples of one problem, told apart by their index."""

    shared: ClassVar[tuple[str, ...]]
    """The attributes that are the same in every split, since one model serves them all."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    def check_split(self, name: str) -> None:
        """Raises ValueError unless they can be the split of that name."""
        if len(self) == 0:
            raise ValueError(f"the {name} set is empty; expected at least one example")


class Divisible(Examples):
    """Examples of which some can be taken."""

    @property
    @abstractmethod
    def keys(self) -> SplitKeys:
        """What they are split by."""

    @abstractmethod
    def select(self, indices: Tensor) -> Self:
        """The examples at `indices`, int64 `(n,)`, in that order."""


Part = TypeVar("Part", bound=Examples)
Whole = TypeVar("Whole", bound=Divisible)


@final
@dataclass(frozen=True)
class Splits(Generic[Part]):
    """Sets that one model can serve; `valid` and `test` are None where there is none.

    Raises:
        ValueError: one is empty, or they differ in what they should share.
    """

    train: Part
    test: Part | None = None
    valid: Part | None = None
    is_given: bool = field(default=True, kw_only=True)
    """Whether the data have splits; else all examples are in `train`, as yet."""
    sizes: tuple[tuple[int, int], tuple[int, int]] | None = field(default=None, kw_only=True)
    """The smallest and the largest of images of several sizes for which a common one was chosen."""

    @staticmethod
    def of_rows(whole: Whole, split: Tensor | None) -> "Whole | Splits[Whole]":
        """Examples in the splits that numbers name, 0 train, 1 valid, 2 test, others in none; None: as they are.

        Raises:
            ValueError: there is nothing to train on.
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
        """The validation or the test set; raises ValueError where there is none."""
        check_held_out(split)
        part = self.valid if split == "valid" else self.test
        if part is None:
            raise ValueError(f"the data have no {split} split; take the other one, or pass data with one")
        return part

    def check_facts(self, facts: object, data: str, *, apart_from: tuple[str, ...] = ()) -> None:
        """Raises ValueError where what the splits share is not what the facts of a run on `data` say."""
        for name in self.train.shared:
            if name in apart_from:
                continue
            came, expected = getattr(self.train, name), getattr(facts, name)
            if came != expected:
                raise ValueError(f"the {name} of {data} are {came}; the run was made with {expected}")
