"""How the signals of a kernel's training were sampled: lengths of its horizon and its steps."""

import math
from collections.abc import Sequence

from fredholm.domains.sequence import SPACING


def lengths_per_axis(name: str, value: float | Sequence[float], axes: int) -> tuple[float, ...]:
    """One length > 0 for each axis."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * axes
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < math.inf for v in values)
    if len(values) != axes or not numbers:
        wanted = "a finite number > 0" + (f", or one for each of the {axes} axes" if axes > 1 else "")
        raise ValueError(f"kernels.ContinuousConvolution: {name} must be {wanted}; got {value!r}")
    return tuple(float(v) for v in values)


def trained_sampling(
    reach: tuple[float, ...], spacing: float | Sequence[float] | None, num_samples: int | None
) -> tuple[tuple[float, ...], int]:
    """Distance between neighbouring samples along each axis, and how many lie within `reach`.

    What one of them says of the other stands at `ContinuousConvolution`.

    Raises:
        ValueError: on numbers out of range, or fewer samples than lie within `reach` at that distance.
    """
    if num_samples is not None and (
        not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples < 1
    ):
        raise ValueError(f"kernels.ContinuousConvolution: num_samples must be an integer >= 1; got {num_samples!r}")
    if spacing is None and num_samples is None and len(reach) == 1:
        spacing = SPACING
    if spacing is None:
        count = 100 if num_samples is None else num_samples
        return tuple(length / count for length in reach), count
    apart = lengths_per_axis("spacing", spacing, len(reach))
    held = max(1, *(math.ceil(length / h - 1e-6) for length, h in zip(reach, apart, strict=True)))
    if num_samples is not None and num_samples < held:
        raise ValueError(
            f"kernels.ContinuousConvolution: {held} samples {apart} apart lie within {reach}; got num_samples "
            f"{num_samples}; leave it out, or give at least as many"
        )
    return apart, held if num_samples is None else num_samples
