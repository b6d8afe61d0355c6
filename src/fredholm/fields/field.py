"""The abstract field: a parametric family of functions."""

import abc
from typing import final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm.fields.jet import Jet
from fredholm.storage.rebuildable import Rebuildable


class Field(nn.Module, Rebuildable, abc.ABC):
    """(θ, x) -> f_θ(x): functions from R^s to R^m with P parameters each.

    The parameters are no `nn.Parameter`s but an argument, so that a set of fields, each with its own, is one tensor
    `(..., P)`, which an operator predicts or an optimiser refines. Leading dimensions broadcast against those of x.
    Everything is computed in at least float32, under autocast too: large phases need the precision.

    Attributes:
        pos_dim: coordinates s of x.
        out_dim: values m.
        num_parameters: P.
    """

    pos_dim: int
    out_dim: int
    num_parameters: int

    @abc.abstractmethod
    def draw(self) -> Tensor:
        """Initial θ of one field, `(P,)`, drawn from torch's global seed."""

    @abc.abstractmethod
    def sizes(self) -> Tensor:
        """Standard deviation of each entry of `draw`, `(P,)`: the scale on which an entry varies."""

    @abc.abstractmethod
    def amplitudes(self) -> Tensor:
        """Mask of entries of θ in which the field is linear, `(P,)` bool: where all of these are 0, so is the field."""

    @abc.abstractmethod
    def values(self, parameters: Tensor, x: Tensor) -> Tensor:
        """f_θ(x), `(..., N, m)`, from `(..., P)` and `(..., N, s)` of one dtype, outside autocast."""

    @abc.abstractmethod
    def derivatives(self, parameters: Tensor, x: Jet) -> Jet:
        """f_θ with its derivatives by the variables of the jet x; arguments as in `values`."""

    @final
    def forward(self, parameters: Tensor, x: Tensor) -> Tensor:
        """f_θ(x), `(..., N, m)`.

        Args:
            parameters: θ, `(..., P)`.
            x: `(..., N, s)`.

        Raises:
            ValueError: on sizes that are not the field's.
        """
        parameters, (x,) = self._wide(parameters, x)
        with without_autocast(x):
            return self.values(parameters, x)

    @final
    def jet(self, parameters: Tensor, x: Jet) -> Jet:
        """f_θ with its derivatives: value `(..., N, m)`, gradient `(..., N, s', m)` and Laplacian `(..., N, m)`.

        Args:
            parameters: θ, `(..., P)`.
            x: positions with their derivatives by s' coordinates.
        """
        parameters, wide = self._wide(parameters, *x)
        with without_autocast(parameters):
            return self.derivatives(parameters, Jet(*wide))

    @final
    def jet_at(self, parameters: Tensor, x: Tensor) -> Jet:
        """f_θ with its gradient and Laplacian by x itself, `(..., N, s)`."""
        unit = torch.eye(self.pos_dim, dtype=x.dtype, device=x.device).expand(*x.shape, -1)
        return self.jet(parameters, Jet(x, unit, torch.zeros_like(x)))

    def _wide(self, parameters: Tensor, *x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        name = f"fields.{type(self).__name__}"
        if parameters.shape[-1] != self.num_parameters:
            raise ValueError(
                f"{name}: a field has {self.num_parameters} parameters in the last dimension; "
                f"got {tuple(parameters.shape)}"
            )
        if x[0].ndim < 2 or x[0].shape[-1] != self.pos_dim:
            raise ValueError(f"{name}: x must be (..., points, {self.pos_dim}) coordinates; got {tuple(x[0].shape)}")
        dtype = torch.promote_types(parameters.dtype, torch.float32)
        return parameters.to(dtype), tuple(part.to(dtype) for part in x)
