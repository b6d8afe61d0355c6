"""Progress bars."""

from typing import final

from tqdm import tqdm


@final
class ProgressBar(tqdm):
    """A tqdm bar without tqdm's monitor thread: if memory runs out, that thread dies and tqdm waits for it forever."""

    monitor_interval = 0


def set_lock(lock: object) -> None:
    """Sets the lock that all tqdm bars share, including those of other libraries."""
    tqdm.set_lock(lock)
