"""Measure whether a class token's attention finds the object: InfViT with five kinds of attention on three scenes.

Command:   python recipes/attention_quality.py
Hardware:  one core of a two-core AMD EPYC; float32
Time:      see docs/studies/attention_quality.md
Score:     see docs/studies/attention_quality.md
Paper:     Infinite Self-Attention, section 4.2 and supplement, sections 8, 9 and 13
Data:      see recipes/object_images.py

Parts    canvas        digits among fragments of digits; maps of 500 held-out canvases
         cells         crops of blood cells; maps of whole test images, larger than any crop
         photographs   small photographs of ten classes; maps of 53 photographs of other things, twice as large

A map holds the class token's attention weights of a layer for each patch, the mean of the heads, clamped at 0 (the
paper reads the last layer). The rollout multiplies all layers; the random map is drawn. A patch belongs to the object
if at least half of its area does. Removed patches become their image's mean, an eighth of all at a time, and the
confidence is that in the class predicted for the whole image.

Deviations: other data, small models and patches than the paper's; it measures 2,088 images of ImageNet
with boxes and 1,000 for the degradation, in models of 24 layers. It does not name the fill, the step or the class.
"""

import dataclasses
import importlib.util
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro
from torch import Tensor, nn

from fredholm import analysis
from fredholm.models.images.infvit import AttentionKind
from fredholm.training import Run, kept_result
from fredholm.training.kept_result import RESULT_FILE, read_result
from fredholm.training.progress import print_line
from fredholm.training.recipes import Recipe, open_recipe

Part = Literal["canvas", "cells", "photographs"]
PARTS: tuple[Part, ...] = Part.__args__
ATTENTIONS: tuple[AttentionKind, ...] = ("softmax", "pure", "linear", "resolvent", "factorised")
SEEDS = (0, 1, 2)
LOCATED = 500
"""Largest number of images whose maps are compared with their objects."""
DEGRADED = {"canvas": 64, "cells": 32, "photographs": 32}
"""Numbers of images from which patches are removed."""
STEPS = 8
SAMPLED = 128
"""Number of images whose heads are compared with Perron vectors."""
SHOWN = 4
CHUNK = 50
MEASURES = ("roc_auc", "pr_auc", "average_precision", "morf_aoc", "lerf_auc")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Runs of the study, and the folder of the results."""

    out: Path = Path("runs/attention_quality")
    """Folder of the run folders, results.json and the pictures. Finished runs are only read."""
    parts: tuple[Part, ...] = PARTS
    """Parts to run; table and pictures show all finished runs."""
    attentions: tuple[AttentionKind, ...] = ATTENTIONS
    """Kinds of attention to run."""
    seeds: tuple[int, ...] = SEEDS
    """Seeds, with a run for each."""
    epochs: int | None = None
    """Epochs of training; None: those of recipes/object_images.py."""
    data: Path = Path("../shared/data")
    """Folder with a folder for each data set."""


class Job(NamedTuple):
    """One training run."""

    part: Part
    attention: AttentionKind
    seed: int

    def folder(self, out: Path) -> Path:
        """The run folder."""
        return out / f"{self.part}-{self.attention}-seed-{self.seed}"

    def recipe(self, config: Config) -> Recipe:
        """The recipe of this run, with its task."""
        found = open_recipe(f"{Path(__file__).with_name('object_images.py')}:object_{self.part}")
        settings: Any = found.config.task
        model = dataclasses.replace(settings.model, attention=self.attention)
        task = dataclasses.replace(settings, data=str(config.data), model=model)
        training = found.config.training
        if config.epochs is not None:
            training = dataclasses.replace(training, epochs=config.epochs, evaluate_every=config.epochs)
        return dataclasses.replace(found, config=Run.Config(task=task, training=training, seed=self.seed))


class Scene(NamedTuple):
    """A trained model and held-out images with objects."""

    net: nn.Module
    images: Tensor
    """Inputs of the model, `(n, C, H, W)`."""
    pixels: Tensor
    """The same images in [0, 1], for pictures."""
    inside: Tensor
    """Whether patches belong to an object, `(n, rows, columns)` bool."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.inside.shape[1], self.inside.shape[2]


