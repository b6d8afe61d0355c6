from typing import Any

import pytest
import torch

from fredholm.kernels import yat
from fredholm.layers import yat_dense as module
from fredholm.layers.yat_dense import DenseInputs, yat_dense


def inputs(m, n, d, dtype, *, has_bias, has_scale) -> list[Any]:
    b = torch.randn(n, dtype=dtype) if has_bias else None
    scale = torch.tensor(1.7, dtype=torch.promote_types(dtype, torch.float32)) if has_scale else None
    epsilon = torch.tensor(0.3, dtype=torch.promote_types(dtype, torch.float32))
    tensors = [torch.randn(m, d, dtype=dtype), torch.randn(n, d, dtype=dtype), b, epsilon, scale]
    return [None if term is None else term.requires_grad_() for term in tensors]


def formula(x, w, b, epsilon, scale):
    out = yat(x, w, b, epsilon)
    return out if scale is None else out * scale


def compare(tensors, tolerance):
    leaves = [term for term in tensors if term is not None]
    # the float64 oracle, from the same rounded inputs
    exact: list[Any] = [None if term is None else term.detach().double().requires_grad_() for term in tensors]
    out, expected = yat_dense(DenseInputs(*tensors), True)[0], formula(*exact)
    assert out.dtype == tensors[0].dtype
    # positive, so that terms in the gradients of the two scalars do not cancel
    grad = torch.rand_like(out)
    found = torch.autograd.grad(out, leaves, grad)
    reference = torch.autograd.grad(expected, [term for term in exact if term is not None], grad.double())
    for ours, theirs in zip((out, *found), (expected, *reference), strict=True):
        assert ours.isfinite().all()
        if theirs.numel():
            assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp_min(1e-300)


@pytest.mark.pairs
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_scale", [False, True])
@pytest.mark.parametrize(("m", "n", "d"), [(23, 7, 5), (1, 1, 2), (29, 1, 3), (0, 7, 5), (4, 3, 0)])
@pytest.mark.usefixtures("poisoned_memory")
def test_equals_the_formula_in_value_and_every_gradient(monkeypatch, m, n, d, has_bias, has_scale):
    for product, block in ((1, 1), (60, 20), (10_000, 30), (10_000, 10_000)):
        monkeypatch.setattr(module, "PRODUCT_ELEMENTS", product)
        monkeypatch.setattr(module, "BLOCK_ELEMENTS", block)
        compare(inputs(m, n, d, torch.float64, has_bias=has_bias, has_scale=has_scale), 1e-10)
        compare(inputs(m, n, d, torch.float32, has_bias=has_bias, has_scale=has_scale), 1e-5)
        compare(inputs(m, n, d, torch.bfloat16, has_bias=has_bias, has_scale=has_scale), 2e-2)


def test_equals_the_formula_to_a_millionth_at_a_layers_size():
    x, w = torch.randn(64, 768), 1.4 / 768**0.5 * torch.randn(3072, 768)
    out = yat_dense(DenseInputs(x, w, None, torch.tensor(1e-3), None), False)[0]
    expected = yat(x.double(), w.double())
    assert (out - expected).abs().max() <= 1e-6 * expected.max()


@pytest.mark.parametrize("has_bias", [False, True])
def test_long_vectors_in_16_bits_stay_finite(has_bias):
    """Entries up to 1e4, and half of the points so close to a prototype that the distance is only rounding."""
    w = (1e4 * (2 * torch.rand(8, 768) - 1)).bfloat16()
    x = torch.cat([w, (1e4 * (2 * torch.rand(8, 768) - 1)).bfloat16()])
    b = torch.randn(8).bfloat16().requires_grad_() if has_bias else None
    epsilon, scale = (torch.tensor(value, requires_grad=True) for value in (1e-3, 382.0))
    leaves = [x.requires_grad_(), w.requires_grad_(), *([] if b is None else [b])]
    out = yat_dense(DenseInputs(x, w, b, epsilon, scale), True)[0]
    assert out.isfinite().all()
    for grad in torch.autograd.grad(out, [*leaves, scale], torch.ones_like(out)):
        assert grad.isfinite().all()


def test_inputs_without_gradient_do_not_change_the_others():
    tensors = inputs(6, 3, 4, torch.float64, has_bias=False, has_scale=False)
    whole = torch.autograd.grad(yat_dense(DenseInputs(*tensors), True)[0].square().sum(), tensors[1])
    x = tensors[0].detach()
    part = torch.autograd.grad(yat_dense(DenseInputs(x, *tensors[1:]), True)[0].square().sum(), tensors[1])
    torch.testing.assert_close(whole, part)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_scale", [False, True])
def test_passes_gradcheck_and_registration(has_bias, has_scale):
    tensors = inputs(5, 3, 4, torch.float64, has_bias=has_bias, has_scale=has_scale)
    assert torch.autograd.gradcheck(lambda *terms: yat_dense(DenseInputs(*terms), True)[0], tensors)
    report = torch.library.opcheck(torch.ops.fredholm.yat_dense.default, (tensors, True))
    assert set(report.values()) == {"SUCCESS"}


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_scale", [False, True])
def test_forward_mode_and_second_derivatives(has_bias, has_scale):
    tensors = inputs(3, 2, 4, torch.float64, has_bias=has_bias, has_scale=has_scale)

    def respond(*terms):
        return yat_dense(DenseInputs(*terms), True)[0]

    assert torch.autograd.gradcheck(respond, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(respond, tensors, check_fwd_over_rev=True)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan, 1e20])
def test_non_finite_inputs_affect_only_their_row(bad):
    x, w = torch.randn(3, 4), torch.randn(2, 4)
    x[1, 2] = bad
    out, _ = yat_dense(DenseInputs(x, w, None, torch.tensor(1e-3), None), True)
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize(("has_bias", "planes"), [(False, 1), (True, 4)])
def test_stores_one_or_four_bytes_per_entry_besides_inputs_and_output(has_bias, planes):
    tensors = inputs(19, 13, 6, torch.float32, has_bias=has_bias, has_scale=True)
    saved = {}

    def note(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out, _ = yat_dense(DenseInputs(*tensors), True)
    known = {term.untyped_storage().data_ptr() for term in (*tensors, out) if term is not None}
    assert sum(size for place, size in saved.items() if place not in known) == planes * out.numel()
