"""Parts that all benchmarks share: the run, the correctness gate, timing, memory measurement and reports."""

from benchmarks.harness.benchmark import Benchmark, Settings, require_known
from benchmarks.harness.gate import GateError, relative_error, require_agreement
from benchmarks.harness.growth import growth, growth_exponent
from benchmarks.harness.instance import Alone, Instance, each_alone, measure_alone
from benchmarks.harness.options import Flag, Options
from benchmarks.harness.process import in_fresh_process
from benchmarks.harness.report import Report, Row
from benchmarks.harness.sides import Sides, in_turn, require_same, rows_alone, side_by_side
from benchmarks.harness.step import DIRECTIONS, Direction, Step, both_ways, directed
from benchmarks.harness.timing import Timed, interleave

__all__ = [
    "DIRECTIONS",
    "Alone",
    "Benchmark",
    "Direction",
    "Flag",
    "GateError",
    "Instance",
    "Options",
    "Report",
    "Row",
    "Settings",
    "Sides",
    "Step",
    "Timed",
    "both_ways",
    "directed",
    "each_alone",
    "growth",
    "growth_exponent",
    "in_fresh_process",
    "in_turn",
    "interleave",
    "measure_alone",
    "relative_error",
    "require_agreement",
    "require_known",
    "require_same",
    "rows_alone",
    "side_by_side",
]
