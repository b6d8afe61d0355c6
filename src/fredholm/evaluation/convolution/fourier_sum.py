"""Kernels that are Fourier series of the displacement, on any points, by the moments of the signal.

Legend
    c_k, s_k   ∫ cos(2πk·y / P) u dμ and ∫ sin(2πk·y / P) u dμ        A_k, B_k   the series' matrices

    v(x) = Σ_k [cos(2πk·x / P) (A_k c_k - B_k s_k) + sin(2πk·x / P) (A_k s_k + B_k c_k)]
"""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.evaluation import Integral, Route
from fredholm.kernels import FourierFilter
from fredholm.kernels.kernel import at_least_float32


@final
@dataclasses.dataclass(frozen=True)
class FourierSum(Route[FourierFilter]):
    """For `FourierFilter` kernels on any points: one sum a wave over all points, one over the waves at each query.

    O(N M d + M d²) for M waves, and never a pair of points; a discrete Fourier transform where points are a grid, of
    few enough waves that a fast one gains nothing. Below float32, and under autocast, it computes in float32.
    """

    marker = FourierFilter

    def refusals(self, integral: Integral[FourierFilter]) -> list[str]:
        """Refuses waves that do not close round a torus, whose displacements are the shortest ones."""
        if integral.domain.is_periodic:
            for period in integral.kernel.period:
                if abs(1 / period - round(1 / period)) > 1e-9:
                    return [f"on a torus of length 1 waves of period {period} do not close"]
        return []

    def compute(self, integral: Integral[FourierFilter]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        with torch.autocast(u.device.type, enabled=False):
            values = at_least_float32(u)
            values = values * kernel.measure(domain).to(values.dtype)[..., None]
            at_keys, at_queries = (
                torch.cat(kernel.waves(side.pos, values.dtype), dim=-1) for side in (domain, integral.query_domain)
            )
            moments = (at_keys.mT @ values).unflatten(1, (2, -1)).transpose(1, 2)  # (B, M, 2, d_in)
            a, b = (part.to(values.dtype).unflatten(1, (kernel.groups, -1)) for part in kernel.wave_weight())
            # from [c; s] to [A c - B s; A s + B c], (M, g, 2 d_out / g, 2 d_in / g)
            turned = torch.cat([torch.cat([a, -b], dim=-1), torch.cat([b, a], dim=-1)], dim=-2)
            mixed = moments.unflatten(-1, (kernel.groups, -1)).movedim(3, 2).flatten(3)  # (B, M, g, 2 d_in / g)
            mixed = torch.einsum("bmgi,mgoi->bmgo", mixed, turned).unflatten(-1, (2, -1))
            sums = mixed.permute(0, 3, 1, 2, 4).flatten(3).flatten(1, 2)  # (B, 2M, d_out)
            return (at_queries @ sums).to(u.dtype)
