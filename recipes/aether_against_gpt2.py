"""Compare Aether with GPT-2 on tiny Shakespeare and Penn Treebank, each at its own learning rate (Yat, 3.5, 3.6, E.6).

Command:   python recipes/aether_against_gpt2.py
Hardware:  one core of an Intel Xeon, shared with other work; float32
Time:      some two hours of processor time in all, taken by several processes with some --systems each and one --out
Score:     see docs/studies/aether.md
"""

import dataclasses
import gzip
import importlib.util
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro

from fredholm.models.language.language_model import Positions
from fredholm.tasks import LanguageModelling
from fredholm.training import DivergedError, Run, train
from fredholm.training.progress import print_line
from fredholm.training.recipes import open_recipe

Corpus = Literal["Shakespeare", "Penn Treebank"]
Split = Literal["valid", "test"]
CORPORA: tuple[Corpus, ...] = Corpus.__args__
RECIPES: dict[tuple[Corpus, str], str] = {
    ("Shakespeare", "GPT2"): "shakespeare_gpt2",
    ("Shakespeare", "Aether"): "shakespeare",
    ("Penn Treebank", "GPT2"): "penn_treebank_gpt2",
    ("Penn Treebank", "Aether"): "penn_treebank",
}
SEEDS = (0, 1, 2)
PTB_TEST_WORDS = 82_430
"""Words of the Penn Treebank's test split, line ends included, which count as words."""
EXCERPT = 20_000
"""Bytes of text that the quick mode reads."""


class System(NamedTuple):
    """A model of the study and its runs: every rate with the first seed, the best rate with the other seeds."""

    family: Literal["GPT2", "Aether"]
    positions: Positions
    rates: tuple[float, ...]
    colour: str
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of the model that differ from its defaults."""
    corpora: tuple[Corpus, ...] = CORPORA
    seeds: tuple[int, ...] = SEEDS

    def configure(self, model: Any) -> Any:
        """The configuration of this system from that of its family."""
        return dataclasses.replace(model, positions=self.positions, **dict(self.settings))


FIRST, ONCE = CORPORA[:1], SEEDS[:1]
SYSTEMS = {
    "GPT-2": System("GPT2", "learned", (3e-3, 1e-2, 3e-2), "#999999"),
    "GPT-2, rotary": System("GPT2", "rotary", (3e-3, 1e-2, 3e-2), "#000000"),
    "Aether": System("Aether", "learned", (3e-3,), "#56b4e9", (), FIRST, ONCE),
    "Aether, rotary": System("Aether", "rotary", (1e-3, 3e-3, 1e-2), "#0072b2"),
    "Aether, rotary, small ε": System("Aether", "rotary", (3e-3,), "#cc79a7", (("epsilon", 1 / 64),), FIRST, ONCE),
    "Aether, rotary, LayerNorm before": System(
        "Aether", "rotary", (3e-3, 1e-2, 3e-2), "#d55e00", (("layer_norm", "pre"),), FIRST, ONCE
    ),
    "Aether, rotary, LayerNorm after": System(
        "Aether", "rotary", (3e-3, 1e-2, 3e-2), "#009e73", (("layer_norm", "post"),), FIRST
    ),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Runs of the study, and the folder of the results."""

    out: Path = Path("runs/aether_against_gpt2")
    """Folder of the run folders, results.json and aether.png. Finished runs are only read."""
    quick: bool = False
    """A few steps of tiny models on an excerpt: checks the recipe itself, the numbers mean nothing."""
    systems: tuple[str, ...] = tuple(SYSTEMS)
    """Systems to run; tables and picture show all finished runs."""
    corpora: tuple[Corpus, ...] = CORPORA
    """Texts to run them on."""
    draw: Path | None = None
    """Only redraw aether.png from this results.json."""


