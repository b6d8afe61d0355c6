"""The result of a prediction for one input."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import final

_NOTHING: Mapping[str, float] = MappingProxyType({})


@final
class Prediction(Mapping[str, str | float]):
    """A row of named cells, of which the first is the `file`.

    Where one of several classes is predicted, the last cells are the likeliest `class` and its `probability`.

    Args:
        file: file of the input.
        cells: the prediction, in display order: the place within the file, and the result unless it is a class.
        probabilities: probability of every class by name, where one of several is predicted; they sum to 1.
        source: content of `file`; default: the file's path.
    """

    def __init__(
        self,
        file: Path,
        cells: Mapping[str, str | float] = _NOTHING,
        probabilities: Mapping[str, float] = _NOTHING,
        *,
        source: str | None = None,
    ) -> None:
        self.file, self.probabilities = file, probabilities
        self._cells: dict[str, str | float] = {"file": str(file) if source is None else source, **cells}
        if probabilities:
            likeliest = max(probabilities, key=probabilities.__getitem__)
            self._cells |= {"class": likeliest, "probability": probabilities[likeliest]}

    def __getitem__(self, name: str) -> str | float:
        return self._cells[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        return repr(self._cells)

    def row(self, *, all_probabilities: bool = False) -> dict[str, str | float]:
        """Returns the cells; with `all_probabilities` also one per class, such as `probability of cat`."""
        more = {f"probability of {name}": value for name, value in self.probabilities.items()}
        return {**self._cells, **(more if all_probabilities else {})}
