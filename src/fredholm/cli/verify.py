"""`fredholm verify`: checks that classical layers are instances of the operator."""

from dataclasses import dataclass

from fredholm.cli.json_text import json_text
from fredholm.cli.option_names import naming_options
from fredholm.cli.parsing import Flag, parse
from fredholm.cli.streams import FAILURE
from fredholm.training.progress import progress_bar
from fredholm.verification.verify import table, verify


@dataclass(frozen=True, kw_only=True)
class VerifyArguments:
    """Check, in float64 on random instances, that every classical layer is an exact instance of the operator.

    Prints a table, and ends with code 1 if any error exceeds its bound.
    """

    seed: int = 0
    """Seed of all random instances."""
    json: Flag = False
    """Print a JSON list with one object per check."""


def run_command(argv: list[str]) -> None:
    """Runs `fredholm verify` with these arguments."""
    arguments = parse(VerifyArguments, "verify", argv)
    with progress_bar("verify", None, unit="check") as bar:
        rows = []
        with naming_options(arguments):
            for row in verify(arguments.seed):
                rows.append(row)
                bar.update()
    print(json_text([row.as_json() for row in rows], indent=2) if arguments.json else table(rows))
    if not arguments.json and not any(row.layer == "GCNConv" for row in rows):
        print(
            "layers of graphs are left out: they are compared with PyTorch Geometric's, pip install 'fredholm[graph]'"
        )
    if not all(row.ok for row in rows):
        raise SystemExit(FAILURE)
