"""Compare kernels on sentences: small ITNets that differ in the kernel, with and without masked pretraining.

Command:   python recipes/sentence_models.py
Hardware:  one core of an AMD EPYC for each process; float32
Time:      about two and a half hours of processor time, taken by processes with some --sets each and one --out; a last
           call with all sets then reads the finished runs
Score:     accuracy (Matthews' correlation on CoLA) on the test split, which is read once per run; the checkpoint and
           the penalty of the bag of words are those that were best on the validation split. SST-2, means of three
           seeds: exact kernel 79.7 +- 0.9 %, attention 80.0 +- 0.9 %, bag of n-grams 81.0 %; see docs/studies/text.md
"""

import dataclasses
import importlib.util
import itertools
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import tyro

from fredholm.kernels import KernelInputs
from fredholm.models import (
    AttentionConfig,
    ContinuousConvolutionConfig,
    ITNet,
    ITNetMaskedModel,
    KernelConfig,
    LowRankConfig,
    MLPConfig,
    SentenceStackConfig,
)
from fredholm.tasks import MaskedLanguageModelling, SentenceLearning
from fredholm.tasks.sentences import SentenceSet
from fredholm.tasks.text import Tokens, open_text
from fredholm.training import Run, TrainingConfig
from fredholm.training.kept_result import kept_result
from fredholm.training.progress import print_line

SIZES: dict[str, Any] = {"width": 32, "num_frequencies": 16}
KERNELS: dict[str, KernelConfig] = {
    "exact": MLPConfig(**SIZES),
    "low rank": LowRankConfig(rank=8, **SIZES),
    "attention": AttentionConfig(),
    "continuous convolution": ContinuousConvolutionConfig(),
}
OFF = dict.fromkeys([field.name for field in dataclasses.fields(KernelInputs)], False)
CONTENT = {"query_content": True, "key_content": True, "product": True}
POSITION = {"query_position": True, "key_position": True, "relative_position": True, "distance": True}
ABLATION: dict[str, KernelConfig] = {
    "exact, content alone": MLPConfig(width=32, inputs=KernelInputs(**OFF | CONTENT)),
    "exact, position alone": MLPConfig(**SIZES, inputs=KernelInputs(**OFF | POSITION)),
    "exact, without the product": MLPConfig(**SIZES, inputs=KernelInputs(product=False)),
    "exact, without relative parts": MLPConfig(**SIZES, inputs=KernelInputs(relative_position=False, distance=False)),
    "exact, constant": MLPConfig(width=32, inputs=KernelInputs(**OFF)),
}
"""The kernel's inputs as in ITNet, table 5."""
BAG, TOKENS = "bag of n-grams", "pretraining's tokens"
CORRELATED = ("CoLA",)
"""Data sets that are measured by Matthews' correlation, since most of their sentences belong to one class."""
COLUMNS = {"RTE": ("label", "text", "second")}
"""Columns of data sets that are not a label and a text."""


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Data, kernels, settings of the runs, and their folder."""

    data: Path = Path("../shared/data/sentence_classification")
    """Folder of NAME.tsv.gz, or NAME.train.tsv.gz and so on: a label and a text, in RTE two texts, without a header."""
    corpora: tuple[Path, ...] = (
        Path("../shared/data/text_lm/ptb"),
        Path("../shared/data/text_lm/tinyshakespeare.txt.gz"),
    )
    """Texts of the masked pretraining, in the format of `fredholm train masked`, with one document per line."""
    sets: tuple[str, ...] = ("stsa.binary", "rt-polarity", "subj", "CoLA", "RTE")
    """Data sets by the start of their files' names."""
    kernels: tuple[str, ...] = tuple(KERNELS)
    """Kernels to compare."""
    ablation: tuple[str, ...] = ("stsa.binary", "CoLA")
    """Data sets on which the exact kernel is also measured without some of its inputs."""
    pretrained: tuple[str, ...] = ("exact", "attention")
    """Kernels that are also trained from masked pretraining, and from scratch with its tokens."""
    out: Path = Path("runs/sentence_models")
    """Folder of the runs and of results.json."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs; the splits stay the same."""
    embed_dim: int = 64
    depth: int = 2
    num_heads: int = 4
    context: int = 64
    """Tokens of a sentence or pair."""
    vocab_size: int = 8000
    """Word pieces, learnt from the corpora with pretraining, otherwise from the training sentences."""
    epochs: int = 3
    """Epochs of every run on sentences."""
    corpus_epochs: int = 5
    """Epochs of the pretraining."""
    learning_rate: float = 1e-3
    """Peak learning rate of both."""

    def __post_init__(self) -> None:
        if unknown := [name for name in (*self.kernels, *self.pretrained) if name not in KERNELS]:
            raise ValueError(f"no kernel {unknown[0]!r}; expected some of {', '.join(KERNELS)}")


