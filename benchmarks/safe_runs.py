"""Cost of checksums, lock and recorded data in a run: ``python -m benchmarks safe_runs``.

The run is the demo, `recipes/digits.py`, on the digits of scikit-learn and on the same images in one file each. The
times of the run and of each part are taken in the same run: every call of a part is counted, and nothing twice. Before
anything is timed, each part must work: a flipped byte in any file of a run folder is found, a second process is
refused, and so are changed data.
"""

import contextlib
import functools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, final, get_args
from unittest.mock import patch

import torch
from PIL import Image
from tqdm import tqdm

from benchmarks.harness import Benchmark, GateError, Options, Row, Settings, in_fresh_process
from fredholm.storage import integrity
from fredholm.tasks.files.read_record import record_content, recorded
from fredholm.tasks.images.digits import digits
from fredholm.training import Run, train
from fredholm.training.progress import muted
from fredholm.training.recipes import open_recipe
from fredholm.training.storage.fingerprint import Difference, Fingerprint
from fredholm.training.storage.lock import only_writer

Data = Literal["built in", "files"]
BUILT_IN, FILES = get_args(Data)
CHECKSUMS, LOCKING, RECORDING, ALL = PARTS = ("checksums", "lock", "data", "all")
NEW, UNCHANGED, TOUCHED = "new", "resumed", "resumed, files touched"
"""Stages: a new run on unknown data, a resumed run on unchanged data, and one whose files have new times."""
RUN = "the run"
CALLED: Mapping[str, Sequence[Callable[..., Any]]] = {
    CHECKSUMS: [
        integrity.seal,
        integrity.unseal,
        integrity.listed,
        integrity.check_listed,
        integrity.read_listed,
        integrity.check_listing,
    ],
    RECORDING: [recorded, record_content],
}
"""The functions of each part; their calls are counted in every module that imports them."""
MADE: Sequence[tuple[type, str]] = ((Fingerprint, "of"), (Fingerprint, "of_text"), (Difference, "between"))
"""The class methods of the part `data`."""


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on one core."""

    options: Options = field(default_factory=lambda: Options(rounds=3))
    data: tuple[Data, ...] = get_args(Data)
    """Digits of scikit-learn without files, or a folder with a file for each digit."""
    epochs: tuple[int, ...] = (1, 10)
    """Epochs of runs; each run is then resumed for as many. A run of one epoch shows the fixed costs of a run."""
    images: int | None = None
    """Images of each class; None: all."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return replace(self, epochs=(1,), images=12)

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on runs without epochs or with too few images."""
        if not self.epochs or min(self.epochs) < 1:
            raise ValueError(f"epochs must be one or more numbers, each at least 1; got {self.epochs}")
        if self.images is not None and self.images < 2:
            raise ValueError(f"images is {self.images}; expected at least 2 of each class")
        return self


@final
class Clock:
    """Seconds and calls of the parts of a run; calls within another part count only for the outer part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((CHECKSUMS, LOCKING, RECORDING), 0.0)
        self.calls: dict[str, int] = dict.fromkeys(self.seconds, 0)
        self._is_inside = False

    @contextlib.contextmanager
    def counting(self, part: str) -> Iterator[None]:
        """Adds the time of the ``with`` block to a part."""
        if self._is_inside:
            yield
            return
        self._is_inside, start = True, time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start
            self.calls[part] += 1
            self._is_inside = False

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Counts the parts wherever the library calls them, within the ``with`` block."""
        every = {id(function): (part, function) for part, functions in CALLED.items() for function in functions}
        modules = [module for name, module in sys.modules.items() if name.startswith("fredholm.")]
        with contextlib.ExitStack() as replaced:
            for module in modules:
                for name, value in list(vars(module).items()):
                    if id(value) in every:
                        replaced.enter_context(patch.object(module, name, self._counted(*every[id(value)])))
                    elif value is only_writer:
                        replaced.enter_context(patch.object(module, name, self._only_writer))
            for owner, name in MADE:
                replaced.enter_context(patch.object(owner, name, self._counted(RECORDING, getattr(owner, name))))
            yield

    def _counted(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*arguments: Any, **keywords: Any) -> Any:
            with self.counting(part):
                return function(*arguments, **keywords)

        return counted

    @contextlib.contextmanager
    def _only_writer(self, folder: Path) -> Iterator[None]:
        held = contextlib.ExitStack()
        with self.counting(LOCKING):
            held.enter_context(only_writer(folder))
        try:
            yield
        finally:
            with self.counting(LOCKING):
                held.close()


def demo(config: Config, data: Path | None, epochs: int) -> Run.Config:
    """Configuration of the demo with a number of epochs, on images in a folder or on the built-in digits."""
    run, options = open_recipe("digits").config, config.options
    task = run.task if data is None else replace(run.task, data=str(data))
    device = str(options.torch_device)
    training = replace(run.training, epochs=epochs, device=device, tensorboard=False)
    return replace(run, task=task, training=training, seed=options.seed)


def write_images(folder: Path, most: int | None) -> Path:
    """Writes the digits as PNG files in class folders of their training and test sets."""
    splits = digits()
    for name, part in (("train", splits.train), ("test", splits.held_out("test"))):
        assert part.answers is not None
        pixels = part.images(torch.arange(len(part)))
        labels, count = part.answers.values.tolist(), [0] * 10
        for i, label in enumerate(labels):
            count[label] += 1
            if most is None or count[label] <= most:
                file = folder / name / str(label) / f"{i:04}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[i, 0].numpy()).save(file)
    return folder


def require_safety(config: Config, folder: Path) -> None:
    """The gate before any timing: a short run detects flipped bytes, a second process and changed data."""
    data, path = write_images(folder / "images", 2), folder / "run"
    run = demo(config, data, 1)
    _trained(run, path)
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.suffix in (".json", ".safetensors"):
            content = file.read_bytes()
            flipped = bytearray(content)
            flipped[len(content) // 2] ^= 1
            file.write_bytes(flipped)
            _require_refusal(f"a flipped byte of {file.name} is not found", [file.name], lambda: _opened(run, path))
            file.write_bytes(content)
    with only_writer(path):
        refusal = in_fresh_process(_refusal, run, path)
        if "is being trained by process" not in refusal:
            raise GateError(f"a second process is not refused ({refusal or 'it trained'}), so nothing is timed")
    longer = demo(config, data, 2)
    image = min(data.rglob("*.png"))
    Image.new("L", (8, 8), 128).save(image)
    refusal = ["is a run on other data: 1 file changed", image.name]
    _require_refusal("other data are not refused", refusal, lambda: _trained(longer, path))


def _opened(run: Run.Config, path: Path) -> None:
    """Reads all files of a run folder."""
    Run(path, device="cpu").model("last")
    _trained(run, path)


def _trained(run: Run.Config, path: Path) -> None:
    with muted():
        train(run, path, resume=True)


def _refusal(run: Run.Config, path: Path) -> str:
    """The error message of a refused run, or an empty string if it was trained."""
    try:
        _trained(run, path)
    except ValueError as error:
        return str(error)
    return ""


def _require_refusal(wrong: str, fragments: Sequence[str], attempt: Callable[[], None]) -> None:
    try:
        attempt()
    except ValueError as error:
        if all(part in str(error) for part in fragments):
            return
        raise GateError(f"{wrong}: {error}") from error
    raise GateError(f"{wrong}, so nothing is timed")


def measure(config: Config) -> Iterator[Row]:
    """Checks the safety of a run, then times runs of each length on each kind of data."""
    with tempfile.TemporaryDirectory(prefix="safe-runs-") as folder:
        require_safety(config, Path(folder) / "gate")
        for data in config.data:
            images = None if data == BUILT_IN else write_images(Path(folder) / "images", config.images)
            for epochs in tqdm(config.epochs, desc=data, disable=None):
                yield from timed(config, data, images, epochs, Path(folder) / "run")


def timed(config: Config, data: Data, images: Path | None, epochs: int, path: Path) -> Iterator[Row]:
    """A row per part of a run that is trained for ``epochs`` and resumed for as many; medians of all rounds."""
    stages = [NEW, UNCHANGED] if images is None else [NEW, UNCHANGED, TOUCHED]
    found: dict[str, list[dict[str, float]]] = {stage: [] for stage in stages}
    for _ in tqdm(range(config.options.rounds + 1), desc=f"{epochs} epochs", leave=False, disable=None):
        shutil.rmtree(path, ignore_errors=True)
        for number, stage in enumerate(stages, 1):
            if images is not None and stage == TOUCHED:
                for file in images.rglob("*.png"):
                    os.utime(file)
            found[stage].append(seconds_of(demo(config, images, number * epochs), path, stage))
    for stage, rounds in found.items():
        # the first round is a warm-up
        medians = {part: statistics.median(each[part] for each in rounds[1:]) for part in rounds[0]}
        whole = medians.pop(RUN)
        for part, seconds in medians.items():
            yield Row(
                case=f"{data}, {stage}: {part}",
                n=epochs,
                direction="forward+backward",
                ours_s=seconds,
                peer=RUN,
                peer_s=whole,
                ratio=whole / seconds,
            )


def seconds_of(run: Run.Config, path: Path, stage: str) -> dict[str, float]:
    """Seconds of a run, of each part, and of all parts together; raises `GateError` if a part was never called."""
    clock = Clock()
    with clock.attached():
        start = time.perf_counter()
        _trained(run, path)
        whole = time.perf_counter() - start
    if missed := [part for part, calls in clock.calls.items() if not calls]:
        raise GateError(f"{stage}: {missed[0]} took no time at all, so the timing missed it")
    return {**clock.seconds, ALL: sum(clock.seconds.values()), RUN: whole}


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """The share of all parts in each run."""
    for row in rows:
        if row.case.endswith(f": {ALL}") and row.ratio is not None:
            name = row.case.removesuffix(f": {ALL}")
            yield f"{name}, {row.n} epoch{'s' if row.n > 1 else ''}: {100 / row.ratio:.2f} % of the run"


BENCHMARK = Benchmark(
    name="safe_runs",
    purpose="cost of checksums, lock and recorded data in a run of the demo",
    config=Config,
    measure=measure,
    notes=notes,
)
