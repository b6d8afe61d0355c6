"""Fit other kernels in place of a small GPT-2's attention: their cost in bits per byte, and their gain in time.

Command:   python -m recipes.linearise
Data:      tiny Shakespeare in ../shared/data/text_lm, as in recipes/shakespeare.py
Hardware:  one core of an AMD EPYC, shared with other work; float32
Time:      4 minutes of processor time for GPT-2, then 4 to 7 per kernel; finished parts are only read. One minute for
           the times of operators
Score:     test bits a byte, seed 0, after the fit of layers and at the end: linear attention 3.445 and 2.999, low rank
           4.043 and 3.327, factorised infinite 4.509 and 3.376, Yat 3.162 and 2.906, infinite 3.822 and 2.913; softmax
           attention 2.849. See docs/studies/linearise.md

GPT-2 is trained as in recipes/shakespeare.py. Each kernel replaces all its attention by `pretrained.linearise`, with
blocks of the training text; the learning rate is the one of `--rates` that is best on the validation text. The test
text is read once per kernel, by the model at this rate.
"""

import dataclasses
import importlib.util
import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import tyro
from torch import Tensor, nn

from fredholm import IntegralOperator, kernels
from fredholm.kernels import Kernel
from fredholm.models import GPT2
from fredholm.pretrained import Linearised, linearise
from fredholm.tasks import LanguageModelling
from fredholm.tasks.splits.splits import HeldOut
from fredholm.training import Run
from fredholm.training.kept_result import kept_result
from fredholm.training.progress import print_line
from fredholm.training.scoring import score_split
from recipes.shakespeare import shakespeare_gpt2

KERNELS: dict[str, Callable[[Kernel, int], Kernel]] = {
    "linear attention": lambda old, heads: kernels.LinearAttention(old.in_dim, heads, bias=False, is_causal=True),
    "low rank": lambda old, heads: kernels.LowRankMLP(
        old.in_dim, heads, 1, rank=16, width=64, num_frequencies=16, is_causal=True
    ),
    "factorised infinite": lambda old, heads: kernels.FactorisedInfiniteAttention(
        old.in_dim, heads, bias=False, is_causal=True
    ),
    "Yat": lambda old, heads: kernels.YatAttention(old.in_dim, heads, epsilon=1.0, is_causal=True),
    "infinite": lambda old, heads: kernels.InfiniteAttention(old.in_dim, heads, bias=False, is_causal=True),
}


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Kernels to fit, lengths of the fits, and the folder of the results."""

    data: Path | None = None
    """File of a text; None: that of recipes/shakespeare.py."""
    kernels: tuple[str, ...] = tuple(KERNELS)
    rates: tuple[float, ...] = (1e-3, 4e-3, 1.6e-2)
    """Learning rates of the fit."""
    layer_steps: int = 200
    whole_steps: int = 300
    batches: int = 160
    """Batches of 8 blocks of the training text, a fifth of them for errors."""
    lengths: tuple[int, ...] = (256, 1024, 4096, 8192)
    """Points at which the operators are timed; none: no times."""
    epochs: int | None = None
    """Epochs of the training of GPT-2, in place of the recipe's."""
    seed: int = 0
    out: Path = Path("runs/linearise")
    """Folder of the trained model, results.json and the picture."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.kernels if name not in KERNELS]:
            raise ValueError(f"no kernel {unknown[0]!r}; expected some of {', '.join(KERNELS)}")

    def run(self) -> Run.Config:
        """The training run of GPT-2."""
        base = shakespeare_gpt2()
        task = base.task if self.data is None else dataclasses.replace(base.task, data=str(self.data))
        training = dataclasses.replace(base.training, tensorboard=False, device="cpu")
        if self.epochs is not None:
            training = dataclasses.replace(training, epochs=self.epochs)
        return dataclasses.replace(base, task=task, training=training, seed=self.seed)


def bits(task: LanguageModelling, model: nn.Module, split: HeldOut) -> float:
    """Bits per byte of a model on a split."""
    device = torch.device("cpu")
    return score_split(task, split, model, batch_size=16, device=device, dtype=torch.float32)["bits_per_byte"]


def agreement(logits: Tensor, old_logits: Tensor) -> Tensor:
    """Cross-entropy of the old model's distributions under the new one's."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), old_logits.flatten(0, 1).softmax(-1))


def replaced(config: Config, name: str, model: GPT2, task: LanguageModelling, blocks: list[Tensor]) -> dict[str, Any]:
    """A kernel's results after the fit of layers and of the whole, at the rate that is best on the validation text."""

    def fitted(rate: float, whole_steps: int) -> tuple[GPT2, Linearised]:
        torch.manual_seed(config.seed)
        return linearise(
            model,
            lambda old: KERNELS[name](old, model.config.num_heads),
            blocks,
            layer_steps=config.layer_steps,
            whole_steps=whole_steps,
            learning_rate=rate,
            loss=agreement,
            train_rest=True,
        )

    tried = {rate: fitted(rate, config.whole_steps) for rate in config.rates}
    by_rate = {rate: bits(task, new, "valid") for rate, (new, _) in tried.items()}
    rate = min(config.rates, key=by_rate.__getitem__)
    stages = {"layers": fitted(rate, 0), "whole": tried[rate]}
    valid = {"layers": bits(task, stages["layers"][0], "valid"), "whole": by_rate[rate]}
    report = stages["layers"][1]
    return {
        "rate": rate,
        "valid": valid,
        "test": {stage: bits(task, new, "test") for stage, (new, _) in stages.items()},
        "errors of layers": [[fit.start, fit.error] for fit in report.layers],
        "by rate": {f"{rate:g}": value for rate, value in by_rate.items()},
    }


