"""A trained model with its task, which predicts files as `fredholm predict` does."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fredholm.models.blended import Blended
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.pretrained.checkpoint import find_folder
from fredholm.pretrained.open_model import open_model
from fredholm.storage.model_folder import RUN, ModelFolder
from fredholm.tasks.outputs import Outputs
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.task import Task

from .run import Run
from .storage.run_folder import MANIFEST


@final
class TaskModel(nn.Module):
    """A network with the task that it was trained for: preprocessing, class names, tokenizer.

    Args:
        network: the trained network.
        task: its task.
    """

    def __init__(self, network: nn.Module, task: Task) -> None:
        super().__init__()
        self.network, self.task = network, task

    def forward(self, *inputs: Any, **settings: Any) -> Tensor:
        """Applies the network to a preprocessed batch."""
        return self.network(*inputs, **settings)

    def predict(
        self,
        files: Sequence[str | Path],
        *,
        part: Split | None = None,
        outputs: Outputs | None = None,
        at: str | Path | None = None,
    ) -> list[Prediction]:
        """Predicts each file in evaluation mode, on the device and in the dtype of the network's weights.

        See `Task.predict`.

        Raises:
            ValueError: a file cannot be read or does not fit, or an output file exists already.
        """
        device = next((parameter.device for parameter in self.network.parameters()), torch.device("cpu"))
        was_training = self.network.training
        try:
            with _in_its_dtype(self.network):
                return self.task.predict(self.network.eval(), files, device, part=part, outputs=outputs, at=at)
        finally:
            self.network.train(was_training)


@contextlib.contextmanager
def _in_its_dtype(network: nn.Module) -> Iterator[None]:
    """Casts the float32 inputs of a network to the dtype of its parameters while entered.

    A closed-form model, alone or combined with a network, gets them unchanged and chooses its own precision.
    """
    learnt = network.network if isinstance(network, Blended) else network
    dtype = next((each.dtype for each in learnt.parameters() if each.is_floating_point()), torch.float32)

    def of_dtype(given: Tensor) -> Tensor:
        return given.to(dtype) if given.dtype == torch.float32 else given

    def converted(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return tree_map_only(Tensor, of_dtype, (args, kwargs))

    if dtype == torch.float32 or isinstance(learnt, FittedModel):
        yield
        return
    with learnt.register_forward_pre_hook(converted, with_kwargs=True):
        yield


def from_pretrained(
    place: str | Path, *, revision: str | None = None, dtype: torch.dtype | None = torch.float32
) -> nn.Module:
    """Loads a trained model from a folder or the Hugging Face hub.

    Supported are runs, in their own folder or as `fredholm push` wrote them (a `TaskModel`, which predicts files);
    models written by their `save_pretrained`; and checkpoints of `transformers` and `timm`, which give the same numbers
    here: GPT-2, Llama, Mistral, Qwen2, Mamba, BERT, RoBERTa, DistilBERT, ViT, DeiT, DINOv2 and ConvNeXt.

    Args:
        place: a folder with config.json and safetensors, sharded or not; or `hf://owner/name`, a repository of the hub,
            which needs huggingface_hub (`pip install 'fredholm[hub]'`). Pickles are never read, and no code in a
            repository is run.
        revision: branch, tag or commit of a repository.
        dtype: dtype of the parameters; None: that of the checkpoint.

    Returns:
        the model, in evaluation mode, on the CPU.

    Raises:
        ValueError, OSError: something is missing, damaged or not supported; the message names it and what to do.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be a floating-point type, or None for that of the checkpoint; got {dtype!r}")
    folder = find_folder(place, revision)
    if not _is_run(folder):
        return open_model(folder, dtype)
    with torch.random.fork_rng(devices=[]):  # the initial weights are drawn, and then replaced
        run = Run(folder, device="cpu")
        network = run.model()
    if dtype is not None and dtype != torch.float32:
        network = network._apply(lambda tensor: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor)
    network.requires_grad_(True)
    for part in network.modules():
        if isinstance(part, Blended):  # closed-form parts stay as they were fitted
            part.fitted.requires_grad_(False)
    return TaskModel(network, run.task).eval()


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run folder, or holds the saved model of a run."""
    if ModelFolder.is_one(folder):
        return ModelFolder(folder).content["kind"] == RUN
    return (folder / MANIFEST).is_file()
