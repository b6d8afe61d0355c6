"""Fields in their frames, and fitting them there.

    f(x) = 1/F Σ_g f_θg(M_g⁻¹ (x - μ_g)),   F = 1 unless a frame is averaged over its signs

Source: Neural Fields Meet Attention, 3.3 (A3a) and theorem 7.
"""

import dataclasses
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.fields.field import Field
from fredholm.fields.frames.frame import Coordinates, require_digits
from fredholm.fields.jet import Jet


class FieldSamples(NamedTuple):
    """Values of B fields, and a mask of unreliable ones."""

    values: Tensor
    """`(B, N, m)`."""
    is_far: Tensor
    """`(B, N)` bool: further from the samples' centre than `margin` times the furthest sample. The field is computed
    there all the same, but no sample constrains it."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PlacedField:
    """B fields, each with its parameters and its frame: the prediction of a `models.FieldOperator` from samples.

    Args:
        field: the family.
        parameters: θ in each frame, `(B, F, P)`.
        coordinates: the frames of the B sets.
        reach: the largest ‖z‖ of a sample in each frame, `(B, F)`.
        margin: multiple of `reach` up to which a query is not flagged.
    """

    field: Field
    parameters: Tensor
    coordinates: Coordinates
    reach: Tensor
    margin: float = 1.5

    def __call__(self, x: Tensor) -> Tensor:
        """f(x), `(B, N, m)`, at positions `(B, N, s)`, or `(N, s)` for all fields.

        Raises:
            ValueError: on positions of another dimension or batch, that are NaN or infinite, or more than 10¹² sizes of
                the frame away, where sines have no correct digits.
        """
        return self._values(self._places(x))

    def sample(self, x: Tensor) -> FieldSamples:
        """f(x), and a mask of the x that lie far outside the samples; arguments as in a call."""
        z = self._places(x)
        limit = self.margin * self.reach.detach()[..., None]
        return FieldSamples(self._values(z), (z.detach().square().sum(-1).sqrt() > limit).all(1))

    def jet(self, x: Tensor) -> Jet:
        """f, ∇f and Δf by x, by one pass forward: `(B, N, m)`, `(B, N, s, m)` and `(B, N, m)`."""
        z = self.coordinates.jet(self._queries(x))
        require_digits("PlacedField: x lies", z.value)
        found = self.field.jet(self.parameters, self._cast(z))
        return Jet(*(part.mean(1) for part in found))

    def with_parameters(self, parameters: Tensor) -> "PlacedField":
        """The same frames with other parameters, `(B, F, P)`, such as refined ones."""
        if parameters.shape != self.parameters.shape:
            raise ValueError(
                f"PlacedField.with_parameters: expected {tuple(self.parameters.shape)}, (fields, frames, parameters); "
                f"got {tuple(parameters.shape)}"
            )
        return dataclasses.replace(self, parameters=parameters)

    def _places(self, x: Tensor) -> Tensor:
        z = self.coordinates.normalise(self._queries(x))
        require_digits("PlacedField: x lies", z)
        return z

    def _values(self, z: Tensor) -> Tensor:
        return self.field(self.parameters, z.to(self._dtype)).mean(1)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.parameters.dtype, torch.float32)

    def _cast(self, jet: Jet) -> Jet:
        return Jet(*(part.to(self._dtype) for part in jet))

    def _queries(self, x: Tensor) -> Tensor:
        batch, dim = self.parameters.shape[0], self.coordinates.origin.shape[-1]
        x = x[None] if x.ndim == 2 else x
        if x.ndim != 3 or x.shape[-1] != dim or x.shape[0] not in (1, batch):
            raise ValueError(
                f"PlacedField: x must be (points, {dim}) or ({batch}, points, {dim}); got {tuple(x.shape)}"
            )
        if values_can_be_read(x) and not bool(x.isfinite().all()):
            raise ValueError("PlacedField: x holds NaN or infinite positions; leave them out")
        return x


def refine(
    placed: PlacedField, x: Tensor, y: Tensor, mask: Tensor | None = None, *, steps: int, rate: float = 1e-2
) -> PlacedField:
    """The fields after steps of Adam on the mean squared error of each at its samples.

    The optimised variable is δ in θ = θ_given + σ δ, with σ the field's `sizes`, so that one rate suits all entries.
    Frames stay as they are, so the result moves with the samples as the operator's own does. No gradient reaches the
    operator.

    Args:
        placed: B fields.
        x: positions of samples, `(B, N, s)`.
        y: their values, `(B, N, m)`.
        mask: `(B, N)` bool, True = this sample exists.
        steps: number of steps, >= 0.
        rate: of Adam at the start, > 0, in units of σ; it falls to 0 along a cosine.

    Raises:
        ValueError: on steps below 0, a rate that is not positive, or values that do not fit.
    """
    if steps < 0 or not 0 < rate < float("inf"):
        raise ValueError(f"fields.refine: needs steps >= 0 and a finite rate > 0; got {steps} and {rate!r}")
    expected = (len(placed.parameters), x.shape[-2], placed.field.out_dim)
    if y.shape != expected:
        raise ValueError(f"fields.refine: y must be {expected}, a value a sample; got {tuple(y.shape)}")
    exists = torch.ones(y.shape[:2], dtype=y.dtype, device=y.device) if mask is None else mask.to(y.dtype)
    y = torch.where(exists[..., None] > 0, y, 0.0)
    start, sizes = placed.parameters.detach(), placed.field.sizes().to(placed.parameters)
    with torch.enable_grad():
        change = torch.zeros_like(start, requires_grad=True)
        optimizer = torch.optim.Adam([change], lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
        for _ in range(steps):
            error = (placed.with_parameters(start + sizes * change)(x) - y).square().mean(-1) * exists
            # summed over fields, not averaged, so that the step of one does not depend on their number
            loss = (error.sum(-1) / exists.sum(-1).clamp(min=1)).sum()
            (change.grad,) = torch.autograd.grad(loss, change)
            optimizer.step()
            schedule.step()
    return placed.with_parameters(start + sizes * change.detach())
