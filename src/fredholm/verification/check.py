"""Rows of the verification table, and the equalities that are checked for them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation import FFT, ROUTES, Dense, Evaluation, LongConvolution
from fredholm.operators import IntegralOperator

EXACT, SPECTRAL, GRADIENT = 1e-12, 1e-10, 1e-10
# FFT() also takes filters that are too small for transforms to pay
FAST_ROUTES: tuple[Evaluation, ...] = tuple(
    FFT() if isinstance(route, FFT) else route for route in ROUTES if not isinstance(route, Dense)
)


class Check(NamedTuple):
    """A measured error and its bound.

    `max_error` is relative to the largest expected value. For a property that a classical family cannot have, the bound
    is from below: `at_least`.
    """

    layer: str
    variant: str
    check: str
    max_error: float
    bound: float
    at_least: bool = False

    @property
    def ok(self) -> bool:
        """Whether the bound is kept; False for a NaN."""
        return self.max_error >= self.bound if self.at_least else self.max_error <= self.bound

    def as_json(self) -> dict[str, Any]:
        """The row as a dict of JSON values."""
        return {name: getattr(self, name) for name in ("layer", "variant", "check", "max_error", "bound", "ok")}


class Equality(NamedTuple):
    """An operator, a signal, and the expected output: a reference layer's, with the operator's own parameters."""

    layer: str
    variant: str
    operator: IntegralOperator
    u: Tensor
    expected: Callable[[], Tensor]  # (B, Nq, d_out), differentiable by u, query and the operator's parameters
    domain: Domain | None = None
    query: Tensor | None = None
    query_domain: Domain | None = None

    def checks(self) -> list[Check]:
        """Checks the literal quadrature and every fast route that takes the integral, each with its gradients."""
        reference = self._with_gradients(self.expected())
        integral = self.operator.prepare(self.u, self.domain, self.query, self.query_domain)
        accepting = [route for route in FAST_ROUTES if not route.unsupported_reasons(integral)]
        rows = []
        for route in [Dense(), *accepting]:
            self.operator.evaluation = route
            found = self._with_gradients(
                self.operator(self.u, self.domain, query=self.query, query_domain=self.query_domain)
            )
            name = "quadrature" if isinstance(route, Dense) else route.name
            errors = [relative_error(mine, theirs) for mine, theirs in zip(found, reference, strict=True)]
            bound = SPECTRAL if isinstance(route, FFT | LongConvolution) else EXACT
            rows.append(Check(self.layer, self.variant, name, errors[0], bound))
            rows.append(Check(self.layer, self.variant, f"{name}, gradient", max(errors[1:]), GRADIENT))
        return rows

    def _with_gradients(self, out: Tensor) -> list[Tensor]:
        trained = [parameter for parameter in self.operator.parameters() if parameter.requires_grad]
        leaves = [self.u, *([] if self.query is None else [self.query]), *trained]
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype)
        grads = torch.autograd.grad(out, leaves, cotangent, allow_unused=True)
        return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True))]


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest absolute error over the largest expected magnitude, or over 1 where all magnitudes are smaller."""
    if found.shape != expected.shape:
        return float("inf")
    if found.numel() == 0:
        return 0.0
    return ((found - expected).abs().max() / expected.abs().max().clamp_min(1.0)).item()


def operator_of(kernel: Any, *, bias: bool = False) -> IntegralOperator:
    """An operator in float64 of the bare kernel, without residual and output map; its bias, if any, is random."""
    operator = IntegralOperator(kernel, residual=False, bias=bias, output_projection=False).double()
    if operator.bias is not None:
        torch.nn.init.normal_(operator.bias)
    return operator
