"""Points beyond 2³¹ elements. The memory is only reserved: nobody touches it but for one row."""

from typing import Any

import pytest
import torch

from fredholm.domains import Points
from fredholm.evaluation import TritonTiled
from fredholm.evaluation.triton import perceptron
from fredholm.evaluation.triton.machine import Tile
from fredholm.evaluation.triton.machine import launch as really_launch
from tests.contracts.routes import results
from tests.evaluation.triton.interpreted.problems import make

ENTRIES = (
    *("own_u", "u", "value", "own_bias", "bias", "own_phase", "phase", "own_pos", "pos"),
    *("grad_u", "grad_bias", "grad_phase", "grad_pos"),
)
"""Arguments that hold something of every batch entry."""


def moved(value: torch.Tensor, batch: int) -> torch.Tensor:
    """The one batch entry of a tensor, as the last of so many."""
    storage = torch.empty(batch * value.numel())
    storage[-value.numel() :] = value.flatten()
    return storage


def test_the_last_of_very_many_batch_entries(monkeypatch):
    """One point an entry with 16 channels, units and frequencies: 2²⁷ entries before it are 2³¹ numbers."""
    problem = make(Points(torch.rand(1, 1, 2)), num_heads=1, head_dim=16, width=16, num_frequencies=16)
    calls: list[tuple[Any, tuple[int, int, int], Tile, dict[str, Any]]] = []

    def record(*call: Any) -> None:
        really_launch(*call)
        calls.append(call)

    monkeypatch.setattr(perceptron, "launch", record)
    results(TritonTiled(), problem)
    assert len(calls) == 3
    batch = (1 << 27) + 1
    for kernel, grid, tile, arguments in calls:
        try:
            far = {name: moved(arguments[name], batch) for name in ENTRIES if name in arguments}
        except RuntimeError:
            pytest.skip("the system does not reserve so much memory")
        # what the kernel writes, and where: NaN until it does
        outputs = {name: arguments[name].flatten() for name in arguments if name.startswith(("grad_", "sums"))}
        for name, value in outputs.items():
            place = far.setdefault(name, torch.empty_like(value))
            place[len(place) - len(value) :] = torch.nan
        chunk = {"first": batch - 1, "geometry": 1} | ({"total": batch} if "total" in arguments else {})
        really_launch(kernel, grid, tile, {**arguments, **far, **chunk})
        for name, value in outputs.items():
            assert torch.equal(far[name][len(far[name]) - len(value) :], value), name
