"""Cells of the instance table on signals that are distributed over processes."""

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
    """Every `every`-th quick cell of a kernel without pair weights, if all processes get points and results."""
    cells = [cell for cell in quick_cells(name) if cell.pairs == "all pairs" and cell.query != "nowhere"]
    return [cell for cell in cells[::every] if _num_least(case_of(cell)) >= processes]


def _num_least(case: Case) -> int:
    """The number of points or of results, whichever is smaller."""
    domain = case.place.domain()
    return min(domain.num_points, case.kernel.output_domain(domain).num_points)


def shared(domain: Domain) -> Domain:
    """A domain in uneven parts over the processes; with too few points, the whole domain on every process."""
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
    queries = case.query_domain(whole)
    if queries is None and case.signal is not None and case.kernel.output_domain(whole) is not whole:
        queries = case.result_domain(whole)  # the queries of a part need explicit positions
    query_domain = queries if queries is None else domain if queries is whole else shared(queries)
    u = held(case.u, domain)
    assert u is not None
    query = u if case.signal == "u" else held(case.query, domain if query_domain is None else query_domain)
    out = operator(u, domain, query=query, query_domain=query_domain)
    at = query_domain if query_domain is not None else domain.mapped(case.kernel.output_domain)
    return gathered(out, at.sizes, at.group) if isinstance(at, Shard) else out


def wrong_on_processes(texts: list[str]) -> list[str]:
    """The errors of some cells, one per line."""
    lines = []
    for text in texts:
        cell = Cell.parse(text)
        case = case_of(cell)
        expected = Expected(case, PRECISIONS[cell.precision].scale)
        try:
            got = results(case, by_processes)
        except Exception as error:
            lines.append(f"{text}: {type(error).__name__}: {error}")
            if isinstance(error, RuntimeError):  # the processes are out of step
                return lines
            continue
        for name, value in got.items():
            if name != "integral":  # every process has differentiated the whole integral
                total = value.clone(memory_format=torch.contiguous_format)
                dist.all_reduce(total)
                got[name] = total / dist.get_world_size()
        lines += [
            f"{text}: {name} off by {error:.1e} of {size(expected.values[name]):.1e}"
            for name, error in errors(got, expected.values).items()
            if not error <= expected.plain_tolerance(name) and not error <= expected.allowed[name]
        ]
    return lines
