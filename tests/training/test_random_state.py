import json
import random

import numpy as np
import pytest
import torch

from fredholm.training.random_state import derived_generator, random_state, restore_random_state, seed_everything
from tests.refusals import refused


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def test_a_restored_state_repeats_every_generator() -> None:
    seed_everything(11)
    draws()
    state = json.loads(json.dumps(random_state(), allow_nan=False))
    first = [draws() for _ in range(700)]  # beyond one block of the Mersenne twister
    restore_random_state(state)
    assert [draws() for _ in range(700)] == first


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("python", {"version": 3, "words": "00000000", "gauss": None}),
        ("numpy", {"words": "00" * 624 * 4, "position": 625, "has_gauss": 0, "gauss": 0.0}),
        ("numpy", {}),
        ("torch", "00" * 5056),
        ("torch", None),
        ("cuda", 1),
    ],
)
def test_an_invalid_state_changes_no_generator(name: str, value: object) -> None:
    seed_everything(3)
    before = random_state()
    with refused(ValueError, "it is no state of the random generators here"):
        restore_random_state(before | {name: value})
    assert random_state() == before


def test_the_seed_decides_the_stream() -> None:
    seed_everything(4)
    first = draws()
    seed_everything(4)
    assert draws() == first
    seed_everything(5)
    assert all(one != other for one, other in zip(first, draws(), strict=True))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=f"^seed is {seed}; expected an integer from 0 to 4294967295$"):
        seed_everything(seed)


def test_different_keys_give_different_streams() -> None:
    keys = [(0,), (0, 0), (0, 0, 0), (1, 2), (1, 2, 0), (2, 1), (1, 2, 1)]
    values = {tuple(torch.rand(4, generator=derived_generator(*key)).tolist()) for key in keys}
    assert len(values) == len(keys)
    again = torch.rand(4, generator=derived_generator(1, 2))
    assert torch.equal(again, torch.rand(4, generator=derived_generator(1, 2)))
