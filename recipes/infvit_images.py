"""Compare five kinds of attention in InfViT on MNIST and on a part of CIFAR-10; vary gamma and the activation.

Command:   fredholm train mnist_infvit --task.model.attention linear
           fredholm train cifar10_infvit --task.model.attention linear
           python recipes/infvit_images.py   (all kinds of attention, the ablations, and the table)
Modality:  images
Hardware:  one core of a two-core AMD EPYC; float32
Time:      3 to 7 minutes a run on CIFAR-10, 2 to 4 on MNIST, 1 in the ablations
Score:     see docs/studies/infvit.md
Paper:     InfSA, figure 2 and table 4, on ImageNet at 224 x 224 with 53 to 331 million parameters

Parts    mnist       softmax, pure, resolvent, factorised, linear
         cifar10     the same; 1,000 test images make a standard error of about 1.5 points
         gamma       linear on MNIST, half of the epochs: gamma 0.3, 0.5, 0.7, 0.9, and learned from 0.7
         activation  pure on MNIST, half of the epochs: relu, gelu, abs (the paper's table has them for linear, whose
                     weights here are rectified always)

Deviations: the paper trains on ImageNet, so none of its figures can be compared. The network has 4 layers of 64
channels and 8 heads. One setting serves all kinds of attention; no test result chose it.
"""

import dataclasses
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro

from fredholm.models.images.infvit import InfViT
from fredholm.tasks import ImageLearning
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.training import Run, TrainingConfig, kept_result
from fredholm.training.kept_result import RESULT_FILE, read_result
from fredholm.training.progress import print_line

Part = Literal["mnist", "cifar10", "gamma", "activation"]
PARTS: tuple[Part, ...] = Part.__args__
ATTENTIONS = ("softmax", "pure", "resolvent", "factorised", "linear")
GAMMAS = ("0.3", "0.5", "0.7", "0.9", "learned")
ACTIVATIONS = ("relu", "gelu", "abs")
NAMES: dict[Part, tuple[str, ...]] = {
    "mnist": ATTENTIONS,
    "cifar10": ATTENTIONS,
    "gamma": GAMMAS,
    "activation": ACTIVATIONS,
}
"""Names of the settings of each part."""


def mnist_infvit() -> Run.Config:
    """Train a four-layer InfViT on MNIST in patches of 7 x 7 pixels.

    Data:  MNIST in ../shared/data/mnist
    Get:   the four idx files, gzipped or not, from https://ossci-datasets.s3.amazonaws.com/mnist; then --task.data
           FOLDER
    Time:  2 to 4 minutes
    """
    augmentation = Augmentation.Config(shift=0.07, rotation=8.0, scale=(0.9, 1.1), label_smoothing=0.05)
    return _images("../shared/data/mnist", patch_size=7, augmentation=augmentation, epochs=4)


def cifar10_infvit() -> Run.Config:
    """Train a four-layer InfViT on 10,000 images of CIFAR-10 in patches of 4 x 4 pixels.

    Data:  10,000 + 1,000 images of CIFAR-10 in ../shared/data/cifar10_subset
    Get:   https://www.cs.toronto.edu/~kriz/cifar.html, saved by numpy as one .npz file with the arrays x_train,
           y_train, x_test and y_test; then --task.data FILE
    Time:  3 to 7 minutes
    """
    augmentation = Augmentation.Config(horizontal_flip=0.5, crop_padding=4, label_smoothing=0.05)
    data = "../shared/data/cifar10_subset/cifar10_11k.npz"
    return _images(data, patch_size=4, augmentation=augmentation, epochs=8)


