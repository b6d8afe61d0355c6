"""A set of examples in splits: what a task learns from and what it is measured on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, final


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


Part = TypeVar("Part", bound=Examples)


@final
@dataclass(frozen=True)
class Splits(Generic[Part]):
    """A training and a test set that one model can serve.

    Raises:
        ValueError: one is empty, or they differ in what they should share.
    """

    train: Part
    test: Part

    def __post_init__(self) -> None:
        self.train.check_split("training")
        self.test.check_split("test")
        for name in self.train.shared:
            train, test = getattr(self.train, name), getattr(self.test, name)
            if train != test:
                what = name.replace("_", " ")
                raise ValueError(f"{what} differ: {train} in training, {test} in test; make them equal")

    def check_facts(self, facts: object, data: str, *, apart_from: tuple[str, ...] = ()) -> None:
        """Raises ValueError where what the splits share is not what the facts of a run on `data` say."""
        for name in self.train.shared:
            came, expected = getattr(self.train, name), getattr(facts, name)
            if came != expected and name not in apart_from:
                raise ValueError(f"the {name} of {data} are {came}; the run was made with {expected}")
