import math
from typing import Any

import pytest
import torch

from fredholm.domains import Sequence
from fredholm.evaluation import Integral, Scan
from fredholm.kernels import DiagonalStateSpace, LinearSystem
from fredholm.kernels.recurrence.diagonal_state_space import start_frequencies
from tests.contracts.routes import randomise
from tests.refusals import refused


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_equals_the_real_linear_system_that_holds_its_conjugate_pairs(rule):
    kernel = DiagonalStateSpace(1, 6, rule=rule).double()
    randomise(kernel)
    assert kernel.feedthrough is not None
    step = kernel.log_step.exp().item()
    real = LinearSystem(1, 6, rule=rule, step_size=step, feedthrough=True).double()
    pairs = torch.view_as_complex(kernel.output_weight.detach())[:, 0]
    with torch.no_grad():
        blocks = [
            torch.tensor([[rate.real, -rate.imag], [rate.imag, rate.real]], dtype=torch.float64)
            for rate in kernel.rates()[:, 0]
        ]
        real.rates.copy_(torch.block_diag(*blocks))
        real.input_weight.copy_(torch.tensor([1.0, 0.0]).repeat(3)[:, None])
        real.output_weight.copy_(2 * torch.stack([pairs.real, -pairs.imag], dim=1).flatten())
        assert real.feedthrough is not None
        real.feedthrough.copy_(kernel.feedthrough)
    u = torch.randn(2, 17, 1, dtype=torch.float64)
    got, expected = (Scan().integrate(Integral(k, u, Sequence(17))) for k in (kernel, real))
    assert torch.allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_the_legs_initialisation_has_the_eigenvalues_of_the_normal_part():
    n = 16
    k = torch.arange(n, dtype=torch.float64)
    root = (2 * k + 1).sqrt()
    hippo = -torch.tril(torch.outer(root, root), -1) - torch.diag(k + 1)
    normal = hippo + 0.5 * torch.outer(root, root)
    eigenvalues = torch.linalg.eigvals(normal)
    assert torch.allclose(eigenvalues.real, torch.full((n,), -0.5).double(), atol=1e-10)
    found = eigenvalues.imag[eigenvalues.imag > 0].sort().values
    assert torch.allclose(start_frequencies(n, "legs"), found, rtol=1e-9)
    kernel = DiagonalStateSpace(3, n)
    assert torch.allclose(kernel.rates()[:, 1].imag, found.float(), rtol=1e-5)
    assert torch.allclose(kernel.rates().real, torch.tensor(-0.5))


def test_other_initialisations_equal_their_formulas():
    assert torch.allclose(start_frequencies(6, "lin"), math.pi * torch.arange(3.0).double())
    inverse = torch.tensor([6 / math.pi * (6 / (2 * k + 1) - 1) for k in range(3)], dtype=torch.float64)
    assert torch.allclose(start_frequencies(6, "inv"), inverse)


def test_steps_start_in_their_range_and_rates_stay_stable():
    kernel = DiagonalStateSpace(500, 2, min_step=0.01, max_step=0.02)
    steps = kernel.log_step.exp()
    assert 0.01 <= steps.min() < 0.0105
    assert 0.0195 < steps.max() <= 0.02
    with torch.no_grad():
        kernel.log_decay.fill_(40.0)
    out = Scan().integrate(Integral(kernel, torch.randn(1, 9, 500), Sequence(9)))
    assert torch.isfinite(out).all()


def test_a_mode_that_decays_to_zero_in_one_step_has_finite_gradients():
    kernel = DiagonalStateSpace(1, 2, rule="bilinear", start="lin")
    with torch.no_grad():
        kernel.log_step.zero_()
        kernel.log_decay.fill_(math.log(2.0))
    assert kernel.rates()[0, 0].abs() == 2
    out = Scan().integrate(Integral(kernel, torch.randn(1, 5, 1), Sequence(5)))
    grads = torch.autograd.grad(out.sum(), list(kernel.parameters()))
    assert all(torch.isfinite(value).all() for value in (out, *grads))


def test_bad_input_is_refused():
    cases: list[tuple[dict[str, Any], str]] = [
        ({"state_dim": 3}, "even"),
        ({"rule": "euler"}, "'zoh' or 'bilinear'"),
        ({"start": "random"}, "'legs', 'lin' or 'inv'"),
        ({"min_step": 0.2}, "min_step <= max_step"),
    ]
    for options, message in cases:
        with refused(ValueError, "DiagonalStateSpace", message):
            DiagonalStateSpace(2, **options)
