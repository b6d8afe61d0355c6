"""Progress bars."""

from typing import final

from tqdm import tqdm


@final
class ProgressBar(tqdm):
    """A tqdm bar without tqdm's monitor thread, which dies where memory is short and is then waited for for ever."""

    monitor_interval = 0


def set_lock(lock: object) -> None:
    """Sets the lock that all tqdm bars share, including those of other libraries."""
    tqdm.set_lock(lock)
