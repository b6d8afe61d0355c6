"""Measure the inputs that an exact kernel needs on images: ITNet, table 5, at a small size.

Command:   python recipes/kernel_inputs.py
Hardware:  one core of a two-core AMD EPYC; float32
Time:      about 2 minutes of processor time a run, 18 runs
Score:     43.8 % on the test split with all inputs, 38.0 % with content alone; see docs/studies/kernel_inputs.md
Paper:     ITNet, table 5: ITNet-B on ImageNet-1K
Data:      ../shared/data/cifar10_subset/cifar10_11k.npz, 10,000 + 1,000 images; a standard error of 1.6 points

The column of images with text is in recipes/nlvr.py, that of point clouds in recipes/points_and_graphs.py, that of
sentences in recipes/sentence_models.py. All sides have one setting and the last weights of each run, so that nothing is
chosen; the test split is read once per run.
"""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import tyro

from fredholm.kernels import KernelInputs
from fredholm.models import ITNet, MLPConfig
from fredholm.tasks import ImageLearning
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.training import Run, TrainingConfig
from fredholm.training.kept_result import kept_result
from fredholm.training.progress import print_line

CONTENT = {"query_content": True, "key_content": True, "product": True}
POSITION = {"query_position": True, "key_position": True, "relative_position": True, "distance": True}
NONE = dict.fromkeys((*CONTENT, *POSITION), False)
SIDES: dict[str, KernelInputs] = {
    "all": KernelInputs(),
    "content alone": KernelInputs(**NONE | CONTENT),
    "positions alone": KernelInputs(**NONE | POSITION),
    "without relative parts": KernelInputs(relative_position=False, distance=False),
    "without the product": KernelInputs(product=False),
    "nothing": KernelInputs(**NONE),
}
"""Inputs of the kernel for each side."""


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Data, and the folder of the runs."""

    data: Path = Path("../shared/data/cifar10_subset/cifar10_11k.npz")
    """File of the images."""
    out: Path = Path("runs/kernel_inputs")
    """Folder of the runs and of results.json. Finished runs are only read."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds, with a run for each."""
    epochs: int = 6
    patch_size: int = 8


def run_of(config: Config, inputs: KernelInputs, seed: int) -> Run.Config:
    """A run whose kernels read these inputs."""
    frequencies: dict[str, Any] = {"num_frequencies": 16} if inputs.has_frequencies else {}
    kernel = MLPConfig(width=16, head_shared=True, inputs=inputs, **frequencies)
    task = ImageLearning.Config(
        valid_fraction=0.0,
        data=str(config.data),
        patch_size=config.patch_size,
        position_frequencies=16,
        position_sigma=1.0,
        model=ITNet.Config(embed_dim=64, depth=3, num_heads=4, kernel=kernel, dropout=0.0),
        augmentation=Augmentation.Config(horizontal_flip=0.5, crop_padding=4, label_smoothing=0.05),
    )
    training = TrainingConfig(
        epochs=config.epochs,
        batch_size=64,
        learning_rate=2e-3,
        weight_decay=0.05,
        ema_decay=0.998,
        evaluate_every=config.epochs,
        evaluation_batch_size=500,
        tensorboard=False,
    )
    return Run.Config(task=task, training=training, seed=seed)


def measured(run: Run) -> dict[str, float]:
    """Accuracy on the test split, and the number of parameters."""
    parameters = sum(parameter.numel() for parameter in run.model().parameters())
    return {"test": run.evaluate()["accuracy"], "parameters": parameters}


def main(config: Config) -> None:
    """Runs the comparison and writes results.json after each side."""
    report: dict[str, Any] = {}
    for name, inputs in SIDES.items():
        place = config.out / name.replace(" ", "_")
        runs = [kept_result(run_of(config, inputs, seed), place / f"{seed}", measured) for seed in config.seeds]
        report[name] = runs
        values = [100 * run["test"] for run in runs]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        print_line(f"{name}, {runs[0]['parameters']} parameters: {statistics.mean(values):.1f}{spread}")
        (config.out / "results.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
