"""The marker of kernels that can be taken apart into heads."""

import abc

from fredholm.kernels.kernel import Kernel


class MultiHead(Kernel):
    """Marker: κ is block-diagonal over `num_heads` heads.

    Head h reads and writes channels h·d … (h + 1)·d - 1 of the signal, d = in_dim / num_heads, whatever others do.
    """

    num_heads: int

    @abc.abstractmethod
    def head(self, index: int) -> Kernel:
        """κ of one head, on d channels, with the parameters of this kernel."""
