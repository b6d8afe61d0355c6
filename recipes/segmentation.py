"""Compare kernels at classifying pixels: ITNets that differ in the kernel, on patches of one size and of two.

Command:   python recipes/segmentation.py --data ../shared/data --out runs/segmentation --seeds 0 1 2
Hardware:  one core of an AMD EPYC; float32
Time:      50 minutes, shared with other work
Score:     mean intersection over union on the test split 54.4 % with exact kernels, 49.4 % with attention; see
           docs/studies/segmentation.md
Data:      ../shared/data/bccd, 364 images of blood of 96 x 128 pixels with a box for each cell, in the source's split
           of 205, 87 and 72 images

The masks are made here from the boxes: a cell is the ellipse inscribed in its box, red cells first, then white ones,
then platelets, each over the earlier ones. Cells are round, so that ellipses lie close to them, but nobody drew them as
outlines; and a red cell without a box in the source counts as ground.

Every side takes the rate of `--rates` that is best on the validation split with the first seed, and every run the
checkpoint that is best there. The test split is read once per run, at the end.
"""

import dataclasses
import importlib.util
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import tyro
from torch import Tensor

from fredholm.models import AttentionConfig, ITNet, KernelConfig, LowRankConfig, MLPConfig, SeparableConfig
from fredholm.tasks import Segmentation
from fredholm.tasks.files.npz_arrays import load_arrays
from fredholm.tasks.masks.answer import palette
from fredholm.tasks.masks.augmentation import MaskAugmentation
from fredholm.training import Run, TrainingConfig
from fredholm.training.kept_result import best_on_both, kept_result
from fredholm.training.progress import print_line

CLASSES = ("ground", "red cell", "white cell", "platelet")
RED, WHITE, PLATELET = 0, 1, 2
"""Kinds of boxes."""
ORDER = (RED, WHITE, PLATELET)
"""Order of layers, the lowest first."""
SIZES: dict[str, Any] = {"num_frequencies": 16, "sigma": 2.0}
MEASURES = ("mean_iou", "accuracy")
SHOWN = 4
"""Test images in the picture."""


@final
@dataclass(frozen=True, kw_only=True)
class Side:
    """A model of the comparison."""

    kernel: KernelConfig
    embed_dim: int
    """Channels, chosen so that all sides have about as many parameters."""
    num_heads: int = 4
    patch_sizes: tuple[int, ...] = (8,)


EXACT = MLPConfig(width=8, head_shared=True, **SIZES)
LOW_RANK = LowRankConfig(rank=8, width=16, **SIZES)
SIDES = {
    "low rank": Side(kernel=LOW_RANK, embed_dim=60),
    "separable": Side(kernel=SeparableConfig(width=32, **SIZES), embed_dim=64),
    "exact": Side(kernel=EXACT, embed_dim=72, num_heads=2),
    "attention": Side(kernel=AttentionConfig(), embed_dim=68),
    "low rank, two scales": Side(kernel=LOW_RANK, embed_dim=48, patch_sizes=(8, 16)),
    "exact, two scales": Side(kernel=EXACT, embed_dim=56, num_heads=2, patch_sizes=(8, 16)),
}


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Models to train, settings of the runs, and their folder."""

    data: Path = Path("../shared/data")
    """Folder of bccd."""
    out: Path = Path("runs/segmentation")
    """Folder of the masks, the runs, results.json and segmentation.png. Finished runs are only read."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds, with a run for each."""
    only: tuple[str, ...] = ()
    """Names of the models to train; (): all."""
    rates: tuple[float, ...] = (2e-3, 5e-3)
    """Peak learning rates, of which each side takes the best."""
    epochs: int = 12
    """Passes over the training images."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.only if name not in SIDES]:
            raise ValueError(f"no side {unknown[0]!r}; expected some of {', '.join(SIDES)}")


def ellipses(boxes: Tensor, kind: Tensor, size: tuple[int, int]) -> Tensor:
    """The class of each pixel whose centre lies in the ellipse of a box; ground elsewhere.

    Args:
        boxes: left, top, right and bottom as fractions of the image, `(n, 4)`.
        kind: RED, WHITE or PLATELET, `(n,)`.
        size: height and width.

    Returns:
        uint8 `(H, W)`, numbers of `CLASSES`.
    """
    height, width = size
    mask = torch.zeros(size, dtype=torch.uint8)
    down, right = (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width
    for layer in ORDER:
        for left, top, end, bottom in boxes[kind == layer].tolist():
            across = (2 * right - left - end) / (end - left)
            along = (2 * down - top - bottom) / (bottom - top)
            mask[along[:, None].square() + across.square() <= 1] = 1 + layer
    return mask


def write_masks(data: Path, file: Path) -> None:
    """Writes images with masks of ellipses in the source's split, in the format of `open_masks`."""
    arrays = load_arrays(data / "bccd" / "bccd_128x96.npz")
    images = arrays["images"]
    boxes, kind = torch.from_numpy(arrays["boxes_xyxy"]).double(), torch.from_numpy(arrays["box_class"]).long()
    image_of_box = torch.from_numpy(arrays["box_image"]).long()
    size = (images.shape[1], images.shape[2])
    masks = [ellipses(boxes[image_of_box == i], kind[image_of_box == i], size) for i in range(len(images))]
    np.savez(file, images=images, masks=torch.stack(masks).numpy(), classes=CLASSES, split=arrays["split"])


