"""Weights taken from another model: entries with equal names in any order, and none by position alone."""

import pytest
import torch
from torch import nn

from fredholm.storage.tensors import fill, model_tensors
from fredholm.training.start import MatchedEntries, start_from

HERE = {"weight": {0: ("cat", "mouse", "dog")}, "bias": {0: ("cat", "mouse", "dog")}}


def of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


@pytest.mark.parametrize("there", [("dog", "cat"), ("bird", "dog", "cat"), ("bird", "dog", "cow", "cat")])
def test_rows_with_equal_names_are_copied(there: tuple[str, ...]) -> None:
    other, model = nn.Linear(4, len(there)), nn.Linear(4, 3)
    found = start_from(of(other), model, HERE, {"weight": {0: there}, "bias": {0: there}})
    for name, own in of(model).items():
        expected = [
            of(other)[name][there.index(each)] if each in there else own[n] for n, each in enumerate(HERE[name][0])
        ]
        assert torch.equal(found.fitting[name], torch.stack(expected))
    left = tuple(name for name in there if name not in HERE["bias"][0])
    assert found.matched == dict.fromkeys(
        (("weight", 0), ("bias", 0)), MatchedEntries(("cat", "dog"), ("mouse",), left)
    )
    assert (found.misfits, found.new, found.left) == ({}, [], [])


def test_equally_many_rows_with_other_names_are_not_copied() -> None:
    other, model = nn.Linear(4, 3), nn.Linear(4, 3)
    names = ("a", "b", "c")
    found = start_from(of(other), model, HERE, {"weight": {0: names}, "bias": {0: names}})
    assert found.fitting == {}
    assert found.matched["weight", 0] == MatchedEntries((), HERE["weight"][0], names)
    assert start_from(of(other), model, HERE, {}).fitting == {}  # the names of its rows are unknown
    assert start_from(of(other), model).fitting.keys() == {"weight", "bias"}


def test_columns_and_rows_are_matched_together() -> None:
    other, model = nn.Linear(2, 2), nn.Linear(3, 2)
    here, there = {"weight": {0: ("p", "q"), 1: ("x", "y", "z")}}, {"weight": {0: ("q", "r"), 1: ("z", "x")}}
    found = start_from(of(other), model, here, there).fitting["weight"]
    expected = of(model)["weight"]
    expected[1, 0], expected[1, 2] = of(other)["weight"][0, 1], of(other)["weight"][0, 0]
    assert torch.equal(found, expected)


def test_tensors_that_do_not_fit_are_reported_with_both_shapes() -> None:
    other, model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), nn.Sequential(nn.Linear(4, 2))
    found = start_from(of(other), model)
    assert found.misfits == {"0.weight": ((2, 4), (3, 4)), "0.bias": ((2,), (3,))}
    assert (found.new, found.left) == ([], ["1.weight", "1.bias"])
    named = start_from(of(other), model, {"0.bias": {0: ("a", "b")}}, {"0.bias": {0: ("b", "c", "d")}})
    assert named.fitting.keys() == {"0.bias"}
    assert start_from({"0.bias": torch.zeros(2, dtype=torch.float64)}, model).misfits == {"0.bias": ((2,), (2,))}


def test_shared_parameters_are_filled_under_the_first_of_their_names() -> None:
    def tied() -> nn.ModuleDict:
        layer = nn.Linear(2, 2)
        return nn.ModuleDict({"one": layer, "other": layer})

    source, model = tied(), tied()
    found = start_from(model_tensors(source), model)
    assert (sorted(found.fitting), found.new, found.left) == (["one.bias", "one.weight"], [], [])
    fill(model, found.fitting)
    assert torch.equal(model["other"].weight, source["one"].weight)  # pyright: ignore[reportArgumentType]
