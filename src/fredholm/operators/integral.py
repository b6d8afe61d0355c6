"""The integral operator: a kernel, a route, and the channel maps round the integral."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, Sequence
from fredholm.evaluation import Choice, Evaluation, select
from fredholm.kernels import Kernel


@final
class IntegralOperator(nn.Module):
    """(K u)(x) = W^O ∫ κ(x, y, u(x), u(y)) u(y) dμ(y) + W u(x) + b  (ITNet, eq. 1 and 4; b is an addition).

    Args:
        kernel: κ.
        evaluation: "auto" takes the fastest route that fits each call (`explain` says which); or one route, which
            then must fit.
        residual: whether the term W u(x) is there; W starts as the identity. Needs `kernel.in_dim == kernel.out_dim`.
        bias: whether the constant b is there; it starts at 0.
        output_gain: the Xavier-uniform start of W^O is scaled by this; deep models use 1 / sqrt(2 depth).

    Attributes:
        output_weight: W^O, `(d_out, d_out)`. residual_weight: W, `(d_out, d_in)` or None. bias: `(d_out,)` or None.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        evaluation: Evaluation | Literal["auto"] = "auto",
        residual: bool = True,
        bias: bool = True,
        output_gain: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise TypeError(f"IntegralOperator: kernel must be a fredholm kernel; got {type(kernel).__name__}")
        if evaluation != "auto" and not isinstance(evaluation, Evaluation):
            raise TypeError(f"IntegralOperator: evaluation must be 'auto' or an Evaluation; got {evaluation!r}")
        if residual and kernel.in_dim != kernel.out_dim:
            raise ValueError(
                f"IntegralOperator: a residual needs as many channels out as in; the kernel maps {kernel.in_dim} to "
                f"{kernel.out_dim}; pass residual=False"
            )
        self.kernel = kernel
        self.evaluation: Evaluation | Literal["auto"] = evaluation
        self.output_weight = nn.Parameter(torch.empty(kernel.out_dim, kernel.out_dim))
        self.residual_weight = nn.Parameter(torch.eye(kernel.out_dim)) if residual else None
        self.bias = nn.Parameter(torch.zeros(kernel.out_dim)) if bias else None
        nn.init.xavier_uniform_(self.output_weight, gain=output_gain)

    def forward(
        self,
        u: Tensor,
        domain: Domain | None = None,
        *,
        query: Tensor | None = None,
        query_domain: Domain | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Applies the operator.

        Args:
            u: signal at the keys, `(B, N, C)`. Its values at points that do not exist are never read.
            domain: where it lives, N points; None: `Sequence(N)`.
            query: signal at the queries, `(B, Nq, C)`; needed with a `query_domain` when the kernel or the residual
                reads u(x).
            query_domain: where the result is wanted, Nq points; None: `domain`.
            key_padding_mask: `(N,)` or `(B, N)` bool, True = keep, on top of the domain's own mask; a uniform measure
                is spread over what is kept.

        Returns:
            `(B, Nq, d_out)`; 0 at queries that do not exist. Where nothing exists to integrate, the integral is
            exactly 0.

        Raises:
            ValueError, TypeError: on shapes, devices or dtypes that do not fit, or a route that refuses.
        """
        u, domain, query, query_domain = self._prepare(u, domain, query, query_domain, key_padding_mask)
        if self.evaluation == "auto":
            route = select(self.kernel, u, domain, query, query_domain).evaluation
        else:
            route = self.evaluation
            reasons = route.unsupported_reasons(self.kernel, u, domain, query, query_domain)
            if reasons:
                raise ValueError(f"IntegralOperator: {route.name} refuses this integral: {'; '.join(reasons)}")
        out = route.integrate(self.kernel, u, domain, query, query_domain)
        out = nn.functional.linear(out, self.output_weight, self.bias)
        if self.residual_weight is not None:
            out = out + nn.functional.linear(u if query is None else query, self.residual_weight)
        asked = domain if query_domain is None else query_domain
        return out if asked.mask is None else torch.where(asked.mask[..., None], out, 0.0)

    def explain(
        self,
        u: Tensor,
        domain: Domain | None = None,
        *,
        query: Tensor | None = None,
        query_domain: Domain | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> str:
        """Which route `forward` would take for these arguments, and why not the others."""
        u, domain, query, query_domain = self._prepare(u, domain, query, query_domain, key_padding_mask)
        if self.evaluation == "auto":
            return str(select(self.kernel, u, domain, query, query_domain))
        reasons = self.evaluation.unsupported_reasons(self.kernel, u, domain, query, query_domain)
        if reasons:
            return f"{self.evaluation.name}, as asked, refuses: {'; '.join(reasons)}"
        return f"{Choice(self.evaluation, {})} (as asked)"

    def _prepare(
        self, u: Tensor, domain: Domain | None, query: Tensor | None, query_domain: Domain | None, mask: Tensor | None
    ) -> tuple[Tensor, Domain, Tensor | None, Domain | None]:
        """Checks the arguments, and blanks what lies at points that do not exist."""
        self._check_signal("u", u)
        domain = self._check_domain("u", u, Sequence(u.shape[1]) if domain is None else domain)
        if query is not None:
            self._check_signal("query", query)
            if query_domain is None:
                query_domain = domain if query.shape[1] == domain.num_points else Sequence(query.shape[1])
            if query.shape[0] != u.shape[0] or query.device != u.device or query.dtype != u.dtype:
                raise ValueError(
                    f"IntegralOperator: query {tuple(query.shape)} {query.dtype} on {query.device} must share "
                    f"batch size, dtype and device with u {tuple(u.shape)} {u.dtype} on {u.device}"
                )
        elif query_domain is not None and (self.kernel.reads_query or self.residual_weight is not None):
            raise ValueError(
                "IntegralOperator: query_domain was given without query; the kernel or the residual reads u(x), "
                "so pass query=, the signal at the queries"
            )
        domain = domain.restrict(mask)
        if domain.batch_size is not None and domain.batch_size != u.shape[0]:
            raise ValueError(
                f"IntegralOperator: key_padding_mask has batch size {domain.batch_size} but u has {u.shape[0]}"
            )
        u = u if domain.mask is None else torch.where(domain.mask[..., None], u, 0.0)
        if query_domain is not None:
            like = u.new_empty(u.shape[0], query_domain.num_points, 0) if query is None else query
            query_domain = self._check_domain("query", like, query_domain)
            if query is not None and query_domain.mask is not None:
                query = torch.where(query_domain.mask[..., None], query, 0.0)
        return u, domain, query, query_domain

    def _check_signal(self, name: str, u: Tensor) -> None:
        if not isinstance(u, Tensor):
            raise TypeError(f"IntegralOperator: {name} must be a tensor; got {type(u).__name__}")
        channels = self.kernel.in_dim
        if u.ndim != 3 or u.shape[-1] != channels:
            raise ValueError(
                f"IntegralOperator: {name} must be (batch, points, channels) with {channels} channels; "
                f"got {tuple(u.shape)}"
            )
        weight = self.output_weight
        if u.device != weight.device:
            raise ValueError(f"IntegralOperator: {name} is on {u.device} but the operator is on {weight.device}")
        if not u.dtype.is_floating_point or (u.dtype != weight.dtype and not torch.is_autocast_enabled(u.device.type)):
            raise TypeError(
                f"IntegralOperator: {name} is {u.dtype} but the operator is {weight.dtype}; convert one of them"
            )

    def _check_domain(self, name: str, u: Tensor, domain: Domain) -> Domain:
        if not isinstance(domain, Domain):
            raise TypeError(f"IntegralOperator: expected a fredholm domain; got {type(domain).__name__}")
        if domain.num_points != u.shape[1]:
            raise ValueError(
                f"IntegralOperator: {name} has {u.shape[1]} points but its domain {domain!r} has {domain.num_points}"
            )
        if self.kernel.pos_dim is not None and self.kernel.pos_dim != domain.pos_dim:
            raise ValueError(
                f"IntegralOperator: the kernel reads positions with {self.kernel.pos_dim} coordinates; "
                f"{domain!r} has {domain.pos_dim}"
            )
        if domain.batch_size is not None and domain.batch_size != u.shape[0]:
            raise ValueError(
                f"IntegralOperator: {name} has batch size {u.shape[0]} "
                f"but its domain has batch size {domain.batch_size}"
            )
        if domain.device != u.device:
            if not domain.is_generated:
                raise ValueError(
                    f"IntegralOperator: {name} is on {u.device} but its domain is on {domain.device}; use domain.to"
                )
            domain = domain.to(u.device)
        return domain