def stack(config: Config, kernel: KernelConfig) -> ITNet.Config:
    """The model without its encoder."""
    heads = config.num_heads if kernel.has_heads else None
    return ITNet.Config(embed_dim=config.embed_dim, depth=config.depth, num_heads=heads, kernel=kernel, dropout=0.2)


def training(config: Config, epochs: int, batch_size: int) -> TrainingConfig:
    """Training settings of a run."""
    return TrainingConfig(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=config.learning_rate,
        warmup_fraction=0.1,
        decay="linear",
        ema_decay=0.99,
        tensorboard=False,
    )


def corpus(config: Config) -> Path:
    """A folder with all training texts, and with all validation texts of the corpora that have one."""
    folder = config.out / "corpus"
    folder.mkdir(exist_ok=True)
    opened = [open_text(path, documents="line") for path in config.corpora]
    parts = {"train": [each.train for each in opened], "valid": [each.valid or () for each in opened]}
    for split, documents in parts.items():
        (folder / f"corpus.{split}.txt").write_text("\n".join(itertools.chain(*documents)))
    return folder


def pretrained(config: Config, name: str) -> Path:
    """Folder of the masked pretraining with a kernel, which runs unless it is finished."""
    task = MaskedLanguageModelling.Config(
        data=str(corpus(config)),
        documents="line",
        context=config.context,
        tokens=Tokens(vocab_size=config.vocab_size),
        model=ITNetMaskedModel.Config(stack=stack(config, KERNELS[name]), position_frequencies=16),
    )
    run = Run.Config(task=task, training=training(config, config.corpus_epochs, 64))
    path = config.out / "pretrained" / name.replace(" ", "_")
    found = kept_result(run, path, lambda run: run.evaluate("valid"))
    print_line(f"pretraining, {name}: perplexity {found['perplexity']:.2f}")
    return path


class Start(NamedTuple):
    """Start of a run on sentences from a run of masked pretraining."""

    run: Path
    weights: bool
    """Whether it takes the weights too, and not only the tokens."""


def sentences(config: Config, data: str, kernel: KernelConfig, seed: int, start: Start | None) -> Run.Config:
    """The configuration of a run on sentences."""
    tokens = Tokens(vocab_size=config.vocab_size) if start is None else Tokens(file=str(start.run / "tokenizer.json"))
    whole = config.data / f"{data}.tsv.gz"
    task = SentenceLearning.Config(
        data=str(whole if whole.is_file() else config.data / data),
        columns=COLUMNS.get(data, ("label", "text")),
        objective="matthews" if data in CORRELATED else None,
        context=config.context,
        tokens=tokens,
        model=SentenceStackConfig(stack=stack(config, kernel)),
    )
    init = str(start.run) if start is not None and start.weights else None
    return Run.Config(task=task, training=training(config, config.epochs, 64), seed=seed, init=init)


def measured(run: Run) -> dict[str, float]:
    """The objective on the validation split, and on the test split if there is one, at the best checkpoint."""
    name, found = run.task.objective.metric, {"valid": run.evaluate("valid")}
    if run.task.num_held_out("test"):
        found["test"] = run.evaluate("test")
    return {split: metrics[name] for split, metrics in found.items()}


