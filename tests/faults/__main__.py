"""``python -m tests.faults [--quick]``: every driver, two side by side, and the table of docs/reliability.md."""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.faults.drivers import DRIVERS, run
from tests.faults.outcome import table


def main() -> int:
    """Prints the table, then the broken cases; returns 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few faults of each kind")
    names = [each.module for each in DRIVERS]
    parser.add_argument("drivers", nargs="*", metavar="DRIVER", help=f"some of {', '.join(names)}; default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.drivers) - set(names):
        parser.error(f"no driver {min(unknown)!r}; expected some of {', '.join(names)}")
    chosen = [each for each in DRIVERS if not arguments.drivers or each.module in arguments.drivers]
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