def run_of(side: Side, config: Config, *, rate: float, seed: int) -> Run.Config:
    """The configuration of one run."""
    stack = ITNet.Config(
        embed_dim=side.embed_dim,
        depth=3,
        num_heads=side.num_heads,
        kernel=side.kernel,
        expansion=2,
        dropout=0.0,
        pool="none",
    )
    task = Segmentation.Config(
        data=str(masks_file(config)),
        patch_sizes=side.patch_sizes,
        num_pixels=128,
        stride=4,
        augmentation=MaskAugmentation.Config(
            crop_scale=(0.5, 1.0), horizontal_flip=0.5, vertical_flip=0.5, brightness=0.1, contrast=0.1
        ),
        model=stack,
    )
    numbers = TrainingConfig(
        epochs=config.epochs,
        batch_size=8,
        learning_rate=rate,
        warmup_fraction=0.1,
        weight_decay=0.05,
        ema_decay=0.99,
        device="cpu",
        evaluate_every=min(4, config.epochs),
        evaluation_batch_size=32,
        tensorboard=False,
    )
    return Run.Config(task=task, training=numbers, seed=seed)


def masks_file(config: Config) -> Path:
    """File of the masks."""
    return config.out / "bccd.npz"


def measured(run: Run) -> dict[str, float]:
    """Mean intersection over union and accuracy on both splits, at the checkpoint that is best on validation.

    All pixels count; predictions are made for squares of two by two pixels.
    """
    found = best_on_both(run, stride=2)
    measured = {f"{split} {name}": found[split][name] for split in found for name in MEASURES}
    return measured | {"parameters": sum(p.numel() for p in run.model().parameters())}


def place_of(config: Config, name: str, rate: float, seed: int) -> Path:
    """The folder of a run."""
    return config.out / name.replace(", ", "-").replace(" ", "_") / f"{rate:g}" / f"seed-{seed}"


def reached(name: str, config: Config) -> dict[str, Any]:
    """The results of a side's runs at the best rate."""

    def at(rate: float, seed: int) -> dict[str, Any]:
        run = run_of(SIDES[name], config, rate=rate, seed=seed)
        return kept_result(run, place_of(config, name, rate, seed), measured)

    rate = max(config.rates, key=lambda rate: at(rate, config.seeds[0])["valid mean_iou"])
    return {"rate": rate, "seeds": list(config.seeds), "runs": [at(rate, seed) for seed in config.seeds]}


def summary(found: dict[str, Any], key: str) -> str:
    """Mean and standard deviation over the runs, in percent."""
    values = [100 * each[key] for each in found["runs"]]
    spread = f" +- {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{key} {statistics.mean(values):.1f}{spread}"


@torch.no_grad()
def draw_figure(report: dict[str, dict[str, Any]], config: Config) -> None:
    """Draws test images, their masks, and the predictions of each side's first run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    colours, columns = palette(len(CLASSES)), dict[str, list[np.ndarray]]()
    for name, found in report.items():
        run = Run(place_of(config, name, found["rate"], found["seeds"][0]), device="cpu")
        task = dataclasses.replace(run.config.task, stride=1).build(run.task.facts)  # pyright: ignore[reportCallIssue]
        assert isinstance(task, Segmentation)
        chosen = torch.arange(min(SHOWN, task.num_held_out("test")))
        model, batch = run.model("best"), task.held_out_batch("test", chosen)
        if not columns:
            columns["image"] = list(task.held_out("test").images(chosen).permute(0, 2, 3, 1).numpy())
            columns["known"] = [colours[mask.numpy()] for mask in batch["targets"]]
        size = (batch["targets"].shape[1], batch["targets"].shape[2])
        columns[name] = [
            colours[torch.cat([logits.argmax(-1) for _, logits in task.logits(model, image[None], size)], 1)[0].numpy()]
            for image in batch["images"]
        ]
    rows = len(columns["image"])
    figure, panels = plt.subplots(
        rows, len(columns), figsize=(2.1 * len(columns), 1.7 * rows + 0.6), layout="constrained", squeeze=False
    )
    for column, (name, pictures) in enumerate(columns.items()):
        panels[0, column].set_title(name, fontsize=9)
        for row, picture in enumerate(pictures):
            panels[row, column].imshow(picture, interpolation="nearest")
            panels[row, column].set_axis_off()
    handles = [Patch(facecolor=tuple(colours[k] / 255), edgecolor="gray", label=name) for k, name in enumerate(CLASSES)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(CLASSES), fontsize=8)
    figure.savefig(config.out / "segmentation.png", dpi=110)
    plt.close(figure)


def main(config: Config) -> None:
    """Runs the comparison, prints its table and writes results.json and segmentation.png.

    Results of other sides in the folder's results.json are kept, and drawn too.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("segmentation: the figure needs matplotlib: pip install 'fredholm[viz]'")
    torch.set_num_threads(1)
    config.out.mkdir(parents=True, exist_ok=True)
    if not masks_file(config).is_file():
        write_masks(config.data, masks_file(config))
    results = config.out / "results.json"
    report: dict[str, dict[str, Any]] = json.loads(results.read_text()) if results.is_file() else {}
    for name in config.only or SIDES:
        report[name] = found = reached(name, config)
        numbers = ", ".join(summary(found, f"{split} {name}") for split in ("valid", "test") for name in MEASURES)
        print_line(f"{name}, {found['runs'][0]['parameters']} parameters, rate {found['rate']:g}: {numbers}")
        results.write_text(json.dumps(report, indent=1))
    draw_figure(report, config)


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
