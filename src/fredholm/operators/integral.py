"""The integral operator: a kernel, a route, and the channel maps round the integral."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain, Sequence
from fredholm.evaluation import STATEFUL_ROUTES, Choice, Evaluation, StatefulEvaluation, select
from fredholm.kernels import Kernel, State, Stateful


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
        self._check_signal("u", u[:, None])
        _check_state(kernel, state, len(u))
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
            _check_state(kernel, state, len(u))
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
    ) -> tuple[Tensor, Domain, Tensor | None, Domain | None]:
        """Checks and completes the arguments of `forward`, and blanks what lies at points that do not exist.

        Returns:
            u, domain, query and query_domain as an evaluation takes them.
        """
        self._check_signal("u", u)
        domain = self._check_domain("u", u, Sequence(u.shape[1]) if domain is None else domain)
        if query is None and query_domain is None:
            natural = self.kernel.output_domain(domain)
            query_domain = None if natural is domain else natural
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
                "IntegralOperator: the queries are not the points of u, and the kernel or the residual reads u(x); "
                "pass query=, the signal at the queries, or build the operator with residual=False"
            )
        domain = domain.restrict(key_padding_mask)
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
        num_queries = (domain if query_domain is None else query_domain).num_points
        if domain.pair_bias is not None and domain.pair_bias.shape[-2] != num_queries:
            raise ValueError(
                f"IntegralOperator: the domain weighs pairs with {domain.pair_bias.shape[-2]} queries; "
                f"there are {num_queries}"
            )
        return u, domain, query, query_domain

    def _check_signal(self, name: str, u: Tensor) -> None:
        if not isinstance(u, Tensor):
            raise TypeError(f"IntegralOperator: {name} must be a tensor; got {type(u).__name__}")
        channels = self.kernel.query_dim if name == "query" else self.kernel.in_dim
        if u.ndim != 3 or u.shape[-1] != channels:
            raise ValueError(
                f"IntegralOperator: {name} must be (batch, points, channels) with {channels} channels; "
                f"got {tuple(u.shape)}"
            )
        weight = self._reference()
        if weight is None:
            return
        if u.device != weight.device:
            raise ValueError(f"IntegralOperator: {name} is on {u.device} but the operator is on {weight.device}")
        if not u.dtype.is_floating_point or (u.dtype != weight.dtype and not torch.is_autocast_enabled(u.device.type)):
            raise TypeError(
                f"IntegralOperator: {name} is {u.dtype} but the operator is {weight.dtype}; convert one of them"
            )

    def _reference(self) -> Tensor | None:
        """A tensor that has the operator's dtype and device; None when it holds no number at all."""
        return self.output_weight if self.output_weight is not None else next(self.parameters(), None)

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


def _check_state(kernel: Stateful, state: State, batch_size: int) -> None:
    expected = kernel.initial_state(1)
    if not isinstance(state, tuple) or len(state) != len(expected) or not all(isinstance(s, Tensor) for s in state):
        raise TypeError(
            f"IntegralOperator: a state of {type(kernel).__name__} is a tuple of {len(expected)} tensors, as "
            f"initial_state returns; got {type(state).__name__}"
        )
    sizes = [len(part) for part in state]
    if any(size != batch_size for size in sizes):
        raise ValueError(
            f"IntegralOperator: the state has batch size {sizes[0]} but the signal has {batch_size}; "
            f"start from initial_state({batch_size})"
        )
    wanted, got = ([tuple(part.shape[1:]) for part in parts] for parts in (expected, state))
    if got != wanted and not kernel.has_growing_state:
        raise ValueError(
            f"IntegralOperator: the state holds {got} numbers a sequence but {type(kernel).__name__} keeps {wanted}; "
            f"start from initial_state({batch_size})"
        )
