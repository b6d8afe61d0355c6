"""Sizes that are no whole numbers are refused by every kernel, in its name."""

from typing import Any

import numpy as np
import pytest

from fredholm import kernels
from tests.refusals import refused

# how each kernel is built with a number in place of one of its sizes
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
SIZES = [(name, size) for name, (_, sizes) in KERNELS.items() for size in sizes]


@pytest.mark.parametrize(("name", "size"), SIZES, ids=map(str, SIZES))
def test_a_size_that_is_no_whole_number(name: str, size: str) -> None:
    build, sizes = KERNELS[name]
    build(**sizes)
    for given in (float(sizes[size]), str(sizes[size]), True, np.int64(sizes[size])):
        with refused(TypeError, f"{size} must be a whole number; got {given!r}"):
            build(**sizes | {size: given})


def test_a_size_of_numpy_is_told_what_makes_it_one_of_python() -> None:
    with refused(TypeError, "kernels.Constant: in_dim", "got np.int64(3); int(...) gives the whole number 3"):
        kernels.Constant(np.int64(3), 2)  # pyright: ignore[reportArgumentType]
