"""The fused kernels as a PyTorch operator: registration and compilation."""

import pytest
import torch

from fredholm import IntegralOperator
from fredholm.domains import Grid, Points, Union
from fredholm.evaluation import AUTO, Dense, Integral, TritonTiled
from fredholm.evaluation.triton import tiled
from fredholm.evaluation.triton.tiled import mlp_integral_triton
from tests.evaluation.triton.interpreted.problems import make

POINTS, BOTH = Points(torch.rand(2, 2, 2)), Union(Points(torch.full((1, 2), 0.5)), Grid(1, 2))


def test_operator_registration(monkeypatch):
    """`opcheck`: schema, fake tensors, autograd and the compiler's view of the operator."""
    calls = []
    monkeypatch.setattr(tiled, "mlp_integral_triton", lambda *call: (calls.append(call), mlp_integral_triton(*call))[1])
    problem = make(BOTH, num_heads=1, is_causal=True)
    TritonTiled().integrate(Integral(problem.kernel, problem.u, BOTH))
    tensors, *rest = calls[0]
    leaves = [t if t is None or t.dtype == torch.int64 else t.detach().requires_grad_() for t in tensors]
    report = torch.library.opcheck(torch.ops.fredholm.mlp_integral_triton.default, (leaves, *rest))
    assert set(report.values()) == {"SUCCESS"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("domain", "evaluation"),
    [(BOTH, AUTO), (POINTS, TritonTiled())],
    ids=["auto, token and grid", "named, points"],
)
def test_compiles_in_one_graph_with_the_same_results(domain, evaluation):
    torch.compiler.reset()
    problem = make(domain, batch=2, num_heads=1)
    op = IntegralOperator(problem.kernel, evaluation=evaluation)
    found = []
    for call in (op, torch.compile(op, fullgraph=True, backend="aot_eager")):
        u = problem.u.clone().requires_grad_()
        op.zero_grad()
        out = call(u, domain)
        out.square().sum().backward()
        found.append([out, u.grad, *(p.grad for p in op.parameters())])
    torch.testing.assert_close(found[1], found[0])


def test_the_fused_route_is_the_first_choice_where_it_runs():
    problem = make(BOTH)
    assert isinstance(AUTO.choose(Integral(problem.kernel, problem.u, BOTH)).route, TritonTiled)


def test_second_derivatives_come_from_the_plain_form():
    problem, found = make(POINTS, batch=2), []
    for route in (TritonTiled(), Dense()):
        u = problem.u.clone().requires_grad_()
        out = route.integrate(Integral(problem.kernel, u, POINTS))
        (grad,) = torch.autograd.grad(out.square().sum(), u, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), u)[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
