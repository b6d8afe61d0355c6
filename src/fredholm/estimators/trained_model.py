"""A picklable trained model with everything needed to use it."""

from typing import Any, final

import torch
from safetensors.torch import load
from torch import Tensor

from fredholm.storage.config_json import from_json, to_json
from fredholm.storage.tensors import fill, model_tensors, tensor_bytes
from fredholm.tasks.task import Task
from fredholm.training.device import choose_device


@final
class TrainedModel:
    """A model with its task, independent of the training data.

    Pickles contain the settings as JSON and the weights as safetensors, so loading these runs no code from the file.

    Args:
        config: the task's settings.
        facts: facts that the task learnt from its training data.
        weights: weights of the model by name.
        device: device to compute on; see `TrainingConfig`.
    """

    def __init__(self, config: Task.Config, facts: Task.Facts, weights: dict[str, Tensor], device: str) -> None:
        self.task = config.build(facts)
        self.device = choose_device(device)
        with torch.random.fork_rng(devices=[]):  # the initial weights are drawn, and then replaced
            model = self.task.model()
        fill(model.requires_grad_(False), weights)
        self.model = model.to(self.device).eval()
        self._config, self._device = config, device

    def __getstate__(self) -> dict[str, Any]:
        return {
            "task": type(self.task),
            "config": to_json(self._config),
            "facts": to_json(self.task.facts),
            "weights": tensor_bytes(model_tensors(self.model), {}),
            "device": self._device,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        task: type[Task] = state["task"]
        known = (task.Config, task.Facts, *task.parts)
        config = from_json(state["config"], task.Config, known)
        self.__init__(config, from_json(state["facts"], task.Facts, known), load(state["weights"]), state["device"])