def open_scene(job: Job, config: Config) -> Scene:
    """A run's model and the images for its maps, except images that are all object or all background."""
    done = Run(job.folder(config.out), tasks=job.recipe(config).tasks, device="cpu")
    settings: Any = done.config.task
    marked = dataclasses.replace(settings, marked=True).build(done.task.facts)
    batch = marked.held_out_batch("test", torch.arange(min(LOCATED, marked.num_held_out("test"))))
    height, width = batch["images"].shape[2:]
    inside = analysis.patch_labels(batch["inside"], (height // settings.patch_size, width // settings.patch_size))
    both = inside.flatten(1).any(1) & ~inside.flatten(1).all(1)
    return Scene(done.model(), batch["images"][both], batch["pixels"][both], inside[both])


@torch.no_grad()
def maps_of(net: nn.Module, images: Tensor, grid: tuple[int, int]) -> dict[str, Tensor]:
    """Relevance of patches by every layer, by the rollout and at random, `(n, rows, columns)` each."""
    parts: dict[str, list[Tensor]] = {}
    for some in images.split(CHUNK):
        with analysis.record_weights(net) as weights:
            net(some)
        layers = list(weights.values())
        read = {f"layer {i}": analysis.patch_relevance(layer, grid) for i, layer in enumerate(layers, start=1)}
        read["rollout"] = analysis.patch_relevance(analysis.attention_rollout(layers), grid)
        for name, relevance in read.items():
            parts.setdefault(name, []).append(relevance)
    chance = torch.rand(len(images), *grid, generator=torch.Generator().manual_seed(0))
    return {name: torch.cat(relevance) for name, relevance in parts.items()} | {"random": chance}


def measure(scene: Scene, degraded: int) -> dict[str, dict[str, float]]:
    """The measures of every map, as means over the images."""
    images = scene.images[:degraded]
    with torch.no_grad():
        predicted = scene.net(images).argmax(-1)

    def confidence(seen: Tensor) -> Tensor:
        return scene.net(seen).softmax(-1)[torch.arange(len(seen)), predicted]

    found = {}
    for name, relevance in maps_of(scene.net, scene.images, scene.grid).items():
        located = analysis.localisation(relevance, scene.inside)
        own = relevance[:degraded]
        morf, lerf = (
            analysis.degradation_curve(confidence, images, own, order=order, steps=STEPS) for order in ("morf", "lerf")
        )
        values = (*located, morf.aoc, lerf.auc)
        found[name] = {m: value.mean().item() for m, value in zip(MEASURES, values, strict=True)}
    return found


def aligned(scene: Scene) -> dict[str, dict[str, float]]:
    """Alignment of each layer's weights with Perron vectors in a linear model, mean and deviation."""
    found = {}
    for layer, own in analysis.perron_alignment(scene.net, scene.images[:SAMPLED]).items():
        found[layer] = {"samples": own.cosine.numel()}
        for name, values in own._asdict().items():
            found[layer] |= {name: values.mean().item(), f"{name}_deviation": values.std().item()}
    return found


def run(job: Job, config: Config) -> dict[str, Any]:
    """Trains and measures; a finished run is only read, and one with other settings is refused."""
    recipe = job.recipe(config)
    return kept_result(
        recipe.config, job.folder(config.out), lambda done: found_in(done, job, config), tasks=recipe.tasks
    )


def found_in(done: Run, job: Job, config: Config) -> dict[str, Any]:
    """The measures of a trained run and of its maps."""
    scene = open_scene(job, config)
    result: dict[str, Any] = {
        **job._asdict(),
        "epochs": done.config.training.epochs,
        "parameters": sum(p.numel() for p in scene.net.parameters()),
        "accuracy": done.evaluate()["accuracy"],
        "images": len(scene.images),
        "degraded": min(DEGRADED[job.part], len(scene.images)),
        "foreground": scene.inside.double().mean().item(),
        "maps": measure(scene, DEGRADED[job.part]),
        "alignment": aligned(scene) if job.attention == "linear" else None,
    }
    print_results([result])
    return result


def jobs(config: Config) -> Iterator[Job]:
    """All runs, seed by seed."""
    for seed in config.seeds:
        for part in config.parts:
            for attention in config.attentions:
                yield Job(part, attention, seed)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds, in percent."""
    mean = f"{100 * statistics.mean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} +- {100 * statistics.stdev(values):.1f}"


def print_results(results: Sequence[dict[str, Any]]) -> None:
    """Prints a line for every map of every part and attention, in percent, and one for every layer's alignment."""
    for part, attention in dict.fromkeys((r["part"], r["attention"]) for r in results):
        own = [r for r in results if (r["part"], r["attention"]) == (part, attention)]
        print_line(
            f"{part} {attention}: accuracy {spread([r['accuracy'] for r in own])}, {len(own)} seeds, "
            f"{own[0]['epochs']} epochs, {own[0]['parameters']} parameters, {own[0]['images']} images, "
            f"{spread([r['foreground'] for r in own])} foreground"
        )
        for name in own[0]["maps"]:
            values = (f"{m} {spread([r['maps'][name][m] for r in own])}" for m in MEASURES)
            print_line(f"    {name:<8} {', '.join(values)}")
        for r in own:
            for layer, a in (r["alignment"] or {}).items():
                print_line(
                    f"    seed {r['seed']}, {layer}: {a['samples']} samples, cosine {a['cosine']:.3f} +- "
                    f"{a['cosine_deviation']:.3f}, Spearman {a['spearman']:.3f} +- {a['spearman_deviation']:.3f}"
                )


def draw(part: Part, config: Config) -> None:
    """Draws the first images with the maps of all finished attentions: first layer, last layer and rollout."""
    seed = config.seeds[0]
    done = [job for job in (Job(part, a, seed) for a in ATTENTIONS) if (job.folder(config.out) / RESULT_FILE).is_file()]
    scenes = {job.attention: open_scene(job, config) for job in done}
    if not scenes:
        return
    read = {a: maps_of(scene.net, scene.images[:SHOWN], scene.grid) for a, scene in scenes.items()}
    pixels = scenes[done[0].attention].pixels[:SHOWN]
    last = [name for name in read[done[0].attention] if name.startswith("layer")][-1]
    for name in ("layer 1", last, "rollout"):
        path = config.out / f"{part}-{name.replace(' ', '-')}.png"
        analysis.save_overlays(path, pixels, {a: maps[name] for a, maps in read.items()})


def main(config: Config) -> None:
    """Runs the parts, prints the results, writes results.json and draws the pictures."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("attention_quality: the pictures need matplotlib: pip install 'fredholm[viz]'")
    torch.set_num_threads(1)
    config.out.mkdir(parents=True, exist_ok=True)
    for job in jobs(config):
        run(job, config)
    results = [read_result(path.parent) for path in config.out.glob(f"*/{RESULT_FILE}")]
    results.sort(key=lambda r: (PARTS.index(r["part"]), ATTENTIONS.index(r["attention"]), r["seed"]))
    (config.out / "results.json").write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    print_results(results)
    for part in PARTS:
        draw(part, config)


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
