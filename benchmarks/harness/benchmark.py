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
    """Settings of a benchmark: the options of every run, and in the fields of a subclass what is measured."""

    options: Options = field(default_factory=Options)

    @abc.abstractmethod
    def small(self) -> Self:
        """These settings with all sizes shrunk and the options unchanged, for ``options.quick``."""

    def checked(self) -> Self:
        """These settings, completed; raises `ValueError` if they cannot be measured."""
        return self

    def sized(self) -> Self:
        """The settings of the run, checked; ``options.quick`` shrinks all sizes."""
        config = dataclasses.replace(self.small(), options=self.options.sized()) if self.options.quick else self
        return config.checked()


def require_known(cases: Sequence[str], known: Collection[str]) -> None:
    """Raises `ValueError` on a case that is not among the known ones."""
    unknown = [case for case in cases if case not in known]
    if unknown:
        raise ValueError(f"no case {unknown[0]!r}; expected some of {', '.join(known)}")


Config = TypeVar("Config", bound=Settings)


@final
@dataclass(frozen=True, kw_only=True)
class Benchmark(Generic[Config]):
    """One benchmark.

    Args:
        name: name on the command line.
        purpose: one line for ``--list``.
        config: class of its settings, from which the command line makes flags.
        measure: yields the rows of one run. It compares results before it times them, and raises `GateError` if they
            disagree.
        notes: derives the lines below the table from all rows.
    """

    name: str
    purpose: str
    config: type[Config]
    measure: Callable[[Config], Iterator[Row]]
    notes: Callable[[Sequence[Row]], Iterator[str]]

    def run(self, config: Config) -> Report:
        """Measures all rows in full float32. The report is written to ``options.json`` after every row."""
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
