"""A network of functions and a regression beside it, of which each takes a share in the answer."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.domains.checks import values_can_be_read
from fredholm.encoders.function import FunctionBatch
from fredholm.models.field_model import FieldModel
from fredholm.models.fields.function_regression import FunctionRegression
from fredholm.models.saved_model import SavedModel


@final
class BlendedOperator(SavedModel):
    """s N(a) + (1 - s) R(a), of a network N that learns in steps and a regression R in closed form.

    In training it is the network alone, which so learns the whole answer; s is chosen afterwards, by functions that
    neither was trained on. Few pairs, or an operator that is linear, are told better by R, which its left-out errors
    fit to them; what bends, and many pairs, by N.

    Args:
        network: N, which answers at every point.
        regression: R, with as many outputs.

    Attributes:
        share: s, a float32 scalar, 0 to 1; 1 at first.

    Raises:
        ValueError: on a network that pools its signal.
    """

    share: Tensor

    def __init__(self, network: FieldModel, regression: FunctionRegression) -> None:
        super().__init__()
        if network.pool != "none":
            raise ValueError(
                f"models.BlendedOperator: the network has pool={network.pool!r}; build it with pool='none', so that it "
                "answers at every point"
            )
        self.network, self.regression = network, regression
        self.register_buffer("share", torch.ones(()))

    def forward(self, inputs: FunctionBatch, at: Domain | None = None) -> Tensor:
        """The answers `(B, Nq, num_outputs)` at the points `at`, or where the inputs are; see `FieldModel.forward`."""
        if self.training:
            return self.network(inputs, at)
        return self._blended(inputs, at, float(self.share) if values_can_be_read(self.share) else self.share)

    def of_share(self, share: float) -> Callable[[FunctionBatch, Domain | None], Tensor]:
        """The same function with another s."""
        return lambda inputs, at=None: self._blended(inputs, at, share)

    def _blended(self, inputs: FunctionBatch, at: Domain | None, share: float | Tensor) -> Tensor:
        if isinstance(share, float) and share in (0.0, 1.0):
            return self.network(inputs, at) if share else self.regression(inputs, at)
        learnt = self.network(inputs, at)
        return torch.lerp(self.regression(inputs, at).to(learnt.dtype), learnt, share)
