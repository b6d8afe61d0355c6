"""Time-invariant diagonal recurrences as one causal convolution with their impulse response."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm._precision import without_autocast
from fredholm.domains.checks import is_open
from fredholm.evaluation.evaluation import Queries, Route
from fredholm.evaluation.integral import Integral
from fredholm.kernels.recurrence.semi_separable import DiagonalForm, DiagonalRecurrence

STRETCH = 64
"""Number of points over which powers of the decay are computed one by one."""


@final
@dataclasses.dataclass(frozen=True)
class LongConvolution(Route[DiagonalRecurrence]):
    """For `DiagonalRecurrence` kernels that do not vary in time: whole sequences by FFT, without states.

    The impulse response at T points costs T d n multiplications in matrix products and T d n / 64 memory, the
    transforms d T log T. In low precision it computes in float32. Where the recurrence gives exactly 0, this route
    gives 0 up to rounding.
    """

    marker = DiagonalRecurrence
    queries = Queries.AT_POINTS

    def refusals(self, integral: Integral[DiagonalRecurrence]) -> list[str]:
        """Refuses recurrences that are no convolution; see `Route.refusals`."""
        domain = integral.domain
        reasons = [] if integral.kernel.is_time_invariant else ["the recurrence varies in time"]
        if domain.pos_dim != 1:
            reasons.append("the domain does not order its points")
        if domain.mask is not None:
            reasons.append("the state skips points that do not exist, which a convolution cannot")
        return reasons

    def compute(self, integral: Integral[DiagonalRecurrence]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        form = kernel.diagonal_form(u).accumulating()
        length = u.shape[1]
        with without_autocast(u):
            value = u.to(form.steps.dtype)
            some = None
            if not domain.is_uniform:
                mass = kernel.measure(domain).to(value.dtype)[..., None]
                value, some = value * mass, mass.cumsum(-2) > 0
            if u.numel() == 0:
                return torch.zeros_like(u) * value
            # twice the length, so that the end does not wrap round onto the start
            size = 2 * length if is_open(length) else 2 * STRETCH * _stretches(length)
            spectrum = torch.fft.rfft(value, size, dim=1) * torch.fft.rfft(impulse_response(form, length), size, dim=0)
            out = torch.fft.irfft(spectrum, size, dim=1)[:, :length]
            if form.feedthrough is not None:
                out = out + form.feedthrough * value
            if some is not None:
                # exactly 0 without earlier mass, but with the gradient of weights that are 0
                out = torch.where(some, out, out - out.detach())
        return out.to(u.dtype)


def impulse_response(form: DiagonalForm, length: int) -> Tensor:
    """Response to a unit impulse at its point and the `length` - 1 following ones, without D, `(length, d)`.

    Powers of the decay are products of those within a stretch of points and those of whole stretches.
    """
    z = form.steps * form.rates
    stretch, stretches = (length, 1) if is_open(length) else (STRETCH, _stretches(length))
    points, starts = (
        torch.arange(count, dtype=form.steps.dtype, device=z.device)[:, None, None] for count in (stretch, stretches)
    )
    gain = form.input * form.output
    if form.holds_input:
        gain = gain * torch.special.expm1(z) / form.rates
    within, whole = (points * z).exp(), gain * (stretch * starts * z).exp()
    if z.is_complex():
        # Re(a b) = [Re a, Im a] · [Re b, -Im b]
        within, whole = torch.cat([within.real, within.imag], dim=1), torch.cat([whole.real, -whole.imag], dim=1)
    response = whole.permute(2, 0, 1) @ within.permute(2, 1, 0)  # (d, stretches, points)
    return response.flatten(1)[:, :length].mT


def _stretches(length: int) -> int:
    return (length + STRETCH - 1) // STRETCH
