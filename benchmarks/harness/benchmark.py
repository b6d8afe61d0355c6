"""The frame of every benchmark: its name, its settings, and the run that turns rows into a report."""

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar, final

import torch

from benchmarks.harness.options import Options
from benchmarks.harness.precision import full_float32
from benchmarks.harness.report import Report, Row, report_of


@dataclass(frozen=True, kw_only=True)
class Settings(abc.ABC):
    """What a benchmark lets its user choose: how it runs, and in its own fields what is measured."""

    options: Options = field(default_factory=Options)

    @abc.abstractmethod
    def small(self) -> Self:
        """Itself with everything shrunk but the options, which ``options.quick`` asks for."""

    def checked(self) -> Self:
        """Itself, complete; raises `ValueError` on what cannot be measured."""
        return self

    def sized(self) -> Self:
        """The configuration that runs, checked; ``options.quick`` shrinks everything."""
        config = dataclasses.replace(self.small(), options=self.options.sized()) if self.options.quick else self
        return config.checked()


def require_known(cases: Sequence[str], known: Collection[str]) -> None:
    """Raises `ValueError` on a case that is none of those known."""
    unknown = [case for case in cases if case not in known]
    if unknown:
        raise ValueError(f"no case {unknown[0]!r}; expected some of {', '.join(known)}")


Config = TypeVar("Config", bound=Settings)


@final
@dataclass(frozen=True, kw_only=True)
class Benchmark(Generic[Config]):
    """One benchmark.

    Args:
        name: how the command line calls it.
        purpose: one line for the list.
        config: its configuration, from which the command line makes flags.
        measure: yields the rows of one run. It compares before it times, and raises `GateError` where results disagree.
        notes: lines that follow from all rows, printed below the table.
    """

    name: str
    purpose: str
    config: type[Config]
    measure: Callable[[Config], Iterator[Row]]
    notes: Callable[[Sequence[Row]], Iterator[str]]

    def run(self, config: Config) -> Report:
        """The report of all rows, in full float32, kept in ``options.json`` after every row, for a run may be long."""
        config = config.sized()
        options, rows = config.options, []
        before = torch.get_num_threads()
        torch.set_num_threads(options.threads or before)
        try:
            report = report_of(self.name, rows, [], options)
            with full_float32():
                for row in self.measure(config):
                    rows.append(row)
                    report = report_of(self.name, rows, list(self.notes(rows)), options)
                    if options.json is not None:
                        report.write_json(options.json)
        finally:
            torch.set_num_threads(before)
        return report