def training_blocks(config: Config, task: LanguageModelling) -> list[Tensor]:
    """Batches of blocks of the training text."""
    torch.manual_seed(config.seed)
    order = torch.randperm(task.num_train)
    chosen = itertools.islice(itertools.cycle(order.split(8)), config.batches)
    return [task.train_batch(indices, torch.Generator())["inputs"] for indices in chosen]


@torch.no_grad()
def times(config: Config, dim: int, heads: int) -> dict[str, dict[str, float]]:
    """Time of softmax attention over that of each kernel, by the number of points: medians of rounds in turn."""
    attention = kernels.Attention(dim, heads, bias=False, is_causal=True)
    operators = {"attention": IntegralOperator(attention, residual=False)}
    operators |= {name: IntegralOperator(KERNELS[name](attention, heads), residual=False) for name in config.kernels}
    found: dict[str, dict[str, float]] = {name: {} for name in operators}
    for length in config.lengths:
        u, taken = torch.randn(1, length, dim), {name: list[float]() for name in operators}
        for _ in range(8):
            for name, operator in operators.items():
                start = time.perf_counter()
                operator(u)
                taken[name].append(time.perf_counter() - start)
        for name, own in taken.items():
            # the first round is a warm-up
            ratios = [a / b for a, b in zip(taken["attention"][1:], own[1:], strict=True)]
            found[name][str(length)] = statistics.median(ratios)
    return found


def draw_figure(report: dict[str, Any], path: Path) -> None:
    """Draws bits per byte after each stage, and the speed by the number of points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
    names = list(report["kernels"])
    for stage, marker in (("layers", "o"), ("whole", "D")):
        values = [report["kernels"][name]["test"][stage] for name in names]
        left.plot(values, range(len(names)), marker, label={"layers": "layer by layer", "whole": "then whole"}[stage])
    left.axvline(report["attention"]["test"], color="#555555", linestyle="--", linewidth=1, label="softmax attention")
    left.set(yticks=range(len(names)), xlabel="test, bits a byte")
    left.set_yticklabels(names)
    left.invert_yaxis()
    left.legend(frameon=False, fontsize=8)
    for name, ratios in report["speed over attention"].items():
        right.plot([int(length) for length in ratios], list(ratios.values()), "o-", label=name, markersize=4)
    right.set(xscale="log", yscale="log", xlabel="points", ylabel="speed over softmax attention")
    ratios = [0.125, 0.25, 0.5, 1, 2, 4, 8]
    right.set_yticks(ratios, [f"{ratio:g}" for ratio in ratios])
    if report["speed over attention"]:
        lengths = [int(length) for length in report["speed over attention"]["attention"]]
        right.set_xticks(lengths, [f"{length:,}" for length in lengths])
        right.minorticks_off()
        right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(config: Config) -> None:
    """Trains the model, fits every kernel, and writes results.json after each kernel and linearise.png at the end."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("linearise: the figure needs matplotlib: pip install 'fredholm[viz]'")
    config.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    results = config.out / "results.json"
    known: dict[str, Any] = json.loads(results.read_text())["kernels"] if results.is_file() else {}

    def on_both(run: Run) -> dict[str, float]:
        return {split: run.evaluate(split)["bits_per_byte"] for split in ("valid", "test")}

    found = kept_result(config.run(), config.out / "gpt2", on_both)
    run = Run(config.out / "gpt2", device="cpu")
    model, task = run.model(), run.task
    assert isinstance(model, GPT2)
    assert isinstance(task, LanguageModelling)
    print_line(f"softmax attention: test {found['test']:.4f} bits a byte")
    report: dict[str, Any] = {"attention": found, "kernels": {}, "speed over attention": {}}
    blocks = training_blocks(config, task)
    for name in config.kernels:
        own = known[name] if name in known else replaced(config, name, model, task, blocks)
        report["kernels"][name] = own
        bits = ", ".join(f"{stage} {own['test'][stage]:.4f}" for stage in ("layers", "whole"))
        print_line(f"{name} (rate {own['rate']:g}): test bits a byte after {bits}")
        results.write_text(json.dumps(report, indent=1) + "\n")
    if config.lengths:
        report["speed over attention"] = times(config, model.config.embed_dim, model.config.num_heads)
        for name, ratios in report["speed over attention"].items():
            print_line(f"{name}: " + ", ".join(f"{length} points {ratio:.2f}" for length, ratio in ratios.items()))
    results.write_text(json.dumps(report, indent=1) + "\n")
    draw_figure(report, config.out / "linearise.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
