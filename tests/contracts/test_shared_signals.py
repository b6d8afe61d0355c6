"""Every kernel on a signal distributed over processes agrees with the definition, in every gradient too.

A failure names its cells, as `test_instances.py` does.
"""

import pytest

from tests.contracts.instances import ROWS, Cell
from tests.contracts.shared_signals import cells_of, wrong_on_processes
from tests.processes import on_processes


def wrong(cells: list[Cell], processes: int) -> str:
    return "\n".join(on_processes(processes, wrong_on_processes, [str(cell) for cell in cells])[0])


@pytest.mark.slow
def test_processes_give_the_literal_integral() -> None:
    """Some cells of every kernel, in uneven parts on three processes."""
    assert wrong([cell for name in ROWS for cell in cells_of(name, 3, every=48)], 3) == ""


@pytest.mark.long
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", ROWS)
def test_processes_give_the_literal_integral_at_every_pair_of_classes(name: str, processes: int) -> None:
    assert wrong(cells_of(name, processes), processes) == ""
