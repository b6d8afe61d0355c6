"""Checkpoints: the state that a run needs to continue, in folders that are complete or absent.

``checkpoints/step-00000120/`` holds ``weights.safetensors``, the trained weights and buffers; ``ema.safetensors``,
their moving average, which evaluation uses; ``optimizer.safetensors``, the optimiser's tensors; and ``manifest.json``,
the state (progress, random states, position of the log) with the size and SHA-256 of the others and of itself. Tensors
that are sharded over processes are in several files (`parts`); the average of the best checkpoint is always in one.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import torch.distributed as dist
from torch import Tensor, nn

from fredholm.storage.atomic import Draft, clear_partial, remove_folder
from fredholm.storage.integrity import check_listed, check_listing, listed, seal, unseal
from fredholm.storage.tensors import copied_to_host, fill_wholly, model_tensors, tensor_bytes

from .parts import files_of, joined, read_parts

if TYPE_CHECKING:
    from .sharded import Shards

SCHEMA = 2
WEIGHTS, AVERAGE, OPTIMIZER = NAMES = ("weights.safetensors", "ema.safetensors", "optimizer.safetensors")
MANIFEST = "manifest.json"
Which = Literal["best", "last"]
Listing = dict[str, dict[str, Any]]
"""Sizes and SHA-256 of files by name."""


def check_which(which: str) -> None:
    """Raises a ValueError unless the name is one of `Which`."""
    if which not in (known := get_args(Which)):
        raise ValueError(f"which is {which!r}; expected one of {', '.join(known)}")


@final
class Checkpoints:
    """The checkpoints of one run folder; keeps the last and the best.

    Everything that is read is compared with the manifest first: a changed byte, another file or another run is an
    error. Reads wait for pending writes.

    Args:
        folder: created at the first save.
        run: identifier of the run (`RunFolder.run`), stored in its checkpoints; None: checkpoints of any run are read.
    """

    def __init__(self, folder: str | Path, run: str | None = None) -> None:
        self.folder = Path(folder)
        self._run = run
        self._background, self._is_in_background = Background(), False
        self._own_shards: Shards | None = None

    def save(
        self, step: int, tensors: Mapping[str, dict[str, Tensor]], state: Mapping[str, Any], best_step: int
    ) -> None:
        """Writes the checkpoint of ``step``, then removes all others except that of ``best_step``.

        Within a run the tensors of a step are fixed, so a second save of it replaces only its state, and files of
        tensors that are now on other processes. Where tensors are sharded (DTensor), all processes save together, and
        the state is that of the first.

        Args:
            step: step of the checkpoint.
            tensors: tensors of the files WEIGHTS, AVERAGE and OPTIMIZER.
            state: the remaining state in JSON types; it must not be changed later.
            best_step: another checkpoint to keep; below 0: none, and the last one is the best.

        Raises:
            OSError: it cannot be written, or while `in_background` the one before could not; earlier checkpoints are
                intact and no partial file has a final name.
            RuntimeError: another process has ended; earlier checkpoints are intact too.
        """
        self.wait()
        shards = self._shards({f"{file}/{name}": each for file in tensors for name, each in tensors[file].items()})
        there, draft, is_best = self._listing(step), Draft(self._path(step)), best_step < 0 or best_step == step
        taken = _copied(tensors, shards) if self._is_in_background else dict(tensors)

        def finish(listing: Listing) -> None:
            files = _with_one_average(draft, listing, there, step) if is_best else listing
            content = {"schema": SCHEMA, "run": self._run, "step": step, "state": state, "files": files}
            draft.add(MANIFEST, seal(content))
            draft.finish(MANIFEST, stale=there.keys() - files.keys())

        is_first = shards is None or shards.is_first

        def write() -> None:
            with self._naming_kept_checkpoint(draft if is_first else None, step):
                if shards is None:
                    _write_whole(draft, taken, step, there, finish)
                else:
                    shards.write(draft, taken, step, there, finish)
            if is_first:
                self._keep((step, best_step))

        if self._is_in_background:
            self._background.start(write)
        else:
            write()

    @contextlib.contextmanager
    def in_background(self) -> Iterator[None]:
        """While entered, `save` returns once the tensors are copied, and a thread writes them; leaving waits for it.

        Raises:
            OSError: as raised by `save`, unless another exception is being raised.
        """
        self._is_in_background = True
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # the error that ended the run is reported, not a later one
                self.wait()
            raise
        finally:
            self._is_in_background = False
        self.wait()

    @property
    def has_failed(self) -> bool:
        """Whether a checkpoint could not be written; `wait` raises the error."""
        return self._background.has_failed

    def wait(self) -> None:
        """Waits until everything that was saved is complete; raises as `save`."""
        self._background.wait()

    def keep(self, steps: Collection[int]) -> None:
        """Removes the checkpoints of all other steps."""
        self.wait()
        self._keep(steps)

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, ascending."""
        self.wait()
        return self._steps()

    def last_step(self) -> int | None:
        """The step of the newest complete checkpoint."""
        return max(self.steps(), default=None)

    def load_state(self, step: int) -> dict[str, Any]:
        """Reads the state without the tensors.

        Raises:
            ValueError: the manifest is damaged, of another run or not of this library; the message names another
                complete checkpoint.
            OSError: it cannot be read.
        """
        self.wait()
        with self._advising(step):
            return self._manifest(step)["state"]

    def load_tensors(self, step: int, name: str, like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Reads the tensors of the file ``name`` after comparing it with the manifest; raises as ``load_state``.

        Args:
            step: step of the checkpoint.
            name: name of the file.
            like: tensors by name. Where some are sharded over processes (DTensor), which then call this together, the
                tensors of their names are sharded likewise, and each process reads its part; all others are whole.
        """
        self.wait()
        with self._advising(step):
            listing, like = self._manifest(step)["files"], like or {}
            files = {self._path(step) / file: listing[file] for file in files_of(name, listing)}
            shards = self._shards(like)
            if shards is not None:
                shards.check(files)
                return shards.read(read_parts(list(files), step), like)
            for path, entry in files.items():
                check_listed(path, entry)
            return {name: joined(parts) for name, parts in read_parts(list(files), step).items()}

    def load_weights(self, step: int, model: nn.Module, name: str = AVERAGE) -> None:
        """Loads the weights of the file ``name`` of ``step``; raises as ``load_state`` and `fill_wholly`."""
        fill_wholly(model, self.load_tensors(step, name, model_tensors(model)), self._path(step) / name)

    def check(self, step: int) -> None:
        """Reads the whole checkpoint; raises as ``load_state``."""
        self.wait()
        with self._advising(step):
            self._check(step)

    def average_files(self, step: int) -> list[Path]:
        """Returns the files of a step's averaged weights: one, or one per process for sharded steps except the best.

        Raises:
            ValueError: as raised by ``load_state``.
        """
        self.wait()
        with self._advising(step):
            return [self._path(step) / name for name in files_of(AVERAGE, self._manifest(step)["files"])]

    def clear_partial(self) -> None:
        """Removes incomplete files that a crash may have left."""
        clear_partial(self.folder)
        for step in self.steps():
            clear_partial(self._path(step))

    def _keep(self, steps: Collection[int]) -> None:
        for other in self._steps():
            if other not in steps:
                remove_folder(self._path(other))

    def _steps(self) -> list[int]:
        try:
            names = [path.name for path in self.folder.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []
        steps = [int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-[0-9]{8,40}", name)]
        return sorted(step for step in steps if self._path(step).name in names)

    def _shards(self, tensors: Mapping[str, Tensor]) -> "Shards | None":
        """Returns the writer and reader of sharded tensors; None where no tensor is sharded."""
        if not (dist.is_available() and dist.is_initialized()):
            return None
        from .sharded import Shards, has_shards  # takes a second, which only several processes need

        if not has_shards(tensors):
            return None
        self._own_shards = self._own_shards or Shards()
        return self._own_shards

    def _check(self, step: int) -> None:
        for name, entry in self._manifest(step)["files"].items():
            check_listed(self._path(step) / name, entry)

    def _manifest(self, step: int) -> dict[str, Any]:
        path = self._path(step) / MANIFEST
        content = unseal(path)
        if content.get("schema") != SCHEMA or content.get("step") != step:
            raise ValueError(f"{path} is no manifest of step {step} in schema {SCHEMA} of this library")
        if self._run is not None and content.get("run") != self._run:
            raise ValueError(f"{path} is of another run")
        listing = check_listing(path, content.get("files"))
        try:
            names = {file for name in NAMES for file in files_of(name, listing)}
        except ValueError as error:
            raise ValueError(f"{path} does not list the three files of a checkpoint, but {error}") from error
        if names != listing.keys():
            raise ValueError(f"{path} lists {min(listing.keys() - names):.80}, which is no file of a checkpoint")
        if not isinstance(content.get("state"), dict):
            raise ValueError(f"{path} has no state")
        return content

    def _listing(self, step: int) -> Listing:
        """Returns the files of a checkpoint; empty where it is missing or unreadable."""
        try:
            return self._manifest(step)["files"]
        except (ValueError, OSError):
            return {}

    @contextlib.contextmanager
    def _naming_kept_checkpoint(self, draft: Draft | None, step: int) -> Iterator[None]:
        """When saving fails, removes the draft, and adds to a disk error which checkpoint is intact.

        Args:
            draft: None except on the first process, which may be about to finish it.
            step: step of the checkpoint.
        """
        try:
            yield
        except BaseException as error:
            if draft is not None:
                draft.drop()
            if not isinstance(error, OSError):
                raise
            kept = max((other for other in self._steps() if other != step), default=None)
            rest = "there is no earlier one" if kept is None else f"the one of step {kept} is intact"
            raise OSError(
                error.errno, f"cannot save the checkpoint of step {step} ({error.strerror}); {rest}", str(self.folder)
            ) from error

    @contextlib.contextmanager
    def _advising(self, step: int) -> Iterator[None]:
        """Adds advice to an error of a checkpoint."""
        try:
            yield
        except ValueError as error:
            whole = [other for other in self._steps() if other != step and self._is_whole(other)]
            earlier = [other for other in whole if other < step]
            if earlier:
                advice = (
                    f"the checkpoint of step {earlier[-1]} is whole: remove {self._path(step).name} to go on from it"
                )
            else:
                later = f", but that of step {whole[-1]} is (--checkpoint last)" if whole else ""
                advice = f"no earlier one is whole{later}: remove the folder {self.folder.name} to begin the run again"
            raise ValueError(f"{error}; {advice}") from error

    def _is_whole(self, step: int) -> bool:
        try:
            self._check(step)
        except (ValueError, OSError):
            return False
        return True

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"


def _copied(tensors: Mapping[str, dict[str, Tensor]], shards: "Shards | None") -> dict[str, dict[str, Tensor]]:
    """Returns copies of tensors, which do not change as the run continues."""
    if shards is not None:
        return shards.copied(tensors)
    return {file: copied_to_host(named) for file, named in tensors.items()}


def _write_whole(
    draft: Draft,
    tensors: dict[str, dict[str, Tensor]],
    step: int,
    there: Listing,
    finish: Callable[[Listing], None],
) -> None:
    """Writes each missing file with all its tensors, and then releases them; see `Shards.write`."""
    draft.begin()
    listing: Listing = {}
    for name in NAMES:
        content = tensor_bytes(tensors.pop(name), {"step": step})
        listing[name] = listed(content)
        if there.get(name) != listing[name]:
            draft.add(name, content)
    finish(listing)


def _with_one_average(draft: Draft, listing: Listing, there: Listing, step: int) -> Listing:
    """Returns the listing of a draft after merging the parts of its averaged weights into one file."""
    names = files_of(AVERAGE, listing)
    if names == [AVERAGE]:
        return listing
    paths = [(draft.path if there.get(name) == listing[name] else draft.partial) / name for name in names]
    average = {name: joined(parts) for name, parts in read_parts(paths, step).items()}
    content = tensor_bytes(average, {"step": step})
    if there.get(AVERAGE) != listed(content):
        draft.add(AVERAGE, content)
    for name in names:
        (draft.partial / name).unlink(missing_ok=True)
    return {name: entry for name, entry in listing.items() if name not in names} | {AVERAGE: listed(content)}


@final
class Background:
    """A thread for one job at a time; the process ends only after it."""

    def __init__(self) -> None:
        self._running: Future[None] | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the job has ended with an error, which `wait` raises."""
        running = self._running
        return running is not None and running.done() and running.exception() is not None

    def start(self, job: Callable[[], None]) -> None:
        """Starts a job once the previous one has ended; raises as `wait`."""
        self.wait()
        executor = ThreadPoolExecutor(1, thread_name_prefix="fredholm-background")
        self._running = executor.submit(job)
        executor.shutdown(wait=False)

    def wait(self) -> None:
        """Waits for the end of the job, and raises its error, once."""
        running = self._running
        if running is not None:
            running.exception()  # the job is forgotten once it has ended, not if Ctrl-C ends the waiting
            self._running = None
            running.result()
