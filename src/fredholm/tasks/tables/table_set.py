"""Rows of tables with their targets."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, final

from torch import Tensor

from fredholm.tasks.files.cells import MISSING
from fredholm.tasks.splits.split_marks import NO_MARKS, SplitMarks
from fredholm.tasks.splits.splits import Divisible
from fredholm.tasks.splits.stratified_split import SplitKeys
from fredholm.tasks.targets import Answers


@final
@dataclass(frozen=True, kw_only=True)
class Rows:
    """n rows, as written in their files.

    Args:
        cells: the n cells of each column, without surrounding blanks.
        places: file and line of each row.
    """

    cells: Mapping[str, Sequence[str]]
    places: Sequence[tuple[Path, int]]

    def __len__(self) -> int:
        return len(self.places)

    def place(self, i: int, name: str) -> str:
        """File, line and column of a cell, for messages."""
        path, line = self.places[i]
        return f"{path}, line {line}: column {name!r}"

    def files(self, name: str) -> list[Path | None]:
        """The files that the cells of a column name, relative to the folder of their table; None for missing cells.

        Raises:
            ValueError: a file does not exist.
        """
        found = list[Path | None]()
        for i, ((table, _), cell) in enumerate(zip(self.places, self.cells[name], strict=True)):
            file = None if cell.lower() in MISSING else table.parent / cell
            if file is not None and not file.is_file():
                raise ValueError(
                    f"{self.place(i, name)}: there is no file {file}; give its path from the folder of the table, "
                    "leave the cell empty, or ignore the column"
                )
            found.append(file)
        return found

    def select(self, numbers: Sequence[int]) -> Self:
        """The rows at these indices, in this order."""
        cells = {name: [column[i] for i in numbers] for name, column in self.cells.items()}
        return replace(self, cells=cells, places=[self.places[i] for i in numbers])


@final
@dataclass(frozen=True, kw_only=True)
class TableSet(Divisible):
    """n rows, each with an answer.

    Args:
        rows: the rows, with the columns that may be read.
        answers: one answer for each row.
        marks: split, group and time of the rows, where the table has them.
    """

    shared: ClassVar[tuple[str, ...]] = ("answer_names",)

    rows: Rows
    answers: Answers
    marks: SplitMarks = NO_MARKS

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def example_weights(self) -> Tensor | None:
        """See `Examples.example_weights`."""
        return self.marks.relative_weights

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Names of the classes, labels or numbers."""
        return self.answers.names

    @property
    def keys(self) -> SplitKeys:
        """Keys that rows are split by: their cells, a counter for repeated rows, and their marks."""
        seen, names = Counter[tuple[str, ...]](), []
        for row in zip(*self.rows.cells.values(), strict=True):
            names.append(f"{row}, {seen[row]}")
            seen[row] += 1
        return self.marks.keys(names, self.answers.strata.tolist())

    def select(self, indices: Tensor) -> Self:
        """The rows at `indices`, int64 `(m,)`."""
        return replace(
            self,
            rows=self.rows.select(indices.tolist()),
            answers=self.answers.select(indices),
            marks=self.marks.select(indices),
        )
