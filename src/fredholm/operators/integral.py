"""The integral operator: a kernel, its nodes, a route, and the channel maps round the integral."""

import copy
import warnings
from typing import final

import torch
from torch import Tensor, nn

from fredholm._precision import autocast_dtype, product_dtype
from fredholm._settings import refuse_idle
from fredholm.domains import Domain, Sequence
from fredholm.domains.order import check_order
from fredholm.domains.points import last_points
from fredholm.evaluation import AUTO, Evaluation, Integral, StatefulEvaluation
from fredholm.kernels import Kernel, State, Stateful
from fredholm.operators.auxiliary_loss import is_collecting, offer
from fredholm.quadrature.quadrature import Nodes, Quadrature


@final
class IntegralOperator(nn.Module):
    """(K u)(x) = W^O ∫ κ(x, y, u(x), u(y)) u(y) dμ(y) + W u(x) + b  (ITNet, eq. 1 and 4; b is an addition).

    Args:
        kernel: κ.
        evaluation: the route: the fastest one that fits each call (`explain` reports it), or one route, which then must
            fit.
        quadrature: the nodes of the integral; None: all points. Needs `kernel.is_pairwise`.
        residual: whether to add W u(x); W starts as the identity. Needs `kernel.in_dim == kernel.out_dim`.
        bias: whether to add the constant b; it starts at 0.
        output_projection: whether to learn W^O; else it is the identity.
        output_gain: factor of the Xavier-uniform start of W^O; deep models use 1 / sqrt(2 depth). Refused without W^O.

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
        _check_kernel(kernel)
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
            u: signal at the keys, `(B, N, C)`. Values at points that do not exist are not read, except as u(x) where a
                `query_domain` without their mask requests the result there.
            domain: the N points of u; None: `Sequence(N)`.
            query: signal at the queries, `(B, Nq, C)`; needed with a `query_domain` when the kernel or the residual
                reads u(x).
            query_domain: the Nq points of the result; None: `kernel.output_domain(domain)`, for most kernels `domain`.
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
        """The result of `forward` for the integral that `prepare` made of its arguments."""
        return self._around_existing(self._integrate(integral), integral.query, integral.query_domain)

    def with_quadrature(self, quadrature: Quadrature | None) -> "IntegralOperator":
        """An operator with the same kernel and the same parameters, sampled at other nodes; None: at all points.

        The two share their parameters: training either trains both.
        """
        check_quadrature(self.kernel, quadrature)
        other = IntegralOperator.__new__(IntegralOperator)
        # registries of its own, so that hooks or submodules added to one are not added to the other
        vars(other).update((name, copy.copy(v) if isinstance(v, dict) else v) for name, v in vars(self).items())
        other.add_module("quadrature", quadrature)
        return other

    def _integrate(self, integral: Integral[Kernel]) -> Tensor:
        """∫ κ u dμ, `(B, Nq, d_out)`, by nodes and route; offers the loss of the nodes' proposal."""
        quadrature = None if integral.is_empty else self.quadrature
        nodes = None if quadrature is None else self._nodes(quadrature, integral)
        if quadrature is None or nodes is None:
            return self.evaluation.integrate(integral)
        if quadrature.training and is_collecting():
            loss = nodes.proposal_loss(self.evaluation, integral)
            if loss is not None:
                offer(loss)
        return nodes.integrate(self.evaluation, integral)

    def _nodes(self, quadrature: Quadrature, integral: Integral[Kernel]) -> Nodes | None:
        if integral.domain.pair_bias is not None or integral.domain.pair_list is not None:
            raise ValueError(
                "IntegralOperator: a quadrature samples one measure for all queries, and this domain weighs pairs "
                "(Domain.weigh_pairs, list_pairs); use quadrature=None"
            )
        if integral.is_shared:
            raise ValueError(
                "IntegralOperator: a quadrature chooses among all points, and other processes hold some of these "
                "(distributed.Shard); use quadrature=None"
            )
        return quadrature.nodes(integral)

    def initial_state(self, batch_size: int) -> State:
        """The state before the first point, for `step` and `scan`; only for stateful kernels."""
        return self._stateful("initial_state").initial_state(batch_size)

    def step(self, u: Tensor, state: State, time: Tensor | None = None) -> tuple[Tensor, State]:
        """Advances by one point; the results equal those of `forward` on the whole sequence.

        Args:
            u: signal at the next point, `(B, C)`.
            state: the state that `initial_state` or the previous step returned.
            time: of the point, `(B,)` float, for kernels in continuous time; None: a unit step after the previous
                point.

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
        _check_state(kernel, state, u.shape[0])
        if time is not None:
            _check_time(time, u)
        out, state = kernel.step(u, state, time)
        return self.around(out, u), state

    def scan(
        self, u: Tensor, domain: Domain | None = None, *, state: State | None = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Processes a sequence, or its next chunk, from a state to a state; gradients flow through both.

        Args:
            u: `(B, N, C)`.
            domain: as in `forward`; a point that does not exist leaves the state as it is.
            state: the state at the end of the previous chunk; None: `initial_state`.
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
            _check_state(kernel, state, u.shape[0])
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
        return self._around_existing(out, u, domain), state

    def _stateful(self, method: str) -> Stateful:
        if not isinstance(self.kernel, Stateful):
            raise TypeError(
                f"IntegralOperator.{method}: {type(self.kernel).__name__} carries no state along a sequence; "
                "call the operator on the whole signal"
            )
        if not self.kernel.is_causal:
            raise ValueError(
                f"IntegralOperator.{method}: {type(self.kernel).__name__} looks ahead; build it with is_causal=True, "
                "or call the operator on the whole signal"
            )
        return self.kernel

    def _around_existing(self, integral: Tensor, u_x: Tensor, queries: Domain) -> Tensor:
        """`around`, with 0 at queries that do not exist."""
        # masked before W^O too: a route may leave infinite values there, and 0 times those is NaN in the gradient of
        # W^O
        return queries.where_existing(self.around(queries.where_existing(integral), u_x))

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

    def extra_repr(self) -> str:
        """The settings that are not at their defaults, for `print`."""
        parts = {"residual": self.residual_weight, "bias": self.bias, "output_projection": self.output_weight}
        absent = [f"{name}=False" for name, weight in parts.items() if weight is None]
        return ", ".join([*absent, *([] if self.evaluation == AUTO else [f"evaluation={self.evaluation!r}"])])

    def explain(
        self,
        u: Tensor,
        domain: Domain | None = None,
        *,
        query: Tensor | None = None,
        query_domain: Domain | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> str:
        """Reports the route that `forward` would take for these arguments, and why the others refuse.

        Also reports a signal outside the range in which the kernel keeps its accuracy (`Kernel.signal_range`).
        """
        integral = self.prepare(u, domain, query, query_domain, key_padding_mask)
        beyond = _beyond_range(integral)
        if self.quadrature is None or integral.is_empty:
            return self.evaluation.explain(integral) + beyond
        with torch.random.fork_rng(), torch.no_grad(), warnings.catch_warnings(action="ignore"):
            nodes = self._nodes(self.quadrature, integral)
            if nodes is None:
                explanation = self.evaluation.explain(integral)
            else:
                nodes.integrate(explained := _Explained(self.evaluation), integral)
                explanation = explained.texts[0]
        return f"{self.quadrature.name}: {self.quadrature.describe(integral.domain.num_points)}\n{explanation}{beyond}"

    def prepare(
        self,
        u: Tensor,
        domain: Domain | None = None,
        query: Tensor | None = None,
        query_domain: Domain | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Integral[Kernel]:
        """Checks and completes the arguments of `forward`, and sets the signal to 0 at points that do not exist."""
        kernel, output_weight = self.kernel, self.output_weight
        like = next(self.parameters(), None) if output_weight is None else output_weight
        _check_signal("u", u, kernel.in_dim, like)
        batch, length = u.shape[:2]
        domain = Sequence(length, device=u.device) if domain is None else domain
        domain = _checked_domain("u", domain, length, u, kernel)
        if query is not None:
            _check_signal("query", query, kernel.query_dim, like)
            if query.shape[0] != batch or query.device != u.device or query.dtype != u.dtype:
                raise ValueError(
                    f"IntegralOperator: query {tuple(query.shape)} {query.dtype} on {query.device} must share "
                    f"batch size, dtype and device with u {tuple(u.shape)} {u.dtype} on {u.device}"
                )
        given, u = u, _in_16_bits_of_autocast(u)
        if query is not None:
            query = u if query is given else _in_16_bits_of_autocast(query)
        keys = domain.restrict(key_padding_mask)
        if key_padding_mask is not None and keys.batch_size is not None and keys.batch_size != batch:
            raise ValueError(f"IntegralOperator: key_padding_mask has batch size {keys.batch_size} but u has {batch}")
        is_natural = query_domain is None
        if query_domain is None:
            query_domain = _natural_queries(kernel, domain, keys, query)
        if is_natural and query is None and query_domain.has_points_of(domain):
            query_domain = keys  # no result is needed at a hidden key
        else:
            query_domain = _checked_domain("query", query_domain, None if query is None else query.shape[1], u, kernel)
        needs_query = kernel.reads_query or self.residual_weight is not None
        if needs_query and query is None and not query_domain.has_points_of(keys):
            if not query_domain.has_points_of(domain):
                raise ValueError(
                    "IntegralOperator: the queries are not the points of u, and the kernel or the residual reads u(x); "
                    "pass query=, the signal at the queries, or build the operator with residual=False"
                )
            query = u  # the mask is of the keys, not of these queries
        weighed = None if domain.pair_bias is None else domain.pair_bias.shape[-2]
        weighed = weighed if domain.pair_list is None else domain.pair_list.num_queries
        if weighed is not None and weighed != query_domain.num_points:  # not `in`: the compiler errs
            raise ValueError(
                f"IntegralOperator: the domain weighs pairs with {weighed} queries; there are {query_domain.num_points}"
            )
        if query is u and query_domain.has_points_of(keys):
            query = None
        if query is not None and query_domain.mask is not None:
            query = torch.where(query_domain.mask[..., None], query, 0.0)
        u = u if keys.mask is None else torch.where(keys.mask[..., None], u, 0.0)
        return Integral(kernel, u, keys, query, query_domain)


@final
class _Explained(Evaluation):
    """Records another evaluation's explanation of each integral, and returns zeros."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self.texts: list[str] = []

    def unsupported_reasons(self, integral: Integral[Kernel]) -> list[str]:
        """No reasons; see `Evaluation.unsupported_reasons`."""
        return []

    def integrate(self, integral: Integral[Kernel]) -> Tensor:
        """Zeros; see `Evaluation.integrate`."""
        self.texts.append(self._evaluation.explain(integral))
        return integral.u.new_zeros(integral.u.shape[0], integral.num_queries, integral.kernel.out_dim)

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


