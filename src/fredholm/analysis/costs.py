"""Which route each operator of a model takes, and what it costs."""

import time
from collections.abc import Mapping
from typing import NamedTuple

import torch

from fredholm.evaluation import Integral
from fredholm.kernels import Kernel
from fredholm.operators import IntegralOperator
from fredholm.operators.cost import PeakMemory, synchronize


class OperatorCost(NamedTuple):
    """Of one operator at one integral."""

    route: str
    """What `IntegralOperator.explain` says of it: the route that is taken, and why not the others."""
    seconds: float
    """Of a call, the median of three after one that is not counted."""
    megabytes: float
    """That the peak of a call is above what was in use before it, in 1e6 bytes, as the system counts."""


@torch.no_grad()
def operator_costs(
    operators: Mapping[str, IntegralOperator], integrals: Mapping[str, Integral[Kernel]]
) -> dict[str, OperatorCost]:
    """Times each operator by itself at what it was given (`record_integrals`), forward alone.

    Args:
        operators: by name.
        integrals: of some of them, by the same names.
    """
    found = {}
    for name, integral in integrals.items():
        operator, device, seconds = operators[name], integral.u.device, list[float]()
        u, domain, query, query_domain = integral.arguments
        operator.answer(integral)
        with PeakMemory(device) as memory:
            operator.answer(integral)
            synchronize(device)
        for _ in range(3):
            start = time.perf_counter()
            operator.answer(integral)
            synchronize(device)
            seconds.append(time.perf_counter() - start)
        explanation = operator.explain(u, domain, query=query, query_domain=query_domain)
        found[name] = OperatorCost(explanation, sorted(seconds)[1], memory.megabytes)
    return found
