"""A field plus an interpolation of its residuals at samples, by a spline or by kriging.

Legend
    z_i       node, a point in the frame            r_i     its residual, y_i - f_θ(z_i)
    φ(z)      a radial function (`radial.py`)       a_i     coefficients of the nodes;  c, b of the linear part
    λ >= 0    smoothing; 0: the sum interpolates its samples

    f(z) = f_θ(z) + Σ_i a_i φ(z - z_i) + c·z + b,
    [K + λ I   Q ] [a    ]   [r]
    [Qᵀ        0 ] [(c,b)] = [0],    K_ij = φ(z_i - z_j),   Q_i = (z_i, 1)

With the cubic |z|³ the sum is the smoothest correction, and whatever unit z has, it is the same; on a line it is the
natural cubic spline. With a bounded φ it is the best linear prediction of a random function with covariance φ, a
linear trend, and noise of variance λ: universal kriging.

Source: Duchon (1977), Splines minimizing rotation-invariant semi-norms in Sobolev spaces; Matheron (1969), Le krigeage
universel.
"""

from typing import final

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.fields.field import Field
from fredholm.fields.jet import Jet
from fredholm.fields.placed_field import PlacedField
from fredholm.fields.radial import Radial, lengths

TINY = 1e-11
"""Ridge on the diagonal, so that coinciding or collinear nodes have a solution, in the unit of λ."""


