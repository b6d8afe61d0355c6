"""The outcome of all faults of one kind: a row of the table in docs/reliability.md."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Counts of the faults of one kind that were tried, and of those that ended as promised.

    Args:
        fault: kind of fault, as the table names it.
        tried: number of faults tried.
        held: number of those that ended as promised.
        broken: one line for each of the others, from which it can be reproduced.
    """

    fault: str
    tried: int
    held: int
    broken: tuple[str, ...] = ()


def table(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table with a row for each kind."""
    rows = [(each.fault, f"{each.tried:,}", f"{each.held:,}", f"{each.tried - each.held:,}") for each in outcomes]
    width = max(len(fault) for fault, *_ in [("kind of fault",), *rows])
    lines = [f"| {'kind of fault':<{width}} | {'tried':>7} | {'as promised':>11} | {'broken':>6} |"]
    lines += [f"|{'-' * (width + 2)}|--------:|------------:|-------:|"]
    lines += [f"| {fault:<{width}} | {tried:>7} | {held:>11} | {lost:>6} |" for fault, tried, held, lost in rows]
    return "\n".join(lines)
