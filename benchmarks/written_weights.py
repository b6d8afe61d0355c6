"""The oracle of whole models: attention as all of its weights, times the values."""

from dataclasses import dataclass
from typing import final

from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation import Evaluation
from fredholm.kernels import Kernel, ValueMixing


@final
@dataclass(frozen=True)
class WrittenWeights(Evaluation):
    """What every point contributes to every head, N x N numbers by the kernel's definition, times the values."""

    marker = ValueMixing

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses nothing; see `Evaluation.unsupported_reasons`."""
        return []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, ValueMixing)
        values = kernel.multiplicand(u)[:, None] @ kernel.value_matrices().mT
        return (kernel.coefficients(u, domain, query, query_domain) @ values).transpose(1, 2).flatten(2)
