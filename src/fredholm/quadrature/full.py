"""Every point."""

from typing import Any, final

from fredholm.evaluation import Integral
from fredholm.quadrature.nodes import Nodes
from fredholm.quadrature.quadrature import Quadrature


@final
class Full(Quadrature):
    """Sums over all points, as an operator without a quadrature does."""

    def nodes(self, integral: Integral[Any]) -> Nodes | None:
        """None; see `Quadrature.nodes`."""
        return None

    def describe(self, num_points: int) -> str:
        """See `Quadrature.describe`."""
        return f"all {num_points} points"
