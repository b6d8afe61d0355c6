"""Tables as text, be they text or not."""

import importlib.util
import io
from pathlib import Path

from fredholm.tasks.noted import noted
from fredholm.tasks.text import read_text

PARQUET = ".parquet"


def csv_text(path: Path) -> str:
    """The text of a table in CSV: of a .parquet file its rows below a header, of others what they hold.

    Raises:
        ValueError: the file cannot be read; see `read_text`.
        ImportError: it is a .parquet file, and pyarrow is not installed.
    """
    return _of_parquet(path) if path.suffix.lower() == PARQUET else read_text(path)


def _of_parquet(path: Path) -> str:
    if importlib.util.find_spec("pyarrow") is None:
        raise ImportError(f"{path}: a .parquet file is read by pyarrow: pip install pyarrow, or save it as .csv")
    import pyarrow  # pyright: ignore[reportMissingImports]
    import pyarrow.csv  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet  # pyright: ignore[reportMissingImports]

    written = io.BytesIO()
    try:
        pyarrow.csv.write_csv(pyarrow.parquet.read_table(noted(path)), written)
    except (pyarrow.ArrowException, OSError) as error:
        told = " ".join(str(error).split())
        raise ValueError(f"{path}: cannot be read as a table in .parquet ({told}); save it as .csv") from error
    return written.getvalue().decode()
