"""Samples of functions in a CSV file, with a row per sample."""

from pathlib import Path

import torch

from fredholm.tasks.files.cells import parse_present
from fredholm.tasks.files.delimited import NO_RECORD, DelimitedFile
from fredholm.tasks.files.table_text import first_repeated

from .field_set import FieldSet, pack

FIELD = "field"
"""Name of the column with the function of each row."""
AXES = ("x", "y", "z")
"""Names of columns that are coordinates by default."""


def read_csv(path: Path, *, coordinates: tuple[str, ...] = (), channels: tuple[str, ...] | None = None) -> FieldSet:
    """Reads a table with a header, and a column of numbers for each coordinate and value.

    The column `field` names the function of each row; without it all rows are of one.

    Args:
        path: path of the file (`DelimitedFile`), or a .parquet file with these columns.
        coordinates: columns that are coordinates, in order; empty: the existing ones of x, y and z.
        channels: columns that are values, in order; None: all other columns, at least one.

    Raises:
        ValueError: the file cannot be read, a column is missing or repeated, the columns x, y and z are only partly
            used, a row has another number of cells, or a cell is no number. The message names file, line and column.
    """
    file = DelimitedFile(path)
    rows = file.records()
    found: dict[str, tuple[list[list[float]], list[list[float]]]] = {}
    with file.naming_lines():
        header = [name.strip() for name in next(rows, NO_RECORD).cells]
        coordinates, channels = _columns(header, coordinates, channels)
        place = {name: i for i, name in enumerate(header)}
        places, numbers = ([place[name] for name in names] for names in (coordinates, channels))
        key = place.get(FIELD)
        for _, cells in rows:
            if not cells:
                continue
            if len(cells) != len(header):
                raise ValueError(f"has {len(cells)} cells; the header has {len(header)}")
            if key is not None and not cells[key].strip():
                raise ValueError(f"column {FIELD!r}: is empty; expected the function that the row is of")
            pos, values = found.setdefault("" if key is None else cells[key].strip(), ([], []))
            pos.append([_number(cells[at], header[at]) for at in places])
            values.append([_number(cells[at], header[at]) for at in numbers])
    if not found:
        raise ValueError(f"{path}: has no rows below its header; expected at least one sample")
    return FieldSet(
        given=pack(
            [torch.tensor(pos, dtype=torch.float64) for pos, _ in found.values()],
            [
                torch.tensor(values, dtype=torch.float64).reshape(len(values), len(channels))
                for _, values in found.values()
            ],
            len(coordinates),
            len(channels),
        ),
        coordinates=coordinates,
        channels=channels,
        names=tuple(f"{path.name}, field {name}" if name else path.name for name in found),
    )


def _columns(
    header: list[str], coordinates: tuple[str, ...], channels: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    present = f"the columns are {', '.join(header) or 'none'}"
    if (i := first_repeated(header)) is not None:
        raise ValueError(f"column {header[i]!r} is there twice")
    known = set(header)
    coordinates = coordinates or tuple(name for name in AXES if name in header)
    if not coordinates:
        raise ValueError(f"no column x, y or z; {present}; name the coordinates (--task.coordinates)")
    if channels is None:
        others = {*coordinates, FIELD}
        channels = tuple(name for name in header if name not in others)
        if not channels:
            raise ValueError(f"no column with values; {present}")
    read = {*coordinates, *channels}
    left = [name for name in AXES if name in known and name not in read]
    if left and set(coordinates) <= set(AXES):
        raise ValueError(f"column {left[0]!r} is a coordinate; expected samples with {', '.join(coordinates)} alone")
    for name in (*coordinates, *channels):
        if name not in known:
            raise ValueError(f"no column {name!r}; {present}")
    return coordinates, channels


def _number(text: str, column: str) -> float:
    try:
        return parse_present(text)
    except ValueError as error:
        raise ValueError(f"column {column!r}: {error}") from error
