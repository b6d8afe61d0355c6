"""The integral operator: a kernel, its nodes, a route, and the channel maps round the integral."""

import copy
import warnings
from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import refuse_idle
from fredholm.domains import Domain
from fredholm.evaluation import AUTO, Evaluation, Integral, StatefulEvaluation
from fredholm.kernels import Kernel, State, Stateful
from fredholm.operators.arguments import check_state, prepare
from fredholm.operators.auxiliary_loss import is_collecting, offer
from fredholm.quadrature.quadrature import Nodes, Quadrature


@final
class IntegralOperator(nn.Module):
    """(K u)(x) = W^O ∫ κ(x, y, u(x), u(y)) u(y) dμ(y) + W u(x) + b  (ITNet, eq. 1 and 4; b is an addition).

    Args:
        kernel: κ.
        evaluation: how it is computed: the fastest route that fits each call (`explain` says which), or one route,
            which then must fit.
        quadrature: where the integral is sampled; None: at all points. Needs `kernel.is_pairwise`.
        residual: whether the term W u(x) is there; W starts as the identity. Needs `kernel.in_dim == kernel.out_dim`.
        bias: whether the constant b is there; it starts at 0.
        output_projection: whether W^O is there; without it, it is the identity.
        output_gain: the Xavier-uniform start of W^O is scaled by this; deep models use 1 / sqrt(2 depth). Refused
            without W^O.

    Attributes:
        output_weight: W^O, `(d_out, d_out)` or None.
        residual_weight: W, `(d_out, d_in)` or None.
        bias: `(d_out,)` or None.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        evaluation: Evaluation = AUTO,
        quadrature: Quadrature | None = None,
        residual: bool = True,
        bias: bool = True,
        output_projection: bool = True,
        output_gain: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise TypeError(f"IntegralOperator: kernel must be a fredholm kernel; got {type(kernel).__name__}")
        if not isinstance(evaluation, Evaluation):
            raise TypeError(
                f"IntegralOperator: evaluation must be an Evaluation, such as Auto() or one route; got {evaluation!r}"
            )
        check_quadrature(kernel, quadrature)
        if residual and kernel.in_dim != kernel.out_dim:
            raise ValueError(
                f"IntegralOperator: a residual needs as many channels out as in; the kernel maps {kernel.in_dim} to "
                f"{kernel.out_dim}; pass residual=False"
            )
        if not output_projection:
            refuse_idle(
                "IntegralOperator",
                IntegralOperator,
                "output_projection=False",
                "give the operator its W^O",
                output_gain=output_gain,
            )
        self.kernel = kernel
        self.evaluation = evaluation
        self.quadrature: Quadrature | None
        self.add_module("quadrature", quadrature)
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
        return self.answer(self.prepare(u, domain, query, query_domain, key_padding_mask))

    def answer(self, integral: Integral[Kernel]) -> Tensor:
        """What `forward` gives, of the integral that `prepare` made of its arguments."""
        out, asked = self.around(self._integrate(integral), integral.query), integral.query_domain
        return out if asked.mask is None else torch.where(asked.mask[..., None], out, 0.0)

    def with_quadrature(self, quadrature: Quadrature | None) -> "IntegralOperator":
        """An operator with the same kernel and the same parameters, sampled at other nodes; None: at all points.

        Training either trains both.
        """
        check_quadrature(self.kernel, quadrature)
        other = IntegralOperator.__new__(IntegralOperator)
        # registries of its own, so that hooks or parts given to one are not given to the other
        vars(other).update((name, copy.copy(v) if isinstance(v, dict) else v) for name, v in vars(self).items())
        other.add_module("quadrature", quadrature)
        return other

    def _integrate(self, integral: Integral[Kernel]) -> Tensor:
        """∫ κ u dμ, `(B, Nq, d_out)`, by nodes and route; offers what the nodes' proposal is to learn from."""
        quadrature = self.quadrature
        nodes = None if quadrature is None else self._nodes(quadrature, integral)
        if quadrature is None or nodes is None:
            return self.evaluation.integrate(integral)
        if quadrature.training and is_collecting():
            loss = nodes.proposal_loss(self.evaluation, integral)
            if loss is not None:
                offer(loss)
        return nodes.integrate(self.evaluation, integral)

    def _nodes(self, quadrature: Quadrature, integral: Integral[Kernel]) -> Nodes | None:
        if integral.domain.pair_bias is not None:
            raise ValueError(
                "IntegralOperator: a quadrature samples one measure for all queries, and this domain weighs pairs "
                "(Domain.weigh_pairs); use quadrature=None"
            )
        return quadrature.nodes(integral)

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
        if self.quadrature is not None:
            raise ValueError(
                "IntegralOperator.scan goes through every point of a sequence; use with_quadrature(None), or call the "
                "operator on the whole sequence"
            )
        integral = self.prepare(u, domain)
        u, domain = integral.u, integral.domain
        if state is not None:
            check_state(kernel, state, len(u))
        if reset is not None and (reset.shape != u.shape[:2] or reset.dtype != torch.bool):
            raise ValueError(
                f"IntegralOperator.scan: reset must be {tuple(u.shape[:2])} bool, True = start anew here; "
                f"got {tuple(reset.shape)} {reset.dtype}"
            )
        if not isinstance(self.evaluation, StatefulEvaluation):
            raise ValueError(
                f"IntegralOperator.scan: {self.evaluation.name} carries no state; use evaluation=Auto(), or call the "
                "operator on the whole sequence"
            )
        out, state = self.evaluation.run(integral, state, reset)
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
        integral = self.prepare(u, domain, query, query_domain, key_padding_mask)
        if self.quadrature is None:
            return self.evaluation.explain(integral)
        with torch.random.fork_rng(), torch.no_grad(), warnings.catch_warnings(action="ignore"):
            nodes = self._nodes(self.quadrature, integral)
            if nodes is None:
                told = self.evaluation.explain(integral)
            else:
                nodes.integrate(explained := _Explained(self.evaluation), integral)
                told = explained.texts[0]
        return f"{self.quadrature.name}: {self.quadrature.describe(integral.domain.num_points)}\n{told}"

    def prepare(
        self,
        u: Tensor,
        domain: Domain | None = None,
        query: Tensor | None = None,
        query_domain: Domain | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Integral[Kernel]:
        """Checks and completes the arguments of `forward`, and blanks what lies at points that do not exist."""
        like = self.output_weight if self.output_weight is not None else next(self.parameters(), None)
        needs_query = self.kernel.reads_query or self.residual_weight is not None
        return prepare(self.kernel, like, needs_query, u, domain, query, query_domain, key_padding_mask)


@final
class _Explained(Evaluation):
    """Notes what another evaluation says of each integral that it is asked for, and gives zeros."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self.texts: list[str] = []

    def unsupported_reasons(self, integral: Integral[Kernel]) -> list[str]:
        """Nothing; see `Evaluation.unsupported_reasons`."""
        return []

    def integrate(self, integral: Integral[Kernel]) -> Tensor:
        """Zeros; see `Evaluation.integrate`."""
        self.texts.append(self._evaluation.explain(integral))
        return integral.u.new_zeros(len(integral.u), integral.num_queries, integral.kernel.out_dim)

    def explain(self, integral: Integral[Kernel]) -> str:
        """See `Evaluation.explain`."""
        return self._evaluation.explain(integral)


def check_quadrature(kernel: Kernel, quadrature: Quadrature | None) -> None:
    """Raises unless a kernel can be integrated at other nodes than all points."""
    if quadrature is None:
        return
    if not isinstance(quadrature, Quadrature):
        raise TypeError(f"IntegralOperator: quadrature must be a Quadrature or None; got {type(quadrature).__name__}")
    if not kernel.is_pairwise:
        raise ValueError(
            f"IntegralOperator: {type(kernel).__name__} is not a function of two points alone, so it cannot be summed "
            "at other nodes; use quadrature=None, or a pairwise kernel (MLP, Attention)"
        )
