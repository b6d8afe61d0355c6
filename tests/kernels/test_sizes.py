"""Every kernel refuses sizes that are no whole numbers and settings that are no numbers, and names itself."""

import math
from typing import Any

import numpy as np
import pytest

from fredholm import kernels, quadrature
from tests.refusals import refused

# kernels with their sizes, each of which the tests replace
KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Attention": (kernels.Attention, {"embed_dim": 4, "num_heads": 2, "kdim": 4, "vdim": 4}),
    "AdditiveAttention": (kernels.AdditiveAttention, {"embed_dim": 4, "num_heads": 2}),
    "LinearAttention": (kernels.LinearAttention, {"embed_dim": 4, "num_heads": 2}),
    "UnnormalisedAttention": (kernels.UnnormalisedAttention, {"embed_dim": 4, "num_heads": 2, "head_dim": 2}),
    "YatAttention": (kernels.YatAttention, {"embed_dim": 4, "num_heads": 2}),
    "Yat": (kernels.Yat, {"dim": 4, "value_dim": 4, "num_units": 4}),
    "InfiniteAttention": (kernels.InfiniteAttention, {"embed_dim": 4, "num_heads": 2}),
    "FactorisedInfiniteAttention": (kernels.FactorisedInfiniteAttention, {"embed_dim": 4, "num_heads": 2}),
    "LinearInfiniteAttention": (kernels.LinearInfiniteAttention, {"embed_dim": 4, "num_heads": 2, "num_central": 2}),
    "MLP": (kernels.MLP, {"embed_dim": 4, "num_heads": 2, "pos_dim": 1, "width": 4, "num_frequencies": 4}),
    "LowRankMLP": (kernels.LowRankMLP, {"embed_dim": 4, "num_heads": 2, "rank": 2, "width": 4}),
    "SeparableMLP": (kernels.SeparableMLP, {"embed_dim": 4, "num_heads": 2, "width": 4}),
    "LinearSystem": (kernels.LinearSystem, {"in_dim": 4, "state_dim": 4, "out_dim": 4}),
    "LinearRNN": (kernels.LinearRNN, {"in_dim": 4, "state_dim": 4, "out_dim": 4}),
    "DiagonalStateSpace": (kernels.DiagonalStateSpace, {"in_dim": 4, "state_dim": 4}),
    "SelectiveStateSpace": (kernels.SelectiveStateSpace, {"in_dim": 4, "state_dim": 4, "rank": 2}),
    "LSTM": (kernels.LSTM, {"in_dim": 4, "state_dim": 4}),
    "Constant": (kernels.Constant, {"in_dim": 4, "out_dim": 4}),
    "Pointwise": (kernels.Pointwise, {"in_dim": 4, "out_dim": 4}),
    "Diffusion": (kernels.Diffusion, {"dim": 4, "num_steps": 4}),
}
NUMBERS: list[tuple[Any, str]] = [
    (lambda x: kernels.Attention(4, scale=x), "scale"),
    (lambda x: kernels.InfiniteAttention(4, activation="gelu", scale=x), "scale"),
    (lambda x: kernels.YatAttention(4, epsilon=x), "epsilon"),
    (lambda x: kernels.YatAttention(4, score_gain=x), "score_gain"),
    (lambda x: kernels.Softermax(power=x), "power"),
    (lambda x: kernels.Softermax(epsilon=x), "epsilon"),
    (lambda x: kernels.Rotary(base=x), "base"),
    (lambda x: kernels.MLP(4, sigma=x), "sigma"),
    (lambda x: kernels.LowRankMLP(4, rank=2, epsilon=x), "epsilon"),
    (lambda x: kernels.ContinuousConvolution(2, 2, omega_0=x), "omega_0"),
    (lambda x: kernels.ContinuousConvolution(2, 2, weight_dropout=x), "weight_dropout"),
    (lambda x: kernels.SpectralConvolution(2, 2, 1, period=x), "period"),
    (lambda x: kernels.LinearSystem(2, 2, first_step=1.0, step_size=x), "step_size"),
    (lambda x: kernels.DiagonalStateSpace(2, 2, max_step=x), "max_step"),
    (lambda x: kernels.SelectiveStateSpace(2, 2, min_step=x, max_step=2.0), "min_step"),
    (lambda x: kernels.Diffusion(2, gamma=x), "gamma"),
    (lambda x: kernels.OnEdges(kernels.Constant(2, 2), long_range=x), "long_range"),
]
SIZES = [(name, size) for name, (_, sizes) in KERNELS.items() for size in sizes]


@pytest.mark.parametrize(("name", "size"), SIZES, ids=map(str, SIZES))
def test_a_size_that_is_no_whole_number_is_refused(name: str, size: str) -> None:
    build, sizes = KERNELS[name]
    build(**sizes)
    for value in (float(sizes[size]), str(sizes[size]), True, np.int64(sizes[size])):
        with refused(TypeError, f"{size} must be a whole number; got {value!r}"):
            build(**sizes | {size: value})


def test_the_error_for_a_numpy_size_names_the_conversion() -> None:
    with refused(TypeError, "kernels.Constant: in_dim", "got np.int64(3); int(...) gives the whole number 3"):
        kernels.Constant(np.int64(3), 2)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("build", "name"), NUMBERS, ids=[f"{i}-{name}" for i, (_, name) in enumerate(NUMBERS)])
def test_a_setting_that_is_no_number_is_refused(build: Any, name: str) -> None:
    build(np.float32(1.5) if name not in ("weight_dropout", "gamma") else np.float32(0.5))
    for value in ("1", True, [1.0]):
        with refused(TypeError, "kernels.", f"{name} must be a number; got {value!r}"):
            build(value)
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="kernels"):
            build(value)


def test_true_as_a_number_of_axes_is_refused() -> None:
    with refused(ValueError, "kernels.Convolution: pos_dim must be 1, 2 or 3; got True"):
        kernels.Convolution(2, 2, 3, True)
    with refused(ValueError, "kernels.ContinuousConvolution: pos_dim must be 1, 2 or 3; got True"):
        kernels.ContinuousConvolution(2, 2, True)


def test_bad_harmonics_of_a_proposal_are_refused() -> None:
    for build in (quadrature.KeyProposal, quadrature.PairProposal):
        with refused(TypeError, f"quadrature.{build.__name__}: harmonics must be a whole number; got 2.5"):
            build(4, 1, harmonics=2.5)  # pyright: ignore[reportArgumentType]
        with refused(ValueError, f"quadrature.{build.__name__}: harmonics must be at least 0; got -1"):
            build(4, 1, harmonics=-1)
