"""What the models have in common that are computed from data in closed form."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Generic, TypeVar

from torch import Tensor

from fredholm.models.fitted.ridge_head import Regressand
from fredholm.models.saved_model import SavedModel

Inputs = TypeVar("Inputs")


class FittedModel(SavedModel, abc.ABC, Generic[Inputs]):
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
