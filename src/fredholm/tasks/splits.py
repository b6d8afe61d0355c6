"""A set of examples in splits: what a task learns from, what it chooses by, and what is left for the end."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, Self, TypeVar, final

from torch import Tensor

HeldOut = Literal["valid", "test"]
"""A split that nothing is learnt from: choices are made on `valid`, and `test` is read once, when all is chosen."""


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

    @abstractmethod
    def select(self, indices: Tensor) -> Self:
        """The examples at `indices`, int64 `(n,)`, in that order."""


Part = TypeVar("Part", bound=Examples)


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
    """Whether the data say what the test set is; else a share of them was split off."""

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
        part = self.valid if split == "valid" else self.test
        if part is None:
            raise ValueError(f"the data have no {split} split; take the other one, or pass data with one")
        return part

    def check_facts(self, facts: object, data: str, *, apart_from: tuple[str, ...] = ()) -> None:
        """Raises ValueError where what the splits share is not what the facts of a run on `data` say."""
        for name in self.train.shared:
            came, expected = getattr(self.train, name), getattr(facts, name)
            if came != expected and name not in apart_from:
                raise ValueError(f"the {name} of {data} are {came}; the run was made with {expected}")
