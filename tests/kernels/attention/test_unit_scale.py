import math

import pytest
import torch

from fredholm.kernels.attention.yat import UnitScale
from tests.refusals import refused


@pytest.mark.parametrize("n", [1, 10, 3072])
def test_is_its_formula(n):
    scale = UnitScale(n)
    base = n / math.log(1 + n)
    assert (scale.alpha.shape, scale().shape) == ((1,), ())
    assert scale().item() == pytest.approx(base, rel=1e-6)
    with torch.no_grad():
        scale.alpha.fill_(-0.7)
    value = scale()
    value.backward()
    assert value.item() == pytest.approx(base**-0.7, rel=1e-6)
    assert scale.alpha.grad is not None
    assert scale.alpha.grad.item() == pytest.approx(base**-0.7 * math.log(base), rel=1e-5)


def test_is_at_least_float32():
    assert UnitScale(7).bfloat16()().dtype == torch.float32
    assert UnitScale(7).double()().dtype == torch.float64


def test_a_layer_without_units_is_refused():
    with refused(ValueError, "num_units", "0"):
        UnitScale(0)
