"""Bars that show how far something is."""

from typing import final

from tqdm import tqdm


@final
class ProgressBar(tqdm):
    """A bar of tqdm without the thread that watches bars: where memory is short it dies, and is waited for for ever."""

    monitor_interval = 0


def set_lock(lock: object) -> None:
    """Sets the lock by which bars take turns, those of other libraries too."""
    tqdm.set_lock(lock)
