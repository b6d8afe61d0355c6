"""The four cell recurrence kernels, and PyTorch's layers to compare them with."""

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fredholm.kernels import GRU, LSTM, RNN
from fredholm.kernels.recurrence.cell_recurrence import CellRecurrence

CELLS: dict[str, Callable[..., CellRecurrence]] = {
    "tanh": RNN,
    "relu": functools.partial(RNN, nonlinearity="relu"),
    "lstm": LSTM,
    "gru": GRU,
}
NATIVE: dict[str, Callable[..., nn.RNNBase]] = {
    "tanh": nn.RNN,
    "relu": functools.partial(nn.RNN, nonlinearity="relu"),
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}


def pair(name: str, in_dim: int = 3, state_dim: int = 4, *, bias: bool = True) -> tuple[CellRecurrence, nn.RNNBase]:
    """A kernel and torch's layer with the same float64 weights, larger than at their initialisation."""
    kernel = CELLS[name](in_dim, state_dim, bias=bias).double()
    layer = NATIVE[name](in_dim, state_dim, bias=bias, batch_first=True).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight, native in zip(kernel.weights, layer.parameters(), strict=True):
            weight.copy_(0.7 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
            native.copy_(weight)
    return kernel, layer


def state_of(kernel: CellRecurrence, batch: int) -> tuple[Tensor, ...]:
    """A random state that requires a gradient."""
    like = kernel.weight_hh
    return tuple(
        torch.randn(batch, kernel.state_dim, dtype=like.dtype).requires_grad_() for _ in range(kernel.num_states)
    )


def gradients(results: Sequence[Tensor], leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a fixed functional of all results; zero where a leaf is not read."""
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r) for r in results]
    return torch.autograd.grad(list(results), list(leaves), weights, allow_unused=True, materialize_grads=True)


def assert_near(got: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """Asserts that all tensors agree to a tolerance, relative to each tensor's largest value or 1."""
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        if a.numel():
            error = (a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1.0)
            assert error <= tolerance, f"error {error:.2e} above {tolerance:.0e}"
