"""Columnar tables: .arrow files, as saved by Hugging Face's datasets, and .parquet files, both read by pyarrow.

Metadata of datasets in a file are used: classes that are saved as numbers are read as their names.
"""

import importlib.util
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from .cache import CacheEntry
from .data_files import open_file, size_of_file
from .limits import check_expansion, max_expanded_bytes
from .read_record import FileState

if TYPE_CHECKING:
    import pyarrow

ARROW, PARQUET = ".arrow", ".parquet"
COLUMN_SUFFIXES = (ARROW, PARQUET)
_ROWS = 128
"""Number of rows that are read at a time; a row may be an image."""
_BUFFER = 1 << 20
"""Bytes of a .parquet column that are read at a time: a row group may be larger than memory."""
_WITH_FOOTER = b"ARROW1"
"""First bytes of the .arrow file format, which has random access; other .arrow files are streams."""


@final
class ArrowTable:
    """A table in a file, whose rows are read on demand.

    Args:
        path: path of a .arrow or a .parquet file.

    Raises:
        ValueError: it cannot be read.
        ImportError: pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        check_pyarrow(path)
        import pyarrow.parquet

        self.path = path
        with _arrow_errors(path), open_file(path) as file:
            self.num_bytes, self._is_parquet = size_of_file(file), path.suffix.lower() == PARQUET
            read = pyarrow.parquet.read_schema
            self._schema: pyarrow.Schema = read(file) if self._is_parquet else _opened(path)[1].schema
        if twice := [name for name in self.names if self.names.count(name) > 1]:
            raise ValueError(f"{path}: column {twice[0]!r} is there twice; rename one")
        self._classes = _class_names(self._schema)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._schema.names)

    @property
    def num_rows(self) -> int:
        """Number of rows, from the headers of the file."""
        import pyarrow.parquet

        with _arrow_errors(self.path):
            if not self._is_parquet:
                return sum(batch.num_rows for batch in _stretches(self.path))
            with open_file(self.path) as file:
                return pyarrow.parquet.read_metadata(file).num_rows

    def types(self) -> "dict[str, pyarrow.DataType]":
        """Types of the columns, by name."""
        return {field.name: field.type for field in self._schema}

    def rows(self, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Yields the rows as values by column, None where missing; only few of them are in memory at a time.

        Args:
            columns: columns to read; (): all.

        Raises:
            ValueError: the file is damaged, or the number of a class has no name.
        """
        for batch in self._batches(columns):
            values = {name: self._named(name, batch.column(name).to_pylist()) for name in batch.schema.names}
            yield from (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))

    def mapped(self, columns: Sequence[str]) -> "pyarrow.Table":
        """Returns memory-mapped columns: those of .arrow in the file itself, of large .parquet unpacked in the cache.

        Raises:
            ValueError: the file is damaged, would become too large, or the cache cannot be written.
        """
        import pyarrow

        with _arrow_errors(self.path):
            if not self._is_parquet:
                found = pyarrow.Table.from_batches(_stretches(self.path), self._schema).select(list(columns))
            else:
                key = (str(self.path.resolve()), *FileState.of(self.path), *columns)
                unpacked = CacheEntry("arrow", key).array(lambda: self._streamed(columns), np.uint8)
                found = pyarrow.ipc.open_stream(pyarrow.py_buffer(unpacked)).read_all()
            found.validate(full=True)  # offsets of a broken file would point elsewhere in memory
        return found

    def _batches(self, columns: Sequence[str]) -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow.parquet

        chosen = list(columns) or None
        with _arrow_errors(self.path):
            if self._is_parquet:
                with open_file(self.path) as file:
                    source = pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
                    yield from source.iter_batches(_ROWS, columns=chosen, use_threads=False)
                return
            for whole in _stretches(self.path):
                batch = whole.select(chosen or self.names)
                batch.validate(full=True)
                for start in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(start, _ROWS)

    def _streamed(self, columns: Sequence[str]) -> Iterator[np.ndarray]:
        """Yields the bytes of a .arrow stream of these columns, part by part."""
        import pyarrow

        written, size = io.BytesIO(), 0
        schema = pyarrow.schema([self._schema.field(name) for name in columns])
        with pyarrow.ipc.new_stream(written, schema) as writer:
            for batch in self._batches(columns):
                writer.write_batch(batch)
                size += written.tell()
                if size > max_expanded_bytes(self.num_bytes):
                    check_expansion(f"{self.path}: unpacked it", size, self.num_bytes, f"save it as {ARROW}")
                yield np.frombuffer(written.getvalue(), np.uint8)
                written.seek(0)
                written.truncate()
        yield np.frombuffer(written.getvalue(), np.uint8)

    def _named(self, column: str, values: list[Any]) -> list[Any]:
        """Replaces class numbers by class names, -1 by None, in a column of them or of lists of them."""
        classes = self._classes.get(column)
        return values if classes is None else [_name(value, classes, self.path, column) for value in values]


