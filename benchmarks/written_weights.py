"""The oracle of whole models: attention as all of its weights, times the values."""

from dataclasses import dataclass
from typing import final

from torch import Tensor

from fredholm.evaluation import Integral, Route
from fredholm.kernels import ValueMixing


@final
@dataclass(frozen=True)
class WrittenWeights(Route[ValueMixing]):
    """What every point contributes to every head, N x N numbers by the kernel's definition, times the values."""

    marker = ValueMixing
    weighs_pairs = True

    def refusals(self, integral: Integral[ValueMixing]) -> list[str]:
        """Refuses nothing; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[ValueMixing]) -> Tensor:
        """See `Route.compute`."""
        kernel = integral.kernel
        values = kernel.multiplicand(integral.u)[:, None] @ kernel.value_matrices().mT
        return (kernel.coefficients(*integral.arguments) @ values).transpose(1, 2).flatten(2)
