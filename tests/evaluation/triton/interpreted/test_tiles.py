"""Every fused route with other tiles than the default rule's, as a file of tuned tiles may hold."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks import tiles
from benchmarks.harness import Options
from fredholm.domains import Grid, Points, Sequence, Union
from fredholm.evaluation import Evaluation, Integral, TritonFeatureSum, TritonTiled, TritonYat, tune
from fredholm.evaluation.triton import perceptron as perceptron_module
from fredholm.evaluation.triton import tuning
from fredholm.evaluation.triton import yat as yat_module
from fredholm.evaluation.triton.tuning import AFTER, PRODUCT, Room, Tile, launch, tile_path
from fredholm.kernels import SeparableMLP, YatAttention
from tests.contracts.routes import check_route, randomise, results
from tests.evaluation.triton.interpreted.problems import make, with_queries

TILES = [(16, 64, 4, 1), (64, 16, 8, 3)]
"""Tiles with more points or units than the problem has, and with fewer."""


def perceptron() -> Integral:
    where = Union(Points(torch.rand(1, 15, 2)), Grid(1, 2))
    return make(where, num_heads=1, head_dim=3, width=20, num_frequencies=3)


def features() -> Integral:
    kernel = randomise(SeparableMLP(3, 1, 2, width=37, num_frequencies=3, sigma=1.0))
    return Integral(kernel, torch.randn(1, 19, 3), Points(torch.rand(19, 2)))


def yat() -> Integral:
    return Integral(randomise(YatAttention(3, 1)), torch.randn(1, 37, 3), Points(torch.rand(37, 1)))


PROBLEMS: dict[str, tuple[Callable[[], Integral], Evaluation]] = {
    "perceptron": (perceptron, TritonTiled()),
    "features": (features, TritonFeatureSum()),
    "yat": (yat, TritonYat()),
}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", PROBLEMS)
def test_any_tile_gives_the_same_integral(name, first, monkeypatch):
    used = dict[str, Tile]()

    def of_any_launch(kernel: Any, room: Room, rule: Tile) -> Tile:
        # the kernels use the two tiles in turn
        return used.setdefault(kernel.fn.__name__, Tile(*TILES[(first + len(used)) % 2]))

    for module in (tuning, perceptron_module, yat_module):
        monkeypatch.setattr(module, "tuned_tile", of_any_launch)
    make_problem, route = PROBLEMS[name]
    check_route(route, make_problem(), tolerance=3e-5)
    assert used


@pytest.mark.parametrize("rest", [AFTER, PRODUCT])
@pytest.mark.parametrize(
    ("where", "is_causal"),
    [(Union(Points(torch.rand(1, 1, 2)), Grid(3, 6)), False), (Grid(17), True), (Points(torch.rand(19, 2)), False)],
    ids=["token and grid", "in order", "points"],
)
def test_r_is_added_to_p_in_every_variant(where, is_causal, rest, monkeypatch):
    has_rest = dict[str, bool]()

    def with_rest(kernel: Any, room: Room, rule: Tile) -> Tile:
        has_rest[kernel.fn.__name__] = room.has_rest
        return rule._replace(units=16, points=16, rest=rest) if room.has_rest else rule

    for module in (tuning, perceptron_module):
        monkeypatch.setattr(module, "tuned_tile", with_rest)
    problem = make(where, num_heads=1, head_dim=3, width=20, num_frequencies=3, is_causal=is_causal)
    check_route(TritonTiled(), problem)
    assert has_rest["sums_kernel"]
    assert has_rest["gradients_kernel"]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("multiprocessors", "parts"), [(3, 3), (4, 4), (100, 8)])
def test_keys_of_few_queries_are_split_over_programs(multiprocessors, parts, is_causal, monkeypatch):
    launched = list[int]()

    def record(kernel: Any, grid: tuple[int, int, int], tile: Tile, arguments: dict[str, Any]) -> None:
        launched.append(arguments.get("parts", 0))
        launch(kernel, grid, tile, arguments)

    monkeypatch.setattr(tuning, "multiprocessors", lambda device: multiprocessors)
    monkeypatch.setattr(tuning, "SHORTEST", 1)
    monkeypatch.setattr(perceptron_module, "tuned_tile", lambda kernel, room, rule: rule)
    monkeypatch.setattr(tuning, "tuned_tile", lambda kernel, room, rule: Tile(16, 16, 4, 2))
    monkeypatch.setattr(perceptron_module, "launch", record)
    keys = Sequence(times=torch.rand(1, 113).sort().values)
    problem = make(keys, num_heads=1, head_dim=3, width=5, num_frequencies=2, is_causal=is_causal)
    check_route(TritonTiled(), with_queries(problem, Points(keys.pos[:, [60, 111]])))
    assert launched[0] == parts


def test_points_are_split_at_tile_boundaries() -> None:
    tile, cpu = Tile(16, 16, 4, 2), torch.device("cpu")
    assert tuning.split(1000, tile, 1, cpu) == (2, 512)
    assert tuning.split(1000, tile, 2, cpu) == (1, 1008)
    assert tuning.split(0, tile, 1, cpu) == (1, 1)
    assert tuning.split(4 * 16 * tuning.SHORTEST, tile, 0, cpu) == (2, 2 * 16 * tuning.SHORTEST)


def test_the_benchmark_of_tiles(monkeypatch, tmp_path):
    monkeypatch.setenv("FREDHOLM_TILES", str(tmp_path / "tiles.json"))
    tuning.forget_tiles()
    config = tiles.Config(options=Options(quick=True), cases=("yat bf16", "low rank bf16")).sized()
    rows = list(tiles.measure(config))
    assert {(row.case.split()[0], row.n) for row in rows} == {("yat", 7), ("low", 5)}
    assert all(row.ratio is not None and row.ratio >= 1 for row in rows)
    assert len(list(tiles.notes(rows))) == 2
    tuning.forget_tiles()


def test_a_real_kernel_is_tuned_and_the_file_read(monkeypatch, tmp_path):
    monkeypatch.setenv("FREDHOLM_TILES", str(tmp_path / "tiles.json"))
    tuning.forget_tiles()
    problem = make(Points(torch.rand(3, 2)), num_heads=1, head_dim=2, width=3, num_frequencies=2)
    before = results(TritonTiled(), problem)
    found = tune(lambda: list(results(TritonTiled(), problem).values()), budget_s=1.0)
    assert {each.key.split()[0] for each in found} == {"sums_kernel", "gradients_kernel"}
    assert tile_path().exists()
    after = results(TritonTiled(), problem)
    tuning.forget_tiles()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-4, atol=1e-5)
