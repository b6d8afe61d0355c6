"""The metric by which runs are compared."""

import math
from dataclasses import dataclass
from typing import final


def number_text(value: float) -> str:
    """Formats a number for display: to four decimals, or to three digits where it is so small that these are few."""
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.3g}"


@final
@dataclass(frozen=True)
class Objective:
    """A metric by which runs of a task are compared.

    Args:
        metric: name of the metric in ``Task.metrics()``.
        maximise: whether larger is better.
        percent: whether the value is a fraction that is displayed in percent.
        needs: condition on a split for the metric to be defined; else its value is NaN. "": none.
    """

    metric: str
    maximise: bool = True
    percent: bool = False
    needs: str = ""

    def is_better(self, value: float, than: float | None) -> bool:
        """Whether ``value`` beats ``than``: any number beats None and NaN, and NaN beats nothing."""
        if than is None or math.isnan(than):
            return not math.isnan(value)
        return value > than if self.maximise else value < than

    def format(self, value: float) -> str:
        """Formats the value for display: ``98.70 %``, ``0.1234`` or ``undefined (it needs two classes)``."""
        if math.isnan(value) and self.needs:
            return f"undefined (it needs {self.needs})"
        return f"{100 * value:.2f} %" if self.percent else number_text(value)
