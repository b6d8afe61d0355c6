from typing import Any

import pytest
import torch

from fredholm.layers import yat_response as module
from fredholm.layers.yat_response import ResponseInputs, blocks, yat_response

NUMBER = torch.tensor


def formula(dot, query_square, key_square, b, epsilon, scale):
    """The response by its formula, differentiable by autograd."""
    distance = (query_square + key_square - 2 * dot).clamp_min(0)
    numerator = dot if b is None else dot + b
    return numerator.square() / (distance + epsilon) * (1 if scale is None else scale)


def inputs(shape, dtype, *, has_bias, has_scale, near=False) -> list[Any]:
    """Products and squared norms of random vectors in five dimensions; `near`: of vectors that differ by rounding."""
    n, groups, units, points = shape
    x, w = torch.randn(n, groups, points, 5, dtype=dtype), torch.randn(1, groups, units, 5, dtype=dtype)
    if near:
        w = 100 * w
        x = w[:, :, :1] * (1 + torch.finfo(dtype).eps * torch.randn(n, groups, points, 5, dtype=dtype))
    dot = torch.einsum("ngld,mgud->ngul", x, w)
    terms: list[Any] = [dot, x.square().sum(-1)[:, :, None], w.square().sum(-1)[..., None]]
    terms.append(torch.randn(1, groups, units, 1, dtype=dtype) if has_bias else None)
    terms += [NUMBER(0.3, dtype=dtype), NUMBER(1.7, dtype=dtype) if has_scale else None]
    return [None if term is None else term.requires_grad_() for term in terms]


def compare(tensors, tolerance):
    leaves = [term for term in tensors if term is not None]
    out, _ = yat_response(ResponseInputs(*tensors), tensors[0].dtype, True)
    expected = formula(*tensors)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    grad = torch.randn_like(out)
    found, reference = (torch.autograd.grad(value, leaves, grad) for value in (out, expected))
    for ours, theirs in zip(found, reference, strict=True):
        error = (ours - theirs).abs().max() if ours.numel() else 0.0
        assert error <= tolerance * (theirs.abs().max() if theirs.numel() else 1.0)


SHAPES = [(3, 1, 7, 1), (2, 3, 5, 11), (1, 1, 1, 1), (3, 4, 1, 13), (0, 1, 3, 2), (2, 1, 3, 0)]


@pytest.mark.pairs
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_scale", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("poisoned_memory")
def test_equals_the_formula_in_value_and_every_gradient(monkeypatch, shape, has_bias, has_scale):
    for elements in (1, 6, 30, 10_000):
        monkeypatch.setattr(module, "BLOCK_ELEMENTS", elements)
        tensors = inputs(shape, torch.float64, has_bias=has_bias, has_scale=has_scale)
        compare(tensors, 1e-10)
    compare(inputs(shape, torch.float32, has_bias=has_bias, has_scale=has_scale), 1e-5)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_that_round_below_zero_have_no_gradient(dtype, has_bias):
    tensors = inputs((50, 1, 4, 3), dtype, has_bias=has_bias, has_scale=True, near=True)
    dot, query_square, key_square, *_ = tensors
    below = query_square + key_square - 2 * dot < 0
    assert below.any()
    assert not below.all()
    compare(tensors, 1e-4 if dtype == torch.float32 else 1e-10)
    # with such entries only, |x|² and |w|² have no effect
    only = torch.where(below, 1.0, 0.0).to(dtype)
    out, _ = yat_response(ResponseInputs(*tensors), dtype, True)
    for ours in torch.autograd.grad(out, [query_square, key_square], only):
        assert not ours.any()


def test_zeros_have_no_gradient_and_no_nan():
    tensors = inputs((2, 1, 3, 4), torch.float32, has_bias=False, has_scale=True)
    with torch.no_grad():
        for term in tensors[:3]:
            term.zero_()
    # ε and s so small that their product is 0 in float32
    tensors[4] = NUMBER(2e-38, dtype=torch.float64, requires_grad=True)
    tensors[5] = NUMBER(1e-10, requires_grad=True)
    out, _ = yat_response(ResponseInputs(*tensors), torch.float32, True)
    found = torch.autograd.grad(out, [term for term in tensors if term is not None], torch.ones_like(out))
    for value in (out, *found):
        assert not value.any()


def test_an_inverse_close_to_underflow_is_no_nan():
    # S is so small that Y underflows: r is recomputed as 0 in place of 1e-30
    dot = NUMBER(1e-30).view(1, 1, 1, 1).requires_grad_()
    one = torch.ones(1, 1, 1, 1)
    out, _ = yat_response(ResponseInputs(dot, one, one, None, NUMBER(1e-3), None), torch.float32, True)
    (grad,) = torch.autograd.grad(out, dot)
    assert out.item() == 0
    assert grad.item() == pytest.approx(1e-30, abs=1e-29)


@pytest.mark.parametrize("has_bias", [False, True])
def test_16_bits_round_only_the_output(has_bias):
    tensors = inputs((3, 2, 5, 7), torch.float32, has_bias=has_bias, has_scale=True)
    out, kept = yat_response(ResponseInputs(*tensors), torch.bfloat16, True)
    assert out.dtype == torch.bfloat16
    assert kept is not None
    assert kept.dtype == (torch.bfloat16 if has_bias else torch.int8)
    expected = formula(*tensors)
    torch.testing.assert_close(out.float(), expected, rtol=4e-3, atol=0)
    leaves, grad = [term for term in tensors if term is not None], torch.randn_like(expected)
    found = torch.autograd.grad(out, leaves, grad.bfloat16())
    reference = torch.autograd.grad(expected, leaves, grad.bfloat16().float())
    for ours, theirs in zip(found, reference, strict=True):
        assert (ours - theirs).abs().max() <= 2e-2 * theirs.abs().max()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_scale", [False, True])
def test_passes_gradcheck_and_registration(has_bias, has_scale):
    drawn = inputs((2, 2, 3, 2), torch.float64, has_bias=has_bias, has_scale=has_scale)
    tensors: list[Any] = [None if term is None else term.detach().requires_grad_() for term in drawn]

    def respond(*terms):
        return yat_response(ResponseInputs(*terms), torch.float64, True)[0]

    assert torch.autograd.gradcheck(respond, tensors)
    report = torch.library.opcheck(torch.ops.fredholm.yat_response.default, (tensors, torch.float64, True))
    assert set(report.values()) == {"SUCCESS"}


def test_second_derivatives_are_refused():
    tensors = inputs((2, 1, 3, 2), torch.float64, has_bias=False, has_scale=False)
    out, _ = yat_response(ResponseInputs(*tensors), torch.float64, True)
    (grad,) = torch.autograd.grad(out.sum(), tensors[0], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"yat_response has no second derivative.*kernels\.yat"):
        grad.sum().backward()
    assert torch.autograd.gradcheck(
        lambda *terms: yat_response(ResponseInputs(*terms), torch.float64, True)[0], tensors, check_forward_ad=True
    )


def test_nothing_is_saved_without_a_backward_pass():
    tensors = inputs((2, 1, 3, 2), torch.float64, has_bias=True, has_scale=False)
    _, kept = yat_response(ResponseInputs(*tensors), torch.float64, False)
    assert kept is None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("elements", [1, 6, 30, 10_000])
def test_blocks_cover_every_entry_once(shape, elements):
    count = torch.zeros(shape, dtype=torch.int64)
    for block in blocks(shape, elements):
        assert count[block].is_contiguous()
        assert count[block].numel() <= max(elements, shape[-1])
        count[block] += 1
    assert (count == 1).all()
