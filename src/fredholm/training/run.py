"""A run: trains a config into a folder, and opens the trained model in it."""

import contextlib
import dataclasses
import json
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_seed
from fredholm._version import __version__
from fredholm.distributed.processes import ALONE, Processes
from fredholm.storage.config_json import to_json
from fredholm.storage.model_folder import RUN, ModelFolder
from fredholm.tasks import TASKS
from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.files.read_record import ReadRecord, recorded, recording_reads
from fredholm.tasks.files.terminal_text import visible
from fredholm.tasks.outputs import Outputs
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, check_held_out
from fredholm.tasks.task import Objective, Task, Trained
from fredholm.training.storage.checkpoint import Which
from fredholm.training.storage.config_difference import first_difference
from fredholm.training.storage.fingerprint import FINGERPRINT, Difference, Fingerprint
from fredholm.training.storage.lock import only_writer
from fredholm.training.storage.machine import MACHINE, describe_numerics, other_numerics
from fredholm.training.storage.run_folder import RunFolder, check_settings

from .config import TrainingConfig
from .device import choose_device
from .progress import muted, print_line
from .random_state import seed_everything
from .scoring import score_split
from .start import starting_tensors
from .trained_folder import TrainedFolder
from .trainer import Trainer, check_examples, check_processes, measured_split

COMMANDS = "commands.txt"
"""File of the commands that started and resumed a run, one per line; missing where no command did."""
FREE = ("epochs", "patience", "num_workers", "device", "tensorboard", "shard")
"""Training settings that may change when a run continues."""