class Job(NamedTuple):
    """One training run."""

    corpus: Corpus
    system: str
    rate: float
    seed: int

    def folder(self, out: Path) -> Path:
        """The run folder."""
        name = f"{self.corpus} {self.system} {self.rate:g} seed {self.seed}"
        return out / name.lower().replace(",", "").replace(" ", "-")

    def config(self) -> Run.Config:
        """The recipe of corpus and family with this system and learning rate, measured on the validation text."""
        system = SYSTEMS[self.system]
        base = open_recipe(RECIPES[self.corpus, system.family]).config
        task = base.task
        assert isinstance(task, LanguageModelling.Config)
        return Run.Config(
            task=dataclasses.replace(task, model=system.configure(task.model)),
            training=dataclasses.replace(base.training, learning_rate=self.rate, tensorboard=False, device="cpu"),
            seed=self.seed,
        )

    def quick_config(self, out: Path) -> Run.Config:
        """The same run with a tiny model on an excerpt of tiny Shakespeare, which is written to `out`."""
        config, excerpt = self.config(), out / "excerpt.txt"
        task = config.task
        assert isinstance(task, LanguageModelling.Config)
        whole = open_recipe(RECIPES[CORPORA[0], "Aether"]).config.task
        assert isinstance(whole, LanguageModelling.Config)
        excerpt.write_bytes(gzip.decompress(Path(whole.data).read_bytes())[:EXCERPT])
        small: Any = dataclasses.replace(task.model, embed_dim=8, depth=1, num_heads=2)  # pyright: ignore[reportCallIssue]
        task = dataclasses.replace(
            task, data=str(excerpt), test_fraction=0.1, valid_fraction=0.1, context=64, stride=None, model=small,
            vocab_size=task.vocab_size and 300,
        )  # fmt: skip
        training = dataclasses.replace(config.training, batch_size=64, evaluation_batch_size=64)
        return dataclasses.replace(config, task=task, training=training)


def run(job: Job, config: Config) -> dict[str, Any]:
    """Trains, and measures on the validation and the test text; a finished run is only read."""
    path = job.folder(config.out)
    if (found := result_of(job, config.out)) is not None:
        return found
    result: dict[str, Any] = job._asdict()
    try:
        train(job.quick_config(config.out) if config.quick else job.config(), path, resume=True)
    except DivergedError as error:
        result["diverged"] = str(error).partition(" (")[0]
    else:
        done = Run(path, device="cpu")
        result |= {split: scores(done, split) for split in ("valid", "test")}
        result["parameters"] = sum(p.numel() for p in done.model().parameters())
    result["curve"] = curve(path)
    (path / "result.json").write_text(json.dumps(result))
    print_line(f"{path.name}: {described(result)}")
    return result


def result_of(job: Job, out: Path) -> dict[str, Any] | None:
    """The result of a run; None if it is not finished."""
    path = job.folder(out) / "result.json"
    return json.loads(path.read_text()) if path.is_file() else None


def scores(done: Run, split: Split) -> dict[str, float]:
    """The task's metrics on a split, and the perplexity per word where words are counted."""
    task, found = done.task, done.evaluate(split, "last")
    assert isinstance(task, LanguageModelling)
    if split == "test" and task.config.data.endswith("ptb"):
        tokens = task.held_out_streams["test"].num_targets
        found["word_perplexity"] = math.exp(found["loss"] * tokens / PTB_TEST_WORDS)
    return found


def curve(path: Path) -> list[tuple[int, float]]:
    """Steps, and mean training losses since the previous one, in nats per token."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], round(line["loss"], 4)) for line in lines if line["kind"] == "train"]


def study(config: Config) -> None:
    """Runs all systems: every learning rate with the first seed, then the best rate with the other seeds."""
    for name in config.systems:
        system = SYSTEMS[name]
        for corpus in system.corpora:
            if corpus not in config.corpora:
                continue
            tuned = [run(Job(corpus, name, rate, system.seeds[0]), config) for rate in system.rates]
            best = chosen(tuned, corpus, name)
            for seed in system.seeds[1:] if best else ():
                run(Job(corpus, name, best[0]["rate"], seed), config)


def all_jobs() -> Iterator[Job]:
    """Every run that the study can have."""
    for name, system in SYSTEMS.items():
        for corpus in system.corpora:
            for rate in system.rates:
                yield from (Job(corpus, name, rate, seed) for seed in system.seeds)


def write(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes the results as JSON, one line per run."""
    path.write_text("[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")


