"""Aether against GPT-2 on tiny Shakespeare and Penn Treebank, each with its own learning rate (Yat, 3.5, 3.6, E.6).

Command:   python recipes/aether_against_gpt2.py
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      about an hour of processor time
Score:     see docs/studies/aether.md
"""

import dataclasses
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro

from fredholm.tasks import LanguageModelling
from fredholm.training import DivergedError, Run, train
from fredholm.training.progress import print_line
from fredholm.training.recipes import open_recipe
from fredholm.training.scoring import score_test_split

Corpus = Literal["Shakespeare", "Penn Treebank"]
Split = Literal["valid", "test"]
CORPORA: tuple[Corpus, ...] = Corpus.__args__
GPT2, AETHER, PRE, POST = MODELS = ("GPT-2", "Aether", "Aether, LayerNorm before", "Aether, LayerNorm after")
RECIPES: dict[tuple[Corpus, str], str] = {
    ("Shakespeare", GPT2): "shakespeare_gpt2",
    ("Shakespeare", AETHER): "shakespeare",
    ("Penn Treebank", GPT2): "penn_treebank_gpt2",
    ("Penn Treebank", AETHER): "penn_treebank",
}
RATES = {GPT2: (3e-3, 1e-2, 3e-2), AETHER: (3e-4, 1e-3, 3e-3), PRE: (1e-3, 3e-3), POST: (1e-3, 3e-3)}
"""Learning rates tried, a factor of about three apart, with the best between two others."""
SEEDS = (0, 1, 2)
PTB_TEST_WORDS = 82_430
"""Words of the Penn Treebank's test split and its line ends, which count as words."""
COLOURS = dict(zip(MODELS, ("#666666", "#0072b2", "#d55e00", "#009e73"), strict=True))


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is run, and where the results go."""

    out: Path = Path("runs/aether_against_gpt2")
    """Folder of the run folders, results.json and aether.png."""
    quick: bool = False
    """A few steps of tiny models: checks the recipe itself, its numbers mean nothing."""
    models: tuple[str, ...] = MODELS
    """Which models; the ablations (LayerNorm before, after) are of Aether on Shakespeare."""
    draw: Path | None = None
    """Only draw aether.png again from this results.json."""


class Job(NamedTuple):
    """One training run."""

    corpus: Corpus
    model: str
    rate: float
    seed: int

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        return f"{self.corpus} {self.model} {self.rate:g} seed {self.seed}".lower().replace(",", "").replace(" ", "-")

    def config(self, *, quick: bool) -> Run.Config:
        """The corpus's recipe for the model, at this learning rate, measured on the validation text."""
        base = open_recipe(RECIPES[self.corpus, AETHER if self.model in (PRE, POST) else self.model]).config
        task, training = base.task, base.training
        assert isinstance(task, LanguageModelling.Config)
        model: Any = task.model
        if self.model in (PRE, POST):
            model = dataclasses.replace(model, layer_norm="pre" if self.model == PRE else "post")
        if quick:
            model = dataclasses.replace(model, embed_dim=8, depth=1, num_heads=2)
            task = dataclasses.replace(task, context=64, stride=None, vocab_size=task.vocab_size and 300)
            training = dataclasses.replace(training, batch_size=4096, test_batch_size=512)
        return Run.Config(
            task=dataclasses.replace(task, model=model, evaluated="valid"),
            training=dataclasses.replace(training, learning_rate=self.rate, tensorboard=False, device="cpu"),
            seed=self.seed,
        )


def run(job: Job, config: Config) -> dict[str, Any]:
    """Trains and measures on the validation and the test text; a run that is done is only read again."""
    path, started = config.out / job.folder, time.perf_counter()
    if (path / "result.json").is_file():
        return json.loads((path / "result.json").read_text())
    result: dict[str, Any] = job._asdict()
    try:
        train(job.config(quick=config.quick), path, resume=True)
    except DivergedError as error:
        print_line(f"{job.folder}: {error}")
        return result | {"diverged": str(error).partition(" (")[0], "curve": curve(path)}
    done = Run(path, device="cpu")
    result |= {split: scores(done, split) for split in ("valid", "test")}
    result |= {"parameters": sum(p.numel() for p in done.model().parameters()), "curve": curve(path)}
    spent = time.perf_counter() - started
    print_line(f"{job.folder}: {result['valid']['bits_per_byte']:.4f} bits a byte, {spent:.0f} s")
    (path / "result.json").write_text(json.dumps(result))
    return result


def scores(done: Run, split: Split) -> dict[str, float]:
    """The task's metrics on a split, and the perplexity of a word where words are counted."""
    assert isinstance(done.task, LanguageModelling)
    task = dataclasses.replace(done.task.config, evaluated=split).build(done.task.facts)
    size, dtype = done.config.training.test_batch_size, done.config.training.dtype
    found = score_test_split(task, done.model(), batch_size=size, device=done.device, dtype=dtype)
    if split == "test" and task.config.data.endswith("ptb"):
        found["word_perplexity"] = math.exp(found["loss"] * task.test_stream.num_targets / PTB_TEST_WORDS)
    return found


