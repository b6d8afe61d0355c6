"""Other implementations of the exact MLP kernel integral, from the formula and without the library's code."""

from benchmarks.peers.algorithm1 import Algorithm1
from benchmarks.peers.dense import DenseEinsum
from benchmarks.peers.nnconv import EdgeConditionedConvolution
from benchmarks.peers.peer import Peer
from benchmarks.peers.weights import KernelWeights

__all__ = ["Algorithm1", "DenseEinsum", "EdgeConditionedConvolution", "KernelWeights", "Peer"]