@final
class Run:
    """A folder with a trained model: a run folder, or one written by `save_pretrained`.

    Args:
        path: the folder.
        tasks: known task classes; add custom tasks here.
        device: device to compute on; see ``TrainingConfig``.

    Raises:
        ValueError: the folder is no run, has no checkpoint or a damaged one.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Complete settings of a run, which determine its result.

        Args:
            task: settings of data, model and loss.
            training: settings of optimisation and evaluation.
            seed: seed of the weights, the data order, augmentation and dropout.
            init: folder of another run whose averaged weights this one starts from: rows with the same name, such as
                classes, channels or tokens, and else tensors of the same name and shape. Tensors that do not fit are
                printed. None: new weights.
        """

        task: Task.Config
        training: TrainingConfig
        seed: int = 0
        init: str | None = None

        def __post_init__(self) -> None:
            for what, kind, expected in (
                ("task", Task.Config, "settings of a task, such as tasks.ImageLearning.Config(...)"),
                ("training", TrainingConfig, "a TrainingConfig"),
            ):
                if not isinstance(getattr(self, what), kind):
                    got = type(getattr(self, what)).__qualname__
                    raise TypeError(f"training.Run.Config: {what} must be {expected}; got {got}")
            if not isinstance(self.task.data, str | Path):
                raise TypeError(
                    "training.Run.Config: data of a task must be a path or a built-in name; got "
                    f"{type(self.task.data).__name__}; estimators take arrays, such as fredholm.ImageClassifier"
                )
            check_seed(self.seed)
            # NumPy integers too; a frozen dataclass refuses plain assignment, and a run folder stores Python numbers
            object.__setattr__(self, "seed", int(self.seed))
            if self.init is not None and not self.init.strip():
                raise ValueError("init is empty; name the folder of a run, or leave it out")
            if self.init is not None and (place := self.task.initial_checkpoint) is not None:
                raise ValueError(
                    f"init={self.init!r} has no effect with model.checkpoint={place!r}, whose weights the run starts "
                    "from; leave one out"
                )

    def __init__(self, path: str | Path, *, tasks: Sequence[type[Task]] = TASKS, device: str = "auto") -> None:
        self._folder = TrainedFolder.at(Path(path))
        recorded(self._folder.config_file, is_start=True)
        self.config, facts = self._folder.read(Run.Config, tasks)
        self.task: Task = self.config.task.build(facts)
        self.device = choose_device(device)

    def step(self, which: Which = "best") -> int:
        """Returns the step of the checkpoint that was best on the validation split so far, or of the last one.

        Without a validation split, or before its first evaluation, the best is the last.
        """
        return self._folder.step(which)

    def model(self, which: Which = "best") -> nn.Module:
        """Returns the averaged model of a checkpoint, on the run's device and in evaluation mode."""
        model = self.task.model()
        self._folder.fill(model, which)
        return model.to(self.device).eval().requires_grad_(False)

    def evaluate(self, split: HeldOut = "test", which: Which = "best") -> dict[str, float]:
        """Measures the averaged model on a held-out split.

        Use the test split where there is one: the best checkpoint was chosen on the validation split, so its metrics
        there are optimistic.

        Raises:
            ValueError: the split is unknown, or has no examples.
        """
        check_held_out(split)
        if self.task.num_held_out(split) == 0:
            way = "nothing is held out" if measured_split(self.task) is None else "measure on the other one"
            raise ValueError(f"{self.config.task.data} has no {split} split; {way}")
        numbers, model = self.config.training, self.model(which)
        size, dtype = numbers.evaluation_batch_size, numbers.dtype
        return score_split(self.task, split, model, batch_size=size, device=self.device, dtype=dtype)

    def data_difference(self, read: ReadRecord) -> str:
        """Describes how data that were read now differ from the run's training data; empty where they do not.

        Args:
            read: record of all that the run's task has read, with the run's own settings.

        Raises:
            ValueError: the fingerprint in the folder is damaged.
        """
        if self._folder.text(FINGERPRINT) is None:
            return ""
        before = _known_data(self._folder)
        now = Fingerprint.of(ReadRecord(read.files, contents=read.contents), self.config.task.data, before)
        difference = Difference.between(before, now, self.config.task.data)
        return f"{self.config.task.data} is not as the run read it: {difference}" if difference else ""

    def predict(
        self,
        files: Sequence[str | Path],
        which: Which = "best",
        *,
        part: Split | None = None,
        outputs: Outputs | None = None,
        at: str | Path | None = None,
    ) -> list[Prediction]:
        """Returns the averaged model's prediction for each file; see `Task.predict`.

        Raises:
            ValueError: a file cannot be read or does not fit, or an output file exists already.
        """
        return self.task.predict(self.model(which), files, self.device, part=part, outputs=outputs, at=at)

    def check_finished(self) -> None:
        """Raises a ValueError where the run has no checkpoint, or has not finished."""
        progress = self._folder.progress
        if progress is not None and not progress.is_done:
            raise ValueError(
                f"{self._folder.path} has not finished: it is at epoch {progress.epoch} of {progress.epochs}; go on "
                "with fredholm train ... --resume"
            )

    def save_pretrained(self, folder: str | Path, card: str, which: Which = "best", *, overwrite: bool = False) -> None:
        """Saves the model with all that its task needs to predict: settings, class names, tokenizer, weights.

        `Run` and `fredholm.from_pretrained` read it. Paths are cut to their last components, since they are private.

        Args:
            folder: a new or an empty folder.
            card: text of README.md.
            which: checkpoint whose weights are saved.
            overwrite: whether existing files of the same names may be replaced.

        Raises:
            ValueError: the run has not finished, the folder is not empty, or it is a run folder, whatever `overwrite`
                is.
            OSError: the disk is full or the folder cannot be written.
        """
        self.check_finished()
        content = {
            "kind": RUN,
            "task": self.task.command,
            "step": self.step(which),
            "run": without_folders(to_json(self.config)),
            "facts": to_json(self.task.facts),
        }
        texts = self.task.facts.files
        ModelFolder(Path(folder)).write(content, self.model(which), card, texts=texts, overwrite=overwrite)


