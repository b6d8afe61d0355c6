"""What an operator asks of the arguments of a call."""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Domain, Sequence
from fredholm.kernels import Kernel, State, Stateful


class Given(NamedTuple):
    """A signal, where it lives, and perhaps other queries, as the caller gave them."""

    u: Tensor
    domain: Domain | None = None
    query: Tensor | None = None
    query_domain: Domain | None = None


class Arguments(NamedTuple):
    """The same as an evaluation takes them."""

    u: Tensor
    domain: Domain
    query: Tensor | None
    query_domain: Domain | None


def prepare(
    kernel: Kernel, like: Tensor | None, needs_query: bool, given: Given, key_padding_mask: Tensor | None
) -> Arguments:
    """Checks and completes the arguments of an operator, and blanks what lies at points that do not exist.

    Args:
        kernel: the operator's kernel.
        like: a tensor with the operator's dtype and device; None when it holds no number at all.
        needs_query: whether u(x) is read, by the kernel or by the residual.
        given: the arguments.
        key_padding_mask: `(N,)` or `(B, N)` bool, True = keep.

    Raises:
        ValueError, TypeError: on shapes, devices or dtypes that do not fit.
    """
    u, domain, query, query_domain = given
    _check_signal("u", u, kernel.in_dim, like)
    if query_domain is domain and key_padding_mask is None:
        query_domain = None
    domain = _checked_domain("u", u, Sequence(u.shape[1]) if domain is None else domain, kernel)
    if query is None and query_domain is None:
        natural = kernel.output_domain(domain)
        query_domain = None if natural is domain else natural
    if query is not None:
        _check_signal("query", query, kernel.query_dim, like)
        if query_domain is None and query.shape[1] != domain.num_points:
            query_domain = Sequence(query.shape[1])
        elif query_domain is None and key_padding_mask is not None:
            query_domain = domain  # the mask is of the keys, not of these queries
        if query.shape[0] != u.shape[0] or query.device != u.device or query.dtype != u.dtype:
            raise ValueError(
                f"IntegralOperator: query {tuple(query.shape)} {query.dtype} on {query.device} must share "
                f"batch size, dtype and device with u {tuple(u.shape)} {u.dtype} on {u.device}"
            )
    elif query_domain is not None and needs_query:
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
    asked = domain
    if query_domain is not None:
        at_queries = u.new_empty(u.shape[0], query_domain.num_points, 0) if query is None else query
        asked = query_domain = _checked_domain("query", at_queries, query_domain, kernel)
    if query is not None and asked.mask is not None:
        query = torch.where(asked.mask[..., None], query, 0.0)
    if domain.pair_bias is not None and domain.pair_bias.shape[-2] != asked.num_points:
        raise ValueError(
            f"IntegralOperator: the domain weighs pairs with {domain.pair_bias.shape[-2]} queries; "
            f"there are {asked.num_points}"
        )
    return Arguments(u, domain, query, query_domain)


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
