"""Domains of signals: positions, the measure's mass at each point, masks, and structure that fast routes can use."""

from fredholm.domains.domain import Domain, GridBlock
from fredholm.domains.farthest import farthest_points
from fredholm.domains.graph import Graph
from fredholm.domains.grid import Grid, UnitGrid, domain_of, whole_grid
from fredholm.domains.laplacian import laplacian_positions, undirected
from fredholm.domains.neighbours import Neighbours, nearest
from fredholm.domains.order import is_ordered_by_index, order_times, past_mass, preceding_counts
from fredholm.domains.pair_list import PairGroup, PairList
from fredholm.domains.points import Points, subset
from fredholm.domains.sequence import Sequence, trapezoid_weights
from fredholm.domains.union import Union

__all__ = [
    "Domain",
    "Graph",
    "Grid",
    "GridBlock",
    "Neighbours",
    "PairGroup",
    "PairList",
    "Points",
    "Sequence",
    "Union",
    "UnitGrid",
    "domain_of",
    "farthest_points",
    "is_ordered_by_index",
    "laplacian_positions",
    "nearest",
    "order_times",
    "past_mass",
    "preceding_counts",
    "subset",
    "trapezoid_weights",
    "undirected",
    "whole_grid",
]
