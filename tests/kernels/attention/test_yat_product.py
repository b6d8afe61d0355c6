import math

import pytest
import torch

from fredholm.kernels import yat
from tests.refusals import refused


def literal(x, w, b=None, epsilon=1e-3):
    """The formula with differences instead of the expansion."""
    dot = (x[..., None, :] * w).sum(-1)
    distance = (x[..., None, :] - w).square().sum(-1)
    return (dot if b is None else dot + b).square() / (distance + epsilon)


@pytest.mark.pairs
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(5,), (7, 5), (3, 1, 5), (0, 5), (2, 0)])
@pytest.mark.parametrize("units", [1, 11])
def test_is_its_formula_in_value_and_gradients(shape, units, has_bias):
    leaves = [torch.randn(*shape), torch.randn(units, shape[-1]), torch.tensor(0.3)]
    leaves += [torch.randn(units)] * has_bias
    leaves = [leaf.double().requires_grad_() for leaf in leaves]
    x, w, epsilon, *b = leaves
    out, expected = yat(x, w, *b, epsilon=epsilon), literal(x, w, *b, epsilon=epsilon)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(out)
    found, reference = (torch.autograd.grad(value, leaves, grad) for value in (out, expected))
    torch.testing.assert_close(found, reference, rtol=1e-11, atol=1e-11)


def test_no_bias_is_a_bias_of_zero():
    x, w = torch.randn(4, 6), torch.randn(3, 6)
    assert torch.equal(yat(x, w), yat(x, w, torch.zeros(3)))


def test_supremum_is_above_the_value_at_the_prototype():
    """DESIGN: ‖w‖⁴/ε + ‖w‖² at (1 + ε/‖w‖²) w; the source has ‖w‖⁴/ε at w."""
    w, epsilon = torch.randn(1, 5, dtype=torch.float64), 0.5
    squared = w.square().sum()
    best = yat((1 + epsilon / squared) * w, w, epsilon=epsilon)
    torch.testing.assert_close(best[0, 0], squared**2 / epsilon + squared)
    torch.testing.assert_close(yat(w, w, epsilon=epsilon)[0, 0], squared**2 / epsilon)
    assert (yat(w + torch.randn(1000, 5, dtype=torch.float64), w, epsilon=epsilon) <= best).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_distance_that_rounds_below_zero_is_zero(dtype):
    # a thousand points of length 10 000, each its own prototype: the rounding of |x|² is far above ε
    x = torch.randn(1000, 33)
    x = (1e4 * x / x.norm(dim=-1, keepdim=True)).to(dtype).requires_grad_()
    out = yat(x, x.detach(), epsilon=1e-3)
    assert out.dtype == dtype
    assert (out >= 0).all()
    assert out.isfinite().all()
    out.float().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-3)])
def test_low_precision_rounds_inputs_and_output_only(dtype, tolerance):
    x, w = torch.randn(13, 7).to(dtype), torch.randn(5, 7).to(dtype)
    out, expected = yat(x, w), literal(x.double(), w.double())
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def test_autocast_changes_nothing():
    x, w = torch.randn(13, 7), torch.randn(5, 7)
    with torch.autocast("cpu", torch.bfloat16):
        out = yat(x, w)
    assert torch.equal(out, yat(x, w))


def test_zero_points_and_prototypes_give_zero():
    x, w = torch.zeros(2, 4, requires_grad=True), torch.zeros(3, 4, requires_grad=True)
    out = yat(x, w)
    out.sum().backward()
    for value in (out, x.grad, w.grad):
        assert value is not None
        assert not value.any()


def test_non_finite_inputs_give_non_finite_outputs():
    x, w = torch.randn(3, 4), torch.randn(2, 4)
    x[0, 1], x[1, 2] = math.inf, math.nan
    out = yat(x, w)
    assert out[:2].isnan().all()
    assert out[2].isfinite().all()


def test_compiles_in_one_graph():
    x, w, b = torch.randn(4, 6), torch.randn(3, 6), torch.randn(3)
    compiled = torch.compile(yat, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w, b), yat(x, w, b))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e-46])
def test_softening_must_be_positive(epsilon):
    with refused(ValueError, "epsilon", str(epsilon)):
        yat(torch.randn(2, 3), torch.randn(4, 3), epsilon=epsilon)


def test_other_dtypes_are_refused():
    with refused(TypeError, "float16", "bfloat16"):
        yat(torch.randn(2, 3).half(), torch.randn(4, 3).half())
    with refused(TypeError, "int64"):
        yat(torch.ones(2, 3, dtype=torch.int64), torch.ones(4, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("x", "w", "b", "message"),
    [
        ((2, 3), (4, 5), None, "(4, 5)"),
        ((2, 3), (3,), None, "(3,)"),
        ((), (4, 3), None, "()"),
        ((2, 3), (4, 3), 3, "(4,)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(x, w, b, message):
    with refused(ValueError, message):
        yat(torch.randn(x), torch.randn(w), None if b is None else torch.randn(b))
