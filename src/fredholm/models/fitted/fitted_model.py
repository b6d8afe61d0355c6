"""Base classes of models that are fitted to data in closed form."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.models.closed_form_model import ClosedFormModel
from fredholm.models.fitted.example_weights import check_weights
from fredholm.models.fitted.ridge_head import Losses, Readout, Regressand, check_groups

Inputs = TypeVar("Inputs")


class FittedModel(ClosedFormModel, abc.ABC, Generic[Inputs]):
    """A model that is fitted to its training data in closed form, without gradient steps."""

    @abc.abstractmethod
    def fit(
        self,
        batches: Sequence[tuple[Inputs, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits the model to all training data; random numbers come from the global torch seed.

        Args:
            batches: inputs of the model with targets `(B, ...)`, as the regressand takes them.
            regressand: kind of the targets; it has `num_outputs` outputs.
            groups: int64, one per example: choices by left-out errors leave out whole groups; None: each example by
                itself.
            weights: weights of the examples, float64, above 0 (`example_weights.py`); None: all are 1.

        Returns:
            Left-out outputs: those of each example by a fit without it and its group, float64 `(n, num_outputs)`.

        Raises:
            ValueError: there is no example, the regressand refuses the targets, or the model takes no weights.
        """


@final
class Solution(NamedTuple):
    """Solution of a fit to Y `(n, c)`, in float64.

    `weights (..., c)` are the weights that the outputs are linear in, `offset (c,)` is the mean of Y, and
    `left_out (n, c)` holds the predictions for each example by a fit without it.
    """

    weights: Tensor
    offset: Tensor
    left_out: Tensor


class CoordinateModel(ClosedFormModel, abc.ABC):
    """A model that is fitted to coordinates of its training examples; its outputs are linear in its weights.

    Args:
        num_coordinates: d.
        num_outputs: number of outputs, such as classes.

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
        self,
        coordinates: Tensor,
        targets: Tensor,
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Fits the model to all training examples; random numbers come from the global torch seed.

        Args:
            coordinates: `(n, d)`, any float dtype; n at least 2.
            targets: `(n, ...)`, as the regressand takes them.
            regressand: kind of the targets.
            groups: int64 `(n,)`, groups that are left out together, two at least; None: each example by itself.
            weights: float64 `(n,)`, above 0, weights of the examples; None: all are 1.

        Returns:
            Left-out outputs: those of each example by the fit without it and its group, float64 `(n, num_outputs)`.
            All of these fits share the settings chosen by such errors, and may share the mean of Y.

        Raises:
            ValueError: shapes that do not agree, fewer than two examples, one group alone, coordinates that are NaN or
                beyond the dtype of the model, or targets that the regressand refuses.
        """
        wanted = regressand.columns(targets)
        self._check_outputs(regressand.readout(wanted, targets))  # before anything is set
        losses = regressand.losses_of_scores(targets, weights)
        solution = self.solve(coordinates, wanted, groups=groups, weights=weights, losses=losses)
        readout = regressand.readout(solution.left_out, targets, weights)
        self.read(solution, readout)
        return readout(solution.left_out)

    @final
    @torch.no_grad()
    def solve(
        self,
        coordinates: Tensor,
        wanted: Tensor,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
        losses: Losses | None = None,
    ) -> Solution:
        """Solves for Y and sets all of the model but its linear weights, which `read` sets.

        Args:
            coordinates, groups, weights: see `fit`.
            wanted: Y, float64 `(n, c)`.
            losses: losses that choices may depend on besides the squares of errors.

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
        check_weights(name, weights, len(coordinates))
        kept = coordinates.to(self.bias.dtype)
        if not bool(kept.isfinite().all()):
            raise ValueError(
                f"{name}: coordinates hold NaN or numbers that {kept.dtype} does not hold; fill or scale them"
            )
        with without_autocast(coordinates):
            return self._solved(kept.double(), wanted, groups, weights, losses)

    @abc.abstractmethod
    def _solved(
        self, x: Tensor, wanted: Tensor, groups: Tensor | None, weights: Tensor | None, losses: Losses | None
    ) -> Solution:
        """See `solve`; x is float64 and representable in the model's dtype."""

    @final
    @torch.no_grad()
    def read(self, solution: Solution, readout: Readout, *, share: float = 1.0) -> None:
        """Sets the linear weights so that the outputs are the readout of f, times `share`.

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
        """Sets the weights that the outputs are linear in, `(..., num_outputs)`."""
