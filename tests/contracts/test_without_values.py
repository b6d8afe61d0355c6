"""Operators and models on meta and fake tensors, which have no values: shapes and dtypes as on the CPU."""

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
from tests.contracts.instances import (
    ALL_ROUTES,
    QUERIES,
    ROWS,
    Arguments,
    Cell,
    case_of,
    integrated,
    quick_cells,
    refusals,
)
from tests.contracts.test_devices import moved
from tests.contracts.test_saved_models import ROWS as MODELS
from tests.contracts.test_saved_models import built, probed

META = torch.device("meta")
Computed = tuple[torch.Size, torch.dtype]
Compute = Callable[[Arguments], Tensor]
Bare = Callable[[Any], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def on_meta(tree: Any) -> Iterator[Any]:
    """A copy on the meta device, with flops counted, which makes the library's own operators run in full."""
    with FlopCounterMode(display=False, custom_mapping=flop_formulas()):
        yield moved(tree, META)


@contextlib.contextmanager
def faked(tree: Any) -> Iterator[Any]:
    """A copy with fake tensors, inside their mode."""
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        copied = copy.deepcopy(tree)
    with mode:
        yield copied


CONVERSIONS = [on_meta, faked]


def by_operator(arguments: Arguments) -> Tensor:
    """The integral by `IntegralOperator` with the automatic route, as users compute it."""
    operator = IntegralOperator(arguments.kernel, residual=False, bias=False, output_projection=False)
    return operator(arguments.u, arguments.domain, query=arguments.query, query_domain=arguments.query_domain)


def routes_of(arguments: Arguments) -> dict[str, Compute]:
    """The routes that accept the arguments, and the operator, by name."""
    found: dict[str, Compute] = {
        repr(route): lambda arguments, route=route: integrated(route, arguments)
        for route in ALL_ROUTES
        if not refusals(route, arguments)
    }
    return found | {"operator": by_operator}


def computed(arguments: Arguments, compute: Compute) -> Computed:
    """Shape and dtype of the integral; asserts that it and all gradients are on the device of the signal."""
    leaves = {"u": arguments.u, "query": arguments.query} | dict(arguments.kernel.named_parameters())
    leaves |= {"pos": arguments.domain.pos} if isinstance(arguments.domain, Points) else {}
    tensors = [leaf.requires_grad_() for leaf in leaves.values() if leaf is not None]
    out = compute(arguments)
    if out.requires_grad:
        out.sum().backward()
    assert {t.device for t in (out, *(leaf.grad for leaf in tensors)) if t is not None} == {arguments.u.device}
    return out.shape, out.dtype


def different(cell: Cell, without_values: Bare) -> list[str]:
    """Routes whose shapes, dtypes or errors differ without values, one line each."""
    arguments, found = case_of(cell).arguments(), []
    try:
        on_cpu = by_operator(arguments).detach()
    except ValueError:
        return []
    expected = on_cpu.shape, on_cpu.dtype
    with without_values(arguments) as bare:
        for name, compute in routes_of(bare).items():
            try:
                got: object = computed(bare, compute)
            except Exception as error:
                # only values show that two domains are equal, and how many terms a tolerance needs
                is_equal = QUERIES[cell.query].at == "equal"
                if isinstance(error, ValueError) and (is_equal or str(error).endswith("give terms")):
                    continue
                got = f"{type(error).__name__}: {error}"
            if got != expected:
                found.append(f"{cell} · {name}: {got}, not {expected}")
    return found


def different_in(cells: Iterable[Cell], without_values: Bare) -> list[str]:
    """Differences in several cells, one line each."""
    return [line for cell in cells for line in different(cell, without_values)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "without_values"), list(zip(ROWS, itertools.cycle(CONVERSIONS), strict=False)))
def test_every_route_has_the_shapes_of_the_cpu(name: str, without_values: Bare) -> None:
    """A few of the quick cells, on meta or on fake tensors."""
    assert different_in(quick_cells(name)[5::144], without_values) == []


@pytest.mark.long
@pytest.mark.parametrize("without_values", CONVERSIONS)
@pytest.mark.parametrize("name", ROWS)
def test_every_route_has_the_shapes_of_the_cpu_in_many_cells(name: str, without_values: Bare) -> None:
    assert different_in(quick_cells(name)[::6], without_values) == []


READ_VALUES = (
    *("MessagePassing", "GraphMachine", "NeighbourhoodBank", "GraphStackConfig", "FilterBank", "NGramBank"),
    *("TableMachine", "TableReading", "NodeMachine", "BlendedNodes", "LinkMachine", "ConditionalRandomField"),
    "BlendedSamples",
)
"""Models whose shapes depend on the values of graphs, rows or samples; they raise an error that says so."""


@pytest.mark.sampled
@pytest.mark.parametrize("without_values", CONVERSIONS)
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
            with pytest.raises(
                ValueError, match=r"edges are grouped|that are left out|other times|number of (n-grams|words)|by itself"
            ):
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
    """Flops of a forward and backward pass, as PyTorch counts them."""
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
    """4wd flops per pair and head, and W at every query: docs/kernels/mlp.md."""
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
