"""Whole models with shared points give the outputs and gradients of one process."""

import inspect

import pytest
import torch

from fredholm import models
from fredholm.models.signal_model import SignalModel
from tests.distributed import shared_models
from tests.processes import on_processes


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", shared_models.CASES)
def test_outputs_and_gradients_equal_those_of_one_process(name: str, processes: int) -> None:
    (alone,) = on_processes(1, shared_models.answered, name)
    for found in on_processes(processes, shared_models.answered, name):
        assert found.keys() == alone.keys()
        for key, expected in alone.items():
            torch.testing.assert_close(
                found[key], expected, rtol=1e-9, atol=1e-11, msg=lambda got, w=key: f"{w}: {got}"
            )


def test_every_model_shares_its_points_or_refuses() -> None:
    kinds = [kind for kind in vars(models).values() if isinstance(kind, type) and issubclass(kind, SignalModel)]
    sharing = {kind.__name__ for kind in kinds if kind.shares_points and not inspect.isabstract(kind)}
    assert sharing == {type(case.build()).__name__ for case in shared_models.CASES.values()}
    assert {kind.__name__ for kind in kinds if not kind.shares_points} >= {
        "EdgeConvolution",
        "MessagePassing",
        "TwoStream",
    }


def test_models_that_cannot_share_points_are_refused() -> None:
    for expected in on_processes(2, shared_models.refused):
        assert "Grid(1, 1) has 1 points for 2 processes" in expected[0]
        assert "models.EdgeConvolution: its layers read points that other processes would hold" in expected[1]
