"""Signals that are distributed over processes."""

import pytest
import torch

from benchmarks.shared_signals import KERNELS
from fredholm import IntegralOperator, kernels
from fredholm.distributed import Shard
from fredholm.domains import Grid, Points, Sequence, Union
from tests.distributed import shared
from tests.processes import on_processes


def test_bad_input_is_reported_on_every_process() -> None:
    first, second = on_processes(2, shared.refusals)
    expected = [
        "each needs one at least",
        "must share out 6 points among 2 processes",
        "must share out 6 points among 2 processes",
        "u must be (batch, 6 points, channels); got (6, 2)",
        "weighs or lists pairs",
        "a part already",
        "cannot be weighed",
        "process 1 has a domain Grid(7) where process 0 has Grid(6)",
        "process 1 has a signal (1, 6, 3) torch.float32 where process 0 has (1, 6, 2) torch.float32",
        "the mesh has 2 dimensions, ('data', 'points')",
        "u must be (batch, 3 points, channels), the points held here; got (1, 6, 2)",
        "each process would draw another",
        "a quadrature chooses among all points",
        "process 1 has points, by their checksum,",
        "process 1 has points, by their checksum,",
        "query has 6 points, and their positions among those of all processes cannot be inferred",
        "mask must be bool",
        "its short convolution reads the points before",
        "the mesh has 2 dimensions",
    ]
    for messages in (first, second):
        assert len(messages) == len(expected)
        for message, words in zip(messages, expected, strict=True):
            assert words in message


def test_sharing_points_without_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="start the program with torchrun"):
        Shard(Grid(3))


def test_every_kernel_has_a_route() -> None:
    (found, other) = on_processes(2, shared.routes)
    sums = ["CentralPooling", "FeatureMapSum"]
    expected = ["Ring", "FeatureSum", "ScoreRing", "Ring", "HopRing", "WholeSignal", "Woodbury", *sums]
    assert found == other == [*expected, "Relay", "Relay", "WholeSignal"]


@pytest.mark.parametrize("name", ["ring", "sums"])
def test_a_training_step_equals_that_of_one_process(name: str) -> None:
    (alone,) = on_processes(1, shared.training_step, name, 4)
    for processes in (2, 3):
        for found in on_processes(processes, shared.training_step, name, 4):
            assert found.keys() == alone.keys()
            for label, value in alone.items():
                torch.testing.assert_close(
                    found[label], value, rtol=1e-10, atol=1e-12, msg=lambda m, w=label: f"{w}: {m}"
                )


def test_one_process_gives_the_numbers_of_an_unshared_signal() -> None:
    (found,) = on_processes(1, shared.training_step, "ring", 4)
    torch.manual_seed(0)
    model = shared.block(kernels.MLP(8, 2, 2))
    token = torch.randn(1, 1, 8, dtype=torch.float64)
    u = torch.cat([token, torch.randn(1, 16, 8, dtype=torch.float64)], dim=1).expand(2, -1, -1)
    whole = Union(Points(torch.full((1, 2), 0.5, dtype=torch.float64)), Grid(4, 4))
    torch.testing.assert_close(found["y"], model(u, whole).detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [[3, 3], [1, 4, 2]])
def test_the_ring_sends_all_points_except_those_of_the_next_process(sizes: list[int], causal: bool) -> None:
    """Forward (N - n_next) B C numbers; backward the same, plus N B C of gradients."""
    a_point, total = 2 * 4 * 4, sum(sizes)
    for rank, (forward, backward) in enumerate(on_processes(len(sizes), shared.traffic, sizes, causal)):
        others = total - sizes[(rank + 1) % len(sizes)]
        assert forward == others * a_point
        assert backward == (others + total) * a_point


def test_sums_over_processes_have_second_derivatives() -> None:
    torch.manual_seed(0)
    operator = IntegralOperator(kernels.LinearAttention(4, 2)).double()
    u = torch.randn(1, 7, 4, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(operator(u, Sequence(7)).square().sum(), u, create_graph=True)
    slope.square().sum().backward()
    assert u.grad is not None
    for found in on_processes(3, shared.second_derivative):
        torch.testing.assert_close(found, u.grad)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["attention", "Yat attention"])
def test_where_one_key_takes_all_weight_gradients_are_as_exact_as_dense_ones(name: str, causal: bool) -> None:
    (right,) = on_processes(1, shared.saturated, name, torch.float64, causal)
    (dense,) = on_processes(1, shared.saturated, name, torch.float32, causal)
    for found in on_processes(2, shared.saturated, name, torch.float32, causal):
        for label, exact in right.items():
            allowed = (dense[label] - exact).norm() + 1e-5 * exact.norm() + 1e-6
            assert (found[label] - exact).norm() < 20 * allowed, label


def check_answers(dtype: str, *, masked: bool, batch: int, tolerance: float) -> None:
    names = list(KERNELS)
    (alone,) = on_processes(1, shared.answers, names, dtype, masked, batch)
    for found in on_processes(3, shared.answers, names, dtype, masked, batch):
        assert found.keys() == alone.keys()
        for label, value in alone.items():
            # a gradient may be 0 except for rounding, as that of the keys' bias
            kernel = next(name for name in names if label.startswith(f"{name} "))
            like = [v for n, v in alone.items() if n.startswith(f"{kernel} ") and v.numel() and n != f"{kernel} y"]
            largest = max(float(v.abs().max()) for v in [*like, *([value] if value.numel() else [])])
            torch.testing.assert_close(found[label], value, rtol=0, atol=tolerance * largest, msg=label)


def test_a_mask_of_local_points_renormalises_the_global_measure() -> None:
    check_answers("float32", masked=True, batch=2, tolerance=1e-4)


def test_autocast_equals_that_of_one_process() -> None:
    check_answers("bfloat16", masked=False, batch=2, tolerance=1e-2)


def test_an_empty_batch() -> None:
    check_answers("float32", masked=False, batch=0, tolerance=0.0)