def curve(path: Path) -> list[tuple[int, float]]:
    """Steps and mean training losses since the one before, in nats a token."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], round(line["loss"], 4)) for line in lines if line["kind"] == "train"]


def study(config: Config) -> list[dict[str, Any]]:
    """All runs: every learning rate at seed 0, then the other seeds at the rate best on the validation text."""
    results = []
    for model in config.models:
        for corpus in CORPORA[:1] if model in (PRE, POST) else CORPORA:
            tuned = [run(Job(corpus, model, rate, SEEDS[0]), config) for rate in RATES[model]]
            results += tuned
            converged = [result for result in tuned if "valid" in result]
            if converged and model not in (PRE, POST):
                best = min(converged, key=lambda result: result["valid"]["bits_per_byte"])["rate"]
                results += [run(Job(corpus, model, best, seed), config) for seed in SEEDS[1:]]
            write(results, config.out / "results.json")
    return results


def write(results: Sequence[dict[str, Any]], path: Path) -> None:
    """The results as JSON, a line a run."""
    path.write_text("[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")


def chosen(results: Iterable[dict[str, Any]], corpus: str, model: str) -> list[dict[str, Any]]:
    """The runs of all seeds at the best learning rate."""
    found = [r for r in results if (r["corpus"], r["model"]) == (corpus, model) and "valid" in r]
    first = [r for r in found if r["seed"] == SEEDS[0]]
    best = min(first, key=lambda r: r["valid"]["bits_per_byte"], default=None)
    return [r for r in found if best is not None and r["rate"] == best["rate"]]


def tell(results: Sequence[dict[str, Any]]) -> None:
    """A line for every learning rate, and one for every model at its best."""
    for r in results:
        if r["seed"] == SEEDS[0]:
            found = f"{r['valid']['bits_per_byte']:.4f} bits a byte" if "valid" in r else r["diverged"]
            print_line(f"{r['corpus']:<14} {r['model']:<26} rate {r['rate']:<6g} validation {found}")
    for corpus in CORPORA:
        for model in MODELS:
            if runs := chosen(results, corpus, model):
                print_line(f"{corpus:<14} {model:<26} rate {runs[0]['rate']:<6g} test {_spread(runs)}")


def _spread(runs: Sequence[dict[str, Any]]) -> str:
    parts = []
    for name in runs[0]["test"]:
        values = [r["test"][name] for r in runs]
        parts.append(f"{name} {statistics.mean(values):.4f}")
        if len(values) > 1:
            parts[-1] += f" +- {statistics.stdev(values):.4f}"
    return ", ".join(parts) + f" ({len(runs)} seeds, {runs[0]['parameters']} parameters)"


def draw_figure(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Training curves of both corpora, all seeds at the best rates, and the validation result against the rate."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, places = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for axes, corpus in zip(places, CORPORA, strict=False):
        for model in MODELS:
            for number, r in enumerate(chosen(results, corpus, model)):
                label = f"{model}, rate {r['rate']:g}" if number == 0 else None
                axes.plot(*zip(*r["curve"], strict=True), color=COLOURS[model], linewidth=0.8, alpha=0.8, label=label)
        axes.set(title=corpus, xlabel="step", ylabel="training loss, nats a token")
    for model in MODELS:
        for corpus, style in zip(CORPORA, ("o-", "s--"), strict=True):
            first = [r for r in results if (r["corpus"], r["model"], r["seed"]) == (corpus, model, SEEDS[0])]
            points = sorted((r["rate"], r["valid"]["bits_per_byte"]) for r in first if "valid" in r)
            if points:
                places[2].semilogx(*zip(*points, strict=True), style, color=COLOURS[model], label=f"{model}, {corpus}")
    places[2].set(title="seed 0", xlabel="learning rate", ylabel="validation, bits a byte")
    rates = sorted({rate for tried in RATES.values() for rate in tried})
    places[2].set_xticks(rates, [f"{rate:g}" for rate in rates])
    places[2].minorticks_off()
    for axes in places:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=7)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(config: Config) -> None:
    """Runs the study, prints its tables and writes results.json and aether.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("aether_against_gpt2: the figure needs matplotlib: pip install 'fredholm[viz]'")
    if unknown := [model for model in config.models if model not in MODELS]:
        raise SystemExit(f"aether_against_gpt2: no model {unknown[0]!r}; expected some of {', '.join(MODELS)}")
    config.out.mkdir(parents=True, exist_ok=True)
    if config.draw is not None:
        results = json.loads(config.draw.read_text())
    else:
        torch.set_num_threads(1)
        results = study(config)
    tell(results)
    draw_figure(results, config.out / "aether.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
