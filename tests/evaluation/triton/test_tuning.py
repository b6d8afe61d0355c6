"""The search for tiles and the file of tuned tiles, tested on Python kernels that advance a simulated clock."""

import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from fredholm.evaluation import Tuned, tune
from fredholm.evaluation.triton import tuning
from fredholm.evaluation.triton.tuning import (
    AFTER,
    BEFORE,
    CAPS,
    PRODUCT,
    Room,
    Tile,
    TileFile,
    choose_tile,
    launch,
    tile_path,
    tuned_tile,
)
from fredholm.training.storage.machine import describe_machine, describe_numerics
from tests.refusals import refused

ROOM = Room(128, 64, 128, torch.bfloat16)
RULE = Tile(64, 64, 4, 2)
BEST = (128, 32, 8, 3, 128, BEFORE)


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of tuned tiles in a test."""
    monkeypatch.setenv("FREDHOLM_TILES", str(tmp_path / "caches" / "tiles.json"))
    tuning.forget_tiles()
    CLOCK.now = 0.0
    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=lambda: CLOCK.now))
    yield tile_path()
    tuning.forget_tiles()


CLOCK = SimpleNamespace(now=0.0)


def steps_between(sizes: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Steps of the search from one tile to another."""
    powers = sum(round(abs(math.log2(a / b))) for a, b in zip(sizes[:3], other[:3], strict=True))
    return powers + abs(sizes[3] - other[3]) + abs(CAPS.index(sizes[4]) - CAPS.index(other[4]))


class Kernel:
    """A kernel whose launches take longer the further a tile is from BEST."""

    def __init__(self, name: str, result: Callable[[Tile], float] = lambda _: 1.0) -> None:
        self.fn = SimpleNamespace(__name__=name)
        self.result, self.tiles, self.compiled = result, list[Tile](), list[Tile]()
        self.arg_names = ["out", "UNITS", "N"]

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        assert grid == (1, 1, 1)
        return self.run

    def run(self, *, out: Tensor, UNITS: int, N: int, num_warps: int, num_stages: int, maxnreg: int = 0) -> None:
        tile = Tile(UNITS, N, num_warps, num_stages, maxnreg)
        self.tiles.append(tile)
        out.fill_(self.result(tile))
        CLOCK.now += 0.001 * steps_between(tile.sizes, BEST) + 0.001

    def warmup(
        self, *, grid: tuple[int, int, int], out: Tensor, UNITS: int, N: int, num_warps: int, num_stages: int,
        maxnreg: int = 0,
    ) -> None:  # fmt: skip
        assert grid == (1, 1, 1)
        assert len(out) == 3
        self.compiled.append(Tile(UNITS, N, num_warps, num_stages, maxnreg))


def step_of(*kernels: Kernel) -> Callable[[], list[Tensor]]:
    def step() -> list[Tensor]:
        out = torch.zeros(3)
        for kernel in kernels:
            tile = choose_tile(kernel, ROOM)
            assert tile.key.startswith(kernel.fn.__name__)
            launch(kernel, (1, 1, 1), tile, {"out": out})
        return [out]

    return step


def test_the_search_ends_at_the_fastest_tile_and_later_launches_take_it(path: Path) -> None:
    kernel, heard = Kernel("one"), list[Tuned]()
    found = tune(step_of(kernel), heard=heard.append)
    assert found == heard
    assert found[0].tile.sizes == BEST
    assert found[0].before.sizes == RULE.sizes
    assert found[0].seconds < found[0].seconds_before
    assert str(found[0]).startswith("one 128 64 128 bfloat16: 64x64x4x2 became 128x32x8x3 in 128 registers, ")
    assert tuple(json.loads(path.read_text())["gpus"]["cpu"]["tiles"][found[0].key]) == BEST
    kernel.tiles.clear()
    step_of(kernel)()
    assert [tile.sizes for tile in kernel.tiles] == [BEST]
    other = Kernel("other")  # a kernel that was not tuned
    assert choose_tile(other, ROOM).sizes == RULE.sizes
    assert choose_tile(kernel, ROOM._replace(dtype=torch.float32)).sizes != BEST


