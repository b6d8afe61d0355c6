"""A few kills and environment faults of every kind; `make faults` runs all of them."""

from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.command_line import FORKS
from tests.faults.drivers import DRIVERS, run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "count", "least_kinds"),
    [
        ("kills", 10, 4),
        ("environment", 7, 5),
        pytest.param("kills", 36, 5, marks=pytest.mark.long),  # with a compiled model
        pytest.param("environment", 25, 6, marks=pytest.mark.long),  # with a bare environment
    ],
)
def test_a_few_faults_end_as_promised(module: str, count: int, least_kinds: int) -> None:
    (driver,) = (each for each in DRIVERS if each.module == module)
    with ProcessPoolExecutor(1, mp_context=FORKS) as pool:  # the process has one thread, and may fork
        outcomes = pool.submit(run, driver, count).result()
    assert [line for outcome in outcomes for line in outcome.broken] == []
    assert all(outcome.tried > 0 for outcome in outcomes)
    assert len(outcomes) >= least_kinds
