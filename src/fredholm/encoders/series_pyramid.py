"""Series as functions of time, by convolutions down to coarser grids and up again.

Legend
    Δ           time between two samples in training
    P           cells of the finest grid in one of the coarsest, the product of the strides
    x_k         place of sample k in cells, 0 for the first:  x_{k+1} = x_k + min((t_{k+1} - t_k) / Δ, P)
    values      of the cell centred at 0, 1, 2, ...: the mean of the samples with the nearest places; where there is
                none, interpolated between the cells before and after
    N           norm of each channel over the series, as that of `image_pyramid.py`

    signal(k) = that of `pyramid.py` on these cells at x_k

At the rate of training cells are samples. A gap longer than the coarsest cell counts as one of these: what lies before
it and after it is then read through the coarsest grid alone.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from fredholm.domains import Domain
from fredholm.domains.checks import values_can_be_read
from fredholm.encoders.encoder import Encoder
from fredholm.encoders.pyramid import PointsNorm, Pyramid
from fredholm.encoders.series import Series, SeriesBatch, interpolated

_SAME = 1e-6


@final
class SeriesPyramid(Encoder):
    """Features of the surroundings of each sample at all scales, from a sample to the whole series, by stencils.

    The formulas are at the heads of `series_pyramid.py` and `pyramid.py`. The signal and its domain are those of
    `encoders.Series` at the samples. Padding changes no value. Numbers of channels: see `Pyramid`.

    Args:
        channels: C, of the series.
        embed_dim: channels of the signal.
        strides: cells of each grid along one of the next, coarser one; at least one.
        depth: residual stencils on each grid on the way down; 0 or more.
        spacing: Δ, in the unit of the times; above 0.

    Raises:
        ValueError: on sizes below 1, a depth below 0, or a spacing that is not above 0.
    """

    def __init__(
        self, channels: int, embed_dim: int, strides: Sequence[int], *, depth: int = 1, spacing: float = 1.0
    ) -> None:
        super().__init__()
        if not strides or min(strides) < 1:
            raise ValueError(f"encoders.SeriesPyramid: strides are whole numbers of at least 1; got {tuple(strides)}")
        self.samples = Series(channels, spacing=spacing)
        self.embed_dim, self.pos_dim, self.coarsest = embed_dim, 1, math.prod(strides)
        along = [(stride,) for stride in strides]
        self.pyramid = Pyramid("encoders.SeriesPyramid", channels, embed_dim, along, depth, PointsNorm)

    def forward(self, inputs: Tensor | SeriesBatch) -> tuple[Tensor, Domain]:
        """A batch to the signal at its samples, `(B, N, embed_dim)`, and their domain; see `encoders.Series`.

        The signal is 0 at samples that do not exist.
        """
        given = inputs if isinstance(inputs, SeriesBatch) else SeriesBatch(inputs)
        values, domain = self.samples(given)
        if not values.shape[1]:
            return values.new_zeros(*values.shape[:2], self.embed_dim), domain
        places = self._places(given)
        if places is not None and not values_can_be_read(places):
            raise ValueError(
                "encoders.SeriesPyramid: samples at other times are put into cells, whose number no graph holds; pass "
                "values at the spacing of training"
            )
        cells = _Cells(values, given.mask) if places is None else _cells_at(values, places, given.mask)
        count = cells.values.shape[1]
        beyond = -count % self.coarsest
        padded, exists = F.pad(cells.values.mT, (0, beyond)), cells.exists
        if exists is None and beyond:
            exists = torch.ones(cells.values.shape[:2], dtype=torch.bool, device=values.device)
        signal = self.pyramid.signal(padded, None if exists is None else F.pad(exists, (0, beyond))).mT
        found = signal[:, :count] if places is None else _read(signal, places)
        return found if given.mask is None else torch.where(given.mask[..., None], found, 0.0), domain

    def columns(self, channels: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See `Encoder.columns`."""
        return {f"pyramid.means.{i}.weight": tuple(channels) for i in range(len(self.pyramid.means))}

    def _places(self, given: SeriesBatch) -> Tensor | None:
        """x of each sample, float64 `(B, N)`, constant after the last one; None: samples are cells."""
        apart, steps, unit = given.spacing, given.values.shape[1] - 1, self.samples.spacing
        if given.times is None:
            if apart is None or (values_can_be_read(apart) and bool(((apart / unit - 1).abs() < _SAME).all())):
                return None
            moves = (apart.double() / unit)[:, None].expand(-1, steps)
        else:
            moves = given.times.double().diff(dim=1) / unit
        if given.mask is not None:
            moves = torch.where(given.mask[:, 1:] & given.mask[:, :-1], moves, 0.0)
        return F.pad(moves.clamp(0, self.coarsest).cumsum(1), (1, 0))


@final
class _Cells(NamedTuple):
    """Values of cells `(B, M, C)`, 0 where `exists` `(B, M)` is False; None: all exist."""

    values: Tensor
    exists: Tensor | None


def _cells_at(values: Tensor, places: Tensor, mask: Tensor | None) -> _Cells:
    """The cells of samples `(B, N, C)` at places `(B, N)`."""
    own = _cell(places)
    count = int(own.max()) + 1 if own.numel() else 1
    kept = torch.ones_like(places) if mask is None else mask.to(places)
    number = places.new_zeros(len(places), count).scatter_add(1, own, kept)
    wide = own[..., None].expand(values.shape)
    total = values.new_zeros(len(values), count, values.shape[2]).scatter_add(1, wide, values)
    observed = number[..., None] > 0
    means = torch.where(observed, total / number[..., None].clamp_min(1).to(values), 0.0)
    last = torch.where(kept > 0, own, -1).amax(1, keepdim=True)
    exists = torch.arange(count, device=values.device) <= last
    filled = interpolated(means, observed.expand(means.shape))
    return _Cells(torch.where(exists[..., None], filled, 0.0), exists)


def _cell(places: Tensor) -> Tensor:
    """The number of the nearest cell."""
    return places.add(0.5 + _SAME).floor().long()


def _read(signal: Tensor, places: Tensor) -> Tensor:
    """A signal of cells `(B, M, C)`, interpolated linearly at places `(B, N)` up to the last cell that exists."""
    last = _cell(places.amax(1, keepdim=True))
    left = torch.minimum(places.floor().long(), last)
    share = (places - left)[..., None].to(signal)
    low, high = (
        signal.gather(1, at[..., None].expand(-1, -1, signal.shape[2])) for at in (left, torch.minimum(left + 1, last))
    )
    return torch.lerp(low, high, share)
