"""Quadratures: the nodes of an integral are all points, Monte Carlo draws, anchors or neighbourhoods."""

from fredholm.quadrature.anchors import Anchors, clusters
from fredholm.quadrature.monte_carlo import MonteCarlo
from fredholm.quadrature.neighbourhood import Neighbourhood
from fredholm.quadrature.nodes import NodesPerQuery, SharedNodes
from fredholm.quadrature.proposal import KeyProposal, PairProposal
from fredholm.quadrature.quadrature import Full, Nodes, Quadrature

__all__ = [
    "Anchors",
    "Full",
    "KeyProposal",
    "MonteCarlo",
    "Neighbourhood",
    "Nodes",
    "NodesPerQuery",
    "PairProposal",
    "Quadrature",
    "SharedNodes",
    "clusters",
]
