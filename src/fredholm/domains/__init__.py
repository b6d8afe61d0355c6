"""Where signals live: positions, the measure's mass at each point, masks, and structure that fast routes can use."""

from fredholm.domains.domain import Domain, GridBlock
from fredholm.domains.grid import Grid
from fredholm.domains.order import preceding_counts
from fredholm.domains.points import Points
from fredholm.domains.sequence import Sequence, trapezoid_weights
from fredholm.domains.union import Union

__all__ = ["Domain", "Grid", "GridBlock", "Points", "Sequence", "Union", "preceding_counts", "trapezoid_weights"]
