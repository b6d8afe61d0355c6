"""The task of predicting a label for each word of a sentence."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fredholm._settings import refuse_idle
from fredholm.models.fitted.conditional_random_field import UNKNOWN, ConditionalRandomField
from fredholm.models.fitted.word_forms import word_forms
from fredholm.models.stack import Stack
from fredholm.tasks.baselines import Baseline
from fredholm.tasks.element_labels import LabelledElements, LabelsElements
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.objective import Objective
from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Effort, schedule_at_once
from fredholm.tasks.splits.splits import HeldOut, OfEachSplit, Splits
from fredholm.tasks.splits.splitting import divided
from fredholm.tasks.task import Batch, EntryNames, Recommended, SplitTask, Task, Trained, own_facts
from fredholm.tasks.tensor_form import TensorForm
from fredholm.tasks.views import ShownExample, TextPart, TextView, device_of

from .baselines import WordBaselineData, word_baselines
from .spans import OUTSIDE, SPAN_SCORES, mark_spans
from .word_file import (
    ROW_SUFFIXES,
    WORD_SUFFIXES,
    LabelledWords,
    WordColumns,
    columns_to_predict,
    has_lists,
    read_words,
)
from .word_set import WordSet, open_words

if TYPE_CHECKING:
    from torchmetrics import Metric

CHUNK = 64
"""Sentences that are fitted or predicted at a time."""
MEASURED = 256
"""Batch size of evaluation."""
_KNOWN, _SPANS = "words whose label is known", "spans"
OBJECTIVES = {
    "accuracy": Objective(metric="accuracy", percent=True, needs=_KNOWN),
    "macro_f1": Objective(metric="macro_f1", percent=True, needs=_KNOWN),
    "loss": Objective(metric="loss", maximise=False, needs=_KNOWN),
}
OF_SPANS = {name: Objective(metric=name, percent=True, needs=_SPANS) for name in SPAN_SCORES}
"""Metrics of labels that mark spans."""


@final
class WordLearning(SplitTask[WordSet], LabelsElements):
    """A model on sentences that predicts a label for each word: named entities, parts of speech, slots.

    The predicted labels are those of the likeliest sequence. The loss is the mean of -log p of the label of each word,
    whatever the labels of the others.

    Args:
        config: the settings.
        facts: facts of an earlier run; None: computed from the training split.

    Raises:
        ValueError: the data cannot be opened, have a single label, or do not match `facts`.
    """

    command: ClassVar[str] = "words"
    predicts = Kinds(suffixes=WORD_SUFFIXES)
    writes = MappingProxyType({"save": ()})

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts about the training split: the labels in order, and the columns."""

        names: tuple[str, ...]
        columns: WordColumns

    @dataclass(frozen=True, kw_only=True)
    class Config(SplitTask.Config):
        """Labelled words, and the model.

        Args:
            data: a file of one word a line (.conll, .conllu, .iob, .bio, .tsv, .txt) or of one sentence a line or row
                (.jsonl, .parquet, .arrow), text also gzipped, a folder with files such as train.conll, valid.conll and
                test.conll, or the start of such names.
            word_column: the number of the column of words, from 1; of lists, their name. None: 1, of .conllu 2, of
                lists a usual name, such as tokens.
            label_column: likewise of labels; -1 is the last column. None: -1, of .conllu 4, of lists a usual name, such
                as tags.
            objective: metric by which runs are compared: accuracy, macro_f1, or loss; where labels mark spans also
                span_f1, span_precision or span_recall. None: span_f1 where labels mark spans, else accuracy.
            model: a conditional random field, fitted to the training sentences at once.
        """

        data: str = ""
        word_column: str | None = None
        label_column: str | None = None
        objective: str | None = None
        model: ConditionalRandomField.Config = field(default_factory=ConditionalRandomField.Config)

        weight_settings: ClassVar[tuple[str, ...]] = ("model",)
        # the draw takes equal shares of the labels, by the words
        split_settings: ClassVar[tuple[str, ...]] = (*SplitTask.Config.split_settings, "word_column", "label_column")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`: none, as the columns of the run are read."""
            return ()

        def __post_init__(self) -> None:
            if self.valid_fraction != 0:
                because = "a model whose settings are chosen by leaving training sentences out"
                refuse_idle("", type(self), because, "leave it out", valid_fraction=self.valid_fraction)

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: as many features as the training sentences have."""
            task = self.build()
            forms = [forms for forms, _ in task.train_batches(torch.device("cpu"))]
            sized = self.model.recommended(forms, len(task.facts.names))
            schedule = replace(schedule_at_once(task.num_train, effort), batch_size=MEASURED)
            return Recommended(replace(self, model=sized), schedule)

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: always refused."""
            raise ValueError(
                "labels of words are predicted by a conditional random field: no kernel can be chosen; `fredholm train "
                "words` trains it"
            )

        def build(self, facts: Task.Facts | None = None) -> "WordLearning":
            """The task; see `WordLearning`."""
            return WordLearning(self, own_facts(facts, WordLearning.Facts, "words"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        self.config = config
        self._facts = facts or self._learn_facts()
        self._has_spans = mark_spans(self._facts.names)
        known = OF_SPANS | OBJECTIVES if self._has_spans else OBJECTIVES
        name = next(iter(known)) if config.objective is None else config.objective
        if name not in known:
            which = "" if self._has_spans or name not in OF_SPANS else "; the labels mark no spans, as B-place does"
            raise ValueError(f"objective is {name!r}; expected one of {', '.join(known)}{which}")
        self.objective = known[name]
        self.shown = tuple(known.values())[: -1 if self._has_spans else None]

    @property
    def facts(self) -> Facts:
        """Facts about the training split."""
        return self._facts

    @property
    def learns_by_steps(self) -> bool:
        """False, since the model is fitted at once."""
        return False

    @cached_property
    def _found(self) -> tuple[Splits[WordSet], WordColumns]:
        config = self.config
        if not config.data:
            raise ValueError("no words are given; pass a .conll or .jsonl file or a folder of them")
        with config.csv.reading(config.data):
            return open_words(config.data, word_column=config.word_column, label_column=config.label_column)

    def _open(self) -> Splits[WordSet]:
        return divided(self._found[0], self.config, needs_valid=False)

    def _learn_facts(self) -> Facts:
        names, columns = self._opened.train.names, self._found[1]
        if len(names) < 2:
            raise ValueError(f"{self.config.data} has the labels {list(names)}; expected at least 2")
        return WordLearning.Facts(names=names, columns=columns)

    def _check(self, splits: Splits[WordSet]) -> None:
        if splits.train.names != self._facts.names:
            raise ValueError(
                f"the labels of {self.config.data} are {', '.join(splits.train.names)}; the run was made with "
                f"{', '.join(self._facts.names)}"
            )

    @property
    def train_lengths(self) -> Tensor:
        """Words of each training sentence."""
        return self.splits.train.lengths

    @cached_property
    def _held_out_order(self) -> OfEachSplit[Tensor]:
        """The held-out sentences by length, so that batches in this order need little padding."""
        return OfEachSplit(lambda split: self.held_out(split).lengths.argsort(stable=True))

    def model(self) -> nn.Module:
        """The conditional random field, with its labels."""
        return ConditionalRandomField(len(self._facts.names), self.config.model)

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits the model to all training sentences."""
        assert isinstance(model, ConditionalRandomField)
        model.fit(self.train_batches(device), groups=self.splits.train.marks.group_numbers(device))

    def train_batches(self, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """Words and labels of the training sentences in their order, CHUNK at a time."""
        batches = (self._batch(self.splits.train, some) for some in torch.arange(self.num_train).split(CHUNK))
        return [(batch["words"].to(device), batch["targets"].to(device)) for batch in batches]

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: the labels of all weights."""
        names = self._facts.names
        return {"weight": {1: names}, "bias": {0: names}, "transitions": {0: names, 1: names}}

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`words` (B, N, NUM_FORMS), padded by 0, and `targets` (B, N), padded by UNKNOWN; nothing is random."""
        return self._batch(self.splits.train, indices)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """A batch of a held-out split, as `train_batch`; indices count its sentences from the shortest on."""
        return self._batch(self.held_out(split), self._held_out_order[split][indices])

    @staticmethod
    def _batch(examples: WordSet, indices: Tensor) -> Batch:
        chosen = indices.tolist()
        targets = [examples.targets[i] for i in chosen]
        return {
            "words": _padded([examples.sentences[i].words for i in chosen]),
            "targets": pad_sequence(targets, batch_first=True, padding_value=UNKNOWN),
        }

    def num_targets(self, batch: Batch) -> int:
        """Words whose label is known."""
        return int((batch["targets"] != UNKNOWN).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """-log p of the label of each word, in nats, summed over the words."""
        return self._losses(model(batch["words"]).float(), batch["targets"]).sum()

    @staticmethod
    def _losses(log_probabilities: Tensor, targets: Tensor) -> Tensor:
        is_known = targets != UNKNOWN
        return -log_probabilities[is_known].gather(1, targets[is_known][:, None])[:, 0]

    def metrics(self) -> "dict[str, Metric]":
        """`accuracy` and `macro_f1` of all words, the mean `loss`, and the scores of spans where labels mark some.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        with importing_metrics():
            from torchmetrics.metric import CompositionalMetric

            from fredholm.tasks.mean_metrics import Mean
            from fredholm.tasks.targets.counts import ConfusionMatrix, accuracy, macro_f1_of_classes

            from .span_scores import SpanScore
        count = len(self._facts.names)
        found: dict[str, Metric] = {
            "accuracy": CompositionalMetric(accuracy, ConfusionMatrix(count), None),
            "macro_f1": CompositionalMetric(macro_f1_of_classes, ConfusionMatrix(count), None),
            "loss": Mean(),
        }
        return found | ({name: SpanScore(name) for name in SPAN_SCORES} if self._has_spans else {})

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Adds a batch of `held_out_batch` to the metrics."""
        assert isinstance(model, ConditionalRandomField)
        targets = batch["targets"]
        if not self.num_targets(batch):
            return
        metrics["loss"].update(self._losses(model(batch["words"]).float(), targets))
        self.score_labels(model.best(batch["words"]), targets, metrics)

    def score_labels(self, predicted: Tensor, targets: Tensor, metrics: "dict[str, Metric]") -> None:
        """Adds predicted labels `(B, N)` for `targets` to all metrics but the loss."""
        is_known = targets != UNKNOWN
        for name in ("accuracy", "macro_f1"):
            metrics[name].update(predicted[is_known], targets[is_known])
        if not self._has_spans:
            return
        names = self._facts.names
        for known, *rows in zip(is_known.tolist(), predicted.tolist(), targets.tolist(), strict=True):
            # a word whose label is not known is in no span
            labels = [[names[k] if one else None for k, one in zip(row, known, strict=True)] for row in rows]
            for name in OF_SPANS:
                metrics[name].update(*labels)

    @property
    def element_names(self) -> tuple[str, ...]:
        """The labels."""
        return self._facts.names

    def labelled_elements(self, model: nn.Module, batch: Batch) -> LabelledElements:
        """See `LabelsElements.labelled_elements`: words."""
        assert isinstance(model, ConditionalRandomField)
        is_known, predicted = batch["targets"] != UNKNOWN, model.best(batch["words"])
        chances = model(batch["words"]).float().exp().gather(2, predicted[..., None])[..., 0]
        return LabelledElements(predicted[is_known], batch["targets"][is_known], chances[is_known])

    def is_defined(self, split: HeldOut) -> bool:
        """See `Task.is_defined`: not without a word of known label."""
        return bool((self.held_out(split).counts > 0).any())

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """See `Task.baselines`: the commonest label of each word, and of all words."""
        return word_baselines(WordBaselineData(self._part_of, self._baseline_value))

    def _baseline_value(self, probabilities: Sequence[Tensor], split: HeldOut) -> float:
        """The objective of probabilities of the labels of each word, of which the largest is predicted."""
        metrics = self.metrics()
        for found, targets in zip(probabilities, self.held_out(split).targets, strict=True):
            if bool((targets != UNKNOWN).any()):
                metrics["loss"].update(self._losses(found.log(), targets))
                self.score_labels(found.argmax(1)[None], targets[None], metrics)
        return float(metrics[self.objective.metric].compute())

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the words with their labels and, where they differ, the predicted ones."""
        place = int(self._held_out_order[split][index])
        sentence = self.held_out(split).sentences[place]
        found: list[str | None] = [None] * len(sentence.words)
        if isinstance(model, ConditionalRandomField):
            found = [label for label, _ in self.labels(model, [sentence.words], device_of(model))[0]]
        parts = list[TextPart]()
        for word, label, own in zip(sentence.words, sentence.labels or (), found, strict=True):
            is_compared = None not in (label, own)
            is_wrong = is_compared and own != label
            shown = f"/{label} → {own}" if is_wrong else "" if label in (None, OUTSIDE) else f"/{label}"
            note = f"{label or 'not known'}{'' if own in (None, label) else f', predicted {own}'}"
            parts.append(TextPart(f"{word}{shown} ", float(is_wrong) if is_compared else None, note))
        view = TextView(parts=tuple(parts) or (TextPart("(no words)"),), legend="darker: predicted wrongly", unit="")
        return ShownExample(name=f"{sentence.path.name}, line {sentence.line}", views=(view,))

    @torch.no_grad()
    def labels(
        self, model: nn.Module, sentences: Sequence[Sequence[str]], device: torch.device
    ) -> list[list[tuple[str, float]]]:
        """The label of each word of some sentences, with its probability."""
        found = list[list[tuple[str, float]]]()
        for best, probabilities in self.answers(model, sentences, device):
            chances = probabilities.gather(1, best[:, None])[:, 0].tolist()
            found.append([(self._facts.names[k], chance) for k, chance in zip(best.tolist(), chances, strict=True)])
        return found

    @torch.no_grad()
    def answers(
        self, model: nn.Module, sentences: Sequence[Sequence[str]], device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the numbers of the labels of each sentence `(N,)` and the probabilities of all labels `(N, K)`."""
        assert isinstance(model, ConditionalRandomField)
        for start in range(0, len(sentences), CHUNK):
            some = sentences[start : start + CHUNK]
            forms = _padded(some).to(device)
            best, chances = model.best(forms).cpu(), model(forms).float().exp().cpu()
            for i, words in enumerate(some):
                yield best[i, : len(words)], chances[i, : len(words)]

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: there is none."""
        raise ValueError(
            "labels of words have no form for other programs: which operations it takes depends on the words, whose "
            "features are texts; use fredholm predict, or the run in Python"
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each word: `file`, `line`, its `number` in its sentence, `word`, `label` and `probability`.

        The label is that of the likeliest sequence, and the probability its own. Files are as in training; labels are
        not read. The labels can be saved, in files of the same names and kind; those of .parquet and .arrow in .jsonl.
        """
        rows, read = list[Prediction](), list(inputs.read(self._read))
        if inputs.outputs.save is not None:
            inputs.outputs.check_folder([(file, _saved_name(file)) for file, _ in read])
        for file, sentences in read:
            found = self.labels(model, [sentence.words for sentence in sentences], device)
            for sentence, labels in zip(sentences, found, strict=True):
                for i, (word, (label, chance)) in enumerate(zip(sentence.words, labels, strict=True)):
                    cells: dict[str, str | float] = {"line": sentence.lines[i], "number": i + 1, "word": word}
                    cells |= {"label": label, "probability": chance}
                    rows.append(Prediction(file, cells))
            if (folder := inputs.outputs.save) is not None:
                content = self._saved(file, sentences, found)
                inputs.outputs.write("--save", folder / _saved_name(file), content.encode(errors="surrogatepass"))
        return rows

    def _read(self, file: Path) -> list[LabelledWords]:
        return read_words(file, columns_to_predict(file, self._facts.columns), is_labelled=False)

    def _saved(self, file: Path, sentences: Sequence[LabelledWords], found: Sequence[list[tuple[str, float]]]) -> str:
        """The content of a file with the predicted labels, which training can read."""
        columns, lines = columns_to_predict(file, self._facts.columns), list[str]()
        for sentence, labels in zip(sentences, found, strict=True):
            if has_lists(file):
                lists = {columns.word: sentence.words, columns.label: [label for label, _ in labels]}
                chances = [round(chance, 6) for _, chance in labels]
                lines.append(json.dumps(lists | {"probabilities": chances}, ensure_ascii=False))
            else:
                lines += [
                    f"{word}\t{chance:.6f}\t{label}"
                    for word, (label, chance) in zip(sentence.words, labels, strict=True)
                ]
                lines.append("")
        return "".join(f"{line}\n" for line in lines)


def _saved_name(file: Path) -> str:
    """That of the file without .gz; rows of .parquet and .arrow are saved as lines of .jsonl."""
    return f"{file.stem}.jsonl" if file.suffix.lower() in ROW_SUFFIXES else file.name.removesuffix(".gz")


def _padded(sentences: Sequence[Sequence[str]]) -> Tensor:
    """The numbers of the words of sentences, `(B, N, NUM_FORMS)`, padded by 0."""
    return pad_sequence([word_forms(words) for words in sentences], batch_first=True)
