"""γ stays in (0, 1), learns, and is refused elsewhere."""

import pytest
import torch

from fredholm.kernels.neumann.infinite_attention import Discount
from tests.refusals import refused


def test_a_fixed_number_keeps_its_precision():
    fixed = Discount(0.7, 3).bfloat16()
    assert torch.equal(fixed(), torch.full((3,), 0.7, dtype=torch.float64))
    assert not fixed.state_dict()
    assert not list(fixed.parameters())


def test_a_learned_discount_starts_at_the_given_value_and_learns():
    learned = Discount([0.2, 0.9], 2, learned=True)
    torch.testing.assert_close(learned(), torch.tensor([0.2, 0.9]))
    learned().sum().backward()
    assert learned.raw is not None
    torch.testing.assert_close(learned.raw.grad, torch.tensor([0.2 * 0.8, 0.9 * 0.1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_never_reaches_the_ends(dtype):
    learned = Discount(0.5, 2, learned=True).to(dtype)
    with torch.no_grad():
        learned.raw.copy_(torch.tensor([-200.0, 200.0]))  # pyright: ignore[reportOptionalMemberAccess]
    gamma = learned()
    assert gamma.dtype == torch.float32
    assert 0 < gamma[0] < gamma[1] < 1


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.5, 1.5, float("nan"), [0.5, 1.0]])
def test_refuses_values_outside_the_interval(gamma):
    with refused(ValueError, "gamma must be in (0, 1)", str(gamma)):
        Discount(gamma, 2)


@pytest.mark.parametrize("gamma", ["0.5", None, [0.5, "a"], torch.tensor([0.5, 0.5])])
def test_refuses_values_that_are_no_numbers(gamma):
    with refused(TypeError, "gamma must be a number"):
        Discount(gamma, 2)


def test_refuses_another_number_of_heads():
    with refused(ValueError, "one for each of 2 heads", "got 3"):
        Discount([0.5, 0.5, 0.5], 2)
