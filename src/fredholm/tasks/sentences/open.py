"""Opens sentences from every source: a file, a folder, or files that share the start of their names."""

from pathlib import Path
from typing import NamedTuple

from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.read_errors import reads_data
from fredholm.tasks.splits.split_files import SPLITS, Split, find_split_files
from fredholm.tasks.splits.splits import Splits
from fredholm.tasks.targets import Kind

from .columns import Columns, choose_columns
from .sentence import read_tables
from .sentence_set import SentenceSet, with_answers
from .table import TABLE_SUFFIXES, TableFile


class OpenedSentences(NamedTuple):
    """Sentences with their splits, or all as one set, and the columns that they were read from."""

    splits: Splits[SentenceSet]
    columns: Columns


@reads_data
def open_sentences(
    data: str | Path,
    *,
    text_column: str | None = None,
    second_column: str | None = None,
    label_columns: tuple[str, ...] = (),
    weights: str | None = None,
    columns: tuple[str, ...] = (),
    kind: Kind | None = None,
) -> OpenedSentences:
    """Open labelled sentences with their splits, or all as one set.

    Splits follow from the names of files or, where these name none, from a column `split`; columns `group` and `time`
    are read too (see `marks_of_cells`).

    Args:
        data: a file (`TableFile`), a folder of them, or the start of the names of files with splits
            (`find_split_files`).
        text_column: column of the sentence; None: one with a usual name; see `choose_columns`.
        second_column: column of the second sentence of a pair; None: one with a usual name, or no pairs.
        label_columns: columns of the answers; (): one with a usual name.
        weights: column of weights; sentences of weight 0 are left out. Files of a held-out split may lack it. None:
            there is none.
        columns: names of all columns of files without a header.
        kind: the kind of the answers; None: follows from the cells of the training set (`answers_of_cells`).

    Raises:
        ValueError: there is no such file or folder, or `TableFile`, `choose_columns`, `read_tables` or `with_answers`
            refuse the data.
    """
    path = data_path(data)
    found = find_split_files(path, TABLE_SUFFIXES, what="table", example=".csv", may_be_alone=True)
    tables: dict[Split, list[TableFile]] = {
        split: [TableFile(file, columns) for file in files] for split, files in found.parts.items()
    }
    first = tables["train"][0]
    try:
        wanted = {"text": text_column, "second": second_column, "weights": weights}
        chosen = choose_columns(first.names, **wanted, labels=label_columns)
    except ValueError as error:
        raise ValueError(f"{first.path}: {error}") from error
    parts: dict[Split, SentenceSet] = {}
    for split in SPLITS:
        if split in tables:
            cells = read_tables(tables[split], chosen, is_labelled=True, weights=weights)
            known = parts["train"].answers if parts else None
            parts[split] = with_answers(cells, kind) if known is None else with_answers(cells, known.kind, known.names)
    if found.by_split:
        return OpenedSentences(Splits(parts["train"], parts.get("test"), parts.get("valid")), chosen)
    whole = parts["train"]
    try:
        return OpenedSentences(whole.marks.divided(whole), chosen)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
