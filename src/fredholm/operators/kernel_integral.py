"""The integral of a kernel by whatever route fits, as a quadrature asks for it."""

from typing import Literal, final

from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation import Choice, Evaluation, select
from fredholm.kernels import Kernel, MultiHead
from fredholm.quadrature import Integral


@final
class KernelIntegral(Integral):
    """∫ κ u dμ over all points of the domain that it is given.

    Args:
        kernel: κ.
        evaluation: "auto" for the fastest route that fits, or one route, which must.
    """

    def __init__(self, kernel: Kernel, evaluation: Evaluation | Literal["auto"]) -> None:
        self.kernel = kernel
        self.evaluation: Evaluation | Literal["auto"] = evaluation

    def __call__(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """See `Evaluation.integrate`.

        Raises:
            ValueError: when the one route that may be taken refuses.
        """
        if self.evaluation == "auto":
            route = select(self.kernel, u, domain, query, query_domain).evaluation
        else:
            route = self.evaluation
            reasons = route.unsupported_reasons(self.kernel, u, domain, query, query_domain)
            if reasons:
                raise ValueError(f"IntegralOperator: {route.name} refuses this integral: {'; '.join(reasons)}")
        return route.integrate(self.kernel, u, domain, query, query_domain)

    def head(self, index: int) -> "KernelIntegral":
        """See `Integral.head`."""
        assert isinstance(self.kernel, MultiHead)
        return KernelIntegral(self.kernel.head(index), self.evaluation)

    def explain(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> str:
        """The route that a call would take, and why not the others."""
        if self.evaluation == "auto":
            return str(select(self.kernel, u, domain, query, query_domain))
        reasons = self.evaluation.unsupported_reasons(self.kernel, u, domain, query, query_domain)
        if reasons:
            return f"{self.evaluation.name}, as asked, refuses: {'; '.join(reasons)}"
        return f"{Choice(self.evaluation, {})} (as asked)"


@final
class Explanation(Integral):
    """Notes what `KernelIntegral.explain` says of the first integral that it is asked for, and gives zeros."""

    def __init__(self, integral: KernelIntegral) -> None:
        self._integral = integral
        self.texts: list[str] = []

    def __call__(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """Zeros; see `Evaluation.integrate` for the shapes."""
        if not self.texts:
            self.texts.append(self._integral.explain(u, domain, query, query_domain))
        asked = domain if query_domain is None else query_domain
        return u.new_zeros(len(u), asked.num_points, self._integral.kernel.out_dim)

    def head(self, index: int) -> "Explanation":
        """See `Integral.head`; notes are taken together."""
        other = Explanation(self._integral.head(index))
        other.texts = self.texts
        return other
