"""Under autocast converted layers return the dtypes of torch's layers."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm.evaluation import FFT
from fredholm.layers import from_torch
from fredholm.layers.torch_layers.convolution import ConvolutionLayer

LAYERS = {
    "linear": (lambda: nn.Linear(8, 4), (3, 8)),
    "linear without bias": (lambda: nn.Linear(8, 4, bias=False), (2, 3, 8)),
    "conv1d": (lambda: nn.Conv1d(8, 4, 3, padding=1, padding_mode="circular"), (2, 8, 5)),
    "conv2d": (lambda: nn.Conv2d(8, 4, 3, bias=False), (2, 8, 5, 6)),
    "long conv1d": (lambda: nn.Conv1d(8, 8, 257, padding=128, groups=8), (2, 8, 300)),
    "transposed": (lambda: nn.ConvTranspose1d(8, 4, 3, stride=2), (2, 8, 5)),
    "rnn": (lambda: nn.RNN(8, 4, 2), (5, 2, 8)),
    "lstm": (lambda: nn.LSTM(8, 4, 2, bidirectional=True), (5, 2, 8)),
    "gru": (lambda: nn.GRU(8, 4, 2), (5, 2, 8)),
    "attention": (lambda: nn.MultiheadAttention(8, 2), (5, 2, 8)),
}


def parts(out: Any) -> list[Tensor]:
    """All tensors in a result, in order."""
    if isinstance(out, Tensor):
        return [out]
    return [] if out is None else [part for inner in out for part in parts(inner)]


def by_torch(layer: nn.Module, *args: Any) -> Any:
    """The result of torch's layer; skips the test where the processor has no such layer in 16 bits."""
    try:
        return layer(*args)
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        pytest.skip("torch has no such layer in 16 bits on this processor")


def slope(out: list[Tensor], x: Tensor) -> Tensor:
    """The gradient of the sum of all results."""
    return torch.autograd.grad(torch.stack([part.float().sum() for part in out]).sum(), x)[0]


def call(layer: nn.Module, name: str, x: Tensor, **more) -> list[Tensor]:
    return parts(layer(x, x, x, **more) if name == "attention" else layer(x, **more))


@pytest.mark.pairs
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("in_dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dtypes_and_values_are_torchs(name, dtype, in_dtype):
    if name == "lstm" and dtype == torch.float16:
        pytest.skip("torch has no LSTM in float16 on a CPU")
    # on some processors long depthwise convolutions of torch hang in float16
    hangs = name == "long conv1d" and dtype == torch.float16 and in_dtype != torch.float64
    if in_dtype == torch.bfloat16 and dtype == torch.float16 and name in ("rnn", "gru"):
        pytest.skip("torch mixes the two dtypes of 16 bits here")
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    theirs = build()
    theirs = theirs.double() if in_dtype == torch.float64 else theirs
    ours, x = from_torch(theirs), torch.randn(shape).to(in_dtype).requires_grad_()
    results = []
    arguments = [x] * (3 if name == "attention" else 1)
    for layer in (by_torch, lambda _, *args: ours(*args)):
        in_float32 = hangs and layer is by_torch
        with torch.autocast("cpu", dtype, enabled=not in_float32):
            out = parts(layer(theirs, *(part.float() if in_float32 else part for part in arguments)))
        out = [part.to(dtype) for part in out] if in_float32 else out
        results.append((out, slope(out, x)))
    (expected, their_grad), (out, grad) = results
    for mine, other in zip(out, expected, strict=True):
        assert mine.dtype == other.dtype
        bound = 3e-2 if in_dtype != torch.float64 else 1e-12
        assert (mine.double() - other.double()).abs().max() <= bound * other.double().abs().max()
    assert grad.dtype == their_grad.dtype
    wide = x.detach().double().requires_grad_()
    exact = slope(call(theirs.double(), name, wide), wide)
    # on some processors torch accumulates in 16 bits
    their_error = (their_grad.double() - exact).abs().max()
    assert (grad.double() - exact).abs().max() <= max(their_error, 3e-2 * exact.abs().max())


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize(("in_dtype", "state"), list(itertools.product([torch.float32, torch.bfloat16], repeat=2)))
def test_states_have_the_dtypes_of_torchs(name, in_dtype, state):
    torch.manual_seed(0)
    theirs = LAYERS[name][0]()
    ours, x = from_torch(theirs), torch.randn(5, 2, 8).to(in_dtype)
    hx = torch.randn(2 * (1 + theirs.bidirectional), 2, 4).to(state)
    hx = (hx, -hx) if name == "lstm" else hx
    with torch.autocast("cpu", torch.bfloat16):
        by_torch(theirs, x.float())  # skips where torch lacks the layer, since it would then return other dtypes
        expected, out = parts(theirs(x, hx)), parts(ours(x, hx))
    for mine, other in zip(out, expected, strict=True):
        assert mine.dtype == other.dtype
        assert (mine.double() - other.double()).abs().max() <= 3e-2 * other.double().abs().max()


@pytest.mark.pairs
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_all_options(need_weights, apart, masked):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2)
    ours, u = from_torch(theirs), torch.randn(5, 2, 8)
    key = u.clone() if apart else u
    more = {"attn_mask": torch.randn(5, 5)} if masked else {}
    with torch.autocast("cpu", torch.bfloat16):
        expected, out = (parts(m(u, key, u, need_weights=need_weights, **more)) for m in (theirs, ours))
    for mine, other in zip(out, expected, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, atol=2e-2, rtol=2e-2)


def test_a_linear_layer_gives_bitwise_equal_results():
    theirs = nn.Linear(64, 32)
    ours, x = from_torch(theirs), torch.randn(17, 64)
    assert torch.equal(ours(x), theirs(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(x), theirs(x))


def test_an_fft_is_rounded_only_at_its_end():
    theirs = nn.Conv1d(4, 4, 33, padding=16)
    ours, x = from_torch(theirs), torch.randn(2, 4, 50)
    assert isinstance(ours, ConvolutionLayer)
    ours.operator.evaluation = FFT()
    with torch.autocast("cpu", torch.bfloat16):
        out = ours(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, theirs(x).bfloat16(), atol=1e-5, rtol=8e-3)
