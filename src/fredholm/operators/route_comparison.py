"""What `compare_routes` finds, row by row, and how it is printed."""

import dataclasses
from typing import final


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RouteCost:
    """What one route, or one quadrature, costs; or why it refuses.

    Attributes:
        route: its name.
        nodes: what is summed, in words.
        error: the largest difference from the reference over the largest value of the integral; with gradients the
            worst of the output's and every gradient's. 0 for the reference itself, None where there is none.
        seconds: median of one pass; None where it refuses, as the next.
        peak_mb: memory above what existed before the pass, in 1e6 bytes.
        refusals: its reasons, a sentence each; empty where it was run.
    """

    route: str
    nodes: str
    error: float | None = None
    seconds: float | None = None
    peak_mb: float | None = None
    refusals: tuple[str, ...] = ()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RouteComparison:
    """The rows of `compare_routes`, in the order of the routes; printed, a table.

    Attributes:
        rows: a route or quadrature each.
        reference: the route that errors are measured from; None where every exact route refuses.
        title: what was run, in a line.
    """

    rows: tuple[RouteCost, ...]
    reference: str | None
    title: str

    def __str__(self) -> str:
        header = ("route", "error", "seconds", "peak MB", "nodes")
        lines = [header, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
        told = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[-1]]) for line in lines
        ]
        refused = [f"{row.route} refuses: {'; '.join(row.refusals)}" for row in self.rows if row.refusals]
        return "\n".join([self.title, *told, *refused])


def _cells(row: RouteCost) -> tuple[str, ...]:
    if row.seconds is None or row.peak_mb is None:
        return (row.route, "-", "-", "-", "refuses, see below")
    error = "-" if row.error is None else f"{row.error:.1e}"
    return (row.route, error, f"{row.seconds:.3g}", f"{row.peak_mb:.1f}", row.nodes)
