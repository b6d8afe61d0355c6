"""``python -m tests.faults [--quick]``: every driver, two side by side, and the table of docs/reliability.md."""

import argparse
import importlib
import importlib.util
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.faults.outcome import Outcome, table

SEED = 20261124


class Driver(NamedTuple):
    """A function of this package that tries faults."""

    module: str
    function: str
    full: int
    """Faults to try."""
    quick: int


DRIVERS = (
    Driver("kills", "kill_runs", full=500, quick=15),
    Driver("environment", "environment_faults", full=200, quick=14),
    Driver("operators", "fuzz_operators", full=25_000, quick=250),
    Driver("mutations", "mutate_files", full=5_000, quick=100),
    Driver("damage", "damage_folders", full=600, quick=40),
    Driver("hostile", "hostile_files", full=150, quick=150),
)
"""Those that take longest come first."""


def run(driver: Driver, count: int) -> list[Outcome]:
    """A driver's rows; told on stderr when it is done."""
    start = time.perf_counter()
    outcomes = getattr(importlib.import_module(f"tests.faults.{driver.module}"), driver.function)(count, SEED)
    print(f"{driver.module}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return outcomes


def main() -> int:
    """Prints the table, then what broke; 1 if anything did."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few faults of each kind")
    parser.add_argument("drivers", nargs="*", help=f"of {', '.join(each.module for each in DRIVERS)}; default: all")
    arguments = parser.parse_args()
    chosen = [each for each in DRIVERS if importlib.util.find_spec(f"tests.faults.{each.module}")]
    chosen = [each for each in chosen if not arguments.drivers or each.module in arguments.drivers]
    # spawned, so that each driver starts with one thread and may fork
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = [pool.submit(run, each, each.quick if arguments.quick else each.full) for each in chosen]
        outcomes = [outcome for each in waiting for outcome in each.result()]
    print(table(outcomes))
    broken = [f"{outcome.fault}: {line}" for outcome in outcomes for line in outcome.broken]
    print(*broken, sep="\n", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
