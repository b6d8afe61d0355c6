"""Tile sizes of the fused kernels: by a rule, or tuned on this GPU.

The rule fits tiles into registers and shared memory; the fastest of the tiles that fit can only be measured. `tune`
times each launch of a step with tiles near the rule's, and keeps the fastest in a file, which later processes read.
Without the file, or with one of other kernels, another Triton or another GPU, the rule is used. A tile changes the
order of sums, and so the last digits: runs are bit for bit equal with the same file.
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
"""Registers of a multiprocessor, and largest shared memory of a program, at compute capability 9.0."""
UNITS, POINTS, WARPS, STAGES = (16, 256), (16, 128), (4, 8), (1, 4)
"""Smallest and largest values that are tried."""
CAPS = (0, 168, 128, 96)
"""Limits of registers per thread that are tried, so that 2, 3, 4 or 5 programs of 4 warps share a multiprocessor."""
BEFORE, AFTER, PRODUCT = range(3)
"""Time at which R is added to p: before the matrix product that is accumulated on it; after it, so that R is loaded
meanwhile; or by a matrix product with 1, so that R is loaded like the product's own factors: tiles ahead, without a
change of layout."""
PROGRAMS_EACH, SHORTEST = 2, 4
"""Target number of programs per multiprocessor, and smallest number of tiles per program."""
GAIN = 0.97
"""Ratio of times above which a new tile is not adopted."""
_ROUNDS, _HOPELESS = 5, 1.5
_PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_TOLERANCE = {torch.float32: 1e-2, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Allowed relative difference of results: float32 products may use TensorFloat-32."""
_NOTHING = 1e-2
"""Share of the largest norm of a step's results below which a result may be pure rounding."""


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
    """Key of the launch in the file."""

    @property
    def text(self) -> str:
        """The tile in words."""
        sizes = "x".join(map(str, self.sizes[:4]))
        registers = f" in {self.registers} registers" if self.registers else ""
        return sizes + registers + ("", " with R last", " with R by a product")[self.rest]

    def blocks(self, width: int) -> int:
        """Number of blocks of hidden units."""
        return -(-width // self.units)

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """The tile as a tuple of numbers."""
        return self.units, self.points, self.warps, self.stages, self.registers, self.rest


@final
class Room(NamedTuple):
    """Memory of a program: numbers per unit that it sums, in float32, and per point that it loads."""

    width: int
    """Number of hidden units, or of points of the side that owns the sums, if unbounded."""
    summed: int
    loaded: int
    dtype: torch.dtype
    rows: Literal["units", "points"] = "units"
    """The rows of the matrix products."""
    has_rest: bool = False
    """Whether R is read from memory."""
    is_crowded: bool = False
    """Whether the compiler uses so many registers that too few programs share a multiprocessor."""

    def fits(self, tile: Tile) -> bool:
        """Whether a tile should fit into registers and shared memory; the compiler may still refuse."""
        units, points, warps, stages, registers, rest = tile.sizes
        # R and the partners' part of p
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
            # a float32 product may use TensorFloat-32, at the cost of the others
            and (rest != PRODUCT or self.dtype != torch.float32)
        )

    def near(self, tile: Tile) -> Iterator[Tile]:
        """The tiles that fit and differ from a tile by one step in one size, or in `rest`.

        A change of `rest` changes the memory of R, so half of the points are tried too.
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

    For consecutive products, Triton 3.6 spreads all warps over the rows, and warps beyond the last row read memory out
    of bounds. Fewer than 64 rows use other instructions, which are safe.
    """
    return rows < 64 or rows >= 16 * warps


