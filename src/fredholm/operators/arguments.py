"""What an operator asks of the arguments of a call."""

import torch
from torch import Tensor

from fredholm.domains import Domain, Sequence
from fredholm.evaluation import Integral
from fredholm.kernels import Kernel, State, Stateful


def prepare(
    kernel: Kernel,
    like: Tensor | None,
    needs_query: bool,
    u: Tensor,
    domain: Domain | None,
    query: Tensor | None,
    query_domain: Domain | None,
    key_padding_mask: Tensor | None,
) -> Integral[Kernel]:
    """Checks and completes the arguments of an operator, and blanks what lies at points that do not exist.

    Args:
        kernel: the operator's kernel.
        like: a tensor with the operator's dtype and device; None when it holds no number at all.
        needs_query: whether u(x) is read, by the kernel or by the residual.
        u, domain, query, query_domain, key_padding_mask: as in `IntegralOperator.forward`.

    Raises:
        ValueError, TypeError: on shapes, devices or dtypes that do not fit.
    """
    _check_signal("u", u, kernel.in_dim, like)
    domain = _checked_domain("u", u, Sequence(u.shape[1]) if domain is None else domain, kernel)
    if query is not None:
        _check_signal("query", query, kernel.query_dim, like)
        if query.shape[0] != u.shape[0] or query.device != u.device or query.dtype != u.dtype:
            raise ValueError(
                f"IntegralOperator: query {tuple(query.shape)} {query.dtype} on {query.device} must share "
                f"batch size, dtype and device with u {tuple(u.shape)} {u.dtype} on {u.device}"
            )
    keys = domain.restrict(key_padding_mask)
    if keys.batch_size is not None and keys.batch_size != u.shape[0]:
        raise ValueError(f"IntegralOperator: key_padding_mask has batch size {keys.batch_size} but u has {u.shape[0]}")
    if query_domain is None:
        query_domain = _natural_queries(kernel, domain, query)
        if query is None and query_domain.has_points_of(domain):
            query_domain = keys  # nothing is wanted where a key is hidden
    at_queries = u.new_empty(u.shape[0], query_domain.num_points, 0) if query is None else query
    query_domain = _checked_domain("query", at_queries, query_domain, kernel)
    if needs_query and query is None and not query_domain.has_points_of(keys):
        if not query_domain.has_points_of(domain):
            raise ValueError(
                "IntegralOperator: the queries are not the points of u, and the kernel or the residual reads u(x); "
                "pass query=, the signal at the queries, or build the operator with residual=False"
            )
        query = u  # the mask is of the keys, not of these queries
    if domain.pair_bias is not None and domain.pair_bias.shape[-2] != query_domain.num_points:
        raise ValueError(
            f"IntegralOperator: the domain weighs pairs with {domain.pair_bias.shape[-2]} queries; "
            f"there are {query_domain.num_points}"
        )
    if query is u and query_domain.has_points_of(keys):
        query = None
    if query is not None and query_domain.mask is not None:
        query = torch.where(query_domain.mask[..., None], query, 0.0)
    u = u if keys.mask is None else torch.where(keys.mask[..., None], u, 0.0)
    return Integral(kernel, u, keys, query, query_domain)


def _natural_queries(kernel: Kernel, domain: Domain, query: Tensor | None) -> Domain:
    """Where queries lie of which nothing but the signal, or not even that, was given."""
    natural = kernel.output_domain(domain)
    if query is None or query.shape[1] == natural.num_points:
        return natural
    count = query.shape[1]
    if count == domain.num_points:
        return domain
    # of a causal kernel the last query sees every point, so that it lies at the last one
    first = domain.num_points - count if kernel.is_causal else 0
    return Sequence(count, first=first)


def _check_signal(name: str, u: Tensor, channels: int, like: Tensor | None) -> None:
    if not isinstance(u, Tensor):
        raise TypeError(f"IntegralOperator: {name} must be a tensor; got {type(u).__name__}")
    if u.ndim != 3 or u.shape[-1] != channels:
        raise ValueError(
            f"IntegralOperator: {name} must be (batch, points, channels) with {channels} channels; got {tuple(u.shape)}"
        )
    if like is None:
        return
    if u.device != like.device:
        raise ValueError(f"IntegralOperator: {name} is on {u.device} but the operator is on {like.device}")
    if not u.dtype.is_floating_point or (u.dtype != like.dtype and not torch.is_autocast_enabled(u.device.type)):
        raise TypeError(f"IntegralOperator: {name} is {u.dtype} but the operator is {like.dtype}; convert one of them")


def _checked_domain(name: str, u: Tensor, domain: Domain, kernel: Kernel) -> Domain:
    if not isinstance(domain, Domain):
        raise TypeError(f"IntegralOperator: expected a fredholm domain; got {type(domain).__name__}")
    if domain.num_points != u.shape[1]:
        raise ValueError(
            f"IntegralOperator: {name} has {u.shape[1]} points but its domain {domain!r} has {domain.num_points}"
        )
    if kernel.pos_dim is not None and kernel.pos_dim != domain.pos_dim:
        raise ValueError(
            f"IntegralOperator: the kernel reads positions with {kernel.pos_dim} coordinates; "
            f"{domain!r} has {domain.pos_dim}"
        )
    if domain.batch_size is not None and domain.batch_size != u.shape[0]:
        raise ValueError(
            f"IntegralOperator: {name} has batch size {u.shape[0]} but its domain has batch size {domain.batch_size}"
        )
    if domain.device != u.device:
        if not domain.is_generated:
            raise ValueError(
                f"IntegralOperator: {name} is on {u.device} but its domain is on {domain.device}; use domain.to"
            )
        domain = domain.to(u.device)
    return domain


def check_state(kernel: Stateful, state: State, batch_size: int) -> None:
    """Raises unless a state could have come from `kernel.initial_state(batch_size)`."""
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
