"""A task small enough to train many times, with every feature that a resumed run could get wrong."""

import random
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy

from fredholm.tasks import Batch, Inputs, Kinds, Objective, Prediction, Task
from fredholm.tasks.splits.splits import HeldOut
from fredholm.training import Run, TrainingConfig

NUM_CLASSES = 3


@final
class ToyTask(Task):
    """Vectors whose class is the largest of three fixed projections."""

    command: ClassVar[str] = "toy"
    objective = Objective(metric="accuracy", percent=True)
    predicts = Kinds(suffixes=(".txt",))

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        num_features: int

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        data: str = "toy"
        num_examples: int = 50
        width: int = 8
        dropout: float = 0.3
        poisoned: int | None = None  # an example with an infinite feature
        held_out: tuple[str, ...] = ("valid", "test")
        starts_at: float | None = None  # the initial biases of the first layer, computed instead of drawn
        learns_by_steps: bool = True

        def build(self, facts: Task.Facts | None = None) -> "ToyTask":
            assert facts is None or isinstance(facts, ToyTask.Facts)
            return ToyTask(self, facts or ToyTask.Facts(num_features=6))

    def __init__(self, config: Config, facts: Facts) -> None:
        self.config, self._facts = config, facts
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(config.num_examples, facts.num_features, generator=generator)
        self.labels = (self.inputs @ torch.randn(facts.num_features, NUM_CLASSES, generator=generator)).argmax(1)
        # Some examples have no target, so that a batch's parts weigh differently.
        self.counted = torch.rand(config.num_examples, generator=generator) < 0.7
        if config.poisoned is not None:
            self.inputs[config.poisoned] = torch.inf
            self.counted[config.poisoned] = True

    @property
    def facts(self) -> Facts:
        return self._facts

    @property
    def num_train(self) -> int:
        return self.config.num_examples

    def num_held_out(self, split: HeldOut) -> int:
        return self.config.num_examples // (1 if split == "valid" else 2) if split in self.config.held_out else 0

    @property
    def learns_by_steps(self) -> bool:
        return self.config.learns_by_steps

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        if self.config.starts_at is not None:
            nn.init.constant_(model.get_parameter("0.bias"), self.config.starts_at)

    def model(self) -> nn.Module:
        width = self.config.width
        return nn.Sequential(
            nn.Linear(self._facts.num_features, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(self.config.dropout),
            nn.Linear(width, NUM_CLASSES),
        )

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        noise = 0.05 * torch.randn(len(indices), self._facts.num_features, generator=generator)
        return {"x": self.inputs[indices] + noise, "labels": self.labels[indices], "counted": self.counted[indices]}

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        return {"x": self.inputs[indices], "labels": self.labels[indices]}

    def num_targets(self, batch: Batch) -> int:
        return int(batch["counted"].sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        each = F.cross_entropy(model(batch["x"]).float(), batch["labels"], reduction="none")
        # Draws from Python's and NumPy's generators, whose states a checkpoint must hold as well as torch's.
        jitter = 1 + 0.1 * self.config.dropout * (random.random() + np.random.rand())  # noqa: NPY002
        return jitter * (each * batch["counted"]).sum()

    def metrics(self) -> dict[str, Metric]:
        return {"accuracy": MulticlassAccuracy(NUM_CLASSES, average="micro"), "loss": MeanMetric()}

    def score(self, model: nn.Module, batch: Batch, metrics: dict[str, Metric]) -> None:
        logits = model(batch["x"])
        metrics["accuracy"].update(logits, batch["labels"])
        metrics["loss"].update(F.cross_entropy(logits, batch["labels"], reduction="none"))

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        sizes = inputs.read(lambda file: file.stat().st_size)
        return [Prediction(file, {"size": float(size)}) for file, size in sizes]


def toy_run(*, poisoned: int | None = None, epochs: int = 3) -> Run.Config:
    return Run.Config(
        task=ToyTask.Config(poisoned=poisoned),
        training=TrainingConfig(
            epochs=epochs,
            batch_size=8,
            accumulation=2,
            learning_rate=1e-2,
            weight_decay=0.1,
            evaluate_every=1,
            checkpoint_every=4,
            log_every=3,
            device="cpu",
            tensorboard=False,
        ),
        seed=7,
    )
