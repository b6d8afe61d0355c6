"""A Gaussian that smooths a kernel on grids finer than those of its training.

Legend
    Δ      spacing in training           h    spacing of the grid, r = ⌈Δ / h⌉        σ = 0.5

    G_t ∝ exp(-(t h / Δ)² / 2σ²),  t = -r … r,  Σ_t G_t = 1        per axis; 1 at t = 0 where h ≥ Δ

What a kernel does between the samples of its training was never seen there; averaging over one spacing to either side
removes it.

Source: CKConv (arXiv 2102.02611), E.3: length 2r + 1, σ = 0.5. It names no unit for σ; here it is Δ, so that the window
ends at 2σ at every rate and the smoothed kernel has a limit as h → 0. In units of h it would hardly smooth at all, and
the less the finer the grid.
"""

import itertools
import math
from collections.abc import Sequence

SIGMA = 0.5
RATE_TOLERANCE = 1e-3
"""How much finer than in training, as a share, a grid must be to be finer."""


def smoothing_taps(trained: Sequence[float], spacing: Sequence[float]) -> list[tuple[tuple[float, ...], float]]:
    """(offset in the unit of the positions, weight G) of each tap, over all axes together; one tap where h ≥ Δ.

    Args:
        trained: Δ of each axis.
        spacing: h of each axis.
    """
    axes = [_axis_taps(wide, h) for wide, h in zip(trained, spacing, strict=True)]
    return [
        (tuple(offset for offset, _ in taps), math.prod(weight for _, weight in taps))
        for taps in itertools.product(*axes)
    ]


def _axis_taps(trained: float, h: float) -> list[tuple[float, float]]:
    if trained / h <= 1 + RATE_TOLERANCE:
        return [(0.0, 1.0)]
    reach = math.ceil(trained / h - RATE_TOLERANCE)
    offsets = [t * h for t in range(-reach, reach + 1)]
    weights = [math.exp(-((offset / trained) ** 2) / (2 * SIGMA**2)) for offset in offsets]
    total = math.fsum(weights)
    return [(offset, weight / total) for offset, weight in zip(offsets, weights, strict=True)]
