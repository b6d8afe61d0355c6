"""Sizes that are no multiples of a block, and several blocks of each kind."""

import pytest
import torch

from fredholm.domains import Grid, Points, Union
from fredholm.evaluation import TritonTiled
from fredholm.evaluation.triton import perceptron
from tests.contracts.routes import check_route
from tests.evaluation.triton.interpreted.problems import make, with_queries

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("poisoned_memory")]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("domain", [Points(torch.rand(35, 2)), Union(Grid(3, 11), Points(torch.rand(1, 2)))], ids=repr)
def test_more_keys_than_one_tile_and_as_many_queries(domain, is_causal):
    few = Points(torch.rand(2, 2)) if not domain.grid_blocks else None
    problem = make(domain, num_heads=1, is_causal=is_causal)
    check_route(TritonTiled(), problem if few is None else with_queries(problem, few))
    if few is not None:
        check_route(TritonTiled(), with_queries(make(few, num_heads=1, is_causal=is_causal), domain))


@pytest.mark.parametrize(
    "options",
    [{"width": 130}, {"width": 33, "head_dim": 17}, {"width": 16, "head_dim": 16}, {"num_frequencies": 17}],
    ids=str,
)
def test_more_units_channels_and_frequencies_than_one_block(options):
    check_route(TritonTiled(), make(Union(Points(torch.rand(1, 2)), Grid(1, 2)), num_heads=1, **options))


def test_more_programs_than_the_workspace_holds(monkeypatch):
    monkeypatch.setattr(perceptron, "WORKSPACE_BYTES", 3 * 2 * 5 * 2 * 4)
    check_route(TritonTiled(), make(Union(Points(torch.rand(1, 2)), Grid(2, 2)), batch=2))


def test_one_workspace_of_any_size_gives_one_result(monkeypatch):
    problem = make(Points(torch.rand(5, 2)))
    whole = TritonTiled().integrate(problem)
    monkeypatch.setattr(perceptron, "WORKSPACE_BYTES", 1)
    assert torch.equal(TritonTiled().integrate(problem), whole)
