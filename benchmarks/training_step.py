"""Whole training steps of ITNet: ``python -m benchmarks training_step``.

A step is forward under autocast, backward, gradient clipping, AdamW and the moving average of the weights. It is
measured with blocks that store their activations for the backward pass, and with blocks that recompute them (activation
checkpointing). A vision transformer of the same shape takes the same steps. The gate: both kinds of blocks give the
same gradients.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from benchmarks.harness import (
    Benchmark,
    Direction,
    Instance,
    Options,
    Row,
    Settings,
    Step,
    each_alone,
    require_agreement,
    require_known,
)
from benchmarks.harness.instance import Steps
from benchmarks.itnet_problem import PEER, TOLERANCE, ModelConfig, ModelProblem, variants
from fredholm.training.learner import ExponentialMovingAverage

SHAPES = {"S": (384, 6), "B": (768, 12)}
"""Channels and heads of ITNet-S and ITNet-B; both have 12 blocks."""
AGAIN = ", blocks computed again"
_DIRECTION: Direction = "forward+backward"


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults are the paper's two models, with a batch for a GPU."""

    options: Options = field(default_factory=lambda: Options(budget_s=10.0))
    model: ModelConfig = field(default_factory=lambda: ModelConfig(ranks=(32,)))
    shapes: tuple[str, ...] = tuple(SHAPES)
    """ITNet-S, ITNet-B, or both."""
    cases: tuple[str, ...] = ("exact", "low rank 32", PEER)
    """Variants of ITNet, and the peer."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        tiny = {"image_size": 32, "patch_size": 8, "depth": 2, "kernel_width": 8, "num_frequencies": 4}
        model = dataclasses.replace(self.model, **tiny, num_outputs=5, batch=2)
        return dataclasses.replace(self, model=model, shapes=("S",))

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on unknown shapes or cases, and without shapes.

        Variants with sampled nodes are not among the cases, since their proposals have an auxiliary loss.
        """
        if not self.shapes or any(shape not in SHAPES for shape in self.shapes):
            raise ValueError(f"expected shapes among {', '.join(SHAPES)}; got {', '.join(self.shapes) or 'none'}")
        require_known(self.cases, [*(each.name for each in variants(self.model) if each.sampled is None), PEER])
        return self

    def shaped(self, shape: str) -> ModelConfig:
        """The configuration of one shape."""
        channels, heads = SHAPES[shape]
        return dataclasses.replace(self.model, embed_dim=channels, num_heads=heads)


@final
class CheckpointedBlock(nn.Module):
    """A block that stores only its inputs and is recomputed in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *inputs: Any) -> Tensor:
        """The output of the block."""
        return checkpoint(self.block, *inputs, use_reentrant=False)


@final
class Training(Instance):
    """The models of one shape on one batch, each built with its step."""

    def __init__(self, config: Config, shape: str, images: int) -> None:
        self.config, self.shape, self.images = config, shape, images

    def model(self, name: str, problem: ModelProblem) -> nn.Module:
        """The model of a case, in training mode; names that end with ``AGAIN`` have checkpointed blocks."""
        model: Any = problem.model(name.removesuffix(AGAIN)).train()
        if name.endswith(AGAIN):
            for i, block in enumerate(model.blocks):
                model.blocks[i] = CheckpointedBlock(block)
        return model

    def loss(self, model: nn.Module, problem: ModelProblem) -> Tensor:
        """Cross entropy, with the model under autocast if the configuration has it."""
        with problem.config.autocast(problem.device):
            logits = model(problem.images)
        return nn.functional.cross_entropy(logits.float(), problem.labels)

    def step(self, name: str, direction: Direction) -> Step:
        """A whole training step that returns the loss."""
        problem = ModelProblem(self.config.shaped(self.shape), self.config.options, self.images)
        model = self.model(name, problem)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=problem.device.type == "cuda")
        average, taken = ExponentialMovingAverage(model, 0.9999), [0]

        def step() -> Sequence[Tensor]:
            loss = self.loss(model, problem)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            average.update(model, taken[0])
            taken[0] += 1
            return (loss.detach(),)

        return step

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """None: see `compare`."""
        return None


def compare(config: Config, name: str) -> float:
    """The gate: gradients of a model with checkpointed blocks against the same model without."""
    small = dataclasses.replace(config.model, image_size=3 * config.model.patch_size, depth=2)
    training, found = Training(dataclasses.replace(config, model=small), config.shapes[0], 2), []
    for each in (name, name + AGAIN):
        problem = ModelProblem(training.config.shaped(training.shape), config.options, 2)
        model = training.model(each, problem)
        # a hidden layer that a kernel does not have is an empty parameter
        leaves = [parameter for parameter in model.parameters() if parameter.numel()]
        found.append(torch.autograd.grad(training.loss(model, problem), leaves))
    tolerance = TOLERANCE[config.model.precision_on(config.options.torch_device)]
    return require_agreement(f"{name + AGAIN} against {name}", found[1], found[0], tolerance)


def measure(config: Config) -> Iterator[Row]:
    """Compares every case, then measures each step in isolation, for its time and memory."""
    errors = {name: compare(config, name) for name in tqdm(config.cases, desc="comparing", leave=False, disable=None)}
    options, n = config.options, config.model.num_points
    images = config.model.images_on(options.torch_device)
    for shape in tqdm(config.shapes, desc="models", disable=None):
        for name in config.cases:
            for each, error in ((name, None), (name + AGAIN, errors[name])):
                build = functools.partial(Training, config, shape)
                step: Steps = {each: (_DIRECTION,)}
                for _, _, alone in each_alone(
                    build, images, step, config.options, rounds=config.options.rounds, tiny=1
                ):
                    row = Row.alone(f"{shape}, {each}", n, _DIRECTION, alone)
                    yield dataclasses.replace(row, per_second=images / row.ours_s, max_rel_error=error)


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Time and memory of checkpointed blocks over those of plain blocks."""
    kept = {row.case: row for row in rows}
    for row in rows:
        plain = kept.get(row.case.removesuffix(AGAIN))
        if plain is not None and plain is not row and row.peak_mb and plain.peak_mb:
            time, memory = row.ours_s / plain.ours_s, row.peak_mb / plain.peak_mb
            yield f"{row.case}: {time:.2f} of the time and {memory:.2f} of the memory of blocks that keep all"


BENCHMARK = Benchmark(
    name="training_step",
    purpose="training steps of ITNet-S and ITNet-B with autocast, moving average and activation checkpointing",
    config=Config,
    measure=measure,
    notes=notes,
)
