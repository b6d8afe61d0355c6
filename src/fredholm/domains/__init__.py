"""Where signals live: positions, the measure's mass at each point, masks, and structure that fast routes can use."""

from fredholm.domains.domain import Domain, GridBlock, Sequence, trapezoid_weights
from fredholm.domains.grid import Grid, whole_grid
from fredholm.domains.order import is_ordered_by_index, order_times, past_mass, preceding_counts
from fredholm.domains.points import Points
from fredholm.domains.subset import subset
from fredholm.domains.union import Union

__all__ = [
    "Domain",
    "Grid",
    "GridBlock",
    "Points",
    "Sequence",
    "Union",
    "is_ordered_by_index",
    "order_times",
    "past_mass",
    "preceding_counts",
    "subset",
    "trapezoid_weights",
    "whole_grid",
]
