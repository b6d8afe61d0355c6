"""Every point."""

from typing import final

from fredholm.quadrature.nodes import Integrand, Nodes
from fredholm.quadrature.quadrature import Quadrature


@final
class Full(Quadrature):
    """Sums over all points, as an operator without a quadrature does."""

    def nodes(self, integrand: Integrand) -> Nodes | None:
        """None; see `Quadrature.nodes`."""
        return None

    def describe(self, num_points: int) -> str:
        """See `Quadrature.describe`."""
        return f"all {num_points} points"
