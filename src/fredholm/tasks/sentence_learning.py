"""Telling the class, or the number, of a sentence or a pair of sentences."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fredholm._settings import refuse_idle
from fredholm.encoders.text import Text
from fredholm.models.infvit import InfViT
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, MLPConfig
from fredholm.models.signal_model import SignalModel
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.sentences import Columns, Sentence, SentenceSet, SentenceSplits, open_sentences, read_sentences
from fredholm.tasks.sentences.open import DEFAULT_VALID_FRACTION
from fredholm.tasks.sentences.table import TABLE_SUFFIXES
from fredholm.tasks.splits import HeldOut, Splits
from fredholm.tasks.task import Batch, Objective, SplitTask, Task
from fredholm.tasks.text import MarkedTokenizer, Tokens

if TYPE_CHECKING:
    from torchmetrics import Metric

CHUNK = 64
"""Sentences of a file that are predicted at a time."""
OF_CLASSES = {
    "accuracy": Objective(metric="accuracy", percent=True),
    "macro_f1": Objective(metric="macro_f1", percent=True),
    "matthews": Objective(metric="matthews"),
}
OF_NUMBERS = {
    "pearson": Objective(metric="pearson"),
    "spearman": Objective(metric="spearman"),
    "mean_squared_error": Objective(metric="mean_squared_error", maximise=False),
}


def _small() -> SignalModel.Config:
    kernel = MLPConfig(width=32, num_frequencies=16)
    return ITNet.Config(embed_dim=64, depth=2, num_heads=4, kernel=kernel, dropout=0.2)


@final
class SentenceLearning(SplitTask[SentenceSet]):
    """A model on sentences or pairs, trained by cross-entropy on classes or by squared error on numbers; ITNet K.2.

    A sentence is `[CLS] a [SEP]`, a pair `[CLS] a [SEP] b [SEP]`, padded to the longest of its batch; in training a
    batch holds sentences of about one length. There always is a validation split, which is what is measured on; the
    test split is left alone until it is asked for. Numbers are standardised by those of the training split. Warns once
    of training sentences that the context cuts.

    Args:
        config: the settings.
        facts: from an earlier run; None reads them from the training split.

    Raises:
        ValueError: the data cannot be opened, are of one class or number alone, or are not those of `facts`.
        ImportError: tokens need a package that is not installed.
    """

    command: ClassVar[str] = "sentences"
    predicts = Kinds(suffixes=TABLE_SUFFIXES)
    parts: ClassVar[tuple[type, ...]] = (ITNet.Config, InfViT.Config, *KERNELS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Of the training split. `mean` and `deviation` are of numbers, 0 and 1 where there are `classes`."""

        tokenizer: str
        columns: Columns
        context: int
        classes: tuple[str, ...]
        mean: float
        deviation: float
        train_digest: str

        @property
        def files(self) -> dict[str, str]:
            """The tokenizer, as its library reads it."""
            return {"tokenizer.json": self.tokenizer}

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """A table of sentences, its tokens, and the model.

        Args:
            data: a .csv, .tsv or .jsonl file, also gzipped, a folder with files such as train.csv, valid.csv and
                test.csv, or the start of such names.
            text_column: the column of the sentence; None: a usual name, such as text or sentence.
            second_column: the column of the second sentence of pairs; None: a usual name, or no pairs.
            label_column: the column of the class or number; None: a usual name, such as label.
            columns: names of all columns of .csv and .tsv files that have no header.
            target: what a label is: a class, or a number.
            objective: the metric by which runs are compared: accuracy, macro_f1 or matthews of classes, pearson,
                spearman or mean_squared_error of numbers; None: accuracy, and pearson.
            valid_fraction: share of the validation split where the data bring none.
            tokens: what sentences are made of.
            context: tokens that the model sees, marks included.
            position_frequencies: Fourier frequencies of the positions that enter the signal (kernels have theirs); 0
                keeps positions out of it.
            position_sigma: standard deviation of these frequencies, in cycles a context; refused where there are none.
            model: the model on the tokens; a recipe chooses its kind.
        """

        data: str = ""
        text_column: str | None = None
        second_column: str | None = None
        label_column: str | None = None
        columns: tuple[str, ...] = ()
        target: Literal["class", "number"] = "class"
        objective: Literal["accuracy", "macro_f1", "matthews", "pearson", "spearman", "mean_squared_error"] | None = (
            None
        )
        valid_fraction: float = DEFAULT_VALID_FRACTION
        tokens: Tokens = field(default_factory=Tokens)
        context: int = 128
        position_frequencies: int = 16
        position_sigma: float = 10.0
        model: SignalModel.Config = field(default_factory=_small)

        def __post_init__(self) -> None:
            self.model.check_pools("a sentence")
            if self.target not in ("class", "number"):
                raise ValueError(f"target is {self.target!r}; expected 'class' or 'number'")
            allowed = OF_CLASSES if self.target == "class" else OF_NUMBERS
            if self.objective is not None and self.objective not in allowed:
                raise ValueError(
                    f"objective is {self.objective!r}; with target={self.target!r} expected one of {tuple(allowed)}"
                )
            if self.position_frequencies == 0:
                none, given = "position_frequencies=0", {"position_sigma": self.position_sigma}
                refuse_idle("", type(self), none, "give position_frequencies", **given)

        def build(self, facts: Task.Facts | None = None) -> "SentenceLearning":
            """The task; see `SentenceLearning`."""
            if facts is not None and not isinstance(facts, SentenceLearning.Facts):
                raise ValueError(f"the facts are of {type(facts).__qualname__}, not of sentences")
            return SentenceLearning(self, facts)

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        self.config = config
        known = OF_CLASSES if config.target == "class" else OF_NUMBERS
        self.objective = known[config.objective or next(iter(known))]
        self._facts = facts or self._measure()
        if (config.target == "class") != bool(self._facts.classes):
            raise ValueError(f"target is {config.target!r}; the run was made with the other one")
        if config.context != self._facts.context:
            raise ValueError(f"context is {config.context}; the run was made with {self._facts.context}")
        self.tokenizer = MarkedTokenizer(self._facts.tokenizer)

    @property
    def facts(self) -> Facts:
        """Of the training split."""
        return self._facts

    @property
    def reading(self) -> dict[str, object]:
        """The tokenizer and the context."""
        return {"tokenizer": self._facts.tokenizer, "context": self._facts.context}

    @cached_property
    def _read(self) -> SentenceSplits:
        """All splits as they are."""
        config = self.config
        if not config.data:
            raise ValueError("no sentences are given; pass a .csv, .tsv or .jsonl file or a folder of them")
        return open_sentences(
            config.data,
            text_column=config.text_column,
            second_column=config.second_column,
            label_column=config.label_column,
            columns=config.columns,
            by_label=config.target == "class",
            test_fraction=config.test_fraction,
            valid_fraction=config.valid_fraction,
            split_seed=config.split_seed,
        )

    def _open(self) -> Splits[SentenceSet]:
        found = self._read
        label = found.columns.label
        train = self._labelled(found.train, label, None)
        test, valid = (
            None if part is None else self._labelled(part, label, train.classes) for part in (found.test, found.valid)
        )
        return Splits(train, test, valid)

    def _labelled(self, sentences: Sequence[Sentence], column: str, classes: tuple[str, ...] | None) -> SentenceSet:
        if self.config.target == "number":
            return SentenceSet.of_numbers(sentences, column)
        return SentenceSet.of_classes(sentences, column, classes)

    def _measure(self) -> Facts:
        """The facts of the training split."""
        config, train = self.config, self._opened.train
        mean, deviation = 0.0, 1.0
        if config.target == "number":
            mean, deviation = float(train.targets.mean()), float(train.targets.std(correction=0))
            if deviation <= 1e-12 * abs(mean):
                raise ValueError(f"all training numbers of {config.data} are {mean:g}; expected at least 2 of them")
        elif len(train.classes) < 2:
            raise ValueError(f"{config.data} has the classes {list(train.classes)}; expected at least 2")
        texts = [text for each in train.sentences for text in (each.first, each.second) if text is not None]
        return SentenceLearning.Facts(
            tokenizer=config.tokens.learn(texts).state,
            columns=self._read.columns,
            context=config.context,
            classes=train.classes,
            mean=mean,
            deviation=deviation,
            train_digest=train.digest,
        )

    def _check(self, splits: Splits[SentenceSet]) -> None:
        splits.check_facts(self._facts, self.config.data)
        if splits.train.digest != self._facts.train_digest:
            raise ValueError(f"the training sentences of {self.config.data} are not those that the run was made with")

    @cached_property
    def _train_tokens(self) -> list[Tensor]:
        """The tokens of every training sentence. Warns where some are cut."""
        sentences = self.splits.train.sentences
        found = [self._lay_out(sentence) for sentence in sentences]
        if cut := sum(is_cut for _, is_cut in found):
            warnings.warn(
                f"{cut} of {len(found)} training sentences of {self.config.data} have more than {self.config.context} "
                "tokens and are cut; a larger context sees all",
                stacklevel=2,
            )
        return [tokens for tokens, _ in found]

    @cached_property
    def _held_out_tokens(self) -> dict[HeldOut, list[Tensor]]:
        parts: dict[HeldOut, SentenceSet | None] = {"valid": self.splits.valid, "test": self.splits.test}
        return {
            split: [self._lay_out(sentence)[0] for sentence in part.sentences]
            for split, part in parts.items()
            if part is not None
        }

    @cached_property
    def _held_out_order(self) -> dict[HeldOut, Tensor]:
        """The held-out sentences by length, so that batches in this order need little padding."""
        return {
            split: torch.tensor([len(tokens) for tokens in found]).argsort(stable=True)
            for split, found in self._held_out_tokens.items()
        }

    @property
    def train_lengths(self) -> Tensor:
        """Tokens of each training sentence."""
        return torch.tensor([len(tokens) for tokens in self._train_tokens])

    def model(self) -> nn.Module:
        """The model on a text encoder, with one logit a class, or one number."""
        config, facts, marks = self.config, self._facts, self.tokenizer.marks
        encoder = Text(
            self.tokenizer.vocab_size,
            config.model.embed_dim,
            context=facts.context,
            num_frequencies=config.position_frequencies,
            sigma=config.position_sigma,
            pad=marks.pad,
            separator=marks.separator,
            has_class_token=True,
        )
        return config.model.build(encoder, max(len(facts.classes), 1))

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`tokens` (B, N), padded, and `targets` (B,), classes or standardised numbers; nothing is drawn."""
        return self._batch(self._train_tokens, self.splits.train, indices)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Likewise of a held-out split, where sentences are counted from the shortest on."""
        part = self.held_out(split)
        return self._batch(self._held_out_tokens[split], part, self._held_out_order[split][indices])

    def _batch(self, tokens: Sequence[Tensor], examples: SentenceSet, indices: Tensor) -> Batch:
        targets = examples.targets[indices]
        if self.config.target == "number":
            targets = ((targets - self._facts.mean) / self._facts.deviation).float()
        return {"tokens": self._padded([tokens[i] for i in indices.tolist()]), "targets": targets}

    def _lay_out(self, sentence: Sentence) -> tuple[Tensor, bool]:
        return self.tokenizer.lay_out(sentence.first, sentence.second, self._facts.context)

    def _padded(self, tokens: list[Tensor]) -> Tensor:
        return pad_sequence(tokens, batch_first=True, padding_value=self.tokenizer.marks.pad).long()

    def num_targets(self, batch: Batch) -> int:
        """One per sentence or pair."""
        return len(batch["targets"])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy in nats, or squared error of standardised numbers, summed over the sentences."""
        return self._losses(model(batch["tokens"]).float(), batch["targets"]).sum()

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.config.target == "number":
            return (outputs[:, 0] - targets).square()
        return F.cross_entropy(outputs, targets, reduction="none")

    def metrics(self) -> "dict[str, Metric]":
        """Of classes `accuracy`, `macro_f1` and `matthews`; of numbers `pearson`, `spearman`, `mean_squared_error`.

        The last is in the unit of the data, squared. A correlation with answers that are all alike is 0. `loss` is the
        mean of what is trained on.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        try:
            from torchmetrics import MeanMetric
            from torchmetrics.classification import (
                MulticlassAccuracy,
                MulticlassF1Score,
                MulticlassMatthewsCorrCoef,
            )
            from torchmetrics.regression import MeanSquaredError
        except ImportError as error:
            raise ImportError('metrics need torchmetrics; get it with: pip install "fredholm[train]"') from error
        if self.config.target == "number":
            return {**_correlations(), "mean_squared_error": MeanSquaredError(), "loss": MeanMetric()}
        num_classes = len(self._facts.classes)
        return {
            "accuracy": MulticlassAccuracy(num_classes, average="micro"),
            "macro_f1": MulticlassF1Score(num_classes, average="macro"),
            "matthews": MulticlassMatthewsCorrCoef(num_classes),
            "loss": MeanMetric(),
        }

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
        outputs, targets = model(batch["tokens"]).float(), batch["targets"]
        metrics["loss"].update(self._losses(outputs, targets))
        if self.config.target == "number":
            outputs, targets = self._in_unit(outputs[:, 0]), self._in_unit(targets)
        for name, metric in metrics.items():
            if name != "loss":
                metric.update(outputs, targets)

    def _in_unit(self, standardised: Tensor) -> Tensor:
        return standardised * self._facts.deviation + self._facts.mean

    @torch.no_grad()
    def probabilities(self, model: nn.Module, sentences: Sequence[Sentence], device: torch.device) -> Tensor:
        """Of each class `(n, classes)`, where classes are told."""
        return self._outputs(model, sentences, device).softmax(-1)

    def _outputs(self, model: nn.Module, sentences: Sequence[Sentence], device: torch.device) -> Tensor:
        """The model's, `(n, classes)` or `(n, 1)`."""
        parts = []
        for start in range(0, len(sentences), CHUNK):
            tokens = [self._lay_out(sentence)[0] for sentence in sentences[start : start + CHUNK]]
            parts.append(model(self._padded(tokens).to(device)).float().cpu())
        return torch.cat(parts)

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each sentence: `file`, `line`, and `class` and its `probability`, or `number`.

        Files are tables as in training; labels may be absent, and are checked where they are not.
        """
        rows: list[Prediction] = []
        for _, sentences in inputs.read(self._asked):
            outputs = self._outputs(model, sentences, device)
            rows += [self._answer(sentence, each) for sentence, each in zip(sentences, outputs, strict=True)]
        return rows

    def _asked(self, file: Path) -> list[Sentence]:
        facts = self._facts
        sentences = read_sentences(file, facts.columns, self.config.columns)
        if sentences[0].label is not None:
            self._labelled(sentences, facts.columns.label, facts.classes)
        return sentences

    def _answer(self, sentence: Sentence, outputs: Tensor) -> Prediction:
        where = {"line": sentence.line}
        if self.config.target == "number":
            return Prediction(sentence.path, {**where, "number": float(self._in_unit(outputs[0]))})
        probabilities = dict(zip(self._facts.classes, outputs.softmax(-1).tolist(), strict=True))
        return Prediction(sentence.path, where, probabilities)


def _correlations() -> "dict[str, Metric]":
    """Pearson's and Spearman's coefficient, 0 where torchmetrics knows none."""
    from torchmetrics.metric import CompositionalMetric
    from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it keeps all numbers, which are few
        found = {"pearson": PearsonCorrCoef(), "spearman": SpearmanCorrCoef()}
    return {name: CompositionalMetric(torch.nan_to_num, metric, None) for name, metric in found.items()}
