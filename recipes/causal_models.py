"""Compare kernels at predicting the next byte: causal ITNets against GPT-2 and Aether with rotary positions.

Command:   python recipes/causal_models.py
Hardware:  one core of an AMD EPYC for each process; float32
Time:      about an hour of processor time, half of it the exact kernel's, taken by processes with some --systems
           each and one --out; then everything once more, which reads what is done
Score:     bits a byte on the test text, means of three seeds: GPT-2 2.780, Aether 2.867, ITNet with the exact kernel
           2.880; the others, and speeds, in docs/studies/text.md
"""

import importlib.util
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import tyro

from fredholm.models import AttentionConfig, ITNet, ITNetLanguageModel, LowRankConfig, MLPConfig, SeparableConfig
from fredholm.models.kernel_configs import KernelConfig
from fredholm.models.language.aether import Aether
from fredholm.models.language.gpt2 import GPT2
from fredholm.models.language.language_model import LanguageModel
from fredholm.tasks import LanguageModelling
from fredholm.tasks.splits.splits import HeldOut
from fredholm.training import DivergedError, Run, TrainingConfig
from fredholm.training.kept_result import kept_result
from fredholm.training.progress import print_line

KERNELS: dict[str, KernelConfig] = {
    "ITNet, exact": MLPConfig(width=16, num_frequencies=16, head_shared=True),
    "ITNet, low rank": LowRankConfig(rank=4, width=8, num_frequencies=8),
    "ITNet, separable": SeparableConfig(width=16, num_frequencies=16),
    "ITNet, attention": AttentionConfig(),
}
"""Kernels with sizes that give each model about as many parameters as GPT-2 at 64 channels and 4 layers."""
PEERS = ("GPT-2, rotary", "Aether, rotary")
SYSTEMS = (*PEERS, *KERNELS)
REFERENCE = PEERS[0]


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Text, models, lengths of the runs, and their folder."""

    data: Path = Path("../shared/data/text_lm/tinyshakespeare.txt.gz")
    """A text, read byte by byte; its last tenth is the test text, the tenth before it the validation text."""
    systems: tuple[str, ...] = SYSTEMS
    """Models to compare."""
    out: Path = Path("runs/causal_models")
    """Folder of the runs and of results.json."""
    rates: tuple[float, ...] = (3e-3, 1e-2)
    """Peak learning rates; the best on the validation text with the first seed is chosen."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs at the best rate."""
    epochs: int = 1
    """Passes over the training text."""
    embed_dim: int = 64
    depth: int = 4
    num_heads: int = 4
    context: int = 128
    """Bytes that a model reads at a time."""
    batch_size: int = 8
    """Blocks of `context` bytes per step."""
    rounds: int = 9
    """Rounds of the comparison of speeds; 0: no comparison."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.systems if name not in SYSTEMS]:
            raise ValueError(f"no system {unknown[0]!r}; expected some of {', '.join(SYSTEMS)}")

    def model(self, system: str) -> LanguageModel.Config:
        """The model configuration of one of the `SYSTEMS`."""
        sizes: dict[str, Any] = {"embed_dim": self.embed_dim, "depth": self.depth, "num_heads": self.num_heads}
        if system in KERNELS:
            stack = ITNet.Config(**sizes, kernel=KERNELS[system], dropout=0.0)
            return ITNetLanguageModel.Config(stack=stack, position_frequencies=16)
        if system == REFERENCE:
            return GPT2.Config(**sizes, positions="rotary", bias=False, dropout=0.0)
        return Aether.Config(**sizes, positions="rotary", dropout=0.0)

    def run(self, system: str, rate: float, seed: int) -> Run.Config:
        """One training run, measured on the validation text."""
        task = LanguageModelling.Config(
            data=str(self.data),
            test_fraction=0.1,
            valid_fraction=0.1,
            context=self.context,
            stride=self.context // 2,
            model=self.model(system),
        )
        training = TrainingConfig(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=rate,
            final_learning_rate=0.0,
            warmup_fraction=0.1,
            weight_decay=0.1,
            betas=(0.9, 0.95),
            ema_decay=0.99,
            evaluation_batch_size=16,
            tensorboard=False,
            device="cpu",
        )
        return Run.Config(task=task, training=training, seed=seed)


def bits(run: Run, split: HeldOut) -> dict[str, float]:
    """Bits per byte of a trained run on a split."""
    return {split: run.evaluate(split, "last")["bits_per_byte"]}


def compare(config: Config, system: str) -> dict[str, Any]:
    """The rate that is best on the validation text with the first seed, and bits per byte of all seeds at this rate."""

    def folder(rate: float, seed: int) -> Path:
        return config.out / f"{system} {rate:g} seed {seed}".replace(",", "").replace(" ", "-").lower()

    def valid(rate: float, seed: int) -> float:
        try:
            run = config.run(system, rate, seed)
            return kept_result(run, folder(rate, seed), lambda run: bits(run, "valid"))["valid"]
        except DivergedError:
            return math.inf

    by_rate = {rate: valid(rate, config.seeds[0]) for rate in config.rates}
    rate = min(by_rate, key=lambda rate: by_rate[rate])
    found = {"valid": [valid(rate, seed) for seed in config.seeds]}
    runs = [Run(folder(rate, seed), device="cpu") for seed in config.seeds]
    found["test"] = [bits(run, "test")["test"] for run in runs]
    size = sum(p.numel() for p in runs[0].model().parameters())
    return {"parameters": size, "rate": rate, "by_rate": {f"{r:g}": v for r, v in by_rate.items()}, **found}


def speeds(config: Config) -> dict[str, dict[str, float]]:
    """Tokens per second of each system over the first one's, in training and inference: medians of rounds in turn."""
    torch.manual_seed(config.seeds[0])
    tokens = torch.randint(256, (config.batch_size, config.context))
    models = {system: config.model(system).build(256, config.context) for system in config.systems}
    found: dict[str, dict[str, float]] = {system: {} for system in models}

    def train(model: LanguageModel) -> None:
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()

    @torch.no_grad()
    def read(model: LanguageModel) -> None:
        model(tokens)

    for name, step in {"training": train, "reading": read}.items():
        taken: dict[str, list[float]] = {system: [] for system in models}
        for _ in range(config.rounds + 1):
            for system, model in models.items():
                start = time.perf_counter()
                step(model)
                taken[system].append(time.perf_counter() - start)
        first, *_ = taken.values()
        for system, times in taken.items():
            # the first round is a warm-up
            found[system][name] = statistics.median(a / b for a, b in zip(first[1:], times[1:], strict=True))
    return found


