"""Images in a column of .parquet or .arrow files, as Hugging Face's datasets has them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.files.arrow_table import COLUMN_SUFFIXES, ArrowTable
from fredholm.tasks.files.cache import LARGE
from fredholm.tasks.files.mapped import shards_of
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.sentences.columns import LABELS
from fredholm.tasks.sentences.table import read_rows
from fredholm.tasks.splits.split_files import SPLITS, Split, find_split_files
from fredholm.tasks.splits.split_marks import MARKS, marks_of_cells
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Kind, answers_of_cells

from .dataset import ImageDataset
from .encoded_images import EncodedImages, Headers, inspect
from .read import EncodedImage, read_images

if TYPE_CHECKING:
    import pyarrow


@reads_data
def image_table(
    path: str | Path, image_size: tuple[int, int] | None = None, kind: Kind | None = None
) -> Splits[ImageDataset]:
    """Read the images of a table with their labels or targets.

    One column holds images: the bytes of image files, alone or with a `path` beside them. The column to predict has a
    usual name, such as label, or is the only other one: a class, a number, or labels. Columns `split`, `group` and
    `time` are optional (`marks_of_cells`). Other columns are not read.

    Args:
        path: a .parquet or .arrow file, a folder of them whose names may name splits (`find_split_files`), or one in
            which Hugging Face's datasets saved a data set.
        image_size: height and width to deliver; default: the size all images share, or `common_size` of the training
            split's, with `Splits.sizes`.
        kind: the kind of the answers; None: follows from the cells.

    Raises:
        ValueError: a column is missing or ambiguous, a cell is empty, an image cannot be read, or
            what `answers_of_cells` and `marks_of_cells` refuse. The message names file and row.
        ImportError: pyarrow or pillow is not installed.
    """
    files = find_split_files(Path(path), COLUMN_SUFFIXES, what="table", example=".parquet", may_be_alone=True)
    tables: dict[Split, list[ArrowTable]] = {
        split: [ArrowTable(file) for file in files.parts[split]] for split in SPLITS if split in files.parts
    }
    columns = _columns(tables["train"][0])
    for table in (table for of_split in tables.values() for table in of_split):
        columns.check(table)
    images: dict[Split, _Images] = {split: _Images(of, columns.image) for split, of in tables.items()}
    for split, found in images.items():
        if len(found) == 0:
            raise ValueError(f"{tables[split][0].path}: has no rows; expected at least one image")
    headers = inspect(itertools.chain.from_iterable(images.values()), image_size, len(images["train"]))
    parts: dict[Split, ImageDataset] = {}
    for split in tables:
        known = parts["train"].answer_names if parts else None
        parts[split] = _known_images(images[split], tables[split], columns, headers, kind, known)
    if files.by_split:
        return Splits(parts["train"], parts.get("test"), parts.get("valid"), sizes=headers.sizes)
    whole = parts["train"]
    return replace(whole.marks.divided(whole), sizes=headers.sizes)


@reads_data
def read_image_table(path: Path, channels: int, image_size: tuple[int, int]) -> Tensor:
    """The images of a .parquet or .arrow file, whatever other columns it has; see `read_images` for the rest.

    Raises:
        ValueError: there is no column of images or several, no row, an empty cell, or what `read_images` refuses.
        ImportError: pyarrow or pillow is not installed.
    """
    table = ArrowTable(path)
    images = list(_Images([table], _image_column(table)))
    if not images:
        raise ValueError(f"{path}: has no rows; expected at least one image")
    return read_images(images, channels, image_size)


@final
@dataclass(frozen=True)
class _Columns:
    """The names of the columns that are read; `marks` maps words of `MARKS` to columns."""

    image: str
    label: str
    marks: dict[str, str]

    def check(self, table: ArrowTable) -> None:
        """Raises ValueError where a table lacks one of these columns, or its column of images has none."""
        for name in (self.image, self.label, *self.marks.values()):
            if name not in table.names:
                raise ValueError(f"{table.path}: has no column {name!r}; give all files the same columns")
        if not _holds_images(kind := table.types()[self.image]):
            raise ValueError(f"{table.path}: column {self.image!r} is of {kind}; expected images, as in the first file")


def _image_column(table: ArrowTable) -> str:
    images = [name for name, kind in table.types().items() if _holds_images(kind)]
    if len(images) != 1:
        several = f"several columns of images, {', '.join(images)}; keep one"
        none = f"no column of images (the bytes of image files); the columns are {', '.join(table.names)}"
        raise ValueError(f"{table.path}: has {several if images else none}")
    return images[0]


def _columns(table: ArrowTable) -> _Columns:
    image = _image_column(table)
    others = {name.lower(): name for name in reversed(table.names) if name != image}
    marks = {word: others.pop(word) for word in MARKS if word in others}
    usual = [name for word in LABELS if (name := others.get(word)) is not None]
    found = usual[:1] or list(others.values())
    if len(found) != 1:
        raise ValueError(
            f"{table.path}: no column has a usual name of a label ({', '.join(LABELS)}); the columns are "
            f"{', '.join(table.names)}: rename the one to predict"
        )
    return _Columns(image, found[0], marks)


def _holds_images(kind: "pyarrow.DataType") -> bool:
    """Whether values are bytes, or have a field `bytes`, as the feature `Image` of Hugging Face's datasets."""
    import pyarrow.types

    if pyarrow.types.is_struct(kind):
        kinds = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        return "bytes" in kinds and _holds_images(kinds["bytes"])
    return pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)


