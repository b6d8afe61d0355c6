"""Cells of the table of all kernels on a signal of which each process holds a part."""

import torch
import torch.distributed as dist
from torch import Tensor

from fredholm import IntegralOperator
from fredholm.distributed.collectives import gathered
from fredholm.distributed.shard import Shard
from fredholm.domains import Domain
from tests.contracts.instances import (
    PRECISIONS,
    Case,
    Cell,
    Expected,
    case_of,
    errors,
    quick_cells,
    results,
    size,
)


def cells_of(name: str, processes: int, every: int = 1) -> list[Cell]:
    """Of the quick cells of a kernel, or of each so many, those with points for all processes where all pairs count."""
    cells = [cell for cell in quick_cells(name) if cell.pairs == "all pairs" and cell.query != "nowhere"]
    return [cell for cell in cells[::every] if _num_least(case_of(cell)) >= processes]


def _num_least(case: Case) -> int:
    """Points, or results if these are fewer."""
    domain = case.place.domain()
    return min(domain.num_points, case.kernel.output_domain(domain).num_points)


def shared(domain: Domain) -> Domain:
    """A domain of which each process has a part, uneven ones; of few points, all of them everywhere."""
    n, count = domain.num_points, dist.get_world_size()
    if n < count:
        return domain
    sizes = [1] * count
    sizes[-1] += (n - count) // 3
    sizes[0] += n - sum(sizes)
    return Shard(domain, sizes=sizes)


def held(signal: Tensor | None, domain: Domain) -> Tensor | None:
    if signal is None or not isinstance(domain, Shard):
        return signal
    return signal[:, domain.start : domain.start + domain.num_points]


def by_processes(case: Case) -> Tensor:
    """The integral at all queries, on every process."""
    operator = IntegralOperator(case.kernel, residual=False, bias=False, output_projection=False)
    whole = case.place.domain()
    domain = shared(whole)
    asked = case.query_domain(whole)
    if asked is None and case.signal is not None and case.kernel.output_domain(whole) is not whole:
        asked = case.answers_at(whole)  # queries of a part must be told where they lie
    query_domain = asked if asked is None else domain if asked is whole else shared(asked)
    u = held(case.u, domain)
    assert u is not None
    query = u if case.signal == "u" else held(case.query, domain if query_domain is None else query_domain)
    out = operator(u, domain, query=query, query_domain=query_domain)
    at = query_domain if query_domain is not None else domain.mapped(case.kernel.output_domain)
    return gathered(out, at.sizes, at.group) if isinstance(at, Shard) else out


def wrong_on_processes(texts: list[str]) -> list[str]:
    """What is wrong in some cells, a line each."""
    lines = []
    for text in texts:
        cell = Cell.parse(text)
        case = case_of(cell)
        right = Expected(case, PRECISIONS[cell.precision].scale)
        try:
            got = results(case, by_processes)
        except Exception as error:
            lines.append(f"{text}: {type(error).__name__}: {error}")
            if isinstance(error, RuntimeError):  # processes have lost each other
                return lines
            continue
        for name, value in got.items():
            if name != "integral":  # every process has taken that of the whole
                total = value.clone(memory_format=torch.contiguous_format)
                dist.all_reduce(total)
                got[name] = total / dist.get_world_size()
        lines += [
            f"{text}: {name} off by {error:.1e} of {size(right.values[name]):.1e}"
            for name, error in errors(got, right.values).items()
            if not error <= right.plainly_allowed(name) and not error <= right.allowed[name]
        ]
    return lines