def draw_figure(report: dict[str, Any], path: Path) -> None:
    """Draws bits per byte on the test text of every run against the speed of training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for system, found in report["systems"].items():
        speed = report["tokens a second over the first"][system]["training"]
        (line,) = axes.plot([speed] * len(found["test"]), found["test"], "o", markersize=4, alpha=0.5)
        axes.plot(speed, statistics.mean(found["test"]), "_", color=line.get_color(), markersize=16, label=system)
    axes.set(xlabel=f"tokens a second in training, over {next(iter(report['systems']))}", ylabel="test, bits a byte")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(config: Config) -> None:
    """Runs the comparison, prints its table and writes results.json and, with the speeds, causal_models.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("causal_models: the figure needs matplotlib: pip install 'fredholm[viz]'")
    config.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    report: dict[str, Any] = {"seeds": config.seeds, "systems": {}}
    for system in config.systems:
        found = report["systems"][system] = compare(config, system)
        splits = []
        for split in ("valid", "test"):
            spread = f" +- {statistics.stdev(found[split]):.4f}" if len(config.seeds) > 1 else ""
            splits.append(f"{split} {statistics.mean(found[split]):.4f}{spread}")
        numbers = f"{found['parameters']} parameters, rate {found['rate']:g}"
        print_line(f"{system} ({numbers}): bits a byte {', '.join(splits)}")
        (config.out / "results.json").write_text(json.dumps(report, indent=1))
    if config.rounds:
        report["tokens a second over the first"] = found = speeds(config)
        for system, ratios in found.items():
            print_line(f"{system}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
        (config.out / "results.json").write_text(json.dumps(report, indent=1))
        draw_figure(report, config.out / "causal_models.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
