"""Time series as signals on a sequence of samples."""

import math
from collections import abc
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, Sequence, trapezoid_weights
from fredholm.domains.checks import values_can_be_read
from fredholm.domains.domain import check_tensor
from fredholm.encoders.encoder import Encoder, check_dtype

_SAME = 1e-6


@final
class SeriesBatch(NamedTuple):
    """Series of one batch, padded to one length.

    `values (B, N, C)` are finite numbers where a sample exists. `mask (B, N)` is True where it does; None: everywhere.
    Sample k is at time `times[:, k]`, `(B, N)`, or at k times `spacing`, `(B,)`; None: k times the spacing in training.
    """

    values: Tensor
    mask: Tensor | None = None
    times: Tensor | None = None
    spacing: Tensor | None = None


@final
class Series(Encoder):
    """The channels of each sample, or a linear map of them, with weights inverse to the density of the samples.

    The weight of a sample is the time that it represents in units of Δ, the spacing in training (CKConv, A.1 and A.2).
    So a kernel that counts samples at the rate of training integrates over time at any other rate:

    - samples at that rate weigh 1: the domain is `Sequence(N, spacing=Δ)` with its default measure;
    - samples at another common rate, δ apart, weigh δ / Δ;
    - others weigh half the distance of their neighbours over Δ, the trapezoid rule. In a series whose samples all have
      one time each weighs 1.

    Where the rates within a batch differ, samples are placed by their times, with weights from each series alone.

    With an extent, positions are times since a series' first sample in units of the extent, and a series has total mass
    1, shared evenly at a regular rate: the unit interval, for which the other kernels are designed. Kernels that count
    samples count each once at a regular rate, and with mean 1 at irregular times.

    Args:
        channels: C, of the series.
        embed_dim: channels of the signal after a linear map; None: the series' channels, without a map.
        spacing: Δ, in the unit of the times; above 0.
        extent: duration of the longest series of training, in that unit; None: positions are the times themselves.

    Raises:
        ValueError: sizes below 1, or a spacing or an extent that is not above 0.
    """

    def __init__(
        self, channels: int, embed_dim: int | None = None, *, spacing: float = 1.0, extent: float | None = None
    ) -> None:
        super().__init__()
        for name, value in (("channels", channels), ("embed_dim", embed_dim)):
            if value is not None and value < 1:
                raise ValueError(f"encoders.Series: {name} must be at least 1; got {value}")
        if not 0 < spacing < math.inf:
            raise ValueError(f"encoders.Series: spacing must be a finite number above 0; got {spacing}")
        if extent is not None and not 0 < extent < math.inf:
            raise ValueError(f"encoders.Series: extent must be a finite number above 0; got {extent}")
        self.channels, self.spacing, self.extent = channels, spacing, extent
        self.embed_dim, self.pos_dim = channels if embed_dim is None else embed_dim, 1
        self.embedding = nn.Identity() if embed_dim is None else nn.Linear(channels, embed_dim)

    def forward(self, inputs: Tensor | SeriesBatch) -> tuple[Tensor, Domain]:
        """A batch, or the values of a batch without gaps at the training rate, to the signal and its domain.

        The signal is 0 at samples that do not exist.

        Raises:
            ValueError: values of another shape or dtype, or that are NaN or infinite at samples that exist; inputs
                that `Sequence` refuses.
        """
        values, mask, times, spacing = inputs if isinstance(inputs, SeriesBatch) else SeriesBatch(inputs)
        check_tensor("encoders.Series", "values", values)
        if values.ndim != 3 or values.shape[2] != self.channels or not values.dtype.is_floating_point:
            raise ValueError(
                f"encoders.Series: expected float values of shape (batch, samples, {self.channels}); got "
                f"{tuple(values.shape)}, {values.dtype}"
            )
        domain = self._domain(values, mask, times, spacing)
        if mask is not None:
            values = torch.where(mask[..., None], values, 0.0)
        if values_can_be_read(values) and not bool(values.isfinite().all()):
            raise ValueError(
                "encoders.Series: values hold NaN or infinite numbers at samples that exist; put 0 where one is missing"
            )
        if isinstance(self.embedding, nn.Linear):
            check_dtype("encoders.Series", "values", values, self.embedding.weight)
        signal = self.embedding(values)
        return signal if mask is None else torch.where(mask[..., None], signal, 0.0), domain

    def columns(self, channels: abc.Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See `Encoder.columns`; empty without a linear map."""
        return {"embedding.weight": tuple(channels)} if isinstance(self.embedding, nn.Linear) else {}

    def _domain(self, values: Tensor, mask: Tensor | None, times: Tensor | None, spacing: Tensor | None) -> Domain:
        batch, num_samples = values.shape[:2]
        is_known = values_can_be_read(spacing)
        rates = spacing.tolist() if spacing is not None and is_known else [self.spacing]
        is_one_rate = is_known and all(rate == rates[0] for rate in rates)
        if times is None and spacing is not None and not is_one_rate:
            if spacing.shape[0] != batch or not min(rates) > 0:
                raise ValueError(f"encoders.Series: spacing must be ({batch},), above 0; got {tuple(spacing.shape)}")
            steps = torch.arange(num_samples, dtype=torch.float64, device=values.device)
            apart = spacing.double()[:, None]
            if self.extent is not None:
                return Sequence(times=steps * apart / self.extent, mask=mask)
            weights = (apart / self.spacing).expand(batch, num_samples)
            return Sequence(times=steps * apart, weights=weights, mask=mask)
        if times is None:
            rate = rates[0] if rates else self.spacing
            if self.extent is not None:
                return Sequence(num_samples, spacing=rate / self.extent, mask=mask, device=values.device)
            weights = None
            if not math.isclose(rate, self.spacing, rel_tol=_SAME):
                share = rate / self.spacing
                weights = torch.full((num_samples,), share, dtype=torch.float64, device=values.device)
            return Sequence(num_samples, spacing=rate, weights=weights, mask=mask, device=values.device)
        if self.extent is not None:
            return _on_the_unit_interval(times, mask, self.extent)
        weights = trapezoid_weights(times, mask, total=None) / self.spacing
        has_extent = weights.sum(-1, keepdim=True) > 0
        return Sequence(times=times, weights=torch.where(has_extent, weights, 1.0), mask=mask)


def _on_the_unit_interval(times: Tensor, mask: Tensor | None, extent: float) -> Sequence:
    """Samples at the times since the first one, in units of the extent, with weights of sum 1."""
    first = times if mask is None else torch.where(mask, times, torch.inf)
    first = first.amin(-1, keepdim=True) if times.shape[-1] else times
    since = (times - torch.where(first.isfinite(), first, 0.0)) / extent
    return Sequence(times=since, weights=trapezoid_weights(since, mask), mask=mask).counting_each()


def interpolated(values: Tensor, observed: Tensor) -> Tensor:
    """Fills gaps between the nearest observed samples, evenly by sample; before and after all with the nearest one.

    Args:
        values: finite `(..., T, C)`; where a channel has no observed sample, the result is its first value.
        observed: bool `(..., T, C)`.
    """
    before, after = nearest_observed(observed)
    count = observed.shape[-2]
    samples = torch.arange(count, device=values.device)[:, None]
    left = torch.where(before >= 0, before, torch.where(after < count, after, 0))
    right = torch.where(after < count, after, before.clamp_min(0))
    share = (samples - left) / (right - left).clamp_min(1)
    return torch.lerp(values.gather(-2, left), values.gather(-2, right), share.to(values.dtype))


def nearest_observed(observed: Tensor) -> tuple[Tensor, Tensor]:
    """The last observed sample up to each, or -1, and the first one from each on, or T, int64 `(..., T, C)`."""
    count, rank = observed.shape[-2], observed.long().cumsum(-2)  # cummax of the samples has no form in ONNX
    samples = torch.arange(count, device=observed.device)[:, None]
    found = torch.where(observed, samples, count)  # in row k the k-th observed sample, from 1 on
    none = found[..., :1, :]
    rows = torch.cat([torch.full_like(none, -1), torch.full_like(found, count), torch.full_like(none, count)], -2)
    rows = rows.scatter(-2, torch.where(observed, rank, count + 1), found)
    return rows.gather(-2, rank), rows.gather(-2, torch.where(observed, rank, rank + 1))
