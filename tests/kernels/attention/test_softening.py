import copy
import math

import pytest
import torch

from fredholm.kernels.attention.yat import Softening
from tests.refusals import refused


@pytest.mark.parametrize("epsilon", [2e-38, 1e-6, 1e-3, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("learned", [False, True])
def test_starts_at_the_given_epsilon(epsilon, learned):
    value = Softening(epsilon, learned)()
    assert value.shape == ()
    assert value.item() == pytest.approx(epsilon, rel=2e-5)


def test_fixed_keeps_its_exact_value_in_every_dtype():
    fixed = Softening(1e-3)
    assert list(fixed.parameters()) == []
    assert fixed.state_dict() == {}
    for moved in (fixed, copy.deepcopy(fixed).bfloat16(), copy.deepcopy(fixed).double()):
        assert moved().dtype == torch.float64
        assert moved().item() == 1e-3
    with torch.device("meta"):
        empty = Softening(1e-3)
    assert empty().device.type == "meta"
    assert empty.to_empty(device="cpu")().item() == 1e-3


def test_learned_learns_and_stays_positive():
    learned = Softening(0.1, learned=True)
    learned().backward()
    assert learned.raw is not None
    assert learned.raw.grad is not None
    assert learned.raw.grad.item() == pytest.approx(1 - math.exp(-0.1), rel=1e-5)
    assert learned.state_dict().keys() == {"raw"}
    with torch.no_grad():
        learned.raw.fill_(-1e4)
    assert learned().item() > 0
    assert learned.bfloat16()().dtype == torch.float32


@pytest.mark.parametrize("epsilon", [0.0, -1e-3, math.nan, math.inf, 1e-46])
@pytest.mark.parametrize("learned", [False, True])
def test_must_be_positive(epsilon, learned):
    with refused(ValueError, "epsilon", str(epsilon)):
        Softening(epsilon, learned)
