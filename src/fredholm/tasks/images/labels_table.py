"""A folder of image files with a table, labels.csv, of what is known of each."""

import warnings
from dataclasses import replace
from pathlib import Path

from fredholm.tasks.files.class_folders import files_of_kinds
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.sentences.table import Table, read_table
from fredholm.tasks.splits.split_marks import MARKS, SplitMarks, marks_of_cells
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Answers, Kind, answers_of_cells

from .dataset import ImageDataset
from .encoded_images import image_files, inspect
from .read import IMAGE_SUFFIXES

TABLE = "labels.csv"
_FILE, _LABEL = "file", "label"


@reads_data
def labelled_folder(
    folder: str | Path, image_size: tuple[int, int] | None = None, kind: Kind | None = None
) -> Splits[ImageDataset]:
    """Read the images that `labels.csv` names; columns in small or capital letters.

    `file` is the path of an image below the folder. `label` is its class, a number, or its labels with | between them;
    or else all other columns are numbers, or labels of 0 and 1 (see `answers_of_cells`). The columns `split`, `group`
    and `time` may be there (see `marks_of_cells`). Warns of images below the folder that the table does not name.

    Args:
        folder: with the table.
        image_size: height and width to deliver; default: the size all images share, or `common_size`
            of them, with `Splits.sizes`.
        kind: what the answers are; None: as the cells say.

    Raises:
        ValueError: a column or a cell is missing, a file is not there, is there twice or cannot be read, there are
            other columns beside `label`, or what `answers_of_cells`, `marks_of_cells` and `inspect` refuse. The message
            names file and line.
        ImportError: pillow is not installed.
    """
    root = Path(folder)
    table = read_table(root / TABLE)
    try:
        files = _files(root, table)
        answers, marks = _known(table, kind)
    except ValueError as error:
        raise ValueError(f"{table.path}: {error}") from error
    channels, size, sizes = inspect(files, image_size, len(files))
    found = image_files(root, files, answers, channels=channels, image_size=size, marks=marks)
    try:
        splits: Splits[ImageDataset] = marks.divided(found)
    except ValueError as error:
        raise ValueError(f"{table.path}: {error}") from error
    if unnamed := len(set(files_of_kinds(root, IMAGE_SUFFIXES)) - set(files)):
        warnings.warn(f"{root}: left out {unnamed} image{'s' * (unnamed > 1)} that {TABLE} does not name", stacklevel=3)
    return replace(splits, sizes=sizes)


def _columns(table: Table) -> dict[str, str]:
    """The names of the columns in the file; those that mean something by their words, others by their names."""
    columns: dict[str, str] = {}
    for name in table.names:
        word = name.lower() if name.lower() in (_FILE, _LABEL, *MARKS) else name
        if word in columns:
            raise ValueError(f"line 1: columns {columns[word]!r} and {name!r} are one; keep one")
        columns[word] = name
    return columns


def _known(table: Table, kind: Kind | None) -> tuple[Answers, SplitMarks]:
    """What the table says of each image."""
    columns = _columns(table)
    others = [word for word in columns if word not in (_FILE, _LABEL, *MARKS)]
    if _LABEL in columns and others:
        raise ValueError(
            f"line 1: has the column {others[0]!r} beside 'label'; leave one of them out (file, split, group and time "
            "may stay)"
        )
    if _LABEL not in columns and not others:
        raise ValueError("line 1: no column 'label', and no columns of numbers or labels")

    def cells(word: str) -> list[str]:
        return [row.cells[columns[word]] for row in table.rows]

    def place(i: int, name: str) -> str:
        return f"line {table.rows[i].line}: column {columns.get(name, name)!r}"

    told = {columns[word]: cells(word) for word in ([_LABEL] if _LABEL in columns else others)}
    marks = marks_of_cells({word: cells(word) for word in MARKS if word in columns}, place)
    return answers_of_cells(told, kind, place), marks


def _files(root: Path, table: Table) -> list[Path]:
    columns = _columns(table)
    if _FILE not in columns:
        raise ValueError(f"line 1: no column 'file'; the columns are {', '.join(table.names)}")
    found: dict[Path, int] = {}
    for row in table.rows:
        name = row.cells[columns[_FILE]].strip()
        if not name:
            raise ValueError(f"line {row.line}: column 'file': is empty; expected the path of an image below {root}")
        if not (root / name).is_file():
            raise ValueError(f"line {row.line}: there is no image {name!r} below {root}")
        if root / name in found:
            raise ValueError(f"line {row.line}: {name!r} is also in line {found[root / name]}; keep one of them")
        found[root / name] = row.line
    return list(found)
