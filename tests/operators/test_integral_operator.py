import copy
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import fredholm
from fredholm import kernels
from fredholm.domains import Domain, Grid, Points, Sequence, Union, trapezoid_weights
from fredholm.evaluation import AUTO, Dense, Evaluation, Tiled, Toeplitz
from tests.operators.build import CONTENT_FREE, formula, gradients, operator, signal


def points(n: int, pos_dim: int = 2, batch: int | None = None) -> Tensor:
    shape = (n, pos_dim) if batch is None else (batch, n, pos_dim)
    return torch.rand(shape, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


DOMAINS = {
    "points": Points(points(5)),
    "weighted points": Points(points(5), weights=torch.tensor([0.1, 2.0, 0.0, 1.0, 0.3], dtype=torch.float64)),
    "batched points": Points(points(5, batch=2)),
    "grid": Grid(2, 3),
    "torus": Grid(2, 3, periodic=True),
    "sequence": Sequence(5),
    "times": Sequence(times=points(5)[:, 0].cumsum(0), weights=trapezoid_weights(points(5)[:, 0].cumsum(0))),
    "token and grid": Union(Points(points(1)), Grid(2, 3)),
    "one point": Points(points(1)),
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
def test_computes_the_formula(domain: Domain, is_causal: bool) -> None:
    op, u = operator(domain.pos_dim, is_causal=is_causal), signal(domain.num_points)
    torch.testing.assert_close(op(u, domain), formula(op, u, domain))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_residual_and_bias_can_be_left_out(residual: bool, bias: bool) -> None:
    op, u = operator(residual=residual, bias=bias), signal(6)
    assert {"residual_weight", "bias"} & dict(op.named_parameters()).keys() == {
        name for name, on in (("residual_weight", residual), ("bias", bias)) if on
    }
    torch.testing.assert_close(op(u, Grid(2, 3)), formula(op, u, Grid(2, 3)))


def test_starts_as_the_identity_plus_the_mean() -> None:
    op = fredholm.IntegralOperator(kernels.MLP(48, 4, 2, epsilon=0.0))
    assert op.residual_weight is not None
    assert op.bias is not None
    assert torch.equal(op.residual_weight, torch.eye(48))
    assert torch.equal(op.bias, torch.zeros(48))
    u = torch.randn(2, 6, 48)
    mean = u.mean(1, keepdim=True)
    assert op.output_weight is not None
    torch.testing.assert_close(op(u, Grid(2, 3)), mean @ op.output_weight.T + u)


def test_output_weight_starts_xavier_uniform_times_the_gain() -> None:
    bound = math.sqrt(6 / (96 + 96))
    for gain in (1.0, 0.25):
        weight = fredholm.IntegralOperator(kernels.MLP(96, 4, 2), output_gain=gain).output_weight
        assert weight is not None
        assert weight.shape == (96, 96)
        assert weight.abs().max().item() == pytest.approx(gain * bound, rel=1e-2)
        assert weight.std().item() == pytest.approx(gain * bound / math.sqrt(3), rel=5e-2)
        assert weight.mean().item() == pytest.approx(0, abs=gain * 0.01)


def test_golden_parameter_shapes() -> None:
    op = fredholm.IntegralOperator(kernels.MLP(6, 2, 2))
    own = {name: tuple(p.shape) for name, p in op.named_parameters(recurse=False)}
    assert own == {"output_weight": (6, 6), "residual_weight": (6, 6), "bias": (6,)}


def test_without_a_domain_the_points_are_a_sequence() -> None:
    op, u = operator(1), signal(7)
    assert torch.equal(op(u), op(u, Sequence(7)))
    assert op.explain(u) == op.explain(u, Sequence(7))
    v = signal(3, seed=1)
    torch.testing.assert_close(op(u, query=v), formula(op, u, Sequence(7), v, Sequence(3)))


@pytest.mark.parametrize("key", ["points", "grid", "token and grid", "batched points", "weighted points"])
@pytest.mark.parametrize("queries", [Points(points(4)), Points(points(4, batch=2)), Grid(2, 2)])
def test_evaluates_on_another_domain(key: str, queries: Domain) -> None:
    op, domain = operator(), DOMAINS[key]
    u, v = signal(domain.num_points), signal(4, seed=1)
    out = op(u, domain, query=v, query_domain=queries)
    assert out.shape == (2, 4, 6)
    torch.testing.assert_close(out, formula(op, u, domain, v, queries))


def test_a_query_of_as_many_points_lies_on_the_domain() -> None:
    op, u, v = operator(), signal(6), signal(6, seed=1)
    out = op(u, Grid(2, 3), query=v)
    torch.testing.assert_close(out, formula(op, u, Grid(2, 3), v, Grid(2, 3)))
    assert not torch.allclose(out, op(u, Grid(2, 3)))
    assert torch.equal(op(u, Grid(2, 3), query=u), op(u, Grid(2, 3), query=u, query_domain=Grid(2, 3)))


def test_a_query_that_nothing_reads_can_be_left_out() -> None:
    op, u, queries = operator(residual=False, inputs=CONTENT_FREE), signal(6), Points(points(4))
    torch.testing.assert_close(
        op(u, Grid(2, 3), query_domain=queries), formula(op, u, Grid(2, 3), signal(4, seed=1), queries)
    )
    assert torch.equal(
        op(u, Grid(2, 3), query_domain=queries), op(u, Grid(2, 3), query=signal(4), query_domain=queries)
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_part_of_the_queries_gives_a_part_of_the_result(is_causal: bool) -> None:
    op, u = operator(inputs=CONTENT_FREE, is_causal=is_causal), signal(20)
    domain, v = Points(points(20)), signal(20, seed=1)
    whole = op(u, domain, query=v, query_domain=Points(points(9).repeat(3, 1)[:20]))
    tail = op(u, domain, query=v[:, 15:], query_domain=Points(points(9).repeat(3, 1)[15:20]))
    torch.testing.assert_close(tail, whole[:, 15:])  # fewer queries of a causal kernel lie at the last points


ROUTES = [
    (DOMAINS["points"], AUTO, "Tiled", ["not Toeplitz", "same regular grid"]),
    (DOMAINS["grid"], AUTO, "Toeplitz", []),
    (DOMAINS["torus"], AUTO, "Toeplitz", []),
    (DOMAINS["sequence"], AUTO, "Toeplitz", []),
    (DOMAINS["times"], AUTO, "Tiled", ["not Toeplitz"]),
    (DOMAINS["token and grid"], AUTO, "Toeplitz", []),
    (DOMAINS["grid"], Tiled(), "Tiled", ["as set"]),
    (DOMAINS["grid"], Dense(), "Dense", ["as set"]),
]


@pytest.mark.parametrize(("domain", "chosen", "route", "expected"), ROUTES)
def test_explain_names_the_route_that_is_taken(
    monkeypatch: pytest.MonkeyPatch, domain: Domain, chosen: Evaluation, route: str, expected: list[str]
) -> None:
    op, u, taken = operator(domain.pos_dim, evaluation=chosen), signal(domain.num_points), []
    explained = op.explain(u, domain)
    assert explained.startswith(f"{route}:" if chosen == AUTO else f"{route}")
    assert all(fragment in explained for fragment in expected)
    refusals = [line for line in explained.split("\n") if line.startswith("  not ") and "TritonTiled" not in line]
    assert bool(refusals) == any(fragment.startswith("not ") for fragment in expected)
    for kind in (Dense, Tiled, Toeplitz):
        compute = kind.compute

        def spy(self: Any, *args: Any, compute: Any = compute) -> Tensor:
            taken.append(self.name)
            return compute(self, *args)

        monkeypatch.setattr(kind, "compute", spy)
    op(u, domain)
    assert taken == [route]


def test_explain_gives_the_reason_why_other_queries_change_the_route() -> None:
    op, torus = operator(), Grid(2, 3, periodic=True)
    explained = op.explain(signal(6), torus, query=signal(4), query_domain=Points(points(4)))
    assert explained.startswith("Tiled:")
    assert "not Toeplitz: queries and keys do not hold the same regular grid" in explained


def test_explain_shows_the_refusal_of_a_chosen_route() -> None:
    op, scattered = operator(evaluation=Toeplitz()), Points(points(6))
    assert op.explain(signal(6), scattered).startswith("Toeplitz, as set, refuses: queries and keys do not hold")
    with pytest.raises(ValueError, match="Toeplitz refuses this integral: queries and keys do not hold"):
        op(signal(6), scattered)


@pytest.mark.parametrize("domain", [Points(points(0)), Sequence(0), Sequence(times=torch.zeros(0))], ids=repr)
def test_empty_domains(domain: Domain) -> None:
    op = operator(domain.pos_dim)
    u = signal(0).requires_grad_()
    assert op(u, domain).shape == (2, 0, 6)
    op(u, domain).sum().backward()
    v = signal(3, seed=1).requires_grad_()
    out = op(u, domain, query=v, query_domain=Points(points(3, domain.pos_dim)))
    assert op.residual_weight is not None
    assert op.bias is not None
    torch.testing.assert_close(out, v @ op.residual_weight.T + op.bias)  # the integral over no point is 0
    op.zero_grad()
    out.sum().backward()
    found = gradients(op, v)
    assert {name for name, grad in found.items() if grad.any()} == {"residual_weight", "bias", "input 0"}
    nowhere = op(v, Points(points(3, domain.pos_dim)), query=u, query_domain=domain)
    assert nowhere.shape == (2, 0, 6)


def test_empty_batch() -> None:
    op, u = operator(), signal(6, batch=0).requires_grad_()
    for domain in (Grid(2, 3), Points(points(6))):
        out = op(u, domain)
        assert out.shape == (0, 6, 6)
        out.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("domain", [DOMAINS["points"], DOMAINS["token and grid"]], ids=["points", "token and grid"])
def test_precisions(domain: Domain, dtype: torch.dtype) -> None:
    u = signal(domain.num_points)
    exact = formula(operator(), u, domain)
    op = operator(dtype=dtype)
    out = op(u.to(dtype), domain)
    assert out.dtype == dtype
    error = (out.double() - exact).abs().max() / exact.abs().max()
    assert error < {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype]
    out.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in op.parameters())


@pytest.mark.parametrize("domain", [DOMAINS["points"], DOMAINS["token and grid"]], ids=["points", "token and grid"])
def test_autocast(domain: Domain) -> None:
    op, u = operator(dtype=torch.float32), signal(domain.num_points, dtype=torch.float32)
    exact = op(u, domain)
    with torch.autocast("cpu", torch.bfloat16):
        out = op(u, domain)
        narrow = op(u.bfloat16(), domain)  # as the output of an earlier layer under autocast
    for result in (out, narrow):
        assert ((result.float() - exact).abs().max() / exact.abs().max()).item() < 3e-2
    out.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in op.parameters())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in op.parameters())


