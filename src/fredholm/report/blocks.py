"""The parts of a page: tabs, sections and blocks, as plain values that one template lays out."""

from dataclasses import dataclass
from typing import Any, final

from fredholm.tasks.objective import Objective


@final
@dataclass(frozen=True)
class Share:
    """A share from 0 to 1, shown in percent with some decimals."""

    value: float
    decimals: int = 1


Cell = str | int | float | Share | None
"""A cell of a table; None is shown as a dash."""


def metric_cell(objective: Objective, value: float | None) -> Cell:
    """The cell of a metric's value; None where there is none."""
    return Share(value, decimals=2) if objective.percent and value is not None else value


Spec = dict[str, Any]
"""A Vega-Lite specification."""


@final
@dataclass(frozen=True, kw_only=True)
class Facts:
    """A list of facts: a name and its value, or one value per run.

    Args:
        rows: pairs of a name and its values.
        heads: column heads of the values; () where each name has one value.
    """

    rows: tuple[tuple[str, tuple[str, ...]], ...]
    heads: tuple[str, ...] = ()
    kind: str = "facts"


@final
@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with a title; numbers are aligned to the right.

    Args:
        title: caption of the table, which screen readers read out too.
        columns: heads of the columns.
        rows: one cell per column each.
        note: explanation of the numbers; may be empty.
        is_folded: whether it is collapsed until it is clicked.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    is_folded: bool = False
    kind: str = "table"


@final
@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot with a table of its numbers, for screen readers among others.

    Args:
        title: title of the plot and of the table.
        spec: Vega-Lite specification of the plot.
        table: the numbers, collapsed until they are clicked.
        note: explanation of the plot.
        is_half: whether it takes half of the width, so that two fit side by side.
    """

    title: str
    spec: Spec
    table: Table
    note: str = ""
    is_half: bool = False
    kind: str = "plot"


@final
@dataclass(frozen=True, kw_only=True)
class Card:
    """One example of a gallery.

    Args:
        title: name of the example, such as its file.
        drawings: its views as HTML that is already escaped.
        lines: lines of text below.
        is_wrong: whether the prediction is wrong; None where predictions are not right or wrong.
    """

    title: str
    drawings: tuple[str, ...]
    lines: tuple[str, ...]
    is_wrong: bool | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Gallery:
    """A gallery of examples side by side."""

    title: str
    cards: tuple[Card, ...]
    note: str = ""
    kind: str = "gallery"


@final
@dataclass(frozen=True, kw_only=True)
class Figure:
    """A headline number.

    Args:
        value: the number as text.
        name: its name.
        note: its uncertainty and source.
    """

    value: str
    name: str
    note: str = ""
    kind: str = "figure"


@final
@dataclass(frozen=True)
class Note:
    """A paragraph; `is_warning` marks that something is missing or wrong."""

    text: str
    is_warning: bool = False
    kind: str = "note"


Block = Facts | Table | Plot | Gallery | Figure | Note


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """A section: blocks under one title."""

    title: str
    blocks: tuple[Block, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Tab:
    """A tab: sections that are shown together."""

    name: str
    sections: tuple[Section, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page."""

    title: str
    lead: str
    tabs: tuple[Tab, ...]
    notes: tuple[str, ...] = ()
    """Warnings about missing parts."""
