"""All drivers, with their numbers of faults."""

import importlib
import multiprocessing
import sys
import time
from typing import NamedTuple

from tests.faults.outcome import Outcome

SEED = 20261124


class Driver(NamedTuple):
    """A function of this package that injects faults."""

    module: str
    function: str
    full: int
    """Number of faults."""
    quick: int


DRIVERS = (
    Driver("kills", "kill_runs", full=500, quick=10),
    Driver("environment", "environment_faults", full=200, quick=7),
    Driver("operators", "fuzz_operators", full=25_000, quick=250),
    Driver("mutations", "mutate_files", full=5_000, quick=100),
    Driver("damage", "damage_folders", full=600, quick=40),
    Driver("hostile", "hostile_files", full=150, quick=150),
)
"""The slowest drivers come first."""


def run(driver: Driver, count: int) -> list[Outcome]:
    """Rows of the table from a driver; its time is printed on stderr."""
    multiprocessing.set_start_method("fork", force=True)  # the default is spawn, as for this process
    start = time.perf_counter()
    outcomes = getattr(importlib.import_module(f"tests.faults.{driver.module}"), driver.function)(count, SEED)
    print(f"{driver.module}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return outcomes
