import pytest
import torch

from fredholm.blocks.stochastic_depth import StochasticDepth, linear_schedule
from tests.refusals import refused


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_drops_whole_samples_and_keeps_the_mean(probability: float) -> None:
    branch = torch.rand(20_000, 3, 2) + 0.5
    out = StochasticDepth(probability)(branch)
    dropped = (out == 0).flatten(1)
    assert torch.equal(dropped.all(1), dropped.any(1))
    kept = ~dropped.all(1)
    torch.testing.assert_close(out[kept], branch[kept] / (1 - probability))
    deviation = (probability * (1 - probability) / len(branch)) ** 0.5
    assert kept.float().mean().item() == pytest.approx(1 - probability, abs=4 * deviation)
    # so that the expectation is the branch itself
    assert out.mean().item() == pytest.approx(branch.mean().item(), abs=4 * deviation / (1 - probability))


def test_each_call_draws_new_samples_from_the_global_seed() -> None:
    drop, branch = StochasticDepth(0.5), torch.ones(64, 1)
    first, second = drop(branch), drop(branch)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    again = drop(branch)
    torch.manual_seed(0)
    assert torch.equal(drop(branch), again)


def test_does_nothing_in_evaluation_or_at_zero() -> None:
    branch = torch.randn(8, 3)
    assert torch.equal(StochasticDepth(0.9).eval()(branch), branch)
    state = torch.get_rng_state()
    assert torch.equal(StochasticDepth(0.0)(branch), branch)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_keeps_the_dtype_and_dropped_samples_get_no_gradient(dtype: torch.dtype) -> None:
    branch = torch.ones(64, 2, dtype=dtype, requires_grad=True)
    out = StochasticDepth(0.5)(branch)
    assert out.dtype == dtype
    out.sum().backward()
    assert branch.grad is not None
    assert torch.equal(branch.grad, out.detach())  # zeros and twos, as in the output
    assert set(branch.grad.flatten().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("probability", [-0.1, 1.0, 1.5, float("nan")])
def test_bad_probabilities_are_refused(probability: float) -> None:
    with refused(ValueError, "probability must be in [0, 1)", f"got {probability}"):
        StochasticDepth(probability)


def test_repr() -> None:
    assert repr(StochasticDepth(0.25)) == "StochasticDepth(probability=0.25)"


def test_the_schedule_rises_linearly_to_its_maximum() -> None:
    rates = [linear_schedule(layer, 4, 0.2) for layer in (1, 2, 3, 4)]
    assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert linear_schedule(1, 1, 0.3) == 0.3
    assert linear_schedule(3, 7, 0.0) == 0.0
