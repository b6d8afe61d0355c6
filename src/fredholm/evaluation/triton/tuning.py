"""How much of an integral one program of a fused kernel holds: by a rule, or as measured on this GPU.

A rule leaves room in registers and shared memory; which of the tiles that fit is fastest, only the GPU tells. `tune`
times each launch of a step with tiles near the rule's, and keeps the fastest in a file, from which every later process
takes its tiles. Without the file, or with one of other kernels, another Triton or another GPU, the rule holds. A tile
changes what is added first, and so the last digits: runs are equal bit for bit under one file.
"""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import math
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm.evaluation.triton.machine import INSTALLED
from fredholm.storage.atomic import write_file

REGISTERS, SHARED_BYTES = 1 << 16, 227 * 1024
"""Of one multiprocessor, and of one program: compute capability 9.0, the most there is."""
UNITS, POINTS, WARPS, STAGES = (16, 256), (16, 128), (4, 8), (1, 4)
"""The least and the most that is tried."""
CAPS = (0, 168, 128, 96)
"""Registers of a thread that are tried, so that 2 programs of 4 warps, 3, 4 or 5 share a multiprocessor."""
BEFORE, AFTER, PRODUCT = range(3)
"""When p receives what the table and the points met add to it, R: before the matrix product that is summed on it; after
that, so that R is read meanwhile; or by a matrix product with 1, so that R goes the way of the product's own factors:
loaded tiles ahead, and never laid out anew."""
PROGRAMS_EACH, SHORTEST = 2, 4
"""Programs that a multiprocessor is to have, and the tiles that one is worth starting for."""
GAIN = 0.97
"""Of the time of another tile: what is no faster than that is left."""
_ROUNDS, _HOPELESS = 5, 1.5
_PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_TOLERANCE = {torch.float32: 1e-2, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""By which the norm of a result may differ: in float32 products may be those of TensorFloat-32."""
_NOTHING = 1e-2
"""Of the largest norm of all results of a step: below it a result may be what rounding leaves of 0."""


class Tile(NamedTuple):
    """`units` hidden units against `points` points, by `warps` warps; loads run `stages` tiles ahead.

    A thread has at most `registers` registers; 0: as many as the compiler takes. `rest` is BEFORE, AFTER or PRODUCT.
    """

    units: int
    points: int
    warps: int
    stages: int
    registers: int = 0
    rest: int = BEFORE
    key: str = ""
    """What it is for, as the file names it."""

    @property
    def text(self) -> str:
        """In words."""
        sizes = "x".join(map(str, self.sizes[:4]))
        registers = f" in {self.registers} registers" if self.registers else ""
        return sizes + registers + ("", " with R last", " with R by a product")[self.rest]

    def blocks(self, width: int) -> int:
        """Blocks of hidden units."""
        return -(-width // self.units)

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """What the kernel is launched with."""
        return self.units, self.points, self.warps, self.stages, self.registers, self.rest


@final
class Room(NamedTuple):
    """What a program of some kernel must hold: numbers a unit that it sums, in float32, and a point that it loads."""

    width: int
    """Hidden units, or points of the side that owns the sums where that has no bound."""
    summed: int
    loaded: int
    dtype: torch.dtype
    rows: Literal["units", "points"] = "units"
    """The rows of the matrix products."""
    has_rest: bool = False
    """Whether p receives R from memory."""
    is_crowded: bool = False
    """Whether the compiler takes more registers than are worth it, so that too few programs share a multiprocessor."""

    def fits(self, tile: Tile) -> bool:
        """Whether registers and shared memory may hold a tile; the compiler has the last word."""
        units, points, warps, stages, registers, rest = tile.sizes
        # R and what the points met add to it
        loaded = self.loaded + (2 * units if rest == PRODUCT else 0)
        within = all(
            least <= size <= most
            for size, (least, most) in zip(tile.sizes[:4], (UNITS, POINTS, WARPS, STAGES), strict=True)
        )
        held = units * (self.summed + points)
        return (
            within
            and (self.dtype == torch.float32 or _has_rows(units if self.rows == "units" else points, warps))
            and (registers == 0 or registers * 32 * warps <= REGISTERS)
            and (units < 2 * self.width or units == UNITS[0])
            and 2 * held <= REGISTERS
            and held >= 4 * 32 * warps
            and stages * points * loaded * self.dtype.itemsize <= SHARED_BYTES
            and (rest == BEFORE or self.has_rest)
            # a product of float32 may round to TensorFloat-32, and costs as much as the others
            and (rest != PRODUCT or self.dtype != torch.float32)
        )

    def near(self, tile: Tile) -> Iterator[Tile]:
        """The tiles that fit and differ from one by one step in one size, or in `rest`.

        Where `rest` changes, R takes other registers or shared memory: then half of the points are tried too.
        """
        for field in ("units", "points", "warps", "stages", "registers"):
            size = getattr(tile, field)
            if field == "registers":
                place = CAPS.index(size)
                steps = CAPS[max(0, place - 1) : place] + CAPS[place + 1 : place + 2]
            else:
                steps = (size - 1, size + 1) if field == "stages" else (size // 2, size * 2)
            yield from filter(self.fits, (tile._replace(**{field: step}) for step in steps))
        others = [tile._replace(rest=rest) for rest in (BEFORE, AFTER, PRODUCT) if rest != tile.rest]
        halved = [each._replace(points=each.points // 2) for each in others]
        yield from filter(self.fits, others + halved)


def _has_rows(rows: int, warps: int) -> bool:
    """Whether each warp has rows of its own in the tensor cores' products of 16 bits.

    Where products follow each other, Triton 3.6 spreads all warps over the rows, and those beyond the last read memory
    that is not theirs. Less than 64 rows go to other instructions, of which this is not true.
    """
    return rows < 64 or rows >= 16 * warps


def choose_tile(kernel: Any, room: Room) -> Tile:
    """A tile that leaves registers for pre-activations beside the sums, and fits the loads into shared memory.

    Sizes are powers of two. float32 has no tensor cores at full precision, and its operands take twice the room. In 16
    bits two programs or more share a multiprocessor, so that one multiplies while another takes activations; an H100
    was measured. The more a program sums, the fewer points it meets at once, and fewer where it reads R, which it then
    reads after the product: an H200 took 15 % less time so.
    """
    return tuned_tile(kernel, room, _rule(room))


@functools.cache
def _rule(room: Room) -> Tile:
    if room.dtype == torch.float32:
        units, points, registers = 128, 32, 1 << 13
    elif room.rows == "points":
        units, points, registers = 32, 64, 22 << 10
    else:
        units, points, registers = 64, 64 if room.summed <= 64 and not room.has_rest else 32, 22 << 10
    while points > 16 and points * room.loaded * room.dtype.itemsize > 1 << 15:
        points //= 2
    while units > 16 and (units >= 2 * room.width or units * (room.summed + points) > registers):
        units //= 2
    if room.dtype == torch.float32:
        return Tile(units, points, 8 if units * max(points, room.summed) > 4096 else 4, 2)
    held, cap = units * (room.summed + points) // 128, CAPS[1]
    rest = AFTER if room.has_rest and not room.is_crowded else BEFORE
    return Tile(units, points, 4, 2, cap if room.is_crowded and 2 * held <= cap else 0, rest)


def tuned_tile(kernel: Any, room: Room, rule: Tile) -> Tile:
    """The tile that was measured for such a launch, or that of a rule."""
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
    key, found = _kept(kernel.fn.__name__, room, rule, gpu)
    if _Trial.running is not None:
        found = _Trial.running.tile(key, room, found)._replace(key=key)
    return found


@functools.cache
def _kept(kernel: str, room: Room, rule: Tile, gpu: int | None) -> tuple[str, Tile]:
    """What the file calls such launches on a GPU, and the tile that it has for them, or that of the rule."""
    key = f"{kernel} {room.width} {room.summed} {room.loaded} {str(room.dtype).removeprefix('torch.')}"
    return key, TileFile.read().of(_device_name()).get(key, rule)._replace(key=key)


def split(points: int, tile: Tile, programs: int, device: torch.device) -> tuple[int, int]:
    """How many parts the points of a loop are cut into, so that few programs fill a GPU; and the points of a part.

    No part is shorter than SHORTEST tiles, and points are cut between tiles.
    """
    tiles = -(-points // tile.points)
    wanted = PROGRAMS_EACH * multiprocessors(device) // max(1, programs)
    parts = max(1, min(wanted, tiles // SHORTEST))
    run = -(-tiles // parts) * tile.points
    return -(-points // run) if points else 1, max(run, 1)


def multiprocessors(device: torch.device) -> int:
    """Of a GPU; 1 in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def launch(kernel: Any, grid: tuple[int, int, int], tile: Tile, arguments: dict[str, Any]) -> None:
    """Runs a Triton kernel in a grid of programs of this tile.

    Raises:
        RuntimeError: the tile is one of the file, and other inputs than those it was measured on leave no room for it.
    """
    trial = _Trial.running
    if trial is None:
        try:
            kernel[grid](**arguments, **_options(kernel, tile))
        except Exception as error:
            _explain(tile, error)
            raise
    else:
        trial.start(
            tile.key,
            lambda: kernel[grid](**arguments, **_options(kernel, tile)),
            lambda other: kernel.warmup(grid=grid, **arguments, **_options(kernel, other)),
        )


def _explain(tile: Tile, error: Exception) -> None:
    """Says what to do about a tile of the file that has no room."""
    # the library can be imported without triton
    from triton import OutOfResources

    kept = TileFile.read().of(_device_name()).get(tile.key)
    if isinstance(error, OutOfResources) and kept is not None and kept.sizes == tile.sizes:
        raise RuntimeError(
            f"the tile {tile.text} that {tile_path()} has for {tile.key} was measured on another model, and this one "
            f"leaves no room for it ({error}); run fredholm tune on a run of this model, or remove the file"
        ) from error


def _options(kernel: Any, tile: Tile) -> dict[str, int]:
    """What a kernel is compiled with."""
    limit = {"maxnreg": tile.registers} if tile.registers else {}
    rest = {"REST": tile.rest} if "REST" in kernel.arg_names else {}
    return {"UNITS": tile.units, "N": tile.points, "num_warps": tile.warps, "num_stages": tile.stages, **limit, **rest}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned:
    """What `tune` found for one kind of launch: seconds of all such launches of a step."""

    key: str
    tile: Tile
    seconds: float
    before: Tile
    seconds_before: float
    num_tried: int

    def as_json(self) -> dict[str, object]:
        """As plain values; tiles as units, points, warps, stages, registers and `rest`."""
        return {**dataclasses.asdict(self), "tile": self.tile.sizes, "before": self.before.sizes}

    def __str__(self) -> str:
        old, new = self.before.text, self.tile.text
        told = "stays" if self.tile.sizes == self.before.sizes else f"became {new}"
        gain = self.seconds_before / self.seconds
        return f"{self.key}: {old} {told}, {gain:.2f} times as fast ({self.num_tried} tried)"


def tune(
    step: Callable[[], Sequence[Tensor]],
    *,
    dtype: torch.dtype = torch.float32,
    budget_s: float = 120.0,
    heard: Callable[[Tuned], None] | None = None,
) -> list[Tuned]:
    """Finds the fastest tiles for all fused launches of a step, and keeps them in the file `tile_path()`.

    From the tile in use the search goes to the fastest of its neighbours, while one is faster by more than 3 %. The
    launches that take longest come first. A tile is tried on the step itself, and only counts if results stay what they
    were. As many tiles are compiled side by side as this process has processors, and then timed one by one.

    Args:
        step: computes the same results each time, such as outputs and gradients of a model.
        dtype: that it computes in; of autocast its dtype, though gradients are float32.
        budget_s: seconds after which nothing more is tried, compiling included.
        heard: called with each finding.

    Returns:
        One finding a kind of launch, longest first.

    Raises:
        ValueError: the step launches no fused kernel, its results differ from time to time or are not finite, or the
            budget is not positive.
        OSError: the file cannot be written.
    """
    if not budget_s > 0:
        raise ValueError(f"tune: expected a positive number of seconds; got {budget_s}")
    stop = time.perf_counter() + budget_s
    with _Trial(step, _TOLERANCE.get(dtype, max(_TOLERANCE.values()))) as trial:
        trial.begin()
        if not trial.rooms:
            raise ValueError(
                "tune: the step launches no fused kernel, so there is nothing to tune; `operator.explain` says of each "
                "operator why"
            )
        found = list[Tuned]()
        for key in sorted(trial.rooms, key=lambda key: -trial.spent[key]):
            found.append(_climbed(trial, key, stop))
            if heard is not None:
                heard(found[-1])
        TileFile(tile_path()).keep(trial.gpu_name, {each.key: each for each in found})
    return found


def _climbed(trial: "_Trial", key: str, stop: float) -> Tuned:
    """The best tile for one kind of launch, which stays on trial."""
    room, before = trial.rooms[key], trial.tiles[key]
    seconds = {before: trial.measured(key, before) if time.perf_counter() < stop else trial.spent[key]}
    best = before
    while True:
        new = [tile for tile in room.near(best) if tile not in seconds]
        for first in range(0, len(new), _PROCESSORS):
            together = new[first : first + _PROCESSORS]
            if time.perf_counter() < stop:
                trial.compile(key, together)
            for tile in together:
                if time.perf_counter() < stop:
                    seconds[tile] = trial.measured(key, tile, seconds[best])
        fastest = min(seconds, key=lambda tile: seconds[tile])
        if seconds[fastest] >= GAIN * seconds[best]:
            break
        best = fastest
    trial.tiles[key] = best
    return Tuned(
        key=key,
        tile=best,
        seconds=seconds[best],
        before=before,
        seconds_before=seconds[before],
        num_tried=len(seconds),
    )


@contextlib.contextmanager
def _parsed_in_turn() -> Iterator[None]:
    """While entered Triton parses one function at a time: Python counts how deep a tree is for all threads together."""
    # the library can be imported without triton
    from triton.runtime.jit import JITFunction

    owner: Any = next(kind for kind in JITFunction.__mro__ if "parse" in vars(kind))
    parse, lock = owner.parse, threading.Lock()

    def in_turn(function: object) -> object:
        with lock:
            return parse(function)

    owner.parse = in_turn
    try:
        yield
    finally:
        owner.parse = parse


@final
class _Trial:
    """While entered, launches are timed, and have the tiles in ``tiles``."""

    running: "_Trial | None" = None

    def __init__(self, step: Callable[[], Sequence[Tensor]], tolerance: float) -> None:
        self._step, self._tolerance = step, tolerance
        self._expected = list[Tensor]()
        self._gpu: torch.device | None = None
        self._laps: list[tuple[str, Any, Any]] | None = None
        self._compilers: dict[str, Callable[[Tile], object]] | None = None
        self.tiles = dict[str, Tile]()
        self.rooms = dict[str, Room]()
        self.spent = dict[str, float]()
        """Seconds of each kind of launch in a step."""

    def __enter__(self) -> Self:
        if _Trial.running is not None:
            raise ValueError("tune: another one is running in this process")
        _Trial.running = self
        return self

    def __exit__(self, *_: object) -> None:
        _Trial.running = None

    @property
    def gpu_name(self) -> str:
        """Of the device that the step computes on."""
        return _device_name(self._gpu)

    def tile(self, key: str, room: Room, rule: Tile) -> Tile:
        """The one on trial."""
        self.rooms[key] = room
        return self.tiles.setdefault(key, rule)

    def start(self, key: str, launched: Callable[[], None], compiler: Callable[[Tile], object]) -> None:
        """Starts one launch, which a compiler would also compile with another tile."""
        if self._compilers is not None:
            self._compilers.setdefault(key, compiler)
        if self._laps is None:
            launched()
        elif self._gpu is not None:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            launched()
            end.record()
            self._laps.append((key, begin, end))
        else:
            begin = time.perf_counter()
            launched()
            self._laps.append((key, begin, time.perf_counter()))

    def begin(self) -> None:
        """Takes the step with the tiles in use; its results are what others are held against."""
        self._expected = [result.detach().clone() for result in self._step()]
        self._gpu = next((result.device for result in self._expected if result.device.type == "cuda"), None)
        self.spent = self._lap()
        again = [result.detach() for result in self._step()]
        if not all(bool(result.isfinite().all()) for result in again) or not self._agrees(again):
            raise ValueError(
                "tune: the step gives other results each time, or some that are not finite; draw nothing at random in "
                "it, and give it inputs that make sense"
            )

    def compile(self, key: str, tiles: Sequence[Tile]) -> None:
        """Compiles the first launch of one kind with several tiles, side by side.

        What does not compile is left to `measured`.
        """
        # the library can be imported without triton
        from triton import AsyncCompileMode

        self._compilers = {}
        try:
            self._step()
            # not within the step, whose backward pass has a thread of its own
            with _parsed_in_turn(), ThreadPoolExecutor(len(tiles)) as pool, AsyncCompileMode(pool, ignore_errors=True):
                for tile in tiles:
                    self._compilers[key](tile)
        finally:
            self._compilers = None

    def measured(self, key: str, tile: Tile, at_least: float = math.inf) -> float:
        """Seconds of one kind of launch with a tile; infinite where it does not compile, fit, or keep the results."""
        # the library can be imported without triton
        from triton import CompilationError, OutOfResources

        before, self.tiles[key] = self.tiles[key], tile
        try:
            if not self._agrees([result.detach() for result in self._step()]):
                return math.inf
            first = self._lap()[key]
            if first > _HOPELESS * at_least:
                return first
            return statistics.median([first, *(self._lap()[key] for _ in range(_ROUNDS - 1))])
        except torch.AcceleratorError:
            raise
        except (CompilationError, OutOfResources, RuntimeError):  # the last of a pass of the compiler that gave up
            return math.inf
        finally:
            self.tiles[key] = before

    def _agrees(self, results: Sequence[Tensor]) -> bool:
        norms = [float(expected.double().norm()) for expected in self._expected]
        least = _NOTHING * max(norms, default=0.0)
        return all(
            float((result.double() - expected.double()).norm()) <= self._tolerance * max(norm, least)
            for result, expected, norm in zip(results, self._expected, norms, strict=True)
        )

    def _lap(self) -> dict[str, float]:
        """Seconds by kind of launch, of one step."""
        self._laps = []
        try:
            self._step()
            if self._gpu is not None:
                torch.cuda.synchronize(self._gpu)
            spent = dict.fromkeys(self.rooms, 0.0)
            for key, begin, end in self._laps:
                spent[key] += begin.elapsed_time(end) / 1e3 if self._gpu is not None else end - begin
            return spent
        finally:
            self._laps = None


def tile_path() -> Path:
    """Where tiles are kept: FREDHOLM_TILES in the environment, or `fredholm/tiles.json` where caches are."""
    named = os.environ.get("FREDHOLM_TILES")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(caches) / "fredholm" / "tiles.json"


@final
class TileFile:
    """The tiles of `tile_path`, by GPU; none of other kernels than these, or another Triton."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gpus = dict[str, dict[str, Any]]()
        self._tiles = dict[str, dict[str, Tile]]()
        self._damage = ""
        try:
            self._gpus = json.loads(path.read_text(encoding="utf-8"))["gpus"]
            self._tiles = {name: _tiles_of(entry) for name, entry in self._gpus.items()}
        except OSError:
            pass  # there is none
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._gpus, self._tiles, self._damage = {}, {}, f"{type(error).__name__}: {error}"

    @staticmethod
    @functools.cache
    def read() -> "TileFile":
        """The file, read once in a process; a damaged one is told of, and holds nothing."""
        found = TileFile(tile_path())
        if found._damage:
            warnings.warn(
                f"{found._path} is no file of tiles ({found._damage}), so tiles follow the rule; remove it, or run "
                "fredholm tune again",
                stacklevel=2,
            )
        return found

    def of(self, gpu: str) -> dict[str, Tile]:
        """Tiles by the key of their launch."""
        return self._tiles.get(gpu, {})

    def told_of(self, gpu: str) -> str:
        """In words, for `fredholm info`; empty where nothing is known."""
        if gpu not in self._gpus:
            return ""
        count, date = len(self._tiles[gpu]), self._gpus[gpu]["date"]
        return f"{count} tiles measured {date}" if count else f"tiles of {date} are of other kernels, tune again"

    def fingerprint(self, gpu: str) -> str:
        """What of the file the digits on a GPU depend on; empty where it has no tiles of it."""
        tiles = sorted((key, tile.sizes) for key, tile in self.of(gpu).items())
        return hashlib.sha256(repr(tiles).encode()).hexdigest()[:8] if tiles else ""

    def keep(self, gpu: str, found: dict[str, Tuned]) -> None:
        """Adds tiles of a GPU to the file; those of launches that were not measured now stay.

        Raises:
            OSError: it cannot be written.
        """
        tiles = self.of(gpu) | {key: each.tile for key, each in found.items()}
        entry = {
            "kernels": _fingerprint(),
            "date": datetime.date.today().isoformat(),
            "tiles": {key: list(tile.sizes) for key, tile in sorted(tiles.items())},
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"gpus": {**self._gpus, gpu: entry}}, indent=1) + "\n"
        write_file(self._path, content.encode())
        forget_tiles()


def forget_tiles() -> None:
    """The file is read again when a tile is next wanted."""
    TileFile.read.cache_clear()
    _kept.cache_clear()


def _tiles_of(entry: dict[str, Any]) -> dict[str, Tile]:
    """The tiles of one GPU."""
    tiles = {key: Tile(*sizes) for key, sizes in entry["tiles"].items()}
    for key, tile in tiles.items():
        if not all(type(size) is int and size > 0 and size & (size - 1) == 0 for size in tile.sizes[:3]):
            raise ValueError(f"{key}: expected powers of two; got {list(tile.sizes)}")
        if type(tile.stages) is not int or not STAGES[0] <= tile.stages <= STAGES[1]:
            raise ValueError(f"{key}: expected 1 to {STAGES[1]} stages; got {tile.stages!r}")
        if tile.registers not in CAPS:
            raise ValueError(f"{key}: expected {', '.join(map(str, CAPS))} registers; got {tile.registers!r}")
        if tile.rest not in (BEFORE, AFTER, PRODUCT):
            raise ValueError(f"{key}: expected {BEFORE}, {AFTER} or {PRODUCT} for R; got {tile.rest!r}")
    return tiles if entry["kernels"] == _fingerprint() and isinstance(entry["date"], str) else {}


@functools.cache
def _fingerprint() -> str:
    """What times depend on beside the GPU: Triton, and the code of the kernels."""
    code = hashlib.sha256((metadata.version("triton") if INSTALLED else "").encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()[:16]


def _device_name(device: torch.device | None = None) -> str:
    """Of a GPU; None: the one that kernels are launched on now."""
    return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cpu"
