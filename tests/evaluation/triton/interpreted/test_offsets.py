"""Tensors of more than 2³¹ elements. Their memory is only reserved: just one row is read or written."""

from typing import Any

import pytest
import torch

from fredholm.domains import Points
from fredholm.evaluation import TritonTiled
from fredholm.evaluation.triton import perceptron
from fredholm.evaluation.triton.tuning import Tile
from fredholm.evaluation.triton.tuning import launch as really_launch
from tests.contracts.routes import results
from tests.evaluation.triton.interpreted.problems import make


def moved(value: torch.Tensor, batch: int) -> torch.Tensor:
    """Storage of a batch whose last entry is the single entry of a tensor."""
    storage = torch.empty(batch * value.numel())
    storage[-value.numel() :] = value.flatten()
    return storage


def test_the_last_of_very_many_batch_entries(monkeypatch):
    """One point per entry with 16 channels, units and frequencies: the 2²⁷ entries before it are 2³¹ numbers."""
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
        names_of_sides = {"own": ("u", "part", "phase", "pos"), "other": ("u", "bias", "phase", "pos")}
        try:
            far: dict[str, Any] = {
                side: arguments[side]._replace(**{name: moved(getattr(arguments[side], name), batch) for name in names})
                for side, names in names_of_sides.items()
            }
            far["value"] = moved(arguments["value"], batch)
        except RuntimeError:
            pytest.skip("the system does not reserve so much memory")
        # outputs of the kernel and their storage, which holds NaN until the kernel writes
        outputs = {"sums": arguments["sums"].flatten()}
        received = arguments["received"]._asdict() if "received" in arguments else {}
        outputs |= {name: value.flatten() for name, value in received.items()}
        places = {}
        for name, value in outputs.items():
            has_batch = name in ("bias", "u", "phase", "pos")
            place = places[name] = moved(value, batch) if has_batch else torch.empty_like(value)
            place[len(place) - len(value) :] = torch.nan
        far["sums"] = places["sums"]
        if received:
            far["received"] = arguments["received"]._replace(**{name: places[name] for name in received})
        far["extent"] = arguments["extent"]._replace(geometry=1)
        chunk = {"first_batch": batch - 1}
        if received:
            chunk |= {"before": batch - 1, "total": batch}
        really_launch(kernel, grid, tile, {**arguments, **far, **chunk})
        for name, value in outputs.items():
            assert torch.equal(places[name][len(places[name]) - len(value) :], value), name
