"""Reading weights of examples."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fredholm.tasks.files.cells import LARGEST, parse_number


def weights_of_cells(cells: Sequence[str], place: Callable[[int], str]) -> Tensor:
    """Parses a column of weights, float64 `(n,)`; an example of weight 0 is to be left out.

    Args:
        cells: n cells.
        place: location of row i, for messages.

    Raises:
        ValueError: a cell is no finite number of at least 0, or all are 0.
    """
    found = torch.empty(len(cells), dtype=torch.float64)
    for i, cell in enumerate(cells):
        try:
            found[i] = parse_number(cell)
        except ValueError:
            found[i] = math.nan
        if not 0 <= float(found[i]) <= LARGEST:
            raise ValueError(
                f"{place(i)}: {cell!r} is no weight; expected a number of at least 0, where 0 leaves the row out"
            )
    if not bool(found.any()):
        raise ValueError(f"{place(0)}: all weights are 0; expected some above 0")
    return found
