"""A logarithmic scale for skewed numbers, and its inverse for predictions.

Legend
    y (n,)      a column of Y in training            s = ±1      the sign of its skewness
    δ > 0       the one of OFFSETS, in multiples of the median of s y - min(s y), with the smallest |skewness| of g
    g = log(s y - min(s y) + δ)                      z = (g - ḡ) / σ     a column on this scale, ḡ and σ those of g
    back(z) = s (a exp(ḡ + σ z) + min(s y) - δ),   z held within its range in training

a makes the mean of back(z) over left-out predictions z that of y, since the exponential of a mean is not the mean of
exponentials. Only columns with a skewness beyond SKEWED have this scale; the others stay as they are. Means and medians
are weighted by the weights of the examples (`example_weights.py`).

Source: Box and Cox, An analysis of transformations (1964), for the shifted logarithm; Duan, Smearing estimate (1983),
for the bias of its inverse. Deviation: a is a ratio of means, not Duan's mean of ratios, so that the mean is kept.
"""

from typing import NamedTuple, Self, final

import torch
from torch import Tensor, nn

from fredholm.models.fitted.example_weights import mean_of, median_of
from fredholm.models.fitted.ridge_head import Readout

SKEWED = 1.0
"""Absolute skewness of a column beyond which a logarithm is tried."""
OFFSETS = torch.logspace(-3, 2, 41, dtype=torch.float64)


@final
class Logarithms(NamedTuple):
    """Logarithmic scales of the columns of Y, float64 `(c,)` each.

    Args:
        is_skewed: bool, mask of the columns that have this scale; the fields below have no effect on other columns.
        sign, origin: s, and min(s y) - δ.
        mean, deviation: ḡ and σ.
        least, most: range of z in training.
        slope, shift: s a and s (min(s y) - δ).
    """

    is_skewed: Tensor
    sign: Tensor
    origin: Tensor
    mean: Tensor
    deviation: Tensor
    least: Tensor
    most: Tensor
    slope: Tensor
    shift: Tensor

    @classmethod
    def of(cls, wanted: Tensor, weights: Tensor | None = None) -> Self | None:
        """Scales of Y, float64 `(n, c)`, of examples with weights `(n,)`, with a = 1; None: no column is skewed."""
        skewness = _skewness(wanted, weights)
        is_skewed = skewness.abs() > SKEWED
        if not bool(is_skewed.any()):
            return None
        sign = torch.where(skewness < 0, -1.0, 1.0).to(wanted)
        signed = sign * wanted
        least = signed.amin(0)
        # the median equals the minimum if at least half of all values do
        median = median_of(signed, weights)
        span = torch.where(median > least, median, mean_of(signed, weights)) - least
        offsets = OFFSETS.to(wanted.device)[:, None] * torch.where(is_skewed, span, 1.0)
        logs = (signed - least + offsets[:, None]).log()
        best = torch.stack([_skewness(each, weights).abs() for each in logs]).argmin(0)
        columns = torch.arange(wanted.shape[1], device=wanted.device)
        g, origin = logs[best, :, columns].T, least - offsets[best, columns]
        mean = mean_of(g, weights)
        deviation = mean_of((g - mean).square(), weights).sqrt()
        deviation = torch.where(deviation > 0, deviation, 1.0)
        z = (g - mean) / deviation
        return cls(is_skewed, sign, origin, mean, deviation, z.amin(0), z.amax(0), sign, sign * origin)

    def of_columns(self, wanted: Tensor) -> Tensor:
        """Columns of Y `(n, c)` on these scales."""
        signed = torch.where(self.is_skewed, self.sign * wanted - self.origin, 1.0)
        return torch.where(self.is_skewed, (signed.log() - self.mean) / self.deviation, wanted)

    def back(self, z: Tensor) -> Tensor:
        """Maps values on these scales back to the scale of Y, `(n, c)`."""
        return torch.where(self.is_skewed, self.slope * self._exponential(z) + self.shift, z)

    def calibrated(self, left_out: Tensor, wanted: Tensor, weights: Tensor | None = None) -> Self:
        """Returns these scales with a computed from left-out predictions on them, and Y, `(n, c)` each."""
        rest = mean_of(wanted, weights) - self.shift
        return self._replace(slope=rest / mean_of(self._exponential(left_out), weights))

    def _exponential(self, z: Tensor) -> Tensor:
        held = torch.maximum(torch.minimum(z, self.most), self.least)
        return (self.mean + self.deviation * held).exp()


@final
class LogarithmicScale(nn.Module):
    """Maps outputs on logarithmic scales back to the scale of Y; the identity before `read`.

    Args:
        num_outputs: number of outputs, such as numbers or their quantiles.
    """

    scales: Tensor
    is_skewed: Tensor

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.register_buffer("is_skewed", torch.zeros(num_outputs, dtype=torch.bool))
        self.register_buffer("scales", torch.zeros(len(Logarithms._fields) - 1, num_outputs, dtype=torch.float64))

    def forward(self, outputs: Tensor) -> Tensor:
        """Maps outputs `(B, num_outputs)` to the scale of Y."""
        return Logarithms(self.is_skewed, *self.scales).back(outputs.double()).to(outputs.dtype)

    @torch.no_grad()
    def read(self, logarithms: Logarithms, readout: Readout) -> None:
        """Sets the scales of the outputs of a readout of Y."""
        is_skewed, *scales = (each[readout.column] for each in logarithms)
        scales[-2:] = readout.gain * scales[-2], readout.gain * scales[-1] + readout.shift
        self.is_skewed.copy_(is_skewed)
        self.scales.copy_(torch.stack(scales))

    @torch.no_grad()
    def reset(self) -> None:
        """Makes it the identity."""
        self.is_skewed.fill_(False)
        self.scales.zero_()


def _skewness(y: Tensor, weights: Tensor | None) -> Tensor:
    """Skewness of each column of `(n, c)`; 0 of a constant one."""
    centred = y - mean_of(y, weights)
    variance = mean_of(centred.square(), weights)
    varies = variance.sqrt() > 1e-9 * y.abs().amax(0)
    return torch.where(varies, mean_of(centred**3, weights) / torch.where(varies, variance, 1.0) ** 1.5, 0.0)