def test_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    op, u = operator(dtype=torch.float32), signal(6, dtype=torch.float32)
    file = tmp_path / "op.safetensors"
    safetensors.torch.save_file(op.state_dict(), file)
    other = fredholm.IntegralOperator(kernels.MLP(6, 2, 2, width=5, num_frequencies=3, sigma=1.0))
    assert not torch.equal(other(u, Grid(2, 3)), op(u, Grid(2, 3)))
    other.load_state_dict(safetensors.torch.load_file(file))
    for copied in (other, copy.deepcopy(op)):
        assert torch.equal(copied(u, Grid(2, 3)), op(u, Grid(2, 3)))
    assert "kernel.frequencies" in op.state_dict()


@pytest.mark.parametrize("domain", [DOMAINS["points"], DOMAINS["token and grid"]], ids=["points", "token and grid"])
def test_two_runs_are_identical(poisoned_memory: None, domain: Domain) -> None:
    runs = []
    for _ in range(2):
        op, u = operator(dtype=torch.float32), signal(domain.num_points, dtype=torch.float32).requires_grad_()
        out = op(u, domain)
        out.square().sum().backward()
        runs.append({"out": out.detach()} | gradients(op, u))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert all(value.isfinite().all() for value in runs[0].values())


def test_every_parameter_receives_a_gradient() -> None:
    op = operator(depth=3)
    op(signal(6), Grid(2, 3)).square().sum().backward()
    assert {name for name, grad in gradients(op).items() if not grad.any()} == set()


