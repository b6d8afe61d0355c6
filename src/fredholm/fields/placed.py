"""Fields in their frames.

    f(x) = 1/F Σ_g f_θg(M_g⁻¹ (x - μ_g)),   F = 1 unless a frame is averaged over its signs

Source: Neural Fields Meet Attention, 3.3 (A3a) and theorem 7.
"""

import dataclasses
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.fields.field import Field
from fredholm.fields.frames.coordinates import Coordinates, require_digits
from fredholm.fields.jet import Jet


class FieldSamples(NamedTuple):
    """Values of B fields, and where they say little."""

    values: Tensor
    """`(B, N, m)`."""
    is_far: Tensor
    """`(B, N)` bool: further from the samples' centre than `margin` times the furthest of them. The field is computed
    there all the same, and nothing bound it to anything."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PlacedField:
    """B fields, each with its parameters and its frame: what a `models.FieldOperator` makes of samples.

    Args:
        field: the family.
        parameters: θ in each frame, `(B, F, P)`.
        coordinates: the frames of the B sets.
        reach: the largest ‖z‖ of a sample in each frame, `(B, F)`.
        margin: how many times that a query may be away without being flagged.
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
                the frame away, where sines have no digits.
        """
        return self._values(self._places(x))

    def sample(self, x: Tensor) -> FieldSamples:
        """f(x), and which x lie far outside the samples; arguments as in a call."""
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
        """The same frames with other parameters, `(B, F, P)`: those that an optimisation refines."""
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
        batch, dim = len(self.parameters), self.coordinates.origin.shape[-1]
        x = x[None] if x.ndim == 2 else x
        if x.ndim != 3 or x.shape[-1] != dim or x.shape[0] not in (1, batch):
            raise ValueError(
                f"PlacedField: x must be (points, {dim}) or ({batch}, points, {dim}); got {tuple(x.shape)}"
            )
        if values_can_be_read(x) and not bool(x.isfinite().all()):
            raise ValueError("PlacedField: x holds NaN or infinite positions; a field is asked at places that exist")
        return x
