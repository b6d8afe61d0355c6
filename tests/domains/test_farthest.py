import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from fredholm.domains import farthest_points
from tests.refusals import refused


def literal(pos: Tensor, num_points: int, exists: list[int], first: int | None, *, periodic: bool) -> list[int]:
    """Farthest-point sampling of one entry, point by point."""

    def squared(i: int, j: int) -> float:
        difference = pos[i] - pos[j]
        return float(((difference - (difference + 0.5).floor()) if periodic else difference).square().sum())

    if first is None:
        mean = pos[exists].mean(0)
        first = min(exists, key=lambda i: float((pos[i] - mean).square().sum()))
    chosen = [first]
    while len(chosen) < num_points:
        chosen.append(max(exists, key=lambda i: min(squared(i, j) for j in chosen)))
    return chosen


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 9), st.booleans(), st.booleans(), st.booleans())
def test_each_point_is_the_farthest_from_the_earlier_ones(
    n: int, dims: int, m: int, masked: bool, periodic: bool, given_first: bool
) -> None:
    generator = torch.Generator().manual_seed(n + 100 * dims)
    pos = torch.rand(3, n, dims, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, n, generator=generator) < 0.6
    mask[:, n // 2] = True
    first = torch.full((3,), n // 2) if given_first else None
    found = farthest_points(pos, m, mask if masked else None, first, periodic=periodic)
    assert found.shape == (3, m)
    for b in range(3):
        exists = mask[b].nonzero()[:, 0].tolist() if masked else list(range(n))
        assert found[b].tolist() == literal(pos[b], m, exists, n // 2 if given_first else None, periodic=periodic)


def test_any_batched_argument_makes_a_batch() -> None:
    pos, first = torch.rand(7, 2), torch.tensor([3, 5])
    mask = torch.tensor([[True] * 7, [True] * 5 + [False] * 2])
    assert farthest_points(pos, 3).shape == (3,)
    assert farthest_points(pos, 3, first=first[0]).shape == (3,)
    by_mask, by_first = farthest_points(pos, 3, mask), farthest_points(pos, 3, first=first)
    assert torch.equal(by_mask[1], farthest_points(pos[:5], 3))
    assert torch.equal(by_first[1], farthest_points(pos, 3, first=first[1]))


def test_the_covering_radius_is_at_most_twice_that_of_random_centres() -> None:
    generator = torch.Generator().manual_seed(0)
    pos = torch.rand(300, 2, generator=generator)
    reach = torch.cdist(pos, pos[farthest_points(pos, 9)]).amin(1).max()
    others = [torch.cdist(pos, pos[torch.randperm(300, generator=generator)[:9]]).amin(1).max() for _ in range(200)]
    assert reach <= 2 * min(others)
    assert reach < sorted(others)[100]


def test_points_that_do_not_exist_are_never_chosen_and_change_nothing() -> None:
    pos = torch.rand(9, 3)
    mask = torch.arange(9) < 6
    hidden = torch.where(mask[:, None], pos, math.nan)
    assert torch.equal(farthest_points(hidden, 8, mask), farthest_points(pos[:6], 8))
    assert set(farthest_points(hidden, 8, mask).tolist()) == set(range(6))
    assert farthest_points(pos, 4, torch.zeros(9, dtype=torch.bool)).shape == (4,)


def test_compiles_in_one_graph(fresh_compiler: None) -> None:
    pos = torch.rand(2, 30, 2)
    compiled = torch.compile(lambda p: farthest_points(p, 4), fullgraph=True, backend="eager")
    assert torch.equal(compiled(pos), farthest_points(pos, 4))
    assert torch.equal(torch.func.vmap(lambda p: farthest_points(p, 4))(pos), farthest_points(pos, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_positions_of_16_bits(dtype: torch.dtype) -> None:
    # squared distances overflow float16, and are too close to each other for bfloat16
    pos = torch.randint(2000, (300, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert farthest_points(pos, 40).tolist() == farthest_points(pos.double(), 40).tolist()


MISTAKES: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ValueError, "num_points must be at least 1; got 0", lambda: farthest_points(torch.rand(3, 2), 0)),
    (ValueError, "N and s >= 1; got (0, 2)", lambda: farthest_points(torch.rand(0, 2), 1)),
    (TypeError, "mask must be bool", lambda: farthest_points(torch.rand(3, 2), 1, torch.ones(3))),
    (TypeError, "pos must be a tensor; got list", lambda: farthest_points([[0.0]], 1)),  # pyright: ignore[reportArgumentType]
    (ValueError, "pos holds NaN", lambda: farthest_points(torch.full((3, 2), math.nan), 1)),
    (ValueError, "first must be int64", lambda: farthest_points(torch.rand(3, 2), 1, first=torch.tensor(1.0))),
    (ValueError, "first must be int64 in [0, 3)", lambda: farthest_points(torch.rand(3, 2), 1, first=torch.tensor(3))),
    (
        ValueError,
        "batch sizes must be one and the same; got pos 2, first 3",
        lambda: farthest_points(torch.rand(2, 3, 2), 1, first=torch.zeros(3).long()),
    ),
]


@pytest.mark.parametrize(("error", "message", "call"), MISTAKES, ids=[message for _, message, _ in MISTAKES])
def test_mistakes_are_named(error: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with refused(error, "farthest_points: ", message):
        call()
