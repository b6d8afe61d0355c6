"""The integral as a value: arguments are resolved on construction, which also compares queries with points."""

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch

from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import (
    AUTO,
    ROUTES,
    Auto,
    Dense,
    Evaluation,
    FeatureSum,
    Integral,
    StepLoop,
    TermByTerm,
    Tiled,
    TritonFeatureSum,
)
from fredholm.kernels import (
    MLP,
    Attention,
    Convolution,
    Kernel,
    KernelInputs,
    LowRankMLP,
    SeparableMLP,
    UnnormalisedAttention,
)
from tests.refusals import refused

TIMES = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
SOME = torch.tensor([True, True, False])
SMOOTH = functools.partial(MLP, inputs=KernelInputs(distance=False))


def signal(n: int = 3) -> torch.Tensor:
    return torch.randn(2, n, 4)


@pytest.mark.parametrize(
    ("domain", "other", "same"),
    [
        (Grid(3), Grid(3), True),
        (Grid(3), Grid(3, periodic=True), False),
        (Grid(3), Grid(3, spacing=(0.1,)), False),
        (Grid(3, mask=SOME), Grid(3, mask=SOME.clone()), True),
        (Grid(3, mask=SOME), Grid(3), False),
        (Sequence(3), Sequence(3), True),
        (Sequence(3), Sequence(3, first=1), False),
        (Sequence(3), Grid(3, spacing=(1 / 256,), origin=(0.0,)), True),
        (Sequence(3, spacing=0.1), Sequence(3, spacing=0.1), True),
        (Sequence(3, spacing=1 / 256), Sequence(3), False),  # the first has times, the second an order of indices
        (Sequence(times=TIMES), Sequence(times=TIMES.clone()), True),
        (Sequence(times=TIMES), Points(TIMES[:, None]), False),
        (Points(TIMES[:, None]), Points(TIMES[:, None].clone()), True),
        (Points(TIMES[:, None]), Points(TIMES[:, None].float()), False),
        (Points(TIMES[:, None]), Points(TIMES[None, :, None]), False),
        (Union(Grid(1), Grid(2)), Union(Grid(1), Grid(2)), True),
        (Union(Grid(1), Grid(2)), Union(Grid(2), Grid(1)), False),
    ],
)
def test_queries_are_compared_with_the_points_by_value(domain: Domain, other: Domain, same: bool) -> None:
    u = signal()
    assert Integral(Attention(4), u, domain).own_queries
    for query in (u, u.clone()):
        integral = Integral(Attention(4), u, domain, query, other)
        assert (integral.at_points, integral.own_queries) == (same, same and query is u)
        assert integral.arguments[3] is (None if same else other)
    assert Integral(Convolution(4, 4, 3), u, domain, u.clone(), other).own_queries == same  # u(x) is not read


def test_separate_equal_queries_have_separate_gradients() -> None:
    torch.manual_seed(0)
    u, kernel = signal().requires_grad_(), Attention(4)
    query = u.detach().clone().requires_grad_()
    out = AUTO.integrate(Integral(kernel, u, Sequence(3), query)).square().sum()
    by_u, by_query = torch.autograd.grad(out, (u, query))
    without_query = AUTO.integrate(Integral(kernel, u, Sequence(3))).square().sum()
    torch.testing.assert_close(by_u + by_query, torch.autograd.grad(without_query, u)[0])


def test_a_query_signal_that_the_kernel_reads_is_required() -> None:
    with refused(ValueError, "Attention reads u(x)", "Sequence(num_points=2, pos_dim=1)", "give query="):
        Integral(Attention(4), signal(), Sequence(3), None, Sequence(times=TIMES[:2]))
    content_free = MLP(4, inputs=KernelInputs(query_content=False, product=False))
    integral = Integral(content_free, signal(), Sequence(3), None, Sequence(2))
    assert (integral.has_query_signal, tuple(integral.query.shape)) == (False, (2, 2, 4))