class _Cells(NamedTuple):
    """Contiguous byte strings: the content of all, and the offset of each."""

    ends: np.ndarray
    """Offsets of the byte strings, integers `(n + 1,)`."""
    content: memoryview
    is_there: np.ndarray | None
    """Whether a cell has a value, bool `(n,)`; None: all have."""

    @classmethod
    def of(cls, array: "pyarrow.Array") -> Self:
        """The cells of an array of bytes, which are not copied."""
        import pyarrow

        _, ends, content = array.buffers()
        kind = np.int64 if pyarrow.types.is_large_binary(array.type) else np.int32
        found = np.frombuffer(ends or b"\0" * 8, kind)[array.offset : array.offset + len(array) + 1]
        is_there = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
        return cls(found, memoryview(content or b""), is_there)


@final
class _Images(Sequence[EncodedImage]):
    """The cells of a column of several tables, concatenated and mapped from the disk."""

    def __init__(self, tables: Sequence[ArrowTable], column: str) -> None:
        self._tables = tuple(tables)
        self._cells = list[_Cells]()
        lengths, bytes_of = list[int](), list[int]()
        for table in tables:
            parts = table.mapped([column]).flatten()  # also into the fields that a cell may have
            found = parts.column(column if column in parts.column_names else f"{column}.bytes")
            self._cells += map(_Cells.of, found.chunks)
            lengths.append(len(found))
            bytes_of.append(found.nbytes)
        self._ends = np.cumsum([len(cells.ends) - 1 for cells in self._cells], dtype=np.int64)
        self._starts = np.cumsum([0, *lengths], dtype=np.int64)
        self.shards: Tensor | None = None
        if sum(table.num_bytes for table in tables) >= LARGE:
            pairs = zip(lengths, bytes_of, strict=True)
            self.shards = torch.cat([shards_of(count, size / count) for count, size in pairs if count])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> EncodedImage:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        ends, content, is_there = self._cells[number]
        within = index - int(self._ends[number]) + len(ends) - 1
        if is_there is not None and not is_there[within]:
            raise ValueError(f"{self.place(index)}: there is no image; leave the row out, or save the image in it")
        return EncodedImage(content[ends[within] : ends[within + 1]], self.place(index))

    def place(self, index: int) -> str:
        """The file of an image, and its row."""
        table = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"{self._tables[table].path.name}, row {index - int(self._starts[table]) + 1}"


def _known_images(
    images: _Images,
    tables: Sequence[ArrowTable],
    columns: _Columns,
    headers: Headers,
    kind: Kind | None,
    known: tuple[str, ...] | None,
) -> EncodedImages:
    """Images of one split with their answers and marks."""
    cells: dict[str, list[str]] = {name: [] for name in (columns.label, *columns.marks.values())}
    for table in tables:
        for row in read_rows(table, list(cells)):
            for name, column in cells.items():
                if name not in row.cells:
                    raise ValueError(f"{table.path}, row {row.line}: column {name!r}: is empty; give each row a value")
                column.append(row.cells[name])

    def place(i: int, name: str) -> str:
        return f"{images.place(i)}: column {name!r}"

    marks = marks_of_cells({word: cells[name] for word, name in columns.marks.items()}, place)
    answers = answers_of_cells({columns.label: cells[columns.label]}, kind, place, known)
    return EncodedImages(
        images,
        images.place,
        answers,
        channels=headers.channels,
        image_size=headers.image_size,
        marks=marks,
        shards=images.shards,
    )