def _natural_queries(kernel: Kernel, domain: Domain, keys: Domain, query: Tensor | None) -> Domain:
    """The domain of the queries in a call without `query_domain`.

    Args:
        kernel: of the operator.
        domain: the points of u.
        keys: the points of u that exist for this call.
        query: the signal at the queries; None: not given.

    Raises:
        ValueError: where their positions cannot be inferred.
    """
    natural = domain.mapped(kernel.output_domain)
    if (
        domain.whole is not None
        and query is not None
        and (not natural.has_points_of(domain) or query.shape[1] != domain.num_points)
    ):
        # the number of points differs between processes, so it must not decide
        raise ValueError(
            f"IntegralOperator: query has {query.shape[1]} points, and their positions among those of all processes "
            f"cannot be inferred: {domain!r} gives results at {natural!r}; give a query_domain, a distributed.Shard "
            "or one domain for all"
        )
    if query is None or query.shape[1] == natural.num_points:
        return natural
    count = query.shape[1]
    if count == domain.num_points:
        return domain
    if not kernel.is_causal or domain.num_points == 0:
        return Sequence(count, device=domain.device)
    by_index = Sequence(count, first=domain.num_points - count, device=domain.device)
    check_order(by_index, keys)
    if count > domain.num_points and kernel.pos_dim is None and not kernel.reads_order:
        return by_index
    # the last query sees every point, so it lies at the last point
    return last_points(domain, count)


