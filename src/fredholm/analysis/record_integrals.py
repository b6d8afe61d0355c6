"""Records the integrals that a model's operators compute while it runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fredholm.evaluation import Integral
from fredholm.kernels import Kernel
from fredholm.operators import IntegralOperator


@contextlib.contextmanager
def record_integrals(model: nn.Module) -> Iterator[dict[str, Integral[Kernel]]]:
    """Records the inputs of a model's operators while it runs, without changing what they compute.

    Calls of `step` and `scan` are not recorded. Signals are detached.

    Args:
        model: any module with `IntegralOperator` inside, or one itself (its name is then "").

    Yields:
        a dict that fills while the model runs, in the order of the calls: the integral of the last call by the name of
        the operator, as `model.named_modules()` gives it.
    """
    recorded: dict[str, Integral[Kernel]] = {}

    def recorder(name: str) -> Any:
        def record(operator: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            assert isinstance(operator, IntegralOperator)
            with torch.no_grad():
                found = operator.prepare(*args, **options)
            u, domain, query, query_domain = found.arguments
            query = None if query is None else query.detach()
            recorded.pop(name, None)  # so that a later call moves to the end
            recorded[name] = Integral(operator.kernel, u.detach(), domain, query, query_domain)

        return record

    operators = {name: module for name, module in model.named_modules() if isinstance(module, IntegralOperator)}
    handles = [
        operator.register_forward_pre_hook(recorder(name), with_kwargs=True) for name, operator in operators.items()
    ]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()