@final
class SplinedField(Field):
    """f_θ(x) + Σ_i a_i φ(x - z_i) + c·x + b; its parameters are θ, z, a, c and b, one after the other.

    Args:
        field: f_θ.
        num_nodes: nodes z_i, at least 1.
        radial: φ; None: the cubic.
    """

    def __init__(self, field: Field, num_nodes: int, radial: Radial | None = None) -> None:
        super().__init__()
        self.radial = radial or Radial()
        check_count("fields.SplinedField", "num_nodes", num_nodes)
        self.field, self.num_nodes = field, num_nodes
        self.pos_dim, self.out_dim = field.pos_dim, field.out_dim
        self._sizes = [field.num_parameters, num_nodes * self.pos_dim, (num_nodes + self.pos_dim + 1) * self.out_dim]
        self.num_parameters = sum(self._sizes)

    def draw(self) -> Tensor:
        """See `Field.draw`: nodes, coefficients and the linear part from a normal distribution."""
        return torch.cat([self.field.draw(), torch.randn(sum(self._sizes[1:]))])

    def sizes(self) -> Tensor:
        """See `Field.sizes`."""
        return torch.cat([self.field.sizes(), torch.ones(sum(self._sizes[1:]))])

    def amplitudes(self) -> Tensor:
        """See `Field.amplitudes`: those of the field, a, c and b."""
        nodes, others = (
            torch.full((count,), is_one) for count, is_one in zip(self._sizes[1:], (False, True), strict=True)
        )
        return torch.cat([self.field.amplitudes(), nodes, others])

    def values(self, parameters: Tensor, x: Tensor) -> Tensor:
        """See `Field.values`; coefficients of near nodes cancel, so give float64."""
        theta, nodes, coefficients, linear = self._parts(parameters)
        found = self.field.values(theta, x)
        return (
            found + self.radial.values(_apart(x, nodes)) @ coefficients + x @ linear[..., :-1, :] + linear[..., -1:, :]
        )

    def derivatives(self, parameters: Tensor, x: Jet) -> Jet:
        """See `Field.derivatives`."""
        theta, nodes, coefficients, linear = self._parts(parameters)
        found = self.field.derivatives(theta, x)
        apart = _apart(x.value, nodes)
        r = lengths(apart)
        # φ has the gradient g z and second derivatives g δ_jk + h z_j z_k / |z|², with g and h of `Radial.slopes`
        of_all, along_line = self.radial.slopes(r)
        slope = of_all[..., None] * apart
        along = torch.einsum("...pnk,...pjk->...pjn", slope, x.gradient)
        unit = apart / torch.where(r > 0, r, 1.0)[..., None]
        moved = torch.einsum("...pnk,...pjk->...pjn", unit, x.gradient)
        bend = of_all * x.gradient.square().sum((-1, -2))[..., None] + along_line * moved.square().sum(-2)
        bend = bend + torch.einsum("...pnk,...pk->...pn", slope, x.laplacian)
        matrix = linear[..., :-1, :]
        return Jet(
            found.value + self.radial.values(apart) @ coefficients + x.value @ matrix + linear[..., -1:, :],
            found.gradient + along @ coefficients[..., None, :, :] + x.gradient @ matrix[..., None, :, :],
            found.laplacian + bend @ coefficients + x.laplacian @ matrix,
        )

    def _parts(self, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """θ, nodes `(..., n, s)`, coefficients `(..., n, m)`, and the linear part `(..., s + 1, m)`."""
        theta, nodes, rest = parameters.split(self._sizes, dim=-1)
        rest = rest.unflatten(-1, (-1, self.out_dim))
        return (
            theta,
            nodes.unflatten(-1, (-1, self.pos_dim)),
            rest[..., : self.num_nodes, :],
            rest[..., self.num_nodes :, :],
        )


def _apart(x: Tensor, nodes: Tensor) -> Tensor:
    """x_p - z_i, `(..., N, n, s)`."""
    return x[..., :, None, :] - nodes[..., None, :, :]


def splined(
    placed: PlacedField,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None = None,
    *,
    smoothing: float = 0.0,
    radial: Radial | None = None,
) -> PlacedField:
    """The fields with an interpolation of their residuals at the samples; see the top of the file.

    Frames stay as they are, so the result moves with the samples as the operator's own does. Gradients flow through it
    into the operator, which thereby learns what the interpolation cannot represent.

    Args:
        placed: B fields.
        x: positions of samples, `(B, N, s)`.
        y: their values, `(B, N, m)`.
        mask: `(B, N)` bool, True = this sample exists.
        smoothing: λ >= 0, in units of the mean of K for the cubic, else of φ(0) = 1.
        radial: φ, with a length in units of the frame; None: the cubic.

    Raises:
        ValueError: on a smoothing below 0.
    """
    if not 0 <= smoothing < float("inf"):
        raise ValueError(f"fields.splined: smoothing must be a finite number >= 0; got {smoothing!r}")
    nodes = placed.coordinates.normalise(x).double()
    exists = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device) if mask is None else mask
    there = exists[:, None, :, None].double().expand(*nodes.shape[:-1], 1)
    left = placed.field(placed.parameters, nodes.to(placed.parameters)).double()
    left = torch.where(there > 0, y[:, None].double() - left, 0.0)
    nodes = torch.where(there > 0, nodes, 0.0)
    both = there * there.mT
    radial = radial or Radial()
    kernel = radial.values(_apart(nodes, nodes)) * both
    unit = kernel.sum((-1, -2), keepdim=True) / both.sum((-1, -2), keepdim=True).clamp(min=1)
    unit = torch.where(unit > 0, unit, 1.0) if not radial.is_bounded else torch.ones_like(unit)
    eye = torch.eye(kernel.shape[-1], dtype=torch.float64, device=kernel.device)
    kernel = kernel / unit + (smoothing + TINY) * eye + (1 - there) * eye
    side = torch.cat([nodes, torch.ones_like(there)], dim=-1) * there
    corner = -TINY * torch.eye(side.shape[-1], dtype=torch.float64, device=kernel.device).expand(
        *side.shape[:2], -1, -1
    )
    system = torch.cat([torch.cat([kernel, side], dim=-1), torch.cat([side.mT, corner], dim=-1)], dim=-2)
    known = torch.cat([left, left.new_zeros(*left.shape[:2], side.shape[-1], left.shape[-1])], dim=-2)
    solved = torch.linalg.solve(system, known)
    count = nodes.shape[-2]
    coefficients = solved[..., :count, :] / unit
    parts = [
        placed.parameters.double(),
        nodes.flatten(-2),
        coefficients.flatten(-2),
        solved[..., count:, :].flatten(-2),
    ]
    return PlacedField(
        field=SplinedField(placed.field, count, radial),
        parameters=torch.cat(parts, dim=-1),
        coordinates=placed.coordinates,
        reach=placed.reach,
        margin=placed.margin,
    )