def _check_kernel(kernel: object) -> None:
    """Raises unless this is a kernel that sets the attributes of `kernels.Kernel`."""
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        name = kernel.__name__
        raise TypeError(f"IntegralOperator: kernel must be a fredholm kernel; got the class {name}: make one, {name}()")
    if not isinstance(kernel, Kernel):
        raise TypeError(f"IntegralOperator: kernel must be a fredholm kernel; got {type(kernel).__name__}")
    missing = [
        name for name in ("in_dim", "out_dim", "pos_dim", "is_causal", "reads_query") if not hasattr(kernel, name)
    ]
    if missing:
        raise TypeError(
            f"IntegralOperator: {type(kernel).__name__} does not set {', '.join(missing)}; see the attributes of "
            "kernels.Kernel"
        )


def _check_signal(name: str, u: Tensor, channels: int, like: Tensor | None) -> None:
    if not isinstance(u, Tensor) or u.is_nested:
        got = "a nested tensor" if isinstance(u, Tensor) else type(u).__name__
        instead = "torch.as_tensor makes one"
        if isinstance(u, Tensor | list | tuple):
            instead = "pad entries of several lengths to one, and mask the padding: Sequence(n, mask=mask)"
        raise TypeError(f"IntegralOperator: {name} must be a tensor, (batch, points, channels); got {got}; {instead}")
    if u.ndim != 3 or u.shape[-1] != channels:
        message = f"{name} must be (batch, points, channels) with {channels} channels; got {tuple(u.shape)}"
        if u.ndim == 2 and u.shape[-1] == channels:
            message += f"; {name}[None] is a batch of one"
        elif u.ndim > 3 and u.shape[1] == channels:
            message += f"; points on a grid, channels first, become such a signal by {name}.flatten(2).mT"
        elif u.ndim == 3 and u.shape[1] == channels:
            message += f"; {name}.mT has the channels last"
        raise ValueError(f"IntegralOperator: {message}")
    if like is None:
        return
    if u.device != like.device:
        raise ValueError(f"IntegralOperator: {name} is on {u.device} but the operator is on {like.device}")
    if not u.dtype.is_floating_point:
        raise TypeError(f"IntegralOperator: {name} is {u.dtype} but the operator is {like.dtype}; convert the signal")
    cast = autocast_dtype(u)
    if cast is not None and like.dtype != torch.float64 != u.dtype:
        if like.dtype not in (torch.float32, cast):
            raise TypeError(
                f"IntegralOperator: the operator is {like.dtype} under autocast to {cast}; keep it in float32 there"
            )
    elif u.dtype != like.dtype:
        raise TypeError(f"IntegralOperator: {name} is {u.dtype} but the operator is {like.dtype}; convert one of them")