@pytest.mark.parametrize("processors", [1, 3])
def test_tiles_are_compiled_in_groups_before_they_are_timed(processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_PROCESSORS", processors)
    kernel, other = Kernel("one"), Kernel("other")
    groups = list[tuple[int, int]]()

    def step() -> list[Tensor]:
        groups.append((len(kernel.compiled), len({*kernel.tiles})))
        return step_of(kernel, kernel, other)()

    (found, _) = tune(step)
    assert len(kernel.compiled) == len({*kernel.compiled}) == found.num_tried - 1  # all tiles but the rule's, each once
    assert {*kernel.tiles} == {RULE, *kernel.compiled}
    ahead = {compiled + 1 - timed for compiled, timed in groups}
    assert max(ahead) == processors
    assert min(ahead) == 0


def test_a_tile_that_changes_the_results_does_not_count() -> None:
    kernel = Kernel("one", lambda tile: 1.0 if tile.sizes == RULE.sizes else 1.1)
    (found,) = tune(step_of(kernel))
    assert found.tile.sizes == RULE.sizes
    assert found.num_tried > 1
    assert str(found).startswith("one 128 64 128 bfloat16: 64x64x4x2 stays, 1.00 times as fast")


def test_a_tile_that_does_not_compile_does_not_count() -> None:
    def result(tile: Tile) -> float:
        if tile.stages > 2:
            raise RuntimeError("PassManager::run failed")
        return 1.0

    (found,) = tune(step_of(Kernel("one", result)))
    assert found.tile.sizes == (*BEST[:3], 2, *BEST[4:])


def test_the_longest_launches_are_tuned_first_until_the_budget_is_spent() -> None:
    kernels = Kernel("brief"), Kernel("long")
    step = step_of(kernels[0], kernels[1], kernels[1])
    assert [each.key.split()[0] for each in tune(step)] == ["long", "brief"]
    compiled = [[*kernel.compiled] for kernel in kernels]
    found = tune(step, budget_s=0.005)  # the first steps spend it
    assert [kernel.compiled for kernel in kernels] == compiled
    assert [each.num_tried for each in found] == [1, 1]
    assert all(each.tile.sizes == BEST for each in found)  # found by the first search


def test_bad_steps_and_budgets_are_refused() -> None:
    with refused(ValueError, "tune: the step launches no fused kernel"):
        tune(lambda: [torch.zeros(1)])
    with refused(ValueError, "tune: expected a positive number of seconds; got 0"):
        tune(lambda: [torch.zeros(1)], budget_s=0)

    def twice() -> list[Tensor]:
        tune(lambda: [torch.zeros(1)])
        return []

    with refused(ValueError, "tune: another one is running in this process"):
        tune(twice)
    tune(step_of(Kernel("one")), budget_s=1e-9)  # tuning is possible again after an error


def test_a_step_that_is_not_reproducible_is_refused(path: Path) -> None:
    step = step_of(Kernel("one"))
    with refused(ValueError, "tune: the results of the step are not reproducible"):
        tune(lambda: [*step(), torch.randn(3)])
    with refused(ValueError, "tune: the results of the step are not reproducible, or not finite"):
        tune(lambda: [*step(), torch.full((2,), torch.nan)])
    assert not path.exists()


@pytest.mark.parametrize(
    ("dtype", "changed", "counts"),
    [(torch.float32, 1.001, True), (torch.float32, 1.03, False), (torch.bfloat16, 1.03, True)],
)
def test_results_may_differ_by_rounding(dtype: torch.dtype, changed: float, counts: bool) -> None:
    kernel = Kernel("one", lambda tile: 1.0 if tile.sizes == RULE.sizes else changed)
    step = step_of(kernel)

    def with_rounding_noise() -> list[Tensor]:
        """The results, and a value that is 0 in theory but has another rounding error for each tile."""
        (out,) = step()
        return [out, 1e-9 * out.new_tensor([float(kernel.tiles[-1].units), -float(kernel.tiles[-1].points)])]

    (found,) = tune(with_rounding_noise, dtype=dtype)
    assert (found.tile.sizes == BEST) == counts


def test_tiles_that_another_process_wrote_meanwhile_stay(path: Path) -> None:
    step = step_of(Kernel("one"))

    def while_another_writes() -> list[Tensor]:
        if not path.exists():
            path.parent.mkdir()
            path.write_text('{"gpus": {"theirs": {"kernels": "", "date": "", "tiles": {}}}}')
        return step()

    TileFile.read()
    tune(while_another_writes)
    assert json.loads(path.read_text())["gpus"].keys() == {"cpu", "theirs"}


def test_numerics_name_the_tiles(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "cpu")
    gpu = torch.device("cuda", 0)
    assert describe_numerics(gpu)["device"] == "cpu"
    write_best(path)
    found = describe_numerics(gpu)["device"]
    assert found.startswith("cpu, tiles ")
    write_best(path, kernels="of another version")
    assert describe_numerics(gpu)["device"] == "cpu"


def write_best(path: Path, **changed: Any) -> None:
    """Writes a file with BEST for `Kernel("one")`, and changes the entry of this device."""
    kernel = Kernel("one")
    tune(step_of(kernel), budget_s=1e-9)
    content = json.loads(path.read_text())
    (key,) = content["gpus"]["cpu"]["tiles"]
    content["gpus"]["cpu"]["tiles"][key] = BEST
    content["gpus"]["cpu"] |= changed
    path.write_text(json.dumps(content))
    tuning.forget_tiles()


def test_tiles_of_other_versions_of_kernels_are_ignored_and_reported(path: Path) -> None:
    write_best(path)
    assert choose_tile(Kernel("one"), ROOM).sizes == BEST
    assert TileFile.read().describe("cpu").startswith("1 tiles measured 20")
    write_best(path, kernels="of another version")
    assert choose_tile(Kernel("one"), ROOM).sizes == RULE.sizes
    assert "are of other kernels, tune again" in TileFile.read().describe("cpu")
    assert TileFile.read().describe("a GPU of which nothing is known") == ""


def test_tiles_of_other_gpus_stay_in_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_best(path)
    monkeypatch.setattr(tuning, "_device_name", lambda device=None: "another")
    assert choose_tile(Kernel("one"), ROOM).sizes == RULE.sizes
    tune(step_of(Kernel("two")), budget_s=1e-9)
    assert json.loads(path.read_text())["gpus"].keys() == {"cpu", "another"}
    monkeypatch.undo()
    assert choose_tile(Kernel("one"), ROOM).sizes == RULE.sizes  # the environment no longer names the file of this test


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"gpus": []}', '{"gpus": {"cpu": {}}}',
        '{"gpus": {"cpu": {"kernels": "", "date": "", "tiles": {"one": [3, 64, 8, 2]}}}}',
        '{"gpus": {"cpu": {"kernels": "", "date": "", "tiles": {"one": [64, 64, 8, 9]}}}}',
        '{"gpus": {"cpu": {"kernels": "", "date": "", "tiles": {"one": [64, 64]}}}}',
        '{"gpus": {"cpu": {"kernels": "", "date": "", "tiles": {"one": [64, 64, 8, 2, 0, 3]}}}}',
    ],
)  # fmt: skip
def test_a_damaged_file_gives_a_warning_and_is_ignored(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    with pytest.warns(UserWarning, match=r"tiles\.json is no file of tiles \(.*remove it, or run fredholm tune again"):
        assert choose_tile(Kernel("one"), ROOM).sizes == RULE.sizes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_tile(Kernel("one"), ROOM)  # warns only once
    tune(step_of(Kernel("one")), budget_s=1e-9)  # replaces the file
    tuning.forget_tiles()
    assert TileFile.read().describe("cpu").startswith("1 tiles measured 20")


def test_a_file_that_cannot_be_written_is_an_error(path: Path) -> None:
    path.parent.write_text("no folder")
    with pytest.raises(OSError, match="caches"):
        tune(step_of(Kernel("one")), budget_s=1e-9)


def test_tiles_that_are_tried_fit_the_limits() -> None:
    for room in (ROOM, Room(5, 16, 32, torch.float32), Room(256, 512, 512, torch.bfloat16)):
        rule = choose_tile(Kernel("one"), room)._replace(key="")
        near = list(room.near(rule))
        assert near, room
        assert all(steps_between(tile.sizes, rule.sizes) == 1 for tile in near)
        for units, points, warps, stages, registers, rest in (tile.sizes for tile in near):
            assert rest == BEFORE
            assert units * (room.summed + points) * 4 <= 128 * 1024
            assert stages * points * room.loaded * room.dtype.itemsize <= 227 * 1024
            assert units == 16 or units < 2 * room.width
            assert registers * 32 * warps <= 1 << 16
            assert room.dtype == torch.float32 or units < 64 or units >= 16 * warps


class KernelOfR(Kernel):
    """A kernel that adds R to p and is fastest in one variant."""

    def __init__(self, variant: int, points: int) -> None:
        super().__init__("one")
        self.variant, self.points = variant, points
        self.arg_names.append("REST")

    def run(self, *, REST: int, **options: Any) -> None:
        super().run(**options)
        CLOCK.now += 0.0 if (REST, options["N"]) == (self.variant, self.points) else 1.0

    def warmup(self, *, REST: int, **options: Any) -> None:
        super().warmup(**options)


@pytest.mark.parametrize(
    ("variant", "points", "message"),
    [
        (AFTER, 32, "with R last"),
        (BEFORE, 16, "x16x"),
        (PRODUCT, 32, "R by a product"),
        (PRODUCT, 16, "R by a product"),
    ],
)
def test_the_fastest_variant_of_adding_r_to_p_is_kept(variant: int, points: int, message: str, path: Path) -> None:
    kernel, room = KernelOfR(variant, points), ROOM._replace(has_rest=True)

    def step() -> list[Tensor]:
        out = torch.zeros(3)
        launch(kernel, (1, 1, 1), choose_tile(kernel, room), {"out": out})
        return [out]

    (found,) = tune(step)
    assert (found.tile.rest, found.tile.points) == (variant, points)
    assert message in str(found)
    assert choose_tile(kernel, room).sizes == found.tile.sizes


def test_variants_of_adding_r_to_p() -> None:
    has_rest = ROOM._replace(has_rest=True)
    rules = [choose_tile(Kernel("one"), room) for room in (has_rest, has_rest._replace(is_crowded=True), ROOM)]
    assert [rule.rest for rule in rules] == [AFTER, BEFORE, BEFORE]
    assert choose_tile(Kernel("one"), has_rest._replace(dtype=torch.float32)).rest == BEFORE
    assert {tile.rest for tile in has_rest.near(RULE)} == {BEFORE, AFTER, PRODUCT}
    # in float32 a product may round R
    assert {tile.rest for tile in has_rest._replace(dtype=torch.float32).near(RULE)} == {BEFORE, AFTER}
    assert {tile.rest for tile in ROOM.near(RULE)} == {BEFORE}
    wide = Room(512, 64, 128, torch.bfloat16, has_rest=True)
    assert wide.fits(Tile(128, 128, 8, 4, rest=AFTER))
    assert not wide.fits(Tile(128, 128, 8, 4, rest=PRODUCT))


def test_tiles_that_do_not_fit_in_shared_memory_are_not_tried() -> None:
    room = Room(256, 256, 1024, torch.bfloat16)
    assert room.fits(Tile(64, 32, 4, 2))
    assert not room.fits(Tile(64, 64, 4, 2))
    assert not room.fits(Tile(64, 32, 4, 4))


@pytest.mark.parametrize("rows", ["units", "points"])
def test_every_warp_has_separate_rows_on_the_tensor_cores(rows: Literal["units", "points"]) -> None:
    room = ROOM._replace(rows=rows, summed=16)
    few, many = Tile(64, 64, 4, 2), Tile(64, 64, 8, 2)
    assert room.fits(few)
    assert not room.fits(many)
    assert room.fits(many._replace(units=128)) == (rows == "units")
    assert room._replace(dtype=torch.float32).fits(many)


def test_registers_are_limited_only_where_the_compiler_uses_too_many() -> None:
    assert choose_tile(Kernel("one"), ROOM).registers == 0
    assert choose_tile(Kernel("one"), ROOM._replace(is_crowded=True)).registers == 168
    assert choose_tile(Kernel("one"), ROOM._replace(is_crowded=True, summed=256)).registers == 0


def test_tiles_of_other_launches_stay_in_the_file(path: Path) -> None:
    write_best(path)
    tune(step_of(Kernel("two")), budget_s=1e-9)
    assert choose_tile(Kernel("one"), ROOM).sizes == BEST
    assert TileFile.read().describe("cpu").startswith("2 tiles")


def test_a_given_rule_is_used_for_kernels_that_were_not_tuned() -> None:
    rule = Tile(32, 16, 4, 1)
    assert tuned_tile(Kernel("one"), ROOM, rule).sizes == rule.sizes


def test_a_tile_of_the_file_that_does_not_fit_is_named_in_the_error(path: Path) -> None:
    from triton import OutOfResources

    def without_room(_: Tile) -> float:
        raise OutOfResources(300_000, 232_448, "shared memory")

    with pytest.raises(OutOfResources):  # the rule's tile does not fit
        step_of(Kernel("one", without_room))()
    write_best(path)
    from_file = choose_tile(Kernel("one"), ROOM)
    with pytest.raises(OutOfResources):  # the tile is not the file's
        launch(Kernel("one", without_room), (1, 1, 1), RULE._replace(key=from_file.key), {"out": torch.zeros(3)})
    with refused(RuntimeError, f"the tile 128x32x8x3 in 128 registers that {path} has", "300000", "fredholm tune"):
        step_of(Kernel("one", without_room))()


def test_info_shows_which_gpus_were_tuned(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_best(path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpus = [SimpleNamespace(name=name, total_memory=2**36) for name in ("cpu", "another")]
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpus.__getitem__)
    devices = describe_machine()["devices"]
    assert devices["cuda:0"].startswith("cpu, 64 GiB, 1 tiles measured 20")
    assert devices["cuda:1"] == "another, 64 GiB, tiles by the rule, not measured"
