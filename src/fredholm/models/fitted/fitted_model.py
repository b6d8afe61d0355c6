"""What the models have in common that are computed from data in closed form."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.models.closed_form_model import ClosedFormModel
from fredholm.models.fitted.ridge_head import Readout, Regressand, check_groups

Inputs = TypeVar("Inputs")


class FittedModel(ClosedFormModel, abc.ABC, Generic[Inputs]):
    """A model that is computed from its training data, not learned by steps."""

    @abc.abstractmethod
    def fit(
        self,
        batches: Sequence[tuple[Inputs, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
    ) -> Tensor:
        """Sets the model from all its training data; what is drawn comes from the global torch seed.

        Args:
            batches: what the model takes, and the targets `(B, ...)` of it, as the regressand takes them.
            regressand: what the targets are; it has `num_outputs` outputs.
            groups: int64, one an example: what is chosen is chosen by leaving out all of a group at once; None: each
                example by itself.

        Returns:
            The outputs of each example by a fit without it and its group, float64 `(n, num_outputs)`.

        Raises:
            ValueError: there is no example, or what the regressand refuses.
        """


@final
class Solution(NamedTuple):
    """What fits Y `(n, c)`.

    `weights (..., c)` is what a model's outputs are linear in, `offset (c,)` the mean of Y, and `left_out (n, c)` what
    is said of each example by a fit without it; float64.
    """

    weights: Tensor
    offset: Tensor
    left_out: Tensor


class CoordinateModel(ClosedFormModel, abc.ABC):
    """A model that is computed from the coordinates of its training examples; its outputs are linear in its weights.

    Args:
        num_coordinates: d.
        num_outputs: such as classes.

    Attributes:
        bias: `(num_outputs,)`, a constant.

    Raises:
        ValueError: on sizes below 1.
    """

    def __init__(self, num_coordinates: int, num_outputs: int) -> None:
        super().__init__()
        check_count(self._name, "num_coordinates", num_coordinates)
        check_count(self._name, "num_outputs", num_outputs)
        self.num_coordinates = num_coordinates
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    @property
    def _name(self) -> str:
        return f"models.{type(self).__name__}"

    @final
    @torch.no_grad()
    def fit(
        self, coordinates: Tensor, targets: Tensor, regressand: Regressand, *, groups: Tensor | None = None
    ) -> Tensor:
        """Sets the model from all its training examples; what is drawn comes from the global torch seed.

        Args:
            coordinates: `(n, d)`, any float dtype; n at least 2.
            targets: `(n, ...)`, as the regressand takes them.
            regressand: what they are.
            groups: int64 `(n,)`, whose examples are left out together, two at least; None: each by itself.

        Returns:
            The outputs of each example by the fit without it and its group, float64 `(n, num_outputs)`. What was chosen
            by such errors is kept, and the mean of what is fitted may be.

        Raises:
            ValueError: shapes that do not agree, fewer than two examples, one group alone, coordinates that are NaN or
                beyond the dtype of the model, and what the regressand refuses.
        """
        wanted = regressand.columns(targets)
        self._check_outputs(regressand.readout(wanted, targets))  # before anything is set
        solution = self.solve(coordinates, wanted, groups=groups)
        readout = regressand.readout(solution.left_out, targets)
        self.read(solution, readout)
        return readout(solution.left_out)

    @final
    @torch.no_grad()
    def solve(self, coordinates: Tensor, wanted: Tensor, *, groups: Tensor | None = None) -> Solution:
        """Sets all but what the outputs are linear in, which `read` sets.

        Args:
            coordinates, groups: see `fit`.
            wanted: Y, float64 `(n, c)`.

        Raises:
            ValueError: see `fit`.
        """
        name, d = self._name, self.num_coordinates
        if coordinates.ndim != 2 or coordinates.shape[1] != d or len(wanted) != len(coordinates):
            raise ValueError(
                f"{name}: expected coordinates (n, {d}) and n targets; got {tuple(coordinates.shape)} and "
                f"{len(wanted)} targets"
            )
        if len(coordinates) < 2:
            raise ValueError(f"{name}: there are fewer than 2 examples; expected some to fit to")
        check_groups(name, groups, len(coordinates))
        kept = coordinates.to(self.bias.dtype)
        if not bool(kept.isfinite().all()):
            raise ValueError(
                f"{name}: coordinates hold NaN or numbers that {kept.dtype} does not hold; fill or scale them"
            )
        with without_autocast(coordinates):
            return self._solved(kept.double(), wanted, groups)

    @abc.abstractmethod
    def _solved(self, x: Tensor, wanted: Tensor, groups: Tensor | None) -> Solution:
        """See `solve`; x is float64, of numbers that the model's dtype holds."""

    @final
    @torch.no_grad()
    def read(self, solution: Solution, readout: Readout, *, share: float = 1.0) -> None:
        """Sets the outputs: what a readout makes of f, times a share.

        Raises:
            ValueError: the readout has another number of outputs.
        """
        self._check_outputs(readout)
        self._read(share * readout.gain * solution.weights[..., readout.column])
        self.bias.copy_(share * readout(solution.offset))

    def _check_outputs(self, readout: Readout) -> None:
        if len(readout.gain) != len(self.bias):
            raise ValueError(f"{self._name}: the regressand has {len(readout.gain)} outputs; expected {len(self.bias)}")

    @abc.abstractmethod
    def _read(self, weights: Tensor) -> None:
        """Sets what the outputs are linear in, `(..., num_outputs)`."""
