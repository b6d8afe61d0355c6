"""A model on several processes gives the losses and gradients that it gives on one."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fredholm.distributed.parallel_model import CalledModel, blocks_of, replicated, sharded, whole
from fredholm.distributed.processes import ALONE, current
from tests.processes import on_processes
from tests.refusals import refused


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.never = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, u: Tensor) -> Tensor:
        return u + self.inner(u).tanh()

    def at(self, u: Tensor) -> Tensor:
        return self.inner(u)


class Model(nn.Module):
    """Blocks, of which the last is called by another method, and one parameter that only some inputs use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(3, 4), nn.ModuleList(Block() for _ in range(3))
        self.negative = nn.Parameter(torch.ones(4))

    def parts(self, x: Tensor) -> Tensor:
        u = self.first(x)
        for block in self.blocks[:2]:
            u = block(u)
        last = self.blocks[2]
        assert isinstance(last, Block)
        u = last.at(u)
        rows = (x < 0).any(-1, keepdim=True)
        return torch.where(rows, u * self.negative, u) if bool(rows.any()) else u


def loss(model: Model, x: Tensor) -> Tensor:
    return model.parts(x).square().sum()


def build() -> Model:
    torch.manual_seed(1)
    return Model()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


INPUTS = torch.tensor([[0.3, -1.0, 0.2], [0.1, 0.4, 0.2], [0.7, 0.2, 0.3], [0.1, 0.9, 0.8]])


def found(spread: str, inputs: Tensor) -> dict[str, Any]:
    """Gradients over all of some inputs, of which each process has a part."""
    processes, model = current(), build()
    called = replicated(model, processes) if spread == "copies" else sharded(model, processes, {Block: ("at",)})
    value = called(loss, inputs[processes.rows(len(inputs))]) * processes.size
    value.backward()
    held = sum(parameter.numel() for parameter in map(local, model.parameters()))
    return {"gradients": gradients(model), "held": held}


def local(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize(("spread", "size"), [("copies", 2), ("copies", 3), ("shards", 2)])
def test_gradients_equal_those_of_one_process(spread: str, size: int) -> None:
    # with copies a parameter may be used by one process alone
    inputs = INPUTS if spread == "copies" else INPUTS.abs()
    model = build()
    CalledModel(model)(loss, inputs).backward()
    expected = gradients(model)
    count = sum(parameter.numel() for parameter in model.parameters())
    for each in on_processes(size, found, spread, inputs):
        torch.testing.assert_close(each["gradients"], expected)  # and the same parameters have no gradient
        assert each["held"] == count if spread == "copies" else each["held"] < 0.6 * count


def test_blocks_are_elements_of_module_lists_that_share_no_parameters() -> None:
    model = build()
    assert blocks_of(model) == list(model.blocks)
    assert blocks_of(nn.Sequential(nn.ModuleList([nn.Linear(2, 2)]), nn.Linear(2, 2))) == []
    first, second, third = (block for block in model.blocks if isinstance(block, Block))
    first.inner.weight = second.inner.weight
    assert blocks_of(model) == [third]
    model.first.weight = third.inner.weight
    assert blocks_of(model) == []


def normed(make: Callable[..., nn.Module], *arguments: Any) -> None:
    with refused(ValueError, "1 normalises over a batch, of which each of 2 processes has a part"):
        make(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), current(), *arguments)


def both_normed() -> None:
    normed(replicated)
    normed(sharded, {})


def test_batch_norms_are_refused() -> None:
    on_processes(2, both_normed)


def warnings_of_filter() -> list[str]:
    """Warnings of a backward pass through a filter, whose gradient has the layout of the image, channels last."""
    model = nn.Conv2d(16, 16, 3, groups=16)
    with warnings.catch_warnings(record=True) as got:
        warnings.simplefilter("always")
        called = replicated(model, current())
        image = torch.randn(2, 16, 5, 5).to(memory_format=torch.channels_last)
        called(lambda model, image: model(image).square().sum(), image).backward()
    return [str(each.message) for each in got]


def test_the_layout_of_gradients_gives_no_warning() -> None:
    assert on_processes(2, warnings_of_filter) == [[], []]


def buffers_after_step() -> list[float]:
    """Buffers after a step: one that the forward pass may change, and a settled one, both different on each process."""
    model = nn.Linear(1, 1)
    for name in ("open", "settled"):
        model.register_buffer(name, torch.tensor(float(current().rank)))
    called = replicated(model, current(), ["settled"])
    called(lambda model, x: model(x).sum(), torch.ones(1, 1)).backward()
    return [float(buffer) for buffer in model.buffers()]


def test_settled_buffers_are_not_synchronised() -> None:
    assert on_processes(2, buffers_after_step) == [[0.0, 0.0], [0.0, 1.0]]


def test_one_process_calls_the_model_directly() -> None:
    model = build()
    called = replicated(model, ALONE)
    assert isinstance(called, CalledModel)
    assert called.model is model
