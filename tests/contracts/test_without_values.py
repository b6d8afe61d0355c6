"""Operators and models on tensors without values, on the meta device and fake ones: shapes and dtypes as on the CPU."""

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, Grid, Points, Sequence
from fredholm.evaluation import flop_formulas
from fredholm.kernels import Kernel
from fredholm.kernels.kernel import added
from tests.contracts.instances import ALL_ROUTES, QUERIES, ROWS, Asked, Cell, case_of, integrated, quick_cells, refusals
from tests.contracts.test_devices import moved
from tests.contracts.test_saved_models import ROWS as MODELS
from tests.contracts.test_saved_models import built, probed

META = torch.device("meta")
Computed = tuple[torch.Size, torch.dtype]
Compute = Callable[[Asked], Tensor]
Bare = Callable[[Any], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def on_meta(given: Any) -> Iterator[Any]:
    """What is given on the meta device, where flops are counted, so that the library's own operators run in full."""
    with FlopCounterMode(display=False, custom_mapping=flop_formulas()):
        yield moved(given, META)


@contextlib.contextmanager
def faked(given: Any) -> Iterator[Any]:
    """What is given as fake tensors, and their mode."""
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        copied = copy.deepcopy(given)
    with mode:
        yield copied


WAYS = [on_meta, faked]


def by_operator(asked: Asked) -> Tensor:
    """The integral as users ask for it, by the automatic route."""
    operator = IntegralOperator(asked.kernel, residual=False, bias=False, output_projection=False)
    return operator(asked.u, asked.domain, query=asked.query, query_domain=asked.query_domain)


def routes_of(asked: Asked) -> dict[str, Compute]:
    """What takes the arguments, by name."""
    found: dict[str, Compute] = {
        repr(route): lambda asked, route=route: integrated(route, asked)
        for route in ALL_ROUTES
        if not refusals(route, asked)
    }
    return found | {"operator": by_operator}


def computed(asked: Asked, compute: Compute) -> Computed:
    """Shape and dtype of the integral; gradients of signals, positions and parameters are there as well."""
    leaves = {"u": asked.u, "query": asked.query} | dict(asked.kernel.named_parameters())
    leaves |= {"pos": asked.domain.pos} if isinstance(asked.domain, Points) else {}
    wanted = [leaf.requires_grad_() for leaf in leaves.values() if leaf is not None]
    out = compute(asked)
    if out.requires_grad:
        out.sum().backward()
    assert {t.device for t in (out, *(leaf.grad for leaf in wanted)) if t is not None} == {asked.u.device}
    return out.shape, out.dtype


def different(cell: Cell, without_values: Bare) -> list[str]:
    """What is otherwise without values, or refused there."""
    asked, found = case_of(cell).asked(), []
    try:
        right = by_operator(asked).detach()
    except ValueError:
        return []
    expected = right.shape, right.dtype
    with without_values(asked) as bare:
        for name, compute in routes_of(bare).items():
            try:
                got: object = computed(bare, compute)
            except Exception as error:
                # that a domain made anew has the same points, and how many terms keep a bound, only values tell
                is_equal = QUERIES[cell.query].at == "equal"
                if isinstance(error, ValueError) and (is_equal or str(error).endswith("give terms")):
                    continue
                got = f"{type(error).__name__}: {error}"
            if got != expected:
                found.append(f"{cell} · {name}: {got}, not {expected}")
    return found


def different_in(cells: Iterable[Cell], without_values: Bare) -> list[str]:
    """All of that."""
    return [line for cell in cells for line in different(cell, without_values)]


@pytest.mark.parametrize(("name", "without_values"), list(zip(ROWS, itertools.cycle(WAYS), strict=False)))
def test_every_route_has_the_shapes_of_the_cpu(name: str, without_values: Bare) -> None:
    """A part of the cells in which every pair of classes of levels occurs, by one of both ways."""
    assert different_in(quick_cells(name)[5::144], without_values) == []


@pytest.mark.long
@pytest.mark.parametrize("without_values", WAYS)
@pytest.mark.parametrize("name", ROWS)
def test_every_route_has_the_shapes_of_the_cpu_wherever_it_goes(name: str, without_values: Bare) -> None:
    assert different_in(quick_cells(name)[::6], without_values) == []


READ_VALUES = (
    *("MessagePassing", "GraphMachine", "NeighbourhoodBank", "GraphStackConfig", "FilterBank", "NGramBank"),
    *("TableMachine", "TableReading", "NodeMachine", "BlendedNodes", "LinkMachine"),
)
"""What is made of graphs, rows or samples that are given: these depend on what they hold, and say so."""


@pytest.mark.sampled
@pytest.mark.parametrize("without_values", WAYS)
@pytest.mark.parametrize("row", [row for row in MODELS if not row.startswith("RidgeHead")])
def test_every_model_has_the_shapes_of_the_cpu(row: str, without_values: Bare) -> None:
    subject, start = MODELS[row]
    model, calls = built(subject, start), []

    def note(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        calls.append((args, kwargs, out))

    handle = model.register_forward_hook(note, with_kwargs=True)
    probed(subject, model)
    handle.remove()
    args, kwargs, expected = calls[0]
    with without_values((copy.deepcopy(model), args, kwargs)) as (bare, args, kwargs):
        if row.startswith(READ_VALUES):
            with pytest.raises(ValueError, match=r"edges are grouped|that are left out|other times|number of n-grams"):
                bare(*args, **kwargs)
            return
        found = bare(*args, **kwargs)
        ours, theirs = ([t for t in tree_leaves(each) if isinstance(t, Tensor)] for each in (found, expected))
        assert [(t.shape, t.dtype) for t in ours] == [(t.shape, t.dtype) for t in theirs]
        learns = [t.sum() for t in ours if t.requires_grad]
        if learns:
            added(learns).backward()


COUNTED: dict[str, tuple[Kernel, Domain]] = {
    "perceptron": (kernels.MLP(12, 3, 2, width=8, num_frequencies=3), Grid(3, 5)),
    "causal perceptron": (kernels.MLP(12, 3, 1, width=8, num_frequencies=3, is_causal=True), Sequence(15)),
    "low rank": (kernels.LowRankMLP(12, 3, 2, rank=2, width=8, num_frequencies=3), Grid(3, 5)),
    "causal attention": (kernels.LinearAttention(12, 3, is_causal=True), Sequence(15)),
    "infinite attention": (kernels.InfiniteAttention(12, 3), Sequence(15)),
    "linear recurrence": (kernels.LinearRNN(12, 12), Sequence(15)),
    "continuous convolution": (kernels.ContinuousConvolution(12, 12, 1), Sequence(15)),
}


def flops(operator: IntegralOperator, u: Tensor, domain: Domain, mapping: Any) -> int:
    """Those of a pass in both directions, as torch counts them."""
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        operator(u, domain).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", COUNTED)
def test_flops_are_those_of_the_cpu(name: str) -> None:
    kernel, domain = COUNTED[name]
    operator, u = IntegralOperator(kernel), torch.randn(2, 15, 12)
    on_cpu = flops(operator, u, domain, flop_formulas())
    bare = flops(copy.deepcopy(operator).to(META), u.to(META), domain.to(META), flop_formulas())
    assert bare == on_cpu


def test_a_sum_over_pairs_takes_the_flops_of_its_products() -> None:
    """4wd a pair and head, and W at every query: docs/kernels/mlp.md."""
    none = kernels.KernelInputs(**{f.name: f.name == "product" for f in dataclasses.fields(kernels.KernelInputs)})
    operator = IntegralOperator(kernels.MLP(12, 3, 2, width=8, inputs=none), residual=False, output_projection=False)
    u = torch.randn(2, 15, 12)
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=flop_formulas()) as counter:
        operator(u, Grid(3, 5))
    packet = torch.ops.fredholm.mlp_integral
    assert counter.get_flop_counts()["Global"][packet] == 2 * 3 * 15 * (15 * 4 * 8 * 4 + 2 * 8 * 4 * 4)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        operator(u, Grid(3, 5))
    assert packet not in counter.get_flop_counts()["Global"]