def choose_tile(kernel: Any, room: Room) -> Tile:
    """A tile that leaves registers for pre-activations beside the sums, and fits the loads into shared memory.

    Sizes are powers of two. float32 has no tensor cores at full precision, and its operands need twice the memory. In
    16 bits two programs or more share a multiprocessor, so that one multiplies while another computes activations
    (measured on an H100). The more a program sums, the fewer points its tiles have, and fewer still where it reads R,
    after the product: 15 % less time on an H200.
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
    """The tuned tile for a launch, or that of a rule."""
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
    key, found = _kept(kernel.fn.__name__, room, rule, gpu)
    if _Trial.running is not None:
        found = _Trial.running.tile(key, room, found)._replace(key=key)
    return found


@functools.cache
def _kept(kernel: str, room: Room, rule: Tile, gpu: int | None) -> tuple[str, Tile]:
    """Key of a launch in the file, and its tile there for the GPU, else that of the rule."""
    key = f"{kernel} {room.width} {room.summed} {room.loaded} {str(room.dtype).removeprefix('torch.')}"
    return key, TileFile.read().of(_device_name()).get(key, rule)._replace(key=key)


def split(points: int, tile: Tile, programs: int, device: torch.device) -> tuple[int, int]:
    """Number of parts of the points of a loop, such that few programs fill a GPU, and number of points of a part.

    No part is shorter than SHORTEST tiles, and points are cut between tiles.
    """
    tiles = -(-points // tile.points)
    wanted = PROGRAMS_EACH * multiprocessors(device) // max(1, programs)
    parts = max(1, min(wanted, tiles // SHORTEST))
    run = -(-tiles // parts) * tile.points
    return -(-points // run) if points else 1, max(run, 1)


def multiprocessors(device: torch.device) -> int:
    """Number of multiprocessors of a GPU; 1 in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def launch(kernel: Any, grid: tuple[int, int, int], tile: Tile, arguments: dict[str, Any]) -> None:
    """Runs a Triton kernel in a grid of programs of this tile.

    Raises:
        RuntimeError: the tile is from the file, and does not fit for these inputs.
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
    """Raises a RuntimeError with the remedy for a tile of the file that does not fit."""
    # the library can be imported without triton
    from triton import OutOfResources

    kept = TileFile.read().of(_device_name()).get(tile.key)
    if isinstance(error, OutOfResources) and kept is not None and kept.sizes == tile.sizes:
        raise RuntimeError(
            f"the tile {tile.text} that {tile_path()} has for {tile.key} was measured on another model, and does not "
            f"fit for this one ({error}); run fredholm tune on a run of this model, or remove the file"
        ) from error


def _options(kernel: Any, tile: Tile) -> dict[str, int]:
    """Compile options of a kernel: tile sizes, warps, pipeline stages, register limit and `REST`."""
    limit = {"maxnreg": tile.registers} if tile.registers else {}
    rest = {"REST": tile.rest} if "REST" in kernel.arg_names else {}
    return {"UNITS": tile.units, "N": tile.points, "num_warps": tile.warps, "num_stages": tile.stages, **limit, **rest}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuned:
    """Result of `tune` for one kind of launch; times are seconds of all such launches of a step."""

    key: str
    tile: Tile
    seconds: float
    before: Tile
    seconds_before: float
    num_tried: int

    def as_json(self) -> dict[str, object]:
        """The result as plain values; tiles as units, points, warps, stages, registers and `rest`."""
        return {**dataclasses.asdict(self), "tile": self.tile.sizes, "before": self.before.sizes}

    def __str__(self) -> str:
        old, new = self.before.text, self.tile.text
        change = "stays" if self.tile.sizes == self.before.sizes else f"became {new}"
        gain = self.seconds_before / self.seconds
        return f"{self.key}: {old} {change}, {gain:.2f} times as fast ({self.num_tried} tried)"


def tune(
    step: Callable[[], Sequence[Tensor]],
    *,
    dtype: torch.dtype = torch.float32,
    budget_s: float = 120.0,
    heard: Callable[[Tuned], None] | None = None,
) -> list[Tuned]:
    """Finds the fastest tiles for all fused launches of a step, and keeps them in the file `tile_path()`.

    From the tile in use the search goes to the fastest of its neighbours, while one is faster by more than 3 %. The
    launches that take longest come first. A tile is tried on the step itself, and only accepted if results stay the
    same. As many tiles are compiled in parallel as this process has processors, and then timed one by one.

    Args:
        step: computes the same results each time, such as outputs and gradients of a model.
        dtype: of its computations; under autocast that of autocast, even if gradients are float32.
        budget_s: seconds after which no more tiles are tried, compilation included.
        heard: called with each result.

    Returns:
        One result per kind of launch, longest first.

    Raises:
        ValueError: the step launches no fused kernel, its results are not reproducible or not finite, or the budget is
            not positive.
        OSError: the file cannot be written.
    """
    if not budget_s > 0:
        raise ValueError(f"tune: expected a positive number of seconds; got {budget_s}")
    stop = time.perf_counter() + budget_s
    with _Trial(step, _TOLERANCE.get(dtype, max(_TOLERANCE.values()))) as trial:
        trial.begin()
        if not trial.rooms:
            raise ValueError(
                "tune: the step launches no fused kernel, so there is nothing to tune; `operator.explain` gives the "
                "reasons for each operator"
            )
        found = list[Tuned]()
        for key in sorted(trial.rooms, key=lambda key: -trial.spent[key]):
            found.append(_climbed(trial, key, stop))
            if heard is not None:
                heard(found[-1])
        TileFile(tile_path()).keep(trial.gpu_name, {each.key: each for each in found})
    return found


def _climbed(trial: "_Trial", key: str, stop: float) -> Tuned:
    """Hill climbing for one kind of launch: the best tile, which stays in use."""
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
    """Context in which Triton parses one function at a time: Python's limit on the depth of a tree is per process."""
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
    """Context in which launches are timed and use the tiles in ``tiles``."""

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
        """Name of the GPU of the step."""
        return _device_name(self._gpu)

    def tile(self, key: str, room: Room, rule: Tile) -> Tile:
        """The current tile of a launch."""
        self.rooms[key] = room
        return self.tiles.setdefault(key, rule)

    def start(self, key: str, launched: Callable[[], None], compiler: Callable[[Tile], object]) -> None:
        """Starts and times one launch; `compiler` compiles it with another tile."""
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
        """Runs the step with the current tiles for reference results and times."""
        self._expected = [result.detach().clone() for result in self._step()]
        self._gpu = next((result.device for result in self._expected if result.device.type == "cuda"), None)
        self.spent = self._lap()
        again = [result.detach() for result in self._step()]
        if not all(bool(result.isfinite().all()) for result in again) or not self._agrees(again):
            raise ValueError(
                "tune: the results of the step are not reproducible, or not finite; draw nothing at random in it, and "
                "give it valid inputs"
            )

    def compile(self, key: str, tiles: Sequence[Tile]) -> None:
        """Compiles the first launch of one kind with several tiles in parallel.

        Errors are left to `measured`.
        """
        # the library can be imported without triton
        from triton import AsyncCompileMode

        self._compilers = {}
        try:
            self._step()
            # not inside the step, whose backward pass runs in another thread
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
        except (CompilationError, OutOfResources, RuntimeError):  # RuntimeError: a compiler pass failed
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
    """Path of the tile file: FREDHOLM_TILES in the environment, else `fredholm/tiles.json` in the cache directory."""
    named = os.environ.get("FREDHOLM_TILES")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(caches) / "fredholm" / "tiles.json"


