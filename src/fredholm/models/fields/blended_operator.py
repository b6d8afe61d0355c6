"""A network of functions and a regression beside it, of which each takes a share in the answer."""

from typing import final

from torch import Tensor

from fredholm.domains import Domain
from fredholm.encoders.function import FunctionBatch
from fredholm.models.blended import Blended
from fredholm.models.field_model import FieldModel
from fredholm.models.fields.function_regression import FunctionRegression


@final
class BlendedOperator(Blended[FieldModel, FunctionRegression]):
    """A network of functions with a kernel regression beside it; see `Blended`.

    An operator that is linear, or of which there are few pairs, is learnt better by the regression; what bends, and
    many pairs, by the network.

    Args:
        network: it answers at every point.
        fitted: with as many outputs.

    Raises:
        ValueError: on a network that pools its signal.
    """

    def __init__(self, network: FieldModel, fitted: FunctionRegression) -> None:
        super().__init__(network, fitted)
        if network.pool != "none":
            raise ValueError(
                f"models.BlendedOperator: the network has pool={network.pool!r}; build it with pool='none', so that it "
                "answers at every point"
            )

    def forward(self, inputs: FunctionBatch, at: Domain | None = None) -> Tensor:
        """The answers `(B, Nq, num_outputs)` at the points `at`, or where the inputs are; see `FieldModel.forward`."""
        return self._answer(inputs, at)
