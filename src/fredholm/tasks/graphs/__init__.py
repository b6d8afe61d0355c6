"""Graphs: folders of CSV or TUDataset files, .npz files, and their preprocessing for a model."""

from .csv_folder import read_csv_folder
from .graph_set import GraphSet
from .inputs import GraphInputs
from .npz_file import read_npz
from .of_arrays import GraphArrays, graphs_of_arrays
from .open import open_graphs
from .pyg import from_pyg
from .tu_folder import read_tu_folder

__all__ = [
    "GraphArrays",
    "GraphInputs",
    "GraphSet",
    "from_pyg",
    "graphs_of_arrays",
    "open_graphs",
    "read_csv_folder",
    "read_npz",
    "read_tu_folder",
]
