"""Every route on every device, in float32 and under 16-bit autocast, compared with the float64 oracle on the CPU."""

import copy
from contextlib import nullcontext

import pytest
import torch

from fredholm.domains import Domain, Grid, Points, Sequence
from fredholm.evaluation import ROUTES, Dense, Integral
from fredholm.kernels import (
    LSTM,
    MLP,
    Attention,
    Convolution,
    FactorisedInfiniteAttention,
    Kernel,
    LinearAttention,
    LinearInfiniteAttention,
    LowRankMLP,
    SelectiveStateSpace,
    SeparableMLP,
)
from tests.contracts.routes import TOLERANCE, compare, randomise, results
from tests.pretended_device import pretending

DEVICES = [
    "cpu",
    "pretended",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]
PERCEPTRON = {"width": 16, "num_frequencies": 4, "sigma": 1.0}


def cases() -> dict[str, tuple[Kernel, Domain]]:
    """Kernels of every family with fast routes, on domains that these accept; sizes that do not fill a tile."""
    drawn = torch.rand(13, 2, generator=torch.Generator().manual_seed(1))
    scattered, timed = Points(drawn), Sequence(times=drawn[:, 0].sort().values)
    return {
        "MLP on a grid": (MLP(12, 2, 2, **PERCEPTRON), Grid(3, 5)),
        "MLP on points": (MLP(12, 2, 2, **PERCEPTRON), scattered),
        "MLP, causal": (MLP(12, 2, 1, is_causal=True, **PERCEPTRON), timed),
        "low rank": (LowRankMLP(12, 2, 2, rank=3, **PERCEPTRON), scattered),
        "low rank, causal": (LowRankMLP(12, 2, 1, rank=3, is_causal=True, **PERCEPTRON), timed),
        "separable": (SeparableMLP(12, 2, 2, **PERCEPTRON), scattered),
        "separable, causal": (SeparableMLP(12, 2, 1, is_causal=True, **PERCEPTRON), timed),
        "attention": (Attention(12, 2), Sequence(13)),
        "linear attention": (LinearAttention(12, 2, is_causal=True), Sequence(13)),
        "factorised infinite attention": (FactorisedInfiniteAttention(12, 2), scattered),
        "factorised infinite attention, causal": (FactorisedInfiniteAttention(12, 2, is_causal=True), Sequence(13)),
        "linear infinite attention": (LinearInfiniteAttention(12, 2), scattered),
        "convolution": (Convolution(12, 12, 3, 2, padding=1), Grid(3, 5)),
        "selective state space": (SelectiveStateSpace(12, 4), Sequence(13)),
        "LSTM": (LSTM(12, 12), Sequence(13)),
    }


@pytest.mark.pairs
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", cases())
def test_every_route_is_close_to_the_oracle(name: str, dtype: torch.dtype, device: str) -> None:
    (kernel, domain), is_short = cases()[name], dtype != torch.float32
    randomise(kernel, 0.3)
    u = torch.randn(2, domain.num_points, 12)
    oracle = Integral(copy.deepcopy(kernel).double(), u.double(), domain)
    # rounded positions have other gradients, and the gradient of a constant in all scores is only rounding
    left_out = ("pos", "key_bias")
    expected = {name: value for name, value in results(Dense(), oracle).items() if not name.endswith(left_out)}
    target = "cuda" if device == "pretended" else device
    found = {}
    # the accepted routes depend on the dtype of autocast
    with pretending() if device == "pretended" else nullcontext(), torch.autocast(target, dtype, enabled=is_short):
        problem = Integral(kernel.to(target), u.to(target), domain.to(target))
        for route in ROUTES:
            if not isinstance(route, Dense) and not route.unsupported_reasons(problem):
                found[route.name] = results(route, problem)
    assert found
    for each in found.values():
        compare({name: each[name].cpu() for name in expected}, expected, 5 * TOLERANCE[dtype])