def _check_time(time: object, u: Tensor) -> None:
    if not isinstance(time, Tensor) or time.shape != u.shape[:1] or not time.dtype.is_floating_point:
        received = f"{tuple(time.shape)} {time.dtype}" if isinstance(time, Tensor) else repr(time)
        raise ValueError(
            f"IntegralOperator.step: time must be a float tensor ({u.shape[0]},), a time for each entry; got {received}"
        )
    if time.device != u.device:
        raise ValueError(f"IntegralOperator.step: time is on {time.device} but u is on {u.device}; move one of them")


def _in_16_bits_of_autocast(signal: Tensor) -> Tensor:
    """The signal; a 16-bit one in autocast's dtype, because torch does not multiply float16 with bfloat16."""
    return signal.to(product_dtype(signal)) if signal.dtype.itemsize == 2 else signal


def _beyond_range(integral: Integral[Kernel]) -> str:
    """A line that reports a signal outside the kernel's range for the dtype (`Kernel.signal_range`); else ""."""
    kernel, dtype = integral.kernel, integral.working_dtype
    if integral.is_empty or dtype not in kernel.signal_range:
        return ""
    least, most = kernel.signal_range[dtype]
    size = integral.u.detach().double().square().mean().sqrt().item()
    if size == 0 or least <= size <= most:
        return ""
    return (
        f"\n  the root mean square of the signal is {size:.2g}; {type(kernel).__name__} keeps its accuracy in {dtype} "
        f"between {least:g} and {most:g}: normalise the signal, or compute in a wider dtype"
    )


def _checked_domain(name: str, domain: Domain, num_points: int | None, u: Tensor, kernel: Kernel) -> Domain:
    """The domain of `name`, on u's device; raises unless it fits the kernel, u's batch and `num_points` (if given)."""
    if not isinstance(domain, Domain):
        raise TypeError(
            f"IntegralOperator: expected a fredholm domain, such as Grid(14, 14) or Points(positions); got "
            f"{type(domain).__name__}"
        )
    if num_points is not None and domain.num_points != num_points:
        raise ValueError(
            f"IntegralOperator: {name} has {num_points} points but its domain {domain!r} has {domain.num_points}"
        )
    if kernel.pos_dim is not None and kernel.pos_dim != domain.pos_dim:
        raise ValueError(
            f"IntegralOperator: the kernel reads positions with {kernel.pos_dim} coordinates; "
            f"{domain!r} has {domain.pos_dim}; give another domain (the default is a Sequence), or build the kernel "
            f"with pos_dim={domain.pos_dim}"
        )
    batch_size = domain.batch_size
    if batch_size is not None and batch_size != u.shape[0]:
        raise ValueError(f"IntegralOperator: {name} has batch size {len(u)} but its domain has batch size {batch_size}")
    if domain.device == u.device:
        return domain
    if not domain.is_generated:
        raise ValueError(
            f"IntegralOperator: {name} is on {u.device} but its domain is on {domain.device}; use domain.to"
        )
    return domain.to(u.device)


def check_operator(name: str, what: str, operator: object) -> None:
    """Raises a TypeError that begins with `name` unless `operator` is an `IntegralOperator`, compiled or not."""
    if not isinstance(operator, nn.Module) or not isinstance(getattr(operator, "kernel", None), Kernel):
        raise TypeError(
            f"{name}: {what} must be an IntegralOperator, IntegralOperator(kernel); got {type(operator).__name__}"
        )


def _check_state(kernel: Stateful, state: State, batch_size: int) -> None:
    """Raises unless a state has the form of `kernel.initial_state(batch_size)`."""
    expected = kernel.initial_state(1)
    if not isinstance(state, tuple) or len(state) != len(expected) or not all(isinstance(s, Tensor) for s in state):
        raise TypeError(
            f"IntegralOperator: a state of {type(kernel).__name__} is a tuple of {len(expected)} tensors, as "
            f"initial_state returns; got {type(state).__name__}"
        )
    sizes = [part.shape[0] for part in state]
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