def bag_of_words(config: Config, data: str) -> dict[str, float]:
    """Scores of logistic regression on words and bigrams, with the penalty chosen on the validation split."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import matthews_corrcoef
    from sklearn.pipeline import make_pipeline

    task = sentences(config, data, KERNELS["attention"], 0, None).task
    assert isinstance(task, SentenceLearning.Config)
    splits = task.build().splits
    train, held_out = splits.train, {"valid": splits.valid, "test": splits.test}

    def texts(part: SentenceSet) -> list[str]:
        return [" ".join(filter(None, (each.first, each.second))) for each in part.sentences]

    def score(model: Any, part: SentenceSet) -> float:
        answers = model.predict(texts(part))
        if data in CORRELATED:
            return float(matthews_corrcoef(part.answers.values.tolist(), answers))
        return float((answers == part.answers.values.numpy()).mean())

    def fitted(strength: float) -> Any:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\S+")
        model = make_pipeline(words, LogisticRegression(C=strength, max_iter=2000))
        return model.fit(texts(train), train.answers.values.tolist())

    parts = {split: part for split, part in held_out.items() if part is not None}
    best = max(map(fitted, (0.1, 1.0, 10.0, 100.0)), key=lambda model: score(model, parts["valid"]))
    return {split: score(best, part) for split, part in parts.items()}


def compare(config: Config, data: str, starts: dict[str, Path]) -> Iterator[tuple[str, list[dict[str, float]]]]:
    """Each side with the results of its runs."""
    folder = config.out / data
    yield BAG, [bag_of_words(config, data)]
    sides: dict[str, tuple[KernelConfig, Start | None]] = {name: (KERNELS[name], None) for name in config.kernels}
    sides |= {f"{name}, {TOKENS}": (KERNELS[name], Start(path, weights=False)) for name, path in starts.items()}
    sides |= {f"{name}, pretrained": (KERNELS[name], Start(path, weights=True)) for name, path in starts.items()}
    sides |= {name: (kernel, None) for name, kernel in ABLATION.items() if data in config.ablation}
    for name, (kernel, start) in sides.items():
        place = folder / name.replace(", ", "-").replace(" ", "_").replace("'", "")
        runs = {seed: sentences(config, data, kernel, seed, start) for seed in config.seeds}
        yield name, [kept_result(run, place / f"seed-{seed}", measured) for seed, run in runs.items()]


def draw_figure(report: dict[str, dict[str, list[dict[str, float]]]], path: Path) -> None:
    """Draws a panel per data set: every side's runs and their mean, on the test split or else on validation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for sides in report.values() for name in sides))
    columns = min(len(report), 3)
    lines = math.ceil(len(report) / columns)
    size = 2.0 + 2.4 * columns, lines * (1.0 + 0.22 * len(names))
    figure, panels = plt.subplots(lines, columns, figsize=size, sharey=True, layout="constrained", squeeze=False)
    for axes in panels.flat[len(report) :]:
        axes.set_visible(False)
    for axes, (data, sides) in zip(panels.flat, report.items(), strict=False):
        split = "test" if "test" in sides[BAG][0] else "valid"
        for name, found in sides.items():
            values, place = [100 * each[split] for each in found], names.index(name)
            colour = "#999999" if name == BAG else "#d55e00" if name.endswith("pretrained") else "#0072b2"
            axes.plot(values, [place] * len(values), "o", color=colour, markersize=4, alpha=0.5)
            axes.plot(statistics.mean(values), place, "|", color=colour, markersize=14, markeredgewidth=2)
        axes.axvline(100 * sides[BAG][0][split], color="#999999", linewidth=0.8, linestyle="--")
        measure = "Matthews' correlation, %" if data in CORRELATED else "accuracy, %"
        axes.set(title=f"{data}, {'test' if split == 'test' else 'validation'}", xlabel=measure)
        axes.grid(alpha=0.3)
    panels[0, 0].set_yticks(range(len(names)), names)
    panels[0, 0].invert_yaxis()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(config: Config) -> None:
    """Runs the comparison, prints its table and writes results.json and sentence_models.png."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("sentence_models: the figure needs matplotlib: pip install 'fredholm[viz]'")
    config.out.mkdir(parents=True, exist_ok=True)
    starts = {name: pretrained(config, name) for name in config.pretrained}
    report: dict[str, dict[str, list[dict[str, float]]]] = {}
    for data in config.sets:
        report[data] = {}
        for name, found in compare(config, data, starts):
            report[data][name] = found
            splits = []
            for split in found[0]:
                values = [100 * each[split] for each in found]
                spread = f" +- {statistics.stdev(values):.2f}" if len(values) > 1 else ""
                splits.append(f"{split} {statistics.mean(values):.2f}{spread}")
            print_line(f"{data}, {name}: {', '.join(splits)}")
            (config.out / "results.json").write_text(json.dumps({"seeds": config.seeds} | report, indent=1))
    draw_figure(report, config.out / "sentence_models.png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
