"""Compare one domain of images and text with two-stream networks: whether a sentence is true of three boxes (NLVR).

Command:   python recipes/nlvr.py --data ../shared/data/nlvr --seeds 0 1 2
Hardware:  one core for each process; float32
Time:      about 2 hours, shared with other work
Score:     see docs/studies/nlvr.md; the majority class has 56.2 %, and all sides are within 1.3 points of it
"""

import hashlib
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import tyro

from fredholm.models import ITNet, MLPConfig, TwoStream
from fredholm.tasks import ImageTextLearning
from fredholm.tasks.images.resize import fit
from fredholm.tasks.text import Tokens
from fredholm.training import Run, TrainingConfig
from fredholm.training.kept_result import best_on_both, kept_result
from fredholm.training.progress import print_line

VALID_SHARE = 0.2
"""Fraction of the sentences of the dev split, with all their images; the test split is NLVR's."""
KERNEL = MLPConfig(width=16, num_frequencies=16, sigma=1.0)
SIZES: dict[str, Any] = {"num_heads": 2, "kernel": KERNEL, "expansion": 2, "dropout": 0.1, "drop_path": 0.0}
JOINT = ITNet.Config(embed_dim=64, depth=4, **SIZES)
STREAMS = TwoStream.Config(embed_dim=64, depth=2, fusion="concatenation", **SIZES)
CROSSING = TwoStream.Config(embed_dim=58, depth=2, fusion="cross-attention", **SIZES)
SIDES: dict[str, dict[str, Any]] = {
    "joint, balanced": {"model": JOINT},
    "joint, uniform": {"model": JOINT, "measure": "uniform"},
    "joint, image-heavy": {"model": JOINT, "measure": "image-heavy"},
    "joint, text-heavy": {"model": JOINT, "measure": "text-heavy"},
    "two streams, cross-attention": {"model": CROSSING},
    "two streams, concatenation": {"model": STREAMS},
    "each box apart": {"model": JOINT, "images_apart": True},
    "images alone": {"model": JOINT, "modalities": "image"},
    "text alone": {"model": JOINT, "modalities": "text"},
}
"""Task settings of each side, all with about as many parameters."""


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Data, models, and the folder of the runs."""

    data: Path = Path("../shared/data/nlvr")
    """Folder of nlvr_dev.npz and nlvr_test.npz."""
    sides: tuple[str, ...] = tuple(SIDES)
    """Names of the models to train."""
    out: Path = Path("runs/nlvr")
    """Folder of the runs and of results.json."""
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: tuple[float, ...] = (1e-3, 3e-3)
    """Peak learning rates; each side takes the one that is best on the validation split with the first seed."""
    epochs: int = 12
    image_size: int = 48
    """Side of a scaled box in pixels; originals have 100."""
    patch_size: int = 16

    def __post_init__(self) -> None:
        if unknown := [name for name in self.sides if name not in SIDES]:
            raise ValueError(f"no side {unknown[0]!r}; expected some of {', '.join(SIDES)}")


def prepared(config: Config) -> Path:
    """Both splits as one .npz file for the task, with scaled boxes and a validation split of separate sentences."""
    path = config.out / f"nlvr-{config.image_size}.npz"
    if path.is_file():
        return path
    parts: dict[str, list[Any]] = {"images": [], "text": [], "label": [], "split": []}
    for name in ("dev", "test"):
        with np.load(config.data / f"nlvr_{name}.npz", allow_pickle=False) as found:
            boxes, sentences, labels = found["boxes"], found["sentence"], found["label"]
        pixels = torch.from_numpy(boxes).flatten(0, 1).movedim(-1, 1).contiguous()
        scaled = fit(pixels, (config.image_size, config.image_size)).movedim(1, -1)
        parts["images"].append(scaled.unflatten(0, boxes.shape[:2]).numpy())
        parts["text"].append(sentences.astype(str))
        parts["label"].append(labels)
        parts["split"].append(["test" if name == "test" else _split_of(text) for text in sentences.astype(str)])
    path.parent.mkdir(parents=True, exist_ok=True)
    joined: dict[str, Any] = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    np.savez_compressed(path, **joined)
    return path


def _split_of(sentence: str) -> str:
    """Train or valid, by a hash of the sentence."""
    number = int.from_bytes(hashlib.blake2b(sentence.encode(), digest_size=8).digest(), "big")
    return "valid" if number < VALID_SHARE * 2**64 else "train"


def run_of(config: Config, side: str, rate: float, seed: int) -> Run.Config:
    """A run of one side."""
    settings = {"patch_size": config.patch_size, "tokens": Tokens(vocab_size=600), "context": 48} | SIDES[side]
    modalities = settings.get("modalities", "both")
    if modalities != "text":
        settings["shuffle_images"] = True  # the sentences do not depend on the order of the boxes
    for idle in {"image": ("tokens", "context"), "text": ("patch_size",)}.get(modalities, ()):
        del settings[idle]
    task = ImageTextLearning.Config(data=str(prepared(config)), position_sigma=1.0, **settings)
    training = TrainingConfig(
        epochs=config.epochs, batch_size=32, learning_rate=rate, weight_decay=0.1, ema_decay=0.98, tensorboard=False
    )
    return Run.Config(task=task, training=training, seed=seed)


def measured(run: Run) -> dict[str, float]:
    """The accuracy on both splits at the best checkpoint, and the number of parameters."""
    found = {split: metrics["accuracy"] for split, metrics in best_on_both(run).items()}
    return found | {"parameters": sum(parameter.numel() for parameter in run.model().parameters())}


def reached(config: Config, side: str) -> dict[str, Any]:
    """The results of a side's runs at the best rate."""
    place = config.out / side.replace(", ", "-").replace(" ", "_")

    def at(rate: float, seed: int) -> dict[str, Any]:
        return kept_result(run_of(config, side, rate, seed), place / f"{rate:g}" / f"{seed}", measured)

    rate = max(config.rates, key=lambda rate: at(rate, config.seeds[0])["valid"])
    return {"rate": rate, "runs": [at(rate, seed) for seed in config.seeds]}


def majority(config: Config) -> dict[str, float]:
    """Accuracy of the most frequent training label on each split."""
    with np.load(prepared(config)) as found:
        label, split = found["label"], found["split"]
    answer = label[split == "train"].mean() >= 0.5
    return {name: float((label[split == name] == answer).mean()) for name in ("valid", "test")}


def summary(found: dict[str, Any], split: str) -> str:
    """Mean and standard deviation over the runs, in percent."""
    values = [100 * each[split] for each in found["runs"]]
    spread = f" +- {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{split} {statistics.mean(values):.1f}{spread}"


def main(config: Config) -> None:
    """Runs the comparison, prints its table and writes results.json.

    Results of other sides in the folder's results.json are kept.
    """
    config.out.mkdir(parents=True, exist_ok=True)
    results = config.out / "results.json"
    report: dict[str, Any] = json.loads(results.read_text()) if results.is_file() else {}
    report["majority"] = majority(config)
    print_line(f"majority: valid {100 * report['majority']['valid']:.1f}, test {100 * report['majority']['test']:.1f}")
    for side in config.sides:
        report[side] = found = reached(config, side)
        parameters = found["runs"][0]["parameters"]
        accuracies = f"{summary(found, 'valid')}, {summary(found, 'test')}"
        print_line(f"{side}, {parameters} parameters, rate {found['rate']:g}: {accuracies}")
        results.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