@pytest.mark.parametrize("domain", [DOMAINS["points"], DOMAINS["token and grid"]], ids=["points", "token and grid"])
def test_the_layout_of_the_signal_does_not_matter(domain: Domain) -> None:
    op, u = operator(), signal(domain.num_points)
    strided = torch.stack([u, -u], dim=2)[:, :, 0].transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous()
    torch.testing.assert_close(op(strided, domain), op(u, domain))
    shared = u[:1].expand(2, -1, -1)
    torch.testing.assert_close(op(shared, domain), op(shared.contiguous(), domain))


@pytest.mark.parametrize("trained", ["u", "kernel.output_weight", "kernel.input_weight", "kernel.input_bias", "bias"])
@pytest.mark.parametrize("domain", [DOMAINS["points"], DOMAINS["token and grid"]], ids=["points", "token and grid"])
def test_frozen_parts_change_no_other_gradient(domain: Domain, trained: str) -> None:
    op, u = operator(), signal(domain.num_points).requires_grad_()
    op(u, domain).square().sum().backward()
    expected = gradients(op, u)["input 0" if trained == "u" else trained].clone()
    op.zero_grad()
    op.requires_grad_(False)
    leaf = u.detach().requires_grad_() if trained == "u" else op.get_parameter(trained).requires_grad_()
    op(leaf if trained == "u" else u.detach(), domain).square().sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad, expected)
    assert [name for name, p in op.named_parameters() if p.grad is not None] == [trained] * (trained != "u")


def test_inference_mode() -> None:
    op, u = operator(), signal(6)
    expected = op(u, Grid(2, 3)).detach()
    with torch.inference_mode():
        assert torch.equal(op(u, Grid(2, 3)), expected)
