"""The integral operator: a kernel, a route, and the channel maps round the integral."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain
from fredholm.evaluation import STATEFUL_ROUTES, Choice, Evaluation, StatefulEvaluation, select
from fredholm.kernels import Kernel, State, Stateful
from fredholm.operators.arguments import Arguments, Given, check_state, prepare


@final
class IntegralOperator(nn.Module):
    """(K u)(x) = W^O ∫ κ(x, y, u(x), u(y)) u(y) dμ(y) + W u(x) + b  (ITNet, eq. 1 and 4; b is an addition).

    Args:
        kernel: κ.
        evaluation: "auto" takes the fastest route that fits each call (`explain` says which); or one route, which
            then must fit.
        residual: whether the term W u(x) is there; W starts as the identity. Needs `kernel.in_dim == kernel.out_dim`.
        bias: whether the constant b is there; it starts at 0.
        output_projection: whether W^O is there; without it, it is the identity.
        output_gain: the Xavier-uniform start of W^O is scaled by this; deep models use 1 / sqrt(2 depth).

    Attributes:
        output_weight: W^O, `(d_out, d_out)` or None.
        residual_weight: W, `(d_out, d_in)` or None.
        bias: `(d_out,)` or None.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        evaluation: Evaluation | Literal["auto"] = "auto",
        residual: bool = True,
        bias: bool = True,
        output_projection: bool = True,
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
        self.output_weight = nn.Parameter(torch.empty(kernel.out_dim, kernel.out_dim)) if output_projection else None
        self.residual_weight = nn.Parameter(torch.eye(kernel.out_dim)) if residual else None
        self.bias = nn.Parameter(torch.zeros(kernel.out_dim)) if bias else None
        if self.output_weight is not None:
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
            query_domain: where the result is wanted, Nq points; None: `kernel.output_domain(domain)`, for most kernels
                `domain`.
            key_padding_mask: `(N,)` or `(B, N)` bool, True = keep, on top of the domain's own mask; a uniform measure
                is spread over what is kept.

        Returns:
            `(B, Nq, d_out)`; 0 at queries that do not exist. Where nothing exists to integrate, the integral is
            exactly 0.

        Raises:
            ValueError, TypeError: on shapes, devices or dtypes that do not fit, or a route that refuses.
        """
        u, domain, query, query_domain = self.prepare(u, domain, query, query_domain, key_padding_mask)
        if self.evaluation == "auto":
            route = select(self.kernel, u, domain, query, query_domain).evaluation
        else:
            route = self.evaluation
            reasons = route.unsupported_reasons(self.kernel, u, domain, query, query_domain)
            if reasons:
                raise ValueError(f"IntegralOperator: {route.name} refuses this integral: {'; '.join(reasons)}")
        out = self.around(route.integrate(self.kernel, u, domain, query, query_domain), u if query is None else query)
        asked = domain if query_domain is None else query_domain
        return out if asked.mask is None else torch.where(asked.mask[..., None], out, 0.0)

    def initial_state(self, batch_size: int) -> State:
        """The state before the first point, for `step` and `scan`; only for stateful kernels."""
        return self._stateful("initial_state").initial_state(batch_size)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """One point at a time, with the numbers that `forward` gives for the whole sequence.

        Args:
            u: signal at the next point, `(B, C)`.
            state: what `initial_state` or the step before returned.
            time: when, `(B,)`, for kernels in continuous time; None: a unit step after the point before.

        Returns:
            `(B, d_out)`, and the new state.
        """
        kernel = self._stateful("step")
        if not isinstance(u, Tensor) or u.ndim != 2:
            raise ValueError(
                f"IntegralOperator.step: u must be one point, (batch, channels); "
                f"got {tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__}"
            )
        self.prepare(u[:, None])
        check_state(kernel, state, len(u))
        out, state = kernel.step(u, state, time)
        return self.around(out, u), state

    def scan(
        self, u: Tensor, domain: Domain | None = None, *, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """A sequence, or the next chunk of one, from a state to a state; gradients flow through both.

        Args:
            u: `(B, N, C)`.
            domain: as in `forward`; a point that does not exist leaves the state as it is.
            state: where the chunk before ended; None: `initial_state`.
            reset: `(B, N)` bool, True = the state is cleared before this point, which begins a new sequence.

        Returns:
            `(B, N, d_out)`, and the state at the end.
        """
        kernel = self._stateful("scan")
        u, domain, _, _ = self.prepare(u, domain, None, None, None)
        if state is not None:
            check_state(kernel, state, len(u))
        if reset is not None and (reset.shape != u.shape[:2] or reset.dtype != torch.bool):
            raise ValueError(
                f"IntegralOperator.scan: reset must be {tuple(u.shape[:2])} bool, True = start anew here; "
                f"got {tuple(reset.shape)} {reset.dtype}"
            )
        if self.evaluation == "auto":
            route = select(kernel, u, domain, routes=STATEFUL_ROUTES).evaluation
        else:
            route = self.evaluation
        if not isinstance(route, StatefulEvaluation):
            raise ValueError(f"IntegralOperator.scan: {route.name} carries no state; use evaluation='auto'")
        out, state = route.run(kernel, u, domain, state, reset)
        out = self.around(out, u)
        return (out if domain.mask is None else torch.where(domain.mask[..., None], out, 0.0)), state

    def _stateful(self, asked: str) -> Stateful:
        if not isinstance(self.kernel, Stateful):
            raise TypeError(
                f"IntegralOperator.{asked}: {type(self.kernel).__name__} carries no state along a sequence; "
                "call the operator on the whole signal"
            )
        if not self.kernel.is_causal:
            raise ValueError(
                f"IntegralOperator.{asked}: {type(self.kernel).__name__} looks ahead; build it with is_causal=True, "
                "or call the operator on the whole signal"
            )
        return self.kernel

    def around(self, integral: Tensor, u_x: Tensor) -> Tensor:
        """W^O v + W u(x) + b, from the integral v `(..., d_out)` and u(x) `(..., C)`."""
        out = integral
        if self.output_weight is not None:
            out = nn.functional.linear(out, self.output_weight, self.bias)
        elif self.bias is not None:
            out = out + self.bias
        if self.residual_weight is not None:
            out = out + nn.functional.linear(u_x, self.residual_weight)
        return out

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
        u, domain, query, query_domain = self.prepare(u, domain, query, query_domain, key_padding_mask)
        if self.evaluation == "auto":
            return str(select(self.kernel, u, domain, query, query_domain))
        reasons = self.evaluation.unsupported_reasons(self.kernel, u, domain, query, query_domain)
        if reasons:
            return f"{self.evaluation.name}, as asked, refuses: {'; '.join(reasons)}"
        return f"{Choice(self.evaluation, {})} (as asked)"

    def prepare(
        self,
        u: Tensor,
        domain: Domain | None = None,
        query: Tensor | None = None,
        query_domain: Domain | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Arguments:
        """Checks and completes the arguments of `forward`, and blanks what lies at points that do not exist."""
        like = self.output_weight if self.output_weight is not None else next(self.parameters(), None)
        needs_query = self.kernel.reads_query or self.residual_weight is not None
        return prepare(self.kernel, like, needs_query, Given(u, domain, query, query_domain), key_padding_mask)
