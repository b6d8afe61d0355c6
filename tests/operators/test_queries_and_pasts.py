"""Results at a query do not depend on the other queries, on later points, or on the form of the query domain."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm import IntegralOperator, kernels
from fredholm.domains import Domain, Grid, Points, Sequence, Union
from fredholm.evaluation import (
    AUTO,
    ROUTES,
    Dense,
    Evaluation,
    FeatureMapSum,
    LowRankScan,
    Route,
    SeparableScan,
    StatefulEvaluation,
    StepLoop,
)
from fredholm.kernels import Kernel
from tests.contracts.routes import randomise
from tests.refusals import refused

CAUSAL: dict[str, Kernel] = {
    "perceptron": kernels.MLP(4, 2, width=5, num_frequencies=3, is_causal=True),
    "low rank": kernels.LowRankMLP(4, 2, rank=3, width=5, num_frequencies=3, is_causal=True),
    "separable": kernels.SeparableMLP(4, 2, width=5, num_frequencies=3, is_causal=True),
    "attention": kernels.Attention(4, 2, is_causal=True),
    "unnormalised": kernels.UnnormalisedAttention(4, 2, is_causal=True),
    "factorised infinite": kernels.FactorisedInfiniteAttention(4, 2, is_causal=True),
    "continuous convolution": kernels.ContinuousConvolution(4, 4, width=5),
}


def alone(kernel: Kernel, evaluation: Evaluation = AUTO) -> IntegralOperator:
    """The integral without residual, bias and output projection."""
    plain = randomise(kernel.double())
    return IntegralOperator(plain, evaluation=evaluation, residual=False, bias=False, output_projection=False)


def signal(n: int, seed: int = 0) -> Tensor:
    return torch.randn(2, n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", CAUSAL)
def test_later_points_change_nothing(name: str) -> None:
    op, u = alone(CAUSAL[name]), signal(12)
    torch.testing.assert_close(op(u)[:, :7], op(u[:, :7]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CAUSAL)
def test_padding_behind_a_mask_changes_nothing(name: str) -> None:
    op, u = alone(CAUSAL[name]), signal(12)
    padded = torch.where(torch.arange(12)[:, None] < 7, u, torch.nan)
    keep = (torch.arange(12) < 7).expand(2, -1)
    torch.testing.assert_close(op(padded, key_padding_mask=keep)[:, :7], op(u[:, :7]), rtol=1e-10, atol=1e-12)


def test_a_mean_over_the_past_of_a_constant_is_that_constant() -> None:
    kernel = kernels.MLP(4, 2, width=3, is_causal=True, epsilon=0.0)  # κ = I where y comes before x
    op = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    u = torch.ones(1, 6, 4)
    for domain in (Sequence(6), Grid(6), Sequence(times=torch.tensor([0.0, 1.0, 1.0, 1.5, 4.0, 9.0]))):
        torch.testing.assert_close(op(u, domain), u)
    weighed = Sequence(6, weights=torch.tensor([0.0, 0.0, 0.3, 0.0, 2.0, 1.0]))
    torch.testing.assert_close(op(u, weighed)[:, 2:], u[:, 2:])
    assert not op(u, weighed)[:, :2].any()  # no mass to take a mean of


def test_the_total_measure_is_an_option() -> None:
    kernel = kernels.MLP(4, 2, width=3, is_causal=True, causal_measure="total", epsilon=0.0)
    op = IntegralOperator(kernel, residual=False, bias=False, output_projection=False)
    torch.testing.assert_close(op(torch.ones(1, 4, 4))[0, :, 0], torch.tensor([0.25, 0.5, 0.75, 1.0]))
    with refused(ValueError, "causal_measure='total' has no effect without is_causal=True"):
        kernels.MLP(4, causal_measure="total")
    with refused(ValueError, "causal_measure must be 'past' or 'total'", "'future'"):
        kernels.MLP(4, is_causal=True, causal_measure="future")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "name", ["perceptron", "low rank", "separable", "attention", "unnormalised", "factorised infinite"]
)
@pytest.mark.parametrize("choice", ["no domain", "the same domain", "an equal domain"])
def test_a_separate_query_signal_is_read(name: str, choice: str) -> None:
    op, u, v = alone(CAUSAL[name]), signal(6), signal(6, seed=1)
    domain = Sequence(6)
    queries = {"no domain": None, "the same domain": domain, "an equal domain": Sequence(6)}[choice]
    out = op(u, domain, query=v, query_domain=queries)
    kappa = op.kernel.matrix(u, domain, v)
    mass = op.kernel.measure(domain)
    torch.testing.assert_close(
        out, torch.einsum("bqkoi,bki->bqo", kappa, op.kernel.multiplicand(u) * mass[:, None]), rtol=1e-9, atol=1e-11
    )
    assert (out - op(u, domain)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["attention", "unnormalised", "factorised infinite", "low rank"])
def test_the_step_loop_refuses_separate_queries(name: str) -> None:
    op, u = alone(CAUSAL[name], StepLoop()), signal(6)
    with refused(ValueError, "StepLoop refuses this integral", "the queries have a signal of their own"):
        op(u, query=signal(6, seed=1))


@pytest.mark.parametrize("options", [{"stride": 2, "padding": 1}, {}])
@pytest.mark.parametrize("domain", [Sequence(8), Grid(8)])
def test_an_equal_query_domain_means_the_points(options: dict[str, Any], domain: Grid | Sequence) -> None:
    op, u = alone(kernels.Convolution(4, 4, 3, **options)), signal(8)
    equal = Grid(8) if isinstance(domain, Grid) else Sequence(8)
    at_points = op(u, domain, query_domain=domain)
    assert at_points.shape == (2, 8, 4)
    torch.testing.assert_close(at_points, op(u, domain, query_domain=equal))
    assert op(u, domain).shape[1] < 8  # the kernel's own output domain


def test_queries_at_the_points_need_no_separate_signal() -> None:
    op, u = IntegralOperator(kernels.Attention(4, 2)), torch.randn(2, 5, 4)
    torch.testing.assert_close(op(u, Grid(5), query_domain=Grid(5)), op(u, Grid(5)))
    keep = torch.tensor([True, True, False, True, True])
    every = op(u, Grid(5), query_domain=Grid(5), key_padding_mask=keep)  # the mask applies to the keys
    torch.testing.assert_close(every, op(u, Grid(5), query=u, query_domain=Grid(5), key_padding_mask=keep))
    assert every[:, 2].any()


def test_fewer_queries_of_a_causal_kernel_lie_at_the_last_points() -> None:
    op, u = alone(CAUSAL["perceptron"]), signal(9)
    torch.testing.assert_close(op(u, query=u[:, 6:]), op(u)[:, 6:], rtol=1e-10, atol=1e-12)


ORDERED: dict[str, Domain] = {
    "places": Sequence(9, first=4),
    "samples": Sequence(9, spacing=0.3, start=-1.0),
    "times": Sequence(times=torch.tensor([0.0, 0.1, 0.4, 0.4, 0.9, 1.0, 1.0, 1.7, 2.5], dtype=torch.float64)),
    "times of each entry": Sequence(times=torch.rand(2, 9, dtype=torch.float64).cumsum(-1)),
    "cells": Grid(9),
    "two lines": Union(Grid(4), Sequence(5)),
}
ROTARY = {
    "attention": kernels.Attention(4, 2, is_causal=True, rotary=kernels.Rotary()),
    "linear attention": kernels.LinearAttention(4, 2, is_causal=True, rotary=kernels.Rotary()),
    "yat": kernels.YatAttention(4, 2, is_causal=True, rotary=kernels.Rotary()),
}


@pytest.mark.parametrize("domain", ORDERED)
@pytest.mark.parametrize("name", [*CAUSAL, *ROTARY])
def test_fewer_queries_lie_at_the_last_points(name: str, domain: str) -> None:
    where, u = ORDERED[domain], signal(9)
    op = alone({**CAUSAL, **ROTARY}[name])
    torch.testing.assert_close(op(u, where, query=u[:, 6:]), op(u, where)[:, 6:], rtol=1e-9, atol=1e-11)
    assert op(u, where, query=u[:, :0]).shape == (2, 0, 4)


def test_more_queries_than_points_extend_to_earlier_positions() -> None:
    op, u = alone(CAUSAL["perceptron"]), signal(5)
    query = signal(7)
    for where, queries in (
        (Sequence(5, first=4), Sequence(7, first=2)),
        (Sequence(5, spacing=0.25), Sequence(7, spacing=0.25, start=-0.5)),
        (Grid(5), Grid(7, spacing=(0.2,), origin=(-0.3,))),
    ):
        torch.testing.assert_close(op(u, where, query=query), op(u, where, query=query, query_domain=queries))
    unplaced = alone(CAUSAL["attention"])
    times = Sequence(times=torch.rand(5, dtype=torch.float64).sort().values)
    torch.testing.assert_close(unplaced(u, times, query=query), unplaced(u, query=query))
    with refused(ValueError, "7 queries", "begin before the 5 points", "give a query_domain"):
        op(u, Sequence(times=torch.rand(5, dtype=torch.float64).sort().values), query=query)


def test_fewer_queries_than_points_are_refused_where_points_are_missing() -> None:
    op, u, keep = alone(CAUSAL["perceptron"]), signal(5), torch.tensor([True] * 4 + [False])
    times = Sequence(times=torch.arange(5.0, dtype=torch.float64))
    for where in (times, Sequence(5), Sequence(5, spacing=0.5)):
        with refused(ValueError, "2 queries and 5 points", "cannot be inferred"):
            op(u, where, query=u[:, 3:], key_padding_mask=keep)
        with refused(ValueError, "2 queries and 5 points", "cannot be inferred"):
            op(u, where.restrict(keep), query=u[:, 3:])


@pytest.mark.parametrize("name", [name for name in CAUSAL if name not in ("perceptron", "attention")])
def test_points_that_do_not_exist_do_not_count_as_equal_times(name: str) -> None:
    times = torch.tensor([0.0, 0.5, 0.7, 0.9, 1.5, 2.0], dtype=torch.float64)
    mask = torch.tensor([[False, True, False, True, True, False], [True, True, True, True, False, False]])
    where, u = Sequence(times=times, mask=mask), signal(6)
    op, dense = alone(CAUSAL[name]), alone(CAUSAL[name], Dense())
    dense.load_state_dict(op.state_dict())
    assert op.explain(u, where).split()[0] == op.explain(u, Sequence(times=times)).split()[0]
    torch.testing.assert_close(op(u, where), dense(u, where), rtol=1e-9, atol=1e-11)
    if name != "continuous convolution":
        torch.testing.assert_close(op.scan(u, where)[0], dense(u, where), rtol=1e-9, atol=1e-11)


TIED = Sequence(times=torch.tensor([0.0, 0.5, 0.5, 1.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("name", [name for name in CAUSAL if name != "perceptron"])
def test_a_scan_refuses_points_that_share_a_time(name: str) -> None:
    with refused(ValueError, "points that share a time see each other"):
        alone(CAUSAL[name]).scan(signal(5), TIED)


@pytest.mark.parametrize("evaluation", [AUTO, Dense()], ids=["auto", "dense"])
@pytest.mark.parametrize("name", [name for name, kernel in CAUSAL.items() if not kernel.reads_past_by_position])
def test_fewer_queries_than_points_with_a_mask_have_no_order(name: str, evaluation: Evaluation) -> None:
    padded = Sequence(5, mask=torch.tensor([True, False, True, True, True]))
    queries = Points(torch.rand(3, 1, dtype=torch.float64))
    with refused(ValueError, "3 queries and 5 points", "the points before a query cannot be inferred"):
        alone(CAUSAL[name], evaluation)(signal(5), padded, query=signal(3), query_domain=queries)


@pytest.mark.parametrize("kind", [kernels.Attention, kernels.LinearAttention, kernels.YatAttention])
def test_rotary_positions_need_an_order_by_every_route(kind: Any) -> None:
    kernel, scattered = kind(4, 2, is_causal=True, rotary=kernels.Rotary()), Points(torch.rand(5, 1))
    num_tested = 0
    for route in (AUTO, *ROUTES):
        if isinstance(route, Route) and (not route.is_made_for(kernel) or route.needs_processes or route.needs_list):
            continue
        op, num_tested = alone(kernel, route), num_tested + 1
        for answer in (op, op.scan) if isinstance(route, StatefulEvaluation) else (op,):
            with pytest.raises(ValueError, match=r"has neither|has no order|order of the points is lost|is on cpu"):
                answer(signal(5), scattered)
    assert num_tested >= 5


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("attention", StepLoop()),
        ("unnormalised", StepLoop()),
        ("low rank", LowRankScan()),
        ("separable", SeparableScan()),
        ("attention", FeatureMapSum()),
        ("attention", Dense()),
    ],
)
@pytest.mark.parametrize("hides", ["weights", "pairs", "masks"])
def test_a_named_route_checks_the_domain_before_it_scans(name: str, route: Evaluation, hides: str) -> None:
    op, u = alone(CAUSAL[name], route), signal(5)
    domain = {
        "weights": Sequence(5, weights=torch.rand(5, dtype=torch.float64)),
        "pairs": Sequence(5).weigh_pairs(torch.rand(5, 5, dtype=torch.float64)),
        "masks": Sequence(5, mask=torch.tensor([True, False, True, True, False])),
    }[hides]
    try:
        out, found = op.scan(u, domain)[0], ""
    except ValueError as refusal:
        out, found = None, str(refusal)
    assert route.name in found or (hides != "pairs" and not found)
    if out is not None:
        torch.testing.assert_close(out, alone(CAUSAL[name])(u, domain), rtol=1e-9, atol=1e-11)


def test_times_decide_even_where_positions_are_derived() -> None:
    """Queries anywhere on a line with times see the points that are not later."""
    op, u = alone(CAUSAL["perceptron"]), signal(5)
    times = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8], dtype=torch.float64)
    queries = Sequence(times=torch.tensor([0.5], dtype=torch.float64))
    out = op(u, Sequence(times=times), query=u[:, :1], query_domain=queries)
    torch.testing.assert_close(out, op(u[:, :3], Sequence(times=times[:3]), query=u[:, :1], query_domain=queries))
    assert Points(times[:, None]).times is None
