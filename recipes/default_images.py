"""Compare the default of `fredholm train images` with a vision transformer and a ResNet, at equal parameters and time.

Command:   python -m recipes.default_images --seconds 60
Modality:  images
Hardware:  one core of an AMD EPYC; float32
Time:      a minute of processor time a run, nine runs; `--seconds` sets it
Score:     see docs/studies/default_images.md
Data:      ../shared/data/cifar10_subset/cifar10_11k.npz, 10,000 + 1,000 images of CIFAR-10

All three have as many parameters as the default to within 5 %, see the same images in the same order with the same
augmentation, and are trained by AdamW for the same processor time, with a warmup over a tenth and a cosine schedule.
Each takes the rate that is best on the validation split; the test split is read once, by that run. The transformer has
patches of 4 x 4 pixels and 5 blocks; the ResNet has basic blocks with batch norm (He et al., arXiv 1512.03385), one in
each of three stages at 32, 16 and 8 cells a side.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from benchmarks.peers.vision_transformer import VisionTransformer
from fredholm.tasks import ImageLearning
from fredholm.tasks.splits.splits import HeldOut
from fredholm.training.learner import parameter_groups
from fredholm.training.progress import print_line

Side = Literal["default", "resnet", "vision transformer"]
SIDES: tuple[Side, ...] = Side.__args__
TOLERANCE = 0.05
"""Relative difference by which the numbers of parameters may differ."""


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Models to compare, data, and time."""

    data: str = "../shared/data/cifar10_subset/cifar10_11k.npz"
    sides: tuple[Side, ...] = SIDES
    rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3)
    """Learning rates that each model is tried at."""
    seconds: float = 60.0
    """Seconds of processor time per run."""
    batch_size: int = 64
    seeds: tuple[int, ...] = (0,)
    out: Path = Path("runs/default_images")


@final
class _BasicBlock(nn.Module):
    """Two convolutions with batch norm, and a shortcut; He et al., figure 2."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _normed(before, after, 3, stride), _normed(after, after, 3, 1)
        self.shortcut = nn.Identity() if (before, stride) == (after, 1) else _normed(before, after, 1, stride)

    def forward(self, u: Tensor) -> Tensor:
        """`(B, before, H, W)` to `(B, after, H / stride, W / stride)`."""
        return F.relu(self.second(F.relu(self.first(u))) + self.shortcut(u))


def _normed(before: int, after: int, size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(after))


def resnet(width: int, num_outputs: int) -> nn.Module:
    """Three basic blocks, the first with ``width`` channels; in channels-last memory, which is faster."""
    net = nn.Sequential(
        _normed(3, width, 3, 1),
        nn.ReLU(),
        _BasicBlock(width, width, 1),
        _BasicBlock(width, 2 * width, 2),
        _BasicBlock(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, num_outputs),
    )
    return net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def size_of(model: nn.Module) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in model.parameters())


def of_size(target: int, build: Callable[[int], nn.Module], widths: range) -> nn.Module:
    """A new model whose number of parameters is nearest to ``target``, initialised from the global random state."""
    state = torch.get_rng_state()
    nearest = min(widths, key=lambda width: abs(size_of(build(width)) - target))
    torch.set_rng_state(state)
    model = build(nearest)
    if abs(size_of(model) - target) > TOLERANCE * target:
        raise ValueError(f"the nearest model has {size_of(model):,} parameters; expected {target:,}")
    return model


def build(side: Side, task: ImageLearning) -> nn.Module:
    """A model of the default's size."""
    if side == "default":
        return task.model()
    state = torch.get_rng_state()
    target = size_of(task.model())
    torch.set_rng_state(state)
    classes, (height, width) = len(task.facts.target.names), task.facts.image_size
    if side == "vision transformer":
        if height != width or height % 4 or task.facts.channels != 3:
            raise ValueError(f"the transformer takes square images in colour; got {height} x {width}")
        settings: dict[str, Any] = {"image_size": height, "patch_size": 4, "depth": 5, "num_outputs": classes}
        return of_size(
            target, lambda width: VisionTransformer(embed_dim=width, num_heads=4, **settings), range(16, 257, 4)
        )
    return of_size(target, lambda width: resnet(width, classes), range(4, 97))


def trained(model: nn.Module, task: ImageLearning, rate: float, config: Config, seed: int) -> dict[str, Any]:
    """Trains for ``config.seconds``; returns steps, epochs and the accuracy on the validation split."""
    generator, n, batch = torch.Generator().manual_seed(seed), task.num_train, config.batch_size
    optimiser = torch.optim.AdamW(parameter_groups(model, 0.05), lr=rate, betas=(0.9, 0.99))
    order, steps, start = torch.randperm(n, generator=generator), 0, time.process_time()
    model.train()
    while (share := (time.process_time() - start) / config.seconds) < 1:
        for group in optimiser.param_groups:
            fall = 0.5 * (1 + math.cos(math.pi * max(0.0, share - 0.1) / 0.9))
            group["lr"] = rate * min(1.0, share / 0.1) * fall
        if len(order) < batch:
            order = torch.randperm(n, generator=generator)
        indices, order = order[:batch], order[batch:]
        inputs = task.train_batch(indices, generator)
        loss = task.loss(model, inputs) / len(indices)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        steps += 1
    return {"steps": steps, "epochs": round(steps * batch / n, 2), "valid": accuracy(model, task, "valid")}


@torch.no_grad()
def accuracy(model: nn.Module, task: ImageLearning, split: HeldOut) -> float:
    """Accuracy on a split."""
    model.eval()
    right = 0
    for indices in torch.arange(task.num_held_out(split)).split(250):
        batch = task.held_out_batch(split, indices)
        right += int((model(batch["images"]).argmax(-1) == batch["targets"]).sum())
    return right / task.num_held_out(split)


def main(config: Config) -> None:
    """Trains each model at each rate, and reads the test split with the best run of each seed."""
    torch.set_num_threads(1)
    settings, *_ = ImageLearning.Config(data=config.data).recommended("small")
    task = settings.build()
    assert isinstance(task, ImageLearning)
    if not task.learns_by_steps:
        raise ValueError(f"the default for {task.num_train:,} images is fitted in closed form; give more images")
    config = dataclasses.replace(config, out=config.out.expanduser())
    config.out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for seed in config.seeds:
        for side in config.sides:
            best: tuple[float, nn.Module] | None = None
            for rate in config.rates:
                torch.manual_seed(seed)
                model = build(side, task)
                found = trained(model, task, rate, config, seed)
                row = {"side": side, "seed": seed, "rate": rate, "parameters": size_of(model), **found}
                print_line(json.dumps(row))
                results.append(row)
                if best is None or found["valid"] > best[0]:
                    best = found["valid"], model
            assert best is not None
            chosen = max((r for r in results if (r["side"], r["seed"]) == (side, seed)), key=lambda r: r["valid"])
            chosen["test"] = accuracy(best[1], task, "test")
            print_line(f"{side}, seed {seed}: test accuracy {100 * chosen['test']:.2f} %")
            (config.out / "results.json").write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
