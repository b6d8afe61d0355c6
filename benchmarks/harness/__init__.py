"""What every benchmark shares: its gate, its clock, its memory measurement and the form of its report."""

from benchmarks.harness.gate import GateError, relative_error, require_agreement
from benchmarks.harness.growth import growth_exponent
from benchmarks.harness.memory import PeakMemory, in_fresh_process
from benchmarks.harness.report import Report, Row
from benchmarks.harness.timing import Timed, interleave, synchronize

__all__ = [
    "GateError",
    "PeakMemory",
    "Report",
    "Row",
    "Timed",
    "growth_exponent",
    "in_fresh_process",
    "interleave",
    "relative_error",
    "require_agreement",
    "synchronize",
]