def chosen(results: Iterable[dict[str, Any]], corpus: str, system: str) -> list[dict[str, Any]]:
    """The runs of all seeds at the learning rate that is best on the validation text with the first seed."""
    found = [r for r in results if (r["corpus"], r["system"]) == (corpus, system) and "valid" in r]
    first = [r for r in found if r["seed"] == SEEDS[0]]
    best = min(first, key=lambda r: r["valid"]["bits_per_byte"], default=None)
    return [r for r in found if best is not None and r["rate"] == best["rate"]]


def described(result: dict[str, Any]) -> str:
    """The bits per byte of the validation text, or the step at which the run diverged."""
    return f"{result['valid']['bits_per_byte']:.4f} bits a byte" if "valid" in result else result["diverged"]


def print_results(results: Sequence[dict[str, Any]]) -> None:
    """Prints a line for every learning rate, and one for every system at its best rate."""
    for r in results:
        if r["seed"] == SEEDS[0]:
            print_line(f"{r['corpus']:<14} {r['system']:<33} rate {r['rate']:<6g} validation {described(r)}")
    for corpus in CORPORA:
        for system in SYSTEMS:
            if runs := chosen(results, corpus, system):
                print_line(f"{corpus:<14} {system:<33} rate {runs[0]['rate']:<6g} test {_spread(runs)}")


def _spread(runs: Sequence[dict[str, Any]]) -> str:
    parts = []
    for name in runs[0]["test"]:
        values = [r["test"][name] for r in runs]
        parts.append(f"{name} {statistics.mean(values):.4f}")
        if len(values) > 1:
            parts[-1] += f" +- {statistics.stdev(values):.4f}"
    return ", ".join(parts) + f" ({len(runs)} seeds, {runs[0]['parameters']} parameters)"


def draw_figure(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws training curves of both corpora at the best rates, and validation results against the rate."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, places = plt.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for axes, corpus in zip(places, CORPORA, strict=False):
        for name, system in SYSTEMS.items():
            for number, r in enumerate(chosen(results, corpus, name)):
                label = f"{name}, rate {r['rate']:g}" if number == 0 else None
                axes.plot(*smoothed(r["curve"]), color=system.colour, linewidth=0.9, alpha=0.8, label=label)
        axes.set(title=f"{corpus}, at the best rates", xlabel="step", ylabel="training loss, nats a token")
    for name, system in SYSTEMS.items():
        for corpus, style in zip(CORPORA, ("o-", "s--"), strict=True):
            first = [r for r in results if (r["corpus"], r["system"], r["seed"]) == (corpus, name, SEEDS[0])]
            points = sorted((r["rate"], r["valid"]["bits_per_byte"]) for r in first if "valid" in r)
            if points:
                label = f"{name}, {corpus}"
                places[2].semilogx(*zip(*points, strict=True), style, color=system.colour, label=label)
    places[2].set(title="seed 0, every rate", xlabel="learning rate", ylabel="validation, bits a byte")
    rates = sorted({rate for system in SYSTEMS.values() for rate in system.rates})
    places[2].set_xticks(rates, [f"{rate:g}" for rate in rates])
    places[2].minorticks_off()
    for axes in places:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=7)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def smoothed(points: Sequence[Sequence[float]], width: int = 5) -> tuple[list[float], list[float]]:
    """Steps and losses, each the mean of up to `width` points."""
    runs = [points[i : i + width] for i in range(0, len(points), width)]
    return tuple([statistics.mean(p[axis] for p in run) for run in runs] for axis in (0, 1))  # pyright: ignore[reportReturnType]


def main(config: Config) -> None:
    """Runs the study, prints its tables and writes results.json and aether.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("aether_against_gpt2: the figure needs matplotlib: pip install 'fredholm[viz]'")
    if unknown := [name for name in config.systems if name not in SYSTEMS]:
        known = ", ".join(map(repr, SYSTEMS))
        raise SystemExit(f"aether_against_gpt2: no system {unknown[0]!r}; expected some of {known}")
    config.out.mkdir(parents=True, exist_ok=True)
    if config.draw is not None:
        results = json.loads(config.draw.read_text())
    else:
        torch.set_num_threads(1)
        study(config)
        found = (result_of(job, config.out) for job in all_jobs())
        results = [result for result in found if result is not None]
        write(results, config.out / "results.json")
    print_results(results)
    draw_figure(results, config.out / "aether.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