def without_folders(value: Any) -> Any:
    """Returns the JSON value with absolute paths, and those in the home folder, cut to their last components."""
    if isinstance(value, dict):
        return {name: without_folders(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    is_path = isinstance(value, str) and (value.startswith("~") or PurePath(value).is_absolute())
    return PurePath(value).name if is_path else value


class Result(NamedTuple):
    """Metrics of a finished run."""

    metrics: dict[str, float]
    objective: Objective
    split: HeldOut | None
    """Split of the metrics: the test split, where there is one."""


def train(
    config: Run.Config,
    path: str | Path,
    *,
    resume: bool = False,
    accept_new_data: bool = False,
    tasks: Sequence[type[Task]] = TASKS,
    on_start: Callable[[], None] | None = None,
    needs_measure: bool = True,
    reads_test: bool = True,
    processes: Processes = ALONE,
    words: Sequence[str] = (),
) -> Result:
    """Trains a run in the folder ``path``.

    Args:
        config: config of the run.
        path: a new or empty folder; with ``resume`` also a folder of the same run, which then continues from its last
            checkpoint, bit for bit as if it had not stopped. Changed epochs or patience move its end: from the last
            checkpoint on the schedule is that of the new number of epochs. Settings that do not affect the numbers may
            change: the path of the data, the device, workers, TensorBoard and sharding.
        resume: continue if the folder holds a checkpoint.
        accept_new_data: continue on changed data; facts learnt from the first data (classes, scales, tokens) stay.
        tasks: known task classes; add custom tasks here.
        on_start: called once after the data are read, before the first step.
        needs_measure: refuse data without a held-out split, unless the model is computed in closed form.
        reads_test: measure the final model on the test split; else on the validation split, without reading the test
            split.
        processes: processes that train together (`distributed.joined`), each of which calls this with the same
            arguments. All read the data and the folder and compare them; the first one alone writes and prints.
        words: words of the command line, to be kept in the folder; empty without a command line.

    Returns:
        The metrics of the averaged model that was best on the validation split, on the test split; see `Trainer.fit`.

    Raises:
        ValueError: the folder is not empty, or holds a run of another config or on other data, or another process
            trains in it; epochs and patience leave nothing to do; or processes have different configs or data.
        OtherProcessError: another process raised one of these.
        DivergedError, InterruptedRunError, OSError: see ``Trainer.fit``.
    """
    folder = RunFolder(path)
    with contextlib.ExitStack() as entered:
        if not processes.is_first:
            entered.enter_context(muted())
        is_new = _enter(folder, config, processes, entered, resume=resume)
        check_processes(config.training, processes)
        with processes.first_ahead():
            opened = (
                _new_run(config, tasks, processes, words, needs_measure=needs_measure, reads_test=reads_test)
                if is_new
                else _resumed_run(config, folder, tasks, processes, words, accept_new_data=accept_new_data)
            )
        _refuse_other_data(opened, processes)
        if is_new:  # a run that cannot be trained leaves no folder behind
            processes.on_first(lambda: _make(folder, config, opened, entered))
        trainer = Trainer(
            opened.task,
            config.training,
            config.seed,
            folder,
            opened.start,
            reads_test=reads_test,
            processes=processes,
            data=Fingerprint.of_text(opened.own_files[FINGERPRINT]).digest,
        )
        _bring_up_to_date(folder, config, opened, trainer, processes)
        if on_start is not None:
            on_start()
        if trainer.progress.step:
            print_line(f"{path}: going on at step {trainer.progress.step} of {trainer.num_steps}")
        return Result(trainer.fit(), opened.task.objective, measured_split(opened.task, reads_test=reads_test))


@final
class _Opened(NamedTuple):
    """A run whose data have been read."""

    task: Task
    start: dict[str, Tensor]
    """Initial tensors in place of the model's own."""
    own_files: dict[str, str]
    """Texts by file name: data fingerprint, machine and commands."""
    is_changed: bool = False
    """Whether these files, or the config, differ from the folder's."""
    has_new_data: bool = False


def _enter(
    folder: RunFolder, config: Run.Config, processes: Processes, entered: contextlib.ExitStack, *, resume: bool
) -> bool:
    """Returns whether the run is new; locks the folder of a run that continues.

    Raises:
        ValueError: the folder is not empty, another process trains in it, or processes have different configs.
    """
    if not resume:
        processes.on_first(lambda: refuse_occupied(folder.path))
    _refuse_other_configs(config, processes)
    is_new = processes.from_first(folder.is_new())
    if not is_new:
        processes.on_first(lambda: entered.enter_context(only_writer(folder.path)))
    return is_new


def _make(folder: RunFolder, config: Run.Config, opened: _Opened, entered: contextlib.ExitStack) -> None:
    """Writes and locks the folder of a new run."""
    entered.enter_context(only_writer(folder.path))
    if not folder.is_new():
        raise ValueError(f"{folder.path}: another process has trained here meanwhile; choose another folder")
    folder.write(config, opened.task.facts, opened.own_files)


def _bring_up_to_date(
    folder: RunFolder, config: Run.Config, opened: _Opened, trainer: Trainer, processes: Processes
) -> None:
    """Updates the folder's files; raises a ValueError where the data of a finished run have changed."""
    if opened.has_new_data and trainer.progress.is_done:
        raise ValueError(f"{folder.path} has ended, and would learn nothing from other data; pass more epochs to go on")
    if opened.is_changed:
        processes.on_first(lambda: folder.write(config, opened.task.facts, opened.own_files))


def _refuse_other_configs(config: Run.Config, processes: Processes) -> None:
    """Raises a ValueError, the same on all, where processes have different versions or configs."""
    gathered = processes.gather((__version__, torch.__version__, to_json(config)))
    for rank, (*versions, other) in enumerate(gathered):
        for name, own, first in zip(("fredholm", "torch"), versions, gathered[0][:2], strict=False):
            if own != first:
                raise ValueError(f"rank {rank} has {name} {own}, rank 0 has {first}; install one version everywhere")
        if difference := first_difference(gathered[0][2], other):
            raise ValueError(
                f"rank 0 and rank {rank} were given different configs ({difference}); start all with one command"
            )


def _refuse_other_data(opened: _Opened, processes: Processes) -> None:
    """Raises a ValueError, the same on all, where processes have read different data."""
    gathered = processes.gather((opened.own_files[FINGERPRINT], to_json(opened.task.facts)))
    first = Fingerprint.of_text(gathered[0][0])
    for rank, (text, facts) in enumerate(gathered):
        if difference := Difference.between(first, Fingerprint.of_text(text)):
            raise ValueError(f"rank 0 and rank {rank} read different data: {difference}; give all the same files")
        if other := first_difference(gathered[0][1], facts):
            raise ValueError(f"rank 0 and rank {rank} learnt different facts from their data ({other})")


def _new_run(
    config: Run.Config,
    tasks: Sequence[type[Task]],
    processes: Processes,
    words: Sequence[str],
    *,
    needs_measure: bool,
    reads_test: bool,
) -> _Opened:
    """Opens a new run: checks its settings and reads its data."""
    check_settings(config, tasks)
    seed_everything(config.seed)
    machine = describe_numerics(choose_device(config.training.device, processes), processes.size)
    with recording_reads() as read:
        task = config.task.build()
        start = _start(config, task, tasks)
        _read_all(task, config)
        if needs_measure and task.learns_by_steps and measured_split(task, reads_test=reads_test) is None:
            raise ValueError(
                "nothing is held out to measure on; pass data with a test set, or a valid_fraction above 0"
            )
    return _Opened(task, start, _own_files(Fingerprint.of(read, config.task.data), machine, words))


def _resumed_run(
    config: Run.Config,
    folder: RunFolder,
    tasks: Sequence[type[Task]],
    processes: Processes,
    words: Sequence[str],
    *,
    accept_new_data: bool,
) -> _Opened:
    """Opens a run that continues.

    Raises:
        ValueError: it has another config, or its data have changed and that is not accepted.
    """
    saved, facts = folder.read(Run.Config, tasks)
    other = first_difference(to_json(_with_free_settings(saved, config)), to_json(config))
    if type(saved.task) is not type(config.task):
        own, given = (_command(each.task, tasks) for each in (saved, config))
        raise ValueError(f"{folder.path} is a run of the task {own}, not {given}; choose another run folder")
    # changed data are reported first, since settings that follow from them then change too
    settings = dataclasses.replace(saved.task, data=config.task.data) if other else config.task
    before = None if accept_new_data and folder.text(FINGERPRINT) is None else _known_data(folder)
    with recording_reads() as read:
        try:
            task = settings.build(facts)
            start = _start(config, task, tasks) if folder.checkpoints.last_step() is None and not other else {}
            _read_all(task, saved)
        except ValueError as error:
            now = Fingerprint.of(read, config.task.data, before)
            if before is None or accept_new_data or not (found := Difference.between(before, now, config.task.data)):
                raise
            raise _of_other_data(folder, found) from error
    now = Fingerprint.of(read, config.task.data, before)
    difference = None if before is None else Difference.between(before, now)
    if difference and not accept_new_data:
        raise _of_other_data(folder, difference)
    if other:
        raise _of_another_config(folder, other)
    if difference:
        print_line(f"{folder.path}: goes on with other data: {difference}")
        print_line("a split that these data lack is drawn again: it may now measure examples that were trained on")
    now = dataclasses.replace(now, start=(before.start if before else {}) | now.start)
    own_files = _own_files(now, _current_machine(folder, config, processes), words, folder.text(COMMANDS) or "")
    is_same = to_json(saved) == to_json(config) and all(folder.text(name) == own_files[name] for name in own_files)
    return _Opened(task, start, own_files, is_changed=not is_same, has_new_data=bool(difference))


def _command(config: Task.Config, tasks: Sequence[type[Task]]) -> str:
    """Returns the command of the task that has these settings."""
    return next(task.command for task in tasks if isinstance(config, task.Config))


def _read_all(task: Task, config: Run.Config) -> None:
    """Opens all data of a task; errors as `check_examples`."""
    check_examples(task, config.training)
    for split in ("valid", "test"):
        task.num_held_out(split)


def _own_files(data: Fingerprint, machine: dict[str, str], words: Sequence[str], commands: str = "") -> dict[str, str]:
    """Returns texts by file name; `commands` holds the earlier commands; a repeated last command is written once."""
    texts = {FINGERPRINT: data.text, MACHINE: json.dumps(machine, indent=2) + "\n"}
    command = visible(shlex.join(["fredholm", *words]))
    if words and commands.splitlines()[-1:] != [command]:
        texts[COMMANDS] = f"{commands}{command}\n"
    return texts


def _known_data(folder: RunFolder | TrainedFolder) -> Fingerprint:
    """Returns the fingerprint of the data that a run read before.

    Raises:
        ValueError: it is missing from the folder, or damaged.
    """
    file, text = folder.path / FINGERPRINT, folder.text(FINGERPRINT)
    if text is None:
        raise ValueError(
            f"{file} is missing, the record of the data that the run read; put it back, or pass --accept-new-data to "
            "go on with the data as they are"
        )
    try:
        return Fingerprint.of_text(text)
    except ValueError as error:
        raise ValueError(f"{file}: {error}; put it back as it was") from error


def _current_machine(folder: RunFolder, config: Run.Config, processes: Processes) -> dict[str, str]:
    """Describes the hardware and software that rounding depends on; prints differences from the folder's record."""
    device = choose_device(config.training.device, processes)
    now, text = describe_numerics(device, processes.size), folder.text(MACHINE)
    if difference := other_numerics(json.loads(text or "{}"), now):
        print_line(f"digits may differ: {difference}")
    return now


def _of_other_data(folder: RunFolder, difference: Difference) -> ValueError:
    return ValueError(
        f"{folder.path} is a run on other data: {difference}; resume it with those, or pass --accept-new-data to go on "
        "with these"
    )


def _of_another_config(folder: RunFolder, difference: str | None) -> ValueError:
    return ValueError(f"{folder.path} is a run of another config: {difference}; resume it unchanged")


def _start(config: Run.Config, task: Task, tasks: Sequence[type[Task]]) -> dict[str, Tensor]:
    """Returns the tensors that replace a new run's initial weights; see `starting_tensors`."""
    return starting_tensors(task, config.seed, config.init, lambda run: Run(user_path(run), tasks=tasks, device="cpu"))


def read_trained(path: Path, tasks: Sequence[type[Task]] = TASKS) -> Trained:
    """Reads the settings and facts of a run in a folder, for a run that starts from its weights.

    Raises:
        ValueError: the folder is no run.
    """
    folder = user_path(path)
    config, facts = TrainedFolder.at(folder).read(Run.Config, tasks)
    return Trained(config.task.in_folder(folder, facts), facts)


def refuse_other(path: Path, config: Run.Config, tasks: Sequence[type[Task]] = TASKS) -> None:
    """Raises a ValueError unless the folder holds a run of this very config."""
    folder = RunFolder(path)
    saved, _ = folder.read(Run.Config, tasks)
    if difference := first_difference(to_json(saved), to_json(config)):
        raise _of_another_config(folder, difference)


def _with_free_settings(saved: Run.Config, given: Run.Config) -> Run.Config:
    """Returns a run's saved config with the settings that may change (`FREE`, data) taken from `given`."""
    free = {name: getattr(given.training, name) for name in FREE}
    task = dataclasses.replace(saved.task, data=given.task.data)
    return dataclasses.replace(saved, task=task, training=dataclasses.replace(saved.training, **free))


def refuse_occupied(path: Path) -> None:
    """Raises a ValueError unless ``path`` is free for a new run; further errors as raised by `refuse_unusable`."""
    if not RunFolder(path).is_new():
        raise ValueError(f"{path} is not empty; choose another --run-dir, or pass --resume to go on with the run in it")
    refuse_unusable(path)


def refuse_unusable(path: Path) -> None:
    """Raises a ValueError where ``path`` is a file or below one, and a PermissionError where it cannot be made."""
    RunFolder(path).is_new()  # raises where there is a file
    lowest = next(each for each in (path, *path.parents) if each.exists())
    try:
        tempfile.TemporaryDirectory(prefix=".fredholm-", dir=lowest).cleanup()
    except OSError as error:  # also where permissions allow it, as in /proc
        message = f"no folder can be made here ({error.strerror}); choose another place"
        raise PermissionError(error.errno, message, str(lowest)) from error
