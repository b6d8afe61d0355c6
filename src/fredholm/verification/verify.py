"""Runs all equalities and witnesses and formats their table."""

from collections.abc import Iterator, Sequence

import torch

from fredholm._settings import check_seed
from fredholm.verification.attentions import attentions
from fredholm.verification.check import Check
from fredholm.verification.converted import converted
from fredholm.verification.convolutions import convolutions
from fredholm.verification.graphs import graphs
from fredholm.verification.recurrences import recurrences
from fredholm.verification.witnesses import witnesses


def verify(seed: int = 0) -> Iterator[Check]:
    """Builds random instances in float64 and measures the deviation of each from its reference.

    Rows: for every layer and variant the literal quadrature Σ_j ω_j κ_ij u_j against the same layer of torch (or, where
    torch has none, the recurrence or sum written out; for graphs PyTorch Geometric's layer, where it is installed),
    then every fast route, each with all gradients; whole modules of torch, converted; at the end operators outside the
    classical families. The global random state is left as it was.

    Args:
        seed: random seed of all instances.

    Yields:
        Rows as they are measured.

    Raises:
        ValueError: the seed is not in [0, 2^32).
    """
    check_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for family in (convolutions, attentions, recurrences, graphs):
            for equality in family():
                yield from equality.checks()
        yield from converted()
        yield from witnesses()


HEADER = ("layer", "variant", "integral", "fast route", "its error", "gradient", "")


def table(rows: Sequence[Check]) -> str:
    """Formats one line per layer and variant: quadrature, worst fast route, worst gradient; then the witnesses."""
    equalities: dict[tuple[str, str], list[Check]] = {}
    witnesses = [row for row in rows if row.layer == "witness"]
    for row in rows:
        if row.layer != "witness":
            equalities.setdefault((row.layer, row.variant), []).append(row)
    lines = [HEADER, *(_line(*key, checks) for key, checks in equalities.items())]
    text = _aligned(lines)
    if witnesses:
        shown = [("witness", "what it shows", "measured", "bound", "")]
        shown += [
            (
                row.variant,
                row.check,
                f"{row.max_error:.1e}",
                f"{_relation(row)} {row.bound:g}",
                _mark([row]),
            )
            for row in witnesses
        ]
        text = f"{text}\n\n{_aligned(shown)}"
    failed = [row for row in rows if not row.ok]
    text += f"\n\n{len(rows)} checks, {len(failed)} beyond their bounds"
    for row in failed:
        text += f"\n  {row.layer} {row.variant}: {row.check}: {row.max_error:.1e}, bound {row.bound:g}"
    return text


def _line(layer: str, variant: str, checks: list[Check]) -> tuple[str, ...]:
    gradients = [row for row in checks if row.check.endswith(", gradient")]
    quadrature = [row for row in checks if row.check == "quadrature"]
    routes = [row for row in checks if row not in gradients and row not in quadrature]
    return (
        layer,
        variant,
        _worst(quadrature),
        ", ".join(row.check for row in routes),
        _worst(routes),
        _worst(gradients),
        _mark(checks),
    )


def _relation(row: Check) -> str:
    return ">=" if row.at_least else "<="


def _worst(rows: list[Check]) -> str:
    return f"{max(row.max_error for row in rows):.1e}" if rows else ""


def _mark(rows: list[Check]) -> str:
    return "ok" if all(row.ok for row in rows) else "FAILED"


def _aligned(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
