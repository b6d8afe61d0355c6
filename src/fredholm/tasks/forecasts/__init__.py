"""Data of forecasts: long series, their clocks and seasons, and windows of them."""

from .clock import Clock
from .history import find_season
from .long_series import LongSeries, open_long
from .windows import WindowSet

__all__ = ["Clock", "LongSeries", "WindowSet", "find_season", "open_long"]