def _images(data: str, *, patch_size: int, augmentation: Augmentation.Config, epochs: int) -> Run.Config:
    return Run.Config(
        task=ImageLearning.Config(
            valid_fraction=0.0,
            data=data,
            patch_size=patch_size,
            position_frequencies=16,
            position_sigma=1.0,
            model=InfViT.Config(embed_dim=64, depth=4, num_heads=8, attention="linear"),
            augmentation=augmentation,
        ),
        training=TrainingConfig(
            epochs=epochs,
            batch_size=128,
            learning_rate=2e-3,
            warmup_fraction=0.1,
            weight_decay=0.05,
            ema_decay=0.998,
            evaluate_every=epochs,
            evaluation_batch_size=500,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """Runs of the study, and the folder of the results."""

    out: Path = Path("runs/infvit_images")
    """Folder of the run folders and results.json. Finished runs are only read."""
    parts: tuple[Part, ...] = PARTS
    """Parts to run; the table shows all finished runs."""
    names: tuple[str, ...] | None = None
    """Settings of the parts to run, such as pure or 0.3; None: all."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds, with a run for each."""
    mnist: str = "../shared/data/mnist"
    """Path of MNIST, or of images in its place."""
    cifar10: str = "../shared/data/cifar10_subset/cifar10_11k.npz"
    """Path of CIFAR-10, or of images in its place."""
    epochs: int | None = None
    """Upper limit of epochs, to shorten all runs; None: no limit."""

    def __post_init__(self) -> None:
        known = {name for part in self.parts for name in NAMES[part]}
        if self.names is not None and (unknown := [name for name in self.names if name not in known]):
            raise ValueError(f"infvit_images: no setting {unknown[0]!r}; the parts have {sorted(known)}")


class Job(NamedTuple):
    """One training run."""

    part: Part
    name: str
    seed: int

    def folder(self, out: Path) -> Path:
        """The run folder."""
        return out / f"{self.part}-{self.name}-seed-{self.seed}"

    def config(self, config: Config) -> Run.Config:
        """The recipe with the settings of this run."""
        base = cifar10_infvit() if self.part == "cifar10" else mnist_infvit()
        training, task = base.training, base.task
        assert isinstance(task, ImageLearning.Config)
        assert isinstance(task.model, InfViT.Config)
        epochs = training.epochs if self.part in ("mnist", "cifar10") else training.epochs // 2
        epochs = min(epochs, config.epochs or epochs)
        model = dataclasses.replace(task.model, **self._settings())
        data = config.cifar10 if self.part == "cifar10" else config.mnist
        return dataclasses.replace(
            base,
            task=dataclasses.replace(task, model=model, data=data),
            training=dataclasses.replace(training, epochs=epochs, evaluate_every=epochs),
            seed=self.seed,
        )

    def _settings(self) -> dict[str, Any]:
        if self.part == "gamma":
            return {"learn_gamma": True} if self.name == "learned" else {"gamma": float(self.name)}
        if self.part == "activation":
            return {"attention": "pure", "activation": self.name}
        return {"attention": self.name}


def jobs(config: Config) -> Iterator[Job]:
    """All runs, part by part and seed by seed."""
    for part in config.parts:
        for seed in config.seeds:
            for name in NAMES[part]:
                if config.names is None or name in config.names:
                    yield Job(part, name, seed)


def measure(job: Job, done: Run) -> dict[str, Any]:
    """Accuracy in percent and mean cross-entropy on the test split, and the trained gamma."""
    found, model = done.evaluate(), done.model()
    assert isinstance(model, InfViT)
    gamma = None if model.discount is None else model.discount().tolist()
    result = {
        **job._asdict(),
        "accuracy": 100 * found["accuracy"],
        "loss": found["loss"],
        "gamma": gamma,
        "epochs": done.config.training.epochs,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    print_line(f"{job.part} {job.name}, seed {job.seed}: {result['accuracy']:.2f} %")
    return result


def print_results(results: Sequence[dict[str, Any]]) -> None:
    """Prints a line for every setting: mean and standard deviation over seeds."""
    for part, name in dict.fromkeys((r["part"], r["name"]) for r in results):
        own = [r for r in results if (r["part"], r["name"]) == (part, name)]
        words = []
        for key, unit in (("accuracy", " %"), ("loss", " nats")):
            values = [r[key] for r in own]
            spread = f" +- {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            words.append(f"{statistics.mean(values):.3f}{spread}{unit}")
        print_line(
            f"{part:<10} {name:<10} {', '.join(words)} ({len(own)} seeds, {own[0]['parameters']} parameters, "
            f"{own[0]['epochs']} epochs)"
        )


def main(config: Config) -> None:
    """Runs the parts, prints the table and writes results.json."""
    torch.set_num_threads(1)
    config.out.mkdir(parents=True, exist_ok=True)
    for job in jobs(config):
        kept_result(job.config(config), job.folder(config.out), lambda done, job=job: measure(job, done))
    results = [read_result(path.parent) for path in sorted(config.out.glob(f"*/{RESULT_FILE}"))]
    (config.out / "results.json").write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    print_results(results)


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
