"""The route, time and memory of each operator of a model."""

import time
from collections.abc import Mapping
from typing import NamedTuple

import torch

from fredholm.evaluation import Integral
from fredholm.kernels import Kernel
from fredholm.operators import IntegralOperator
from fredholm.operators.cost import PeakMemory, synchronize


class OperatorCost(NamedTuple):
    """Route and cost of one operator at one integral."""

    route: str
    """Output of `IntegralOperator.explain`: the chosen route, and why not the others."""
    seconds: float
    """Time of a call: the median of three after a warm-up call."""
    megabytes: float
    """Peak memory of a call above the memory in use before it, in 1e6 bytes, as the system counts."""


@torch.no_grad()
def operator_costs(
    operators: Mapping[str, IntegralOperator], integrals: Mapping[str, Integral[Kernel]]
) -> dict[str, OperatorCost]:
    """Measures the forward pass of each operator by itself at recorded inputs (`record_integrals`).

    Args:
        operators: operators by name.
        integrals: integrals of some of them, by the same names.
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
