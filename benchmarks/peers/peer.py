"""The interface of the exact MLP kernel's peers: the same integral, and the memory that its kernel values need."""

from abc import ABC, abstractmethod

from torch import Tensor

from benchmarks.peers.weights import KernelWeights


class Peer(ABC):
    """Another implementation of ``sum_j omega_j kappa(x_i, x_j, u_i, u_j) u_j`` for every head.

    ``name`` is the peer's name in the report.
    """

    name: str

    @abstractmethod
    def integrate(self, weights: KernelWeights, u: Tensor, pos: Tensor, measure: Tensor) -> Tensor:
        """The integral of ``u (B, N, H * d_h)`` at ``pos (N, s)`` with masses ``measure (N,)``, shaped as ``u``."""

    @abstractmethod
    def kernel_bytes(self, weights: KernelWeights, batch: int, num_points: int) -> int:
        """Bytes of kernel values held at one time, which decide whether the peer runs at this size."""
