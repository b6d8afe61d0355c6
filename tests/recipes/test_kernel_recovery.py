"""The study of kernel recovery: the projection, the gradients of the theorem, and a run of the study."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fredholm import domains
from recipes import kernel_recovery as study

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ((1,), (7,), (8,), (3, 4))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_projection_is_the_mean_over_all_shifts(shape: tuple[int, ...]) -> None:
    n = torch.Size(shape).numel()
    kappa = draw(2, n, n, 2, 3)
    axes = [*range(1, 1 + len(shape)), *range(1 + len(shape), 1 + 2 * len(shape))]
    unfolded = kappa.reshape(2, *shape, *shape, 2, 3)
    shifted = [
        unfolded.roll([*shift.tolist(), *shift.tolist()], axes).reshape_as(kappa)
        for shift in torch.cartesian_prod(*(torch.arange(m) for m in shape)).reshape(-1, len(shape))
    ]
    torch.testing.assert_close(study.stationary_part(kappa, shape), torch.stack(shifted).mean(0), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_projection_is_idempotent_orthogonal_and_keeps_functions_of_the_displacement(
    shape: tuple[int, ...],
) -> None:
    grid = domains.Grid(*shape, periodic=True)
    kappa = draw(1, grid.num_points, grid.num_points, 1, 1)
    part = study.stationary_part(kappa, shape)
    torch.testing.assert_close(study.stationary_part(part, shape), part, rtol=0, atol=1e-14)
    assert abs((part * (kappa - part)).sum().item()) < 1e-12
    known = torch.exp(grid.displacement(grid.pos).sum(-1))[None, :, :, None, None]
    torch.testing.assert_close(study.stationary_part(known, shape), known, rtol=1e-13, atol=0)


def test_a_kernel_of_the_query_alone_keeps_its_mean() -> None:
    row = draw(8)
    kappa = row[None, :, None, None, None].expand(1, 8, 8, 1, 1)
    torch.testing.assert_close(study.stationary_part(kappa, (8,)), row.mean().expand(1, 8, 8, 1, 1))


@pytest.mark.parametrize("shape", [(8,), (3, 4)])
def test_all_shifts_are_present_and_the_losses_are_invariant_to_shifts(shape: tuple[int, ...]) -> None:
    n = torch.Size(shape).numel()
    u = draw(2, n, 1)
    shifts = study.with_all_shifts(u, shape).reshape(2, n, *shape)
    rolled = u.reshape(2, *shape).roll([1] * len(shape), list(range(1, 1 + len(shape))))
    index = int(torch.arange(n).reshape(shape)[(1,) * len(shape)])
    assert torch.equal(shifts[:, index], rolled)
    assert len(torch.unique(shifts[0].reshape(n, n), dim=0)) == n
    problem = study.Problem(shape, 3, 1.0, seeded())
    op = study.bare(study.free(problem, stationary=True, generator=seeded(1)))
    for loss in (problem.equivariant, problem.invariant):
        first, second = loss(op, study.with_all_shifts(u, shape)), loss(op, u)
        torch.testing.assert_close(first, second, rtol=1e-12, atol=0)


@pytest.mark.parametrize("target", ["equivariant", "invariant"])
def test_the_gradient_is_stationary_exactly_at_stationary_points(target: str) -> None:
    problem = study.Problem((9,), 4, 1.0, seeded())
    loss = getattr(problem, target)
    at_stationary = study.gradient_remainder(study.free(problem, stationary=True, generator=seeded(1)), problem, loss)
    elsewhere = study.gradient_remainder(study.free(problem, stationary=False, generator=seeded(1)), problem, loss)
    assert at_stationary < 1e-13
    assert elsewhere > 0.1


@pytest.mark.parametrize("band", [1.0, 0.5])
def test_the_remainder_of_a_free_kernel_shrinks_as_predicted(band: float) -> None:
    problem = study.Problem((8,), 3, band, seeded())
    kernel = study.free(problem, stationary=False, generator=seeded(1))
    start = kernel.values.detach().clone()
    run = study.train(kernel, problem, problem.equivariant, study.descend(kernel, 20.0, 1e-3), 30)
    predicted = study.predicted_remainder(start, problem, 20.0, 1e-3, run.steps)
    assert run.remainder[-1] < 0.9 * run.remainder[0]
    torch.testing.assert_close(torch.tensor(run.remainder), torch.tensor(predicted), rtol=1e-10, atol=0)


def test_an_alternating_kernel_meets_the_invariant_target_but_its_stationary_part_does_not() -> None:
    problem = study.Problem((32,), 6, 0.25, seeded(14))
    values = problem.alternating
    part = study.stationary_part(values[None], (32,))[0]
    assert problem.invariant(study.bare(study.SampledKernel(values)), problem.u).item() < 1e-25
    assert problem.invariant(study.bare(study.SampledKernel(part)), problem.u).item() > 1e-2


def test_a_stationary_perceptron_stays_so_under_gradient_descent_but_not_under_adam() -> None:
    problem = study.Problem((6,), 2, 1.0, seeded())
    ends = {}
    for rule in ("descent", "AdamW"):
        kernel = study.perceptron((6,), whole_frequencies=True, stationary=True, generator=seeded(1))
        optimizer = study.descend(kernel, 0.2)
        if rule == "AdamW":
            optimizer = torch.optim.AdamW(kernel.parameters(), lr=3e-3, weight_decay=0.0)
        ends[rule] = study.train(kernel, problem, problem.equivariant, optimizer, 10).fractions[-1]
    assert ends["descent"] < 1e-28
    assert ends["AdamW"] > 1e-8


def test_a_sampled_kernel_refuses_another_domain() -> None:
    kernel = study.SampledKernel(draw(4, 4, 1, 1))
    with pytest.raises(ValueError, match=r"holds values for \(4, 4\) pairs of query and point; got \(5, 5\)$"):
        study.bare(kernel)(draw(1, 5, 1), domains.Grid(5))


@pytest.mark.long
def test_a_quick_run_writes_its_results_and_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "recipes/kernel_recovery.py", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["runs"]["free, stationary start"]["fractions"][-1] < 1e-28
    assert (tmp_path / "kernel_recovery.png").stat().st_size > 10_000
