"""Rotary positions: queries and keys rotated by angles proportional to their position.

Legend
    t          position of a point: its time, or its index        θ_m = base^(-2m/d), m = 0 … d/2 - 1
    λ_m        wavelength 2π/θ_m                                   s, L    stretch, and the context before stretching

    (x_m, x_{m + d/2}) -> (x_m cos tθ_m - x_{m+d/2} sin tθ_m,  x_m sin tθ_m + x_{m+d/2} cos tθ_m)

    stretched      θ_m / s for all m; or, given L and a band a < b, those with λ_m < L/b as they are, those with
                   λ_m > L/a as θ_m / s, and between the two the mean of both, weighed by (L/λ_m - a) / (b - a)

The rotation keeps ‖x‖, and q·k then depends only on the difference of positions; so do ‖q - k‖² and every Yat score.

Sources: Su et al. 2021 (RoFormer), eq. 34; channels are paired by halves, not as neighbours. Stretching: Chen et al.
2023 (position interpolation), eq. 4; by a band, the frequencies of Llama 3.1.
"""

import dataclasses
import math
from typing import final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm._settings import check_number
from fredholm.domains import Domain, order_times


@final
@dataclasses.dataclass(frozen=True)
class Rotary:
    """The frequencies θ of rotary positions.

    Args:
        base: above 1.
        stretch: s >= 1; above 1 a model accepts contexts s times as long as those of its training.
        trained_context: L; with `band`, only low frequencies are stretched. Refused without a stretch.
        band: a < b, in waves per trained context.

    Raises:
        ValueError: on numbers out of range.
    """

    base: float = 10_000.0
    stretch: float = 1.0
    trained_context: int | None = None
    band: tuple[float, float] = (1.0, 4.0)

    def __post_init__(self) -> None:
        for what in ("base", "stretch"):
            check_number("kernels.Rotary", what, getattr(self, what))
        if not 1 < self.base < math.inf:
            raise ValueError(f"kernels.Rotary: base must be above 1 and finite; got {self.base}")
        if not 1 <= self.stretch < math.inf:
            raise ValueError(f"kernels.Rotary: stretch must be at least 1 and finite; got {self.stretch}")
        if self.trained_context is not None and (self.trained_context < 1 or self.stretch == 1):
            raise ValueError(
                f"kernels.Rotary: trained_context={self.trained_context!r} must be at least 1, and is read only with a "
                f"stretch above 1; got stretch={self.stretch}"
            )
        if self.trained_context is None and self.band != (1.0, 4.0):
            raise ValueError(f"kernels.Rotary: band={self.band} has no effect without trained_context; leave it out")
        if not 0 < self.band[0] < self.band[1] < math.inf:
            raise ValueError(f"kernels.Rotary: band must be two numbers, 0 < low < high; got {self.band}")

    def frequencies(self, head_dim: int, device: torch.device | None = None) -> Tensor:
        """θ, `(d/2,)`, float64."""
        theta = self.base ** -(torch.arange(0, head_dim, 2, device=device, dtype=torch.float64) / head_dim)
        if self.trained_context is None:
            return theta / self.stretch
        low, high = self.band
        waves = self.trained_context * theta / (2 * math.pi)  # L / λ
        kept = ((waves - low) / (high - low)).clamp(0, 1)
        return theta * (kept + (1 - kept) / self.stretch)

    def rotate(self, x: Tensor, place: Tensor) -> Tensor:
        """Rotates x `(B, H, N, d)`, d even, by positions `(B', N)`; angles in float32, or in float64 for float64 x."""
        wide = wide_dtype(x)
        # positions keep their precision, since only differences matter
        angle = place.to(torch.float64)[:, None, :, None] * self.frequencies(x.shape[-1], x.device)
        cos, sin = angle.cos().to(wide), angle.sin().to(wide)
        first, second = x.to(wide).chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


def check_rotary(name: str, rotary: Rotary | None, head_dim: int) -> None:
    """Raises, in the name of a kernel, unless `rotary` fits heads of `head_dim` channels."""
    if rotary is None:
        return
    if not isinstance(rotary, Rotary):
        raise TypeError(f"{name}: rotary must be a kernels.Rotary, or None for no positions; got {rotary!r}")
    if head_dim % 2:
        raise ValueError(f"{name}: rotary positions turn pairs of channels; got heads of {head_dim} channels")


def rotated(
    name: str, rotary: Rotary | None, query: Tensor, key: Tensor, domain: Domain, query_domain: Domain
) -> tuple[Tensor, Tensor]:
    """Queries and keys `(B, H, n, d)`, rotated by their times or indices; unchanged without rotary positions.

    Raises:
        ValueError: in the name of a kernel, where a domain has neither times nor an order.
    """
    if rotary is None:
        return query, key
    _check_order(name, domain)
    _check_order(name, query_domain)
    query_times, times = order_times(query_domain, domain)
    return rotary.rotate(query, query_times), rotary.rotate(key, times)


def _check_order(name: str, domain: Domain) -> None:
    if not domain.is_ordered:
        raise ValueError(
            f"{name}: rotary positions need times, or an order of points; {domain!r} has neither; give a "
            "Sequence or a Grid, or build the kernel with rotary=None"
        )


def rotated_after(
    name: str, rotary: Rotary | None, query: Tensor, key: Tensor, domain: Domain, num_before: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Queries and keys of the next points of a sequence, after a number of points, one for all or `(B,)`.

    Raises:
        ValueError: as `rotated`.
    """
    if rotary is None:
        return query, key
    _check_order(name, domain)
    place = order_times(domain, domain)[0]
    if domain.times is None:
        place = place + (num_before[:, None] if isinstance(num_before, Tensor) else num_before)
    return rotary.rotate(query, place), rotary.rotate(key, place)


def rotated_next(
    rotary: Rotary | None, query: Tensor, key: Tensor, num_before: int | Tensor, time: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Query and key of the next point, rotated by its time or its index; see `rotated_after`."""
    if rotary is None:
        return query, key
    place = torch.as_tensor(num_before, dtype=torch.float64, device=key.device).reshape(-1, 1)
    place = place if time is None else time[:, None]
    return rotary.rotate(query, place), rotary.rotate(key, place)
