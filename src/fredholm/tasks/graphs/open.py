"""Opening of every source of graphs."""

from pathlib import Path

from fredholm.tasks.files.data_files import data_path
from fredholm.tasks.files.read_errors import reads_data

from .csv_folder import is_csv_folder, read_csv_folder
from .graph_set import GraphSet
from .npz_file import read_npz
from .tu_folder import read_tu_folder, tu_name


@reads_data
def open_graphs(
    data: str | Path,
    *,
    is_directed: bool = False,
    features: tuple[str, ...] | None = None,
    edge_features: tuple[str, ...] | None = None,
) -> GraphSet:
    """Read graphs of any kind.

    Args:
        data: a folder with `edges.csv` (`read_csv_folder`), or its `edges.csv`; a folder of the TUDataset collection
            (`read_tu_folder`); or an .npz file (`read_npz`).
        is_directed: whether edges have directions; else every edge is taken both ways.
        features: names of the node features to read; None: all that are there.
        edge_features: likewise for edges.

    Raises:
        ValueError: there is nothing of that name or of a known kind, or it is broken.
    """
    path = data_path(data)
    if path.name in ("edges.csv", "edges.csv.gz") and path.is_file():
        path = path.parent
    if path.is_dir():
        is_csv, is_tu = is_csv_folder(path), tu_name(path) is not None
        if is_csv and is_tu:
            raise ValueError(f"{path}: holds edges.csv and {tu_name(path)}_A.txt; keep one of them")
        if is_csv:
            return read_csv_folder(path, is_directed=is_directed, features=features, edge_features=edge_features)
        if is_tu:
            return read_tu_folder(path, is_directed=is_directed, features=features, edge_features=edge_features)
    elif path.suffix.lower() == ".npz":
        return read_npz(path, is_directed=is_directed, features=features, edge_features=edge_features)
    raise ValueError(
        f"no graphs at {str(path)!r}; expected a folder with edges.csv, or with NAME_A.txt and "
        "NAME_graph_indicator.txt, or an .npz file"
    )


def is_graph_folder(folder: Path) -> bool:
    """Whether a folder is one source of graphs."""
    return is_csv_folder(folder) or tu_name(folder) is not None
