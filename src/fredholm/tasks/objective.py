"""The metric by which runs are compared."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Objective:
    """The metric by which runs of a task are compared.

    Args:
        metric: its name among ``Task.metrics()``.
        maximise: whether larger is better.
        percent: whether the value is a fraction that people read in percent.
    """

    metric: str
    maximise: bool = True
    percent: bool = False

    def is_better(self, value: float, than: float | None) -> bool:
        """Whether ``value`` beats ``than`` (anything beats None)."""
        return than is None or (value > than if self.maximise else value < than)

    def format(self, value: float) -> str:
        """The value for people: ``98.70 %`` or ``0.1234``."""
        return f"{100 * value:.2f} %" if self.percent else f"{value:.4f}"
