"""Axes of matplotlib for plots."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def new_axes(axes: "Axes | None") -> "Axes":
    """Returns the given axes, or those of a new figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('plots need matplotlib; get it with: pip install "fredholm[viz]"') from error
    return plt.subplots()[1]