def check_pyarrow(path: Path) -> None:
    """Raises an ImportError, which names the file, where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ImportError(f'{path}: {path.suffix} is read by pyarrow, which is missing: pip install "fredholm[arrow]"')


def _opened(path: Path) -> tuple[Any, Any]:
    """Opens a .arrow file memory-mapped; returns the mapping and its reader."""
    import pyarrow

    with open_file(path) as file:
        has_footer = file.read(len(_WITH_FOOTER)) == _WITH_FOOTER
    source = pyarrow.memory_map(str(path))
    return source, pyarrow.ipc.open_file(source) if has_footer else pyarrow.ipc.open_stream(source)


def _stretches(path: Path) -> "Iterator[pyarrow.RecordBatch]":
    """Yields the record batches of a .arrow file."""
    source, reader = _opened(path)
    if hasattr(reader, "num_record_batches"):
        return map(reader.get_batch, range(reader.num_record_batches))
    return _of_stream(source, reader)


def _of_stream(source: Any, reader: Any) -> "Iterator[pyarrow.RecordBatch]":
    """Yields the record batches of a stream up to its end mark.

    The format does not require the mark, but without it a file that was cut between batches would look complete;
    pyarrow and datasets write it.

    Raises:
        pyarrow.ArrowInvalid: the mark is missing, or followed by more bytes.
    """
    import pyarrow

    end = source.tell()
    for batch in reader:
        end = source.tell()
        yield batch
    if source.tell() == end:
        raise pyarrow.ArrowInvalid(f"after {end:,} bytes the mark of its end is missing: it was cut, or never closed")
    if source.tell() < source.size():
        raise pyarrow.ArrowInvalid(f"it goes on after its end, at {source.tell():,} of {source.size():,} bytes")


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Turns pyarrow's errors about a damaged file into messages of this library."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(f"{path}: cannot be read as a table in {path.suffix} ({reason}); save it again") from error


def _class_names(schema: "pyarrow.Schema") -> dict[str, tuple[str, ...]]:
    """Returns the class names by column, from the metadata of datasets."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: names for name, feature in features.items() if (names := _of_feature(feature)) is not None}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _of_feature(feature: Any) -> tuple[str, ...] | None:
    if isinstance(feature, list) and len(feature) == 1:
        return _of_feature(feature[0])
    if not isinstance(feature, dict):
        return None
    if feature.get("_type") == "ClassLabel" and isinstance(feature.get("names"), list):
        return tuple(map(str, feature["names"]))
    return _of_feature(feature["feature"]) if feature.get("_type") in ("Sequence", "List", "LargeList") else None


def _name(value: Any, classes: tuple[str, ...], path: Path, column: str) -> Any:
    if isinstance(value, list):
        return [_name(each, classes, path, column) for each in value]
    if not isinstance(value, int) or value == -1:
        return None
    if not 0 <= value < len(classes):
        raise ValueError(f"{path}: column {column!r}: there is a class {value}, of {len(classes)} with names; mend it")
    return classes[value]