@final
class TileFile:
    """The tiles of `tile_path`, by GPU; empty if they are for other kernels or another Triton."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gpus = dict[str, dict[str, Any]]()
        self._tiles = dict[str, dict[str, Tile]]()
        self._damage = ""
        try:
            self._gpus = json.loads(path.read_text(encoding="utf-8"))["gpus"]
            self._tiles = {name: _tiles_of(entry) for name, entry in self._gpus.items()}
        except OSError:
            pass  # no file
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._gpus, self._tiles, self._damage = {}, {}, f"{type(error).__name__}: {error}"

    @staticmethod
    @functools.cache
    def read() -> "TileFile":
        """The file, read once per process; a damaged one counts as empty, with a warning."""
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

    def describe(self, gpu: str) -> str:
        """A line for `fredholm info`; empty without tiles."""
        if gpu not in self._gpus:
            return ""
        count, date = len(self._tiles[gpu]), self._gpus[gpu]["date"]
        return f"{count} tiles measured {date}" if count else f"tiles of {date} are of other kernels, tune again"

    def fingerprint(self, gpu: str) -> str:
        """Digest of the tiles of a GPU, on which the last digits of results depend; empty without tiles."""
        tiles = sorted((key, tile.sizes) for key, tile in self.of(gpu).items())
        return hashlib.sha256(repr(tiles).encode()).hexdigest()[:8] if tiles else ""

    def keep(self, gpu: str, found: dict[str, Tuned]) -> None:
        """Adds tiles of a GPU to the file; other launches keep theirs.

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
    """Makes the next use of a tile read the file again."""
    TileFile.read.cache_clear()
    _kept.cache_clear()


def _tiles_of(entry: dict[str, Any]) -> dict[str, Tile]:
    """The checked tiles of one GPU; empty if they are for other kernels."""
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
    """Digest of Triton's version and the code of the kernels, on which times depend."""
    code = hashlib.sha256((metadata.version("triton") if INSTALLED else "").encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()[:16]


def _device_name(device: torch.device | None = None) -> str:
    """Name of a GPU; None: the current one."""
    return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cpu"
