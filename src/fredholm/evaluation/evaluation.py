"""The abstract evaluation: one route to the value of an integral."""

import abc
from typing import final

from torch import Tensor

from fredholm.domains import Domain
from fredholm.kernels import Kernel


class Evaluation(abc.ABC):
    """How Σ_j ω_j κ(x_i, y_j, u(x_i), u(y_j)) u(y_j) is computed: never what it is.

    For what it does not refuse, every route gives the numbers of `Dense`, in the forward pass and in every gradient.
    """

    @abc.abstractmethod
    def unsupported_reasons(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> list[str]:
        """Why this route cannot compute this integral, a sentence each; empty when it can. Shapes as in `integrate`."""

    @abc.abstractmethod
    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """The integral at every query.

        Args:
            kernel: κ, with d_in input and d_out output channels.
            u: signal at the keys, `(B, N, d_in)`; 0 at points that do not exist.
            domain: where u lives; its weights are the measure.
            query: signal at the queries, `(B, Nq, d_in)`; None: `u`.
            query_domain: where the queries lie; None: `domain`.

        Returns:
            `(B, Nq, d_out)`; exactly 0 for a query that nothing is integrated for.
        """

    @final
    @property
    def name(self) -> str:
        """The route's name."""
        return type(self).__name__
