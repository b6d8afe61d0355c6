"""Attention weights of points at queries, for a kernel alone or inside a model.

Legend
    a_ij         density of a head at a pair            ω_j, m_ij    mass of a point, and its pair weight
    V_h          value matrix

    κ_ij = a_ij V_h,   A_ij = ω_j m_ij a_ij,   so that a head's integral at x_i is Σ_j A_ij V ũ_j

Every kernel with the marker class `kernels.ValueMixing` has them; no kernel is special here.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fredholm.domains import Domain
from fredholm.domains import Sequence as Line
from fredholm.kernels import Kernel, Sum, ValueMixing
from fredholm.operators import IntegralOperator


def attention_weights(
    kernel: Kernel | IntegralOperator,
    u: Tensor,
    domain: Domain | None = None,
    *,
    query: Tensor | None = None,
    query_domain: Domain | None = None,
) -> Tensor:
    """Computes A, the weight of every point at every query for each head, including the measure.

    Gradients flow. A normalised kernel's rows sum to 1; the resolvent form of infinite attention gives the weights of
    all paths. Weights are >= 0, except that two choices may make them negative: `activation="gelu"` of infinite
    attention, and `kernels.SoftTanh`.

    Args:
        kernel: any kernel that gives each pair a number and mixes values by it (`kernels.ValueMixing`), or an operator
            with one; its quadrature is ignored, as these are the weights of all points.
        u: the signal at the keys, `(B, N, d_in)`; its values at masked points are never read.
        domain: domain of the keys; None: `Sequence(N)`.
        query: the signal at the queries, `(B, Nq, query_dim)`; None: `u`.
        query_domain: domain of the queries; None: `domain`.

    Returns:
        `(B, H, Nq, N)`; rows of masked queries and columns of masked points are 0.

    Raises:
        TypeError: for a kernel without such weights.
        ValueError: on signals and domains of different sizes.
    """
    kernel = kernel.kernel if isinstance(kernel, IntegralOperator) else kernel
    if not isinstance(kernel, ValueMixing):
        raise TypeError(
            f"analysis.attention_weights: {type(kernel).__name__} is not one number a pair and head times a value "
            "matrix (kernels.ValueMixing), so it has no weights"
            f"{'; ask for those of its terms, one by one' if isinstance(kernel, Sum) else ''}"
        )
    domain = Line(u.shape[1]).to(u.device) if domain is None else domain
    target_domain = domain if query_domain is None else query_domain
    at_queries = u if query is None else query
    for name, signal, where in (("u", u, domain), ("query", at_queries, target_domain)):
        if signal.shape[1] != where.num_points:
            raise ValueError(
                f"analysis.attention_weights: {name} has {signal.shape[1]} points but its domain {where!r} has "
                f"{where.num_points}"
            )
    query = None if query is None else _present(query, target_domain)
    weights = kernel.coefficients(_present(u, domain), domain.with_dense_pairs(), query, query_domain)
    if target_domain.mask is None:
        return weights
    exists = target_domain.mask if target_domain.mask.ndim == 2 else target_domain.mask[None]
    return torch.where(exists[:, None, :, None], weights, 0.0)


def _present(signal: Tensor, domain: Domain) -> Tensor:
    """The signal with 0 at masked points."""
    return signal if domain.mask is None else torch.where(domain.mask[..., None], signal, 0.0)


@contextlib.contextmanager
def record_weights(model: nn.Module, names: Sequence[str] | None = None) -> Iterator[dict[str, Tensor]]:
    """Records the weights of a model's attention operators while it runs.

    Operators compute as before, by their fast routes; the weights are computed in addition, `(B, H, Nq, N)` for each,
    without gradients. Calls of `step` and `scan` are not recorded.

    Args:
        model: any module with `IntegralOperator` inside, or one itself (its name is then "").
        names: names of operators, as from `model.named_modules()`; None: all whose kernels mix values.

    Yields:
        a dict that fills while the model runs, in the order of the calls: weights by name, those of the last call.

    Raises:
        ValueError: on names that are no operator with weights, or a compiled model, whose hooks do not run.
        ValueError: while the model runs, for an operator that samples its integral: its nodes are not all points.
    """
    for name, module in model.named_modules():
        # marks of torch.compile(model) and of model.compile()
        if name.rpartition(".")[2] == "_orig_mod" or module._compiled_call_impl is not None:
            raise ValueError(
                "analysis.record_weights: a compiled model skips hooks; record the model that it was compiled from"
            )
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, IntegralOperator) and isinstance(module.kernel, ValueMixing)
    }
    chosen = list(found) if names is None else list(names)
    unknown = [name for name in chosen if name not in found]
    if unknown or not chosen:
        subject = f"names {unknown} are" if unknown else "the model has"
        raise ValueError(
            f"analysis.record_weights: {subject} no operators whose kernels mix values; there are {list(found)}"
        )
    recorded: dict[str, Tensor] = {}
    handles = [
        found[name].register_forward_pre_hook(_recorder(name, recorded), with_kwargs=True)
        for name in dict.fromkeys(chosen)
    ]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def _recorder(name: str, recorded: dict[str, Tensor]) -> Any:
    def record(operator: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        assert isinstance(operator, IntegralOperator)
        if operator.quadrature is not None:
            raise ValueError(
                f"analysis.record_weights: the operator {name!r} samples its integral, so that its weights are not "
                "those of all points; use with_quadrature(None)"
            )
        with torch.no_grad():
            u, domain, query, query_domain = operator.prepare(*args, **options).arguments
            weights = attention_weights(operator.kernel, u, domain, query=query, query_domain=query_domain)
        recorded.pop(name, None)  # so that a later call moves to the end
        recorded[name] = weights

    return record
