"""What a page is made of: tabs of sections of blocks, as plain values that one template lays out."""

from dataclasses import dataclass
from typing import Any, final

Cell = str | int | float | None
"""Of a table; None: there is nothing to say."""
Spec = dict[str, Any]
"""A Vega-Lite specification."""


@final
@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names with what there is to say of each; of several runs a value a run.

    Args:
        rows: name and values.
        heads: of the values; (): there is one.
    """

    rows: tuple[tuple[str, tuple[str, ...]], ...]
    heads: tuple[str, ...] = ()
    kind: str = "facts"


@final
@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under a title; numbers stand to the right.

    Args:
        title: of the table, which is also its name for those who hear it.
        columns: their heads.
        rows: as many cells each.
        note: what the numbers are; empty: they say so themselves.
        is_folded: whether it is shown on request.
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
    """A drawing, and its numbers for those who read no drawings.

    Args:
        title: of both.
        spec: of the drawing.
        table: the numbers, which are shown on request.
        note: how it is read.
        is_half: whether two of them may stand side by side.
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
    """One example.

    Args:
        title: where it came from.
        drawings: HTML, safe as it is.
        lines: what is said of it.
        is_wrong: whether the model's answer is known to be wrong; None: there is no right and wrong.
    """

    title: str
    drawings: tuple[str, ...]
    lines: tuple[str, ...]
    is_wrong: bool | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Examples side by side."""

    title: str
    cards: tuple[Card, ...]
    note: str = ""
    kind: str = "gallery"


@final
@dataclass(frozen=True, kw_only=True)
class Figure:
    """The number that counts.

    Args:
        value: of it, for people.
        name: what it is.
        note: how sure it is.
    """

    value: str
    name: str
    note: str = ""
    kind: str = "figure"


@final
@dataclass(frozen=True)
class Note:
    """A sentence; `is_warning`: that something is missing or wrong."""

    text: str
    is_warning: bool = False
    kind: str = "note"


Block = Facts | Table | Plot | Gallery | Figure | Note


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """Blocks under one title."""

    title: str
    blocks: tuple[Block, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Tab:
    """Sections that are shown together."""

    name: str
    sections: tuple[Section, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Page:
    """All of it."""

    title: str
    lead: str
    tabs: tuple[Tab, ...]
    notes: tuple[str, ...] = ()
    """What is missing."""