def test_an_integral_is_immutable_and_caches_values() -> None:
    integral = Integral(MLP(4, 2), signal(), Sequence(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        integral.u = signal()  # pyright: ignore[reportAttributeAccessIssue]
    calls = []
    assert [integral.cached(lambda of: calls.append(of)), len(calls)] == [None, 1]

    def count(of: Integral) -> int:
        calls.append(of)
        return len(calls)

    assert (integral.cached(count), integral.cached(count), len(calls)) == (2, 2, 2)
    assert integral.num_heads == 2
    assert integral.head(1).u.shape == (2, 3, 2)


def test_a_named_route_checks_an_integral_before_it_computes() -> None:
    u, causal = signal(), UnnormalisedAttention(4, is_causal=True)
    with refused(ValueError, "Tiled refuses this integral", "Attention is not marked PairwiseMLP"):
        Tiled().integrate(Integral(Attention(4), u, Sequence(3)))
    with refused(ValueError, "StepLoop refuses this integral", "the queries have a signal of their own"):
        StepLoop().integrate(Integral(causal, u, Sequence(3), u.clone()))
    with refused(ValueError, "StepLoop refuses this integral", "the measure differs from query to query"):
        StepLoop().run(Integral(causal, u, Sequence(3).weigh_pairs(torch.ones(3, 3))))


def test_the_automatic_choice_is_an_evaluation_like_any_other() -> None:
    u, total = signal(), Attention(4) + MLP(4, 2)
    few = Auto((TermByTerm(parts=Auto((Tiled(), Dense()))), Dense()))
    torch.testing.assert_close(
        few.integrate(Integral(total, u, Sequence(3))), AUTO.integrate(Integral(total, u, Sequence(3)))
    )
    assert few.explain(Integral(MLP(4), u, Sequence(3))).startswith("Dense: ")
    only = Auto((Tiled(),))
    (reason,) = only.unsupported_reasons(Integral(Attention(4), u, Sequence(3)))
    assert reason.startswith("no route can integrate Attention on Sequence(3)")
    assert not only.unsupported_reasons(Integral(MLP(4), u, Sequence(3)))


def test_the_reason_of_the_plainest_route_comes_first() -> None:
    u = torch.empty(1, 1, 1).expand(1, 40_000, 4)
    weighed = Grid(200, 200).weigh_pairs(torch.ones(1, 40_000, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(Dense: κ would need .*; FeatureSum: .*; TritonFeatureSum: ") as caught:
        Auto((TritonFeatureSum(), FeatureSum(), Dense())).choose(Integral(SeparableMLP(4, pos_dim=2), u, weighed))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("build", [SMOOTH, functools.partial(LowRankMLP, rank=2), SeparableMLP])
@pytest.mark.parametrize("is_causal", [False, True])
def test_queries_that_coincide_with_the_points_have_separate_gradients(
    build: Callable[..., Kernel], is_causal: bool
) -> None:
    kernel = build(4, 2, 1, is_causal=is_causal).double()
    u, query = signal().double(), signal().double()

    def by_positions(away: float, route: Evaluation) -> list[torch.Tensor]:
        places = [TIMES.clone().requires_grad_(), (TIMES + away).requires_grad_()]
        domain, queries = (Sequence(times=place) for place in places)
        out = integral_of(route, domain, queries)
        return list(torch.autograd.grad(out.sum(), places, materialize_grads=True))

    def integral_of(route: Evaluation, domain: Domain, queries: Domain) -> torch.Tensor:
        return route.integrate(Integral(kernel, u, domain, query, queries))

    integral = Integral(kernel, u, Sequence(times=TIMES), query, Sequence(times=TIMES))
    routes = [route for route in ROUTES if not route.unsupported_reasons(integral)]
    for route in (*routes, AUTO):
        for here, nearby in zip(by_positions(0.0, route), by_positions(1e-10, Dense()), strict=True):
            torch.testing.assert_close(here, nearby, rtol=1e-6, atol=1e-8, msg=repr(route))
