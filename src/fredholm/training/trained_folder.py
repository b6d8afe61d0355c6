"""Folders with a trained model: a run folder, or a folder that the model was saved in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

import torch
from torch import nn

from fredholm.storage.model_folder import RUN, ModelFolder
from fredholm.storage.tensors import refuse_non_finite
from fredholm.tasks.files.read_record import recorded
from fredholm.tasks.task import Task

from .storage.checkpoint import Which, check_which
from .storage.run_folder import RunFolder, config_and_facts
from .trainer import Progress, read_progress

T = TypeVar("T")


class TrainedFolder(ABC):
    """A folder with a trained model, and its task's settings and facts."""

    path: Path

    @staticmethod
    @final
    def at(path: Path) -> TrainedFolder:
        """Opens the folder of a run, or of a saved model."""
        return SavedRun(path) if ModelFolder.is_one(path) else OwnRun(path)

    @property
    @abstractmethod
    def config_file(self) -> Path:
        """The file of the settings."""

    @abstractmethod
    def read(self, expected: type, tasks: Sequence[type[Task]]) -> tuple[Any, Task.Facts]:
        """Reads the config, of type ``expected``, and the task's facts; see `RunFolder.read`."""

    @abstractmethod
    def text(self, name: str) -> str | None:
        """Reads another text file; None if it does not exist."""

    @abstractmethod
    def step(self, which: Which) -> int:
        """Returns the step of the weights."""

    @abstractmethod
    def fill(self, model: nn.Module, which: Which) -> None:
        """Loads the averaged weights into a model.

        Raises:
            ValueError: they are missing, damaged, of another model or not finite.
        """

    @property
    @abstractmethod
    def progress(self) -> Progress | None:
        """Returns the progress of the run; None where it is unknown.

        Raises:
            ValueError: there is no checkpoint.
        """


@final
class OwnRun(TrainedFolder):
    """The folder of a run, with its checkpoints.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._folder = path, RunFolder(path)

    @property
    def config_file(self) -> Path:
        """See `TrainedFolder`."""
        return self._folder.config_file

    def read(self, expected: type, tasks: Sequence[type[Task]]) -> tuple[Any, Task.Facts]:
        """See `TrainedFolder`."""
        return self._folder.read(expected, tasks)

    def text(self, name: str) -> str | None:
        """See `TrainedFolder`."""
        return self._folder.text(name)

    def step(self, which: Which) -> int:
        """Returns the step of the checkpoint that was best on the validation split so far, or of the last one."""
        return self._while_it_trains(lambda: self._step(which))

    def fill(self, model: nn.Module, which: Which) -> None:
        """See `TrainedFolder`."""
        self._while_it_trains(lambda: self._fill(model, which))

    @property
    def progress(self) -> Progress:
        """See `TrainedFolder`."""
        return self._while_it_trains(lambda: read_progress(self._folder.checkpoints, self._last_step()))

    def _last_step(self) -> int:
        last = self._folder.checkpoints.last_step()
        if last is None:
            raise ValueError(f"{self.path} has no checkpoint yet")
        return last

    def _step(self, which: Which) -> int:
        check_which(which)
        last = self._last_step()
        if which == "last":
            return last
        best = read_progress(self._folder.checkpoints, last).best_step
        return last if best < 0 else best

    def _fill(self, model: nn.Module, which: Which) -> None:
        step = self._step(which)
        for file in self._folder.checkpoints.average_files(step):
            recorded(file, is_start=True)
        self._folder.checkpoints.load_weights(step, model)
        refuse_non_finite(model, self.path)

    def _while_it_trains(self, read: Callable[[], T]) -> T:
        """Reads from the checkpoints; retries where a run that trains has replaced one of them meanwhile."""
        while True:
            before = self._folder.checkpoints.steps()
            try:
                return read()
            except (ValueError, OSError):
                if self._folder.checkpoints.steps() == before:
                    raise


@final
class SavedRun(TrainedFolder):
    """A folder with the saved model of a run, which has the weights of one step.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._folder = path, ModelFolder(path)

    @property
    def config_file(self) -> Path:
        """See `TrainedFolder`."""
        return self._folder.config_file

    def read(self, expected: type, tasks: Sequence[type[Task]]) -> tuple[Any, Task.Facts]:
        """See `TrainedFolder`."""
        return config_and_facts(self._content, self.config_file, expected, tasks)

    def text(self, name: str) -> str | None:
        """See `TrainedFolder`."""
        return self._folder.text(name)

    def step(self, which: Which) -> int:
        """Returns the step of the saved weights.

        Raises:
            ValueError: the last checkpoint is requested.
        """
        check_which(which)
        if which == "last":
            raise ValueError(f"{self.path} has the weights of one step; leave --checkpoint out")
        step = self._content.get("step")
        if type(step) is not int:
            raise ValueError(f"{self.config_file} does not say the step of its weights; fetch it again")
        return step

    def fill(self, model: nn.Module, which: Which) -> None:
        """See `TrainedFolder`."""
        self.step(which)
        for file in sorted(self.path.glob("*.safetensors")):
            recorded(file, is_start=True)
        self._folder.fill(model, torch.float32)  # the dtype of inputs, whatever the file's dtype

    @property
    def progress(self) -> None:
        """See `TrainedFolder`."""
        return None

    @property
    def _content(self) -> dict[str, Any]:
        content = self._folder.content
        if content["kind"] != RUN:
            raise ValueError(f"{self.path} holds a model without a task; read it with fredholm.from_pretrained")
        return content
