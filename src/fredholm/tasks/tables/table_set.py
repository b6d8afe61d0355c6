"""Rows of tables with what to predict of them."""

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
    """Rows as they are written.

    Args:
        cells: of each column, without blanks round them, n of them.
        places: file and line of each row.
    """

    cells: Mapping[str, Sequence[str]]
    places: Sequence[tuple[Path, int]]

    def __len__(self) -> int:
        return len(self.places)

    def place(self, i: int, name: str) -> str:
        """Where the cell of row i in a column stands, for messages."""
        path, line = self.places[i]
        return f"{path}, line {line}: column {name!r}"

    def files(self, name: str) -> list[Path | None]:
        """The files that the cells of a column name, from the folder of their table on; None where one is missing.

        Raises:
            ValueError: there is no such file.
        """
        found = list[Path | None]()
        for i, ((table, _), cell) in enumerate(zip(self.places, self.cells[name], strict=True)):
            file = None if cell.lower() in MISSING else table.parent / cell
            if file is not None and not file.is_file():
                raise ValueError(
                    f"{self.place(i, name)}: there is no file {file}; put it there, with its path from the folder of "
                    "the table on, leave the cell empty, or ignore the column"
                )
            found.append(file)
        return found

    def select(self, numbers: Sequence[int]) -> Self:
        """Some of them, in this order."""
        cells = {name: [column[i] for i in numbers] for name, column in self.cells.items()}
        return replace(self, cells=cells, places=[self.places[i] for i in numbers])


@final
@dataclass(frozen=True, kw_only=True)
class TableSet(Divisible):
    """n rows, each with an answer.

    Args:
        rows: they, with the columns that may be read.
        answers: one each.
        marks: what the data say of splits.
    """

    shared: ClassVar[tuple[str, ...]] = ("answer_names",)

    rows: Rows
    answers: Answers
    marks: SplitMarks = NO_MARKS

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Of the classes, labels or numbers."""
        return self.answers.names

    @property
    def keys(self) -> SplitKeys:
        """The cells, with a number where a row is there again, and what the data say of splits."""
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
