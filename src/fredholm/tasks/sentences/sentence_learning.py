"""The task of predicting a class, labels or numbers for each sentence or pair of sentences."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fredholm._settings import filled, refuse_idle
from fredholm.models.fitted.banks.n_gram_bank import NGramBank
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.images.infvit import InfViT
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS
from fredholm.models.language.bert_sentences import BertSentences
from fredholm.models.language.sentence_model import SentenceModelConfig, SentenceStackConfig, TokenReading
from fredholm.models.model_settings import Pretrained
from fredholm.models.stack import Stack, stack_of
from fredholm.pretrained import PretrainedSentences
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import Effort, fine_tuning_for, rate_for, schedule_at_once, schedule_for, width_for
from fredholm.tasks.sentences import (
    Columns,
    OpenedSentences,
    Sentence,
    Sentences,
    SentenceSet,
    open_sentences,
    read_sentences,
    with_answers,
)
from fredholm.tasks.splits.split_files import Split
from fredholm.tasks.splits.splits import HeldOut, OfEachSplit, Splits
from fredholm.tasks.splits.splitting import divided
from fredholm.tasks.target_task import TargetTask
from fredholm.tasks.targets import TARGETS, Answers, Kind, Target
from fredholm.tasks.task import (
    Batch,
    EntryNames,
    PretrainedWeights,
    Recommended,
    Task,
    Trained,
    head_entry_names,
    own_facts,
    recorded_checkpoint,
)
from fredholm.tasks.tensor_form import BATCH, TensorForm
from fredholm.tasks.text import MarkedTokenizer, Tokens, checkpoint_tokenizer, context_for, tokens_axis, warn_of_cut
from fredholm.tasks.text.checkpoint_tokenizer import FILES
from fredholm.tasks.views import ShownExample, TextPart, TextView

from .table import TABLE_SUFFIXES
from .token_rows import TokenRows

CHUNK = 64
"""Sentences that are fitted or predicted at a time."""
LONGEST = 65_536
"""Default context of a bank of n-grams, in tokens."""


@final
class SentenceLearning(TargetTask[SentenceSet]):
    """A model on sentences or pairs that predicts classes, labels or numbers; ITNet K.2.

    A sentence is `[CLS] a [SEP]`, a pair `[CLS] a [SEP] b [SEP]`, padded to the longest of its batch; in training a
    batch holds sentences of similar length. Warns once of training sentences that the context cuts.

    Args:
        config: the settings.
        facts: facts of an earlier run; None: computed from the training split.
        pretrained: the checkpoint in the settings, if it has been opened; None: it is opened when needed.

    Raises:
        ValueError: the data cannot be opened, have a single answer, or do not match `facts`.
        ImportError: tokens need a package that is not installed.
    """

    command: ClassVar[str] = "sentences"
    predicts = Kinds(suffixes=TABLE_SUFFIXES)
    parts: ClassVar[tuple[type, ...]] = (
        NGramBank.Config,
        SentenceStackConfig,
        BertSentences.Config,
        PretrainedSentences,
        ITNet.Config,
        InfViT.Config,
        *KERNELS,
        *TARGETS,
    )

    @dataclass(frozen=True, kw_only=True)
    class Facts(Task.Facts):
        """Facts about the training split."""

        tokenizer: str
        columns: Columns
        context: int
        target: Target
        model: SentenceModelConfig | None = None
        """The resolved configuration of a checkpoint's model; None: the settings hold the whole configuration."""

        @property
        def files(self) -> dict[str, str]:
            """The tokenizer, in the format of its library."""
            return {"tokenizer.json": self.tokenizer}

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetTask.NumbersConfig):
        """A table of sentences, its tokens, and the model.

        Args:
            data: a .csv, .tsv or .jsonl file, also gzipped, a folder with files such as train.csv, valid.csv and
                test.csv, or the start of such names.
            text_column: the column of the sentence; None: one with a usual name, such as text or sentence.
            second_column: the column of the second sentence of pairs; None: one with a usual name, or no pairs.
            label_columns: the column to predict, or several columns of numbers or of labels, 0 and 1; none: a column
                with a usual name, such as label.
            weights: column of the weights of sentences in training and in metrics, which are relative to their mean; 0
                leaves a sentence out. None: all weigh the same.
            columns: names of all columns of .csv and .tsv files that have no header.
            target: kind of the answers: a class, several labels separated by `|`, or a number; None: a number where all
                are numbers and one is not whole, else a class; for several columns, labels where all are 0 or 1, else
                numbers.
            tokens: the tokenizer of the sentences.
            context: largest number of tokens that the model reads, with special tokens.
            model: a bank of n-grams, which is fitted to the training sentences in closed form, or a network, from new
                weights or from a checkpoint, whose tokens are then used.
        """

        data: str = ""
        text_column: str | None = None
        second_column: str | None = None
        label_columns: tuple[str, ...] = ()
        weights: str | None = None
        columns: tuple[str, ...] = ()
        target: Kind | None = None
        tokens: Tokens = field(default_factory=Tokens)
        context: int = 128
        model: SentenceModelConfig = field(default_factory=NGramBank.Config)

        kernel_sigma: ClassVar[float] = 10.0
        weight_settings: ClassVar[tuple[str, ...]] = ("tokens", "context", "model")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("columns", "csv")

        def __post_init__(self) -> None:
            self.model.check()
            if not self.model.learns_by_steps and self.valid_fraction != 0:
                self._refuse_validation(self.model, "training sentences")
            if self.model.is_pretrained:
                given = {name: getattr(self.tokens, name) for name in ("kind", "vocab_size", "lowercase")}
                because = f"model={type(self.model).__qualname__}, which has tokens of its own"
                refuse_idle("", Tokens, because, "take another model", **given)

        def in_folder(self, folder: Path, facts: Task.Facts) -> Self:
            """See `Task.Config.in_folder`: the tokenizer of the folder, and a checkpoint's model."""
            assert isinstance(facts, SentenceLearning.Facts)
            tokens = Tokens(file=str(folder / "tokenizer.json"))
            return replace(self, tokens=tokens, model=facts.model or self.model)

        @property
        def initial_checkpoint(self) -> str | None:
            """See `Task.Config.initial_checkpoint`."""
            return self.model.place

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`: the tokens, a context that holds all of them, and the model's size."""
            pretrained = self.model.open_pretrained()
            default, task = SentenceLearning.Config(), SentenceLearning(self, pretrained=pretrained)
            train, model, tokens, tokenizer = task.splits.train, self.model, self.tokens, task.tokenizer
            if not model.is_pretrained:
                tokens = tokens.recommended(train.sentences.texts)
                tokenizer = tokens.learn(train.sentences.texts)
            # words that are not in training take more tokens, so a bank, for which length is free, cuts no text
            context = LONGEST
            if model.learns_by_steps:
                most = 256 if effort.preset == "small" else 512
                texts = (sentence.texts for sentence in train.sentences)
                context = context_for(tokenizer, texts, min(most, task.chosen.max_input_tokens or most))
            config = filled(replace(self, tokens=tokens), [default], context=context)
            width = width_for(len(train), effort, least=64, up_to=1000)
            whole = SentenceLearning(config, pretrained=pretrained)
            sized = model.recommended(
                whole.train_rows(), whole.token_reading, width, 1 if effort.preset == "small" else 4
            )
            if not model.learns_by_steps:
                return Recommended(replace(config, model=sized), schedule_at_once(len(train), effort))
            has_valid = task.num_held_out("valid") > 0
            if model.is_pretrained:
                channels = task.chosen.rated_width
                return Recommended(
                    config, fine_tuning_for(len(train), effort.preset, has_valid=has_valid, width=channels)
                )
            # networks memorise words soon, so runs are short
            rate = rate_for(sized.rated_width)
            schedule = schedule_for(
                len(train), effort, has_valid=has_valid, length=0.2, batch_size=32, learning_rate=rate
            )
            return Recommended(replace(config, model=sized), schedule)

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`: the network, the default one where the model is closed-form."""
            if isinstance(self.model, SentenceStackConfig):
                return stack_of(self.model.stack)
            return stack_of(self.model if self.model.learns_by_steps else SentenceStackConfig().stack)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`."""
            whole = self.model if isinstance(self.model, SentenceStackConfig) else SentenceStackConfig()
            return replace(self, model=replace(whole, stack=stack))

        def build(self, facts: Task.Facts | None = None) -> "SentenceLearning":
            """The task; see `SentenceLearning`."""
            return SentenceLearning(self, own_facts(facts, SentenceLearning.Facts, "sentences"))

    def __init__(
        self, config: Config, facts: Facts | None = None, *, pretrained: Pretrained[SentenceModelConfig] | None = None
    ) -> None:
        self.config, self._checkpoint = config, pretrained
        self._facts = facts or self._learn_facts()
        self._set_target(self._facts.target, config.target_settings)
        if config.context != self._facts.context:
            raise ValueError(f"context is {config.context}; the run was made with {self._facts.context}")
        self.tokenizer = MarkedTokenizer(self._facts.tokenizer)

    @property
    def facts(self) -> Facts:
        """Facts about the training split."""
        return self._facts

    @property
    def chosen(self) -> SentenceModelConfig:
        """The configuration of the model; for a checkpoint the resolved one."""
        return self._facts.model or self.config.model

    @cached_property
    def pretrained(self) -> Pretrained[SentenceModelConfig] | None:
        """The checkpoint in the settings; None without one."""
        return recorded_checkpoint(self.config.model, self._checkpoint)

    def pretrained_weights(self) -> PretrainedWeights | None:
        """See `Task.pretrained_weights`: a checkpoint's model without its head."""
        return PretrainedWeights.of(self.pretrained, self.chosen)

    @property
    def input_meaning(self) -> dict[str, object]:
        """The tokenizer and the context."""
        return {"tokenizer": self._facts.tokenizer, "context": self._facts.context}

    @property
    def learns_by_steps(self) -> bool:
        """Whether the model is a network, trained step by step."""
        return self.config.model.learns_by_steps

    @cached_property
    def _sentences(self) -> OpenedSentences:
        """The data, not tokenized yet."""
        config = self.config
        if not config.data:
            raise ValueError("no sentences are given; pass a .csv, .tsv or .jsonl file or a folder of them")
        with config.csv.reading(config.data):
            return open_sentences(
                config.data,
                text_column=config.text_column,
                second_column=config.second_column,
                label_columns=config.label_columns,
                weights=config.weights,
                columns=config.columns,
                kind=config.target,
            )

    def _open(self) -> Splits[SentenceSet]:
        return divided(self._sentences.splits, self.config, needs_valid=self.learns_by_steps)

    def _learn_facts(self) -> Facts:
        """The facts of the training split."""
        config, train = self.config, self._opened.train
        target = train.answers.learn(config.target_settings, config.data, train.example_weights)
        pretrained = self.pretrained
        return SentenceLearning.Facts(
            tokenizer=self._learn_tokens(train).state,
            columns=self._sentences.columns,
            context=config.context,
            target=target,
            model=None if pretrained is None else pretrained.model,
        )

    def _learn_tokens(self, train: SentenceSet) -> MarkedTokenizer:
        """The tokenizer of the checkpoint, unless a file is named; without a checkpoint one is learnt."""
        tokens, pretrained = self.config.tokens, self.pretrained
        if pretrained is None or tokens.file is not None:
            return tokens.learn(train.sentences.texts)
        found = checkpoint_tokenizer(pretrained.folder)
        if found is None:
            raise ValueError(
                f"{pretrained.folder} has no tokenizer: expected {' or '.join(FILES)}; save that of the model there, "
                "or pass tokens.file"
            )
        return found

    def _check(self, splits: Splits[SentenceSet]) -> None:
        for part in (splits.train, splits.valid, splits.test):
            if part is not None:
                self.target.check(part.answers, self.config.data)

    @cached_property
    def _train_tokens(self) -> TokenRows:
        """The tokens of every training sentence. Warns where some are cut."""
        found = TokenRows(self.splits.train.sentences, self.tokenizer, self._facts.context)
        if found.num_cut:
            is_most = self.chosen.max_input_tokens == self.config.context
            remedy = "the model has no more positions" if is_most else "a larger context sees all"
            warnings.warn(
                f"{found.num_cut} of {len(found)} training sentences of {self.config.data} have more than "
                f"{self.config.context} tokens and are cut; {remedy}",
                stacklevel=2,
            )
        return found

    @cached_property
    def _held_out_tokens(self) -> OfEachSplit[TokenRows]:
        """The tokens of the held-out sentences. Warns where some are cut."""

        def rows_of(split: HeldOut) -> TokenRows:
            found = TokenRows(self.held_out(split).sentences, self.tokenizer, self._facts.context)
            warn_of_cut(found.num_cut, len(found), self._facts.context, split)
            return found

        return OfEachSplit(rows_of)

    @cached_property
    def _held_out_order(self) -> OfEachSplit[Tensor]:
        """The held-out sentences by length, so that batches in this order need little padding."""
        return OfEachSplit(lambda split: self._held_out_tokens[split].lengths.argsort(stable=True))

    @property
    def train_lengths(self) -> Tensor:
        """Tokens of each training sentence."""
        return self._train_tokens.lengths

    def model(self) -> nn.Module:
        """The model, with the outputs of the target."""
        return self.chosen.build(self.token_reading, self.target.num_outputs)

    @property
    def token_reading(self) -> TokenReading:
        """The model's view of tokens: vocabulary, context and marks."""
        marks = self.tokenizer.marks
        return TokenReading(
            vocab_size=self.tokenizer.vocab_size,
            context=self._facts.context,
            pad=marks.pad,
            separator=marks.separator,
            spelling=self.tokenizer.letters,
        )

    def train_rows(self) -> Iterator[Tensor]:
        """The training sentences in their order, CHUNK at a time."""
        tokens = self._train_tokens
        for start in range(0, len(tokens), CHUNK):
            yield self._padded([tokens[i] for i in range(start, min(start + CHUNK, len(tokens)))])

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`: fits a closed-form model to all training sentences."""
        if not isinstance(model, FittedModel):
            return
        train = self.splits.train
        targets = self.target.targets(train.answers.values).to(device)
        rows = (tokens.to(device) for tokens in self.train_rows())
        batches = list(zip(rows, targets.split(CHUNK), strict=True))
        groups, weights = train.marks.group_numbers(device), train.example_weights
        model.fit(batches, self.target, groups=groups, weights=None if weights is None else weights.to(device))

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`: the targets for the rows of the head."""
        return head_entry_names(model, self.target.output_names)

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """`tokens` (B, N), padded, `targets` and any `example_weights`; nothing is random."""
        return self._batch(self._train_tokens, "train", indices)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """A batch of a held-out split, as `train_batch`; indices count its sentences from the shortest on."""
        return self._batch(self._held_out_tokens[split], split, self._held_out_order[split][indices])

    def _batch(self, tokens: TokenRows, split: Split, indices: Tensor) -> Batch:
        return {
            "tokens": self._padded([tokens[i] for i in indices.tolist()]),
            "targets": self.target.targets(self._part_of(split).answers.values[indices]),
            **self._weights(split, indices),
        }

    def _padded(self, tokens: list[Tensor]) -> Tensor:
        return pad_sequence(tokens, batch_first=True, padding_value=self.tokenizer.marks.pad).long()

    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`: the sentence, or both."""
        sentence = self.held_out(split).sentences[int(self._held_out_order[split][index])]
        views = tuple(TextView(parts=(TextPart(text),)) for text in sentence.texts)
        return ShownExample(name=f"{sentence.path.name}, line {sentence.line}", views=views)

    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch["tokens"]).float()

    @property
    def _train_answers(self) -> Answers:
        return self.splits.train.answers

    def _baseline_inputs(self, split: Split) -> list[str]:
        """The sentences; those of a pair are joined by a blank."""
        return [" ".join(filter(None, sentence.texts)) for sentence in self._part_of(split).sentences]

    @torch.no_grad()
    def outputs(self, model: nn.Module, sentences: Sequence[Sentence], device: torch.device) -> Tensor:
        """Outputs of the model `(n, num_outputs)` for some sentences, on the CPU. Warns where some are cut."""
        parts, num_cut = list[Tensor](), 0
        for start in range(0, len(sentences), CHUNK):
            some = (sentences[i] for i in range(start, min(start + CHUNK, len(sentences))))
            laid = [self.tokenizer.lay_out(each.first, each.second, self._facts.context) for each in some]
            num_cut += sum(each.is_cut for each in laid)
            parts.append(model(self._padded([each.tokens for each in laid]).to(device)).float().cpu())
        warn_of_cut(num_cut, len(sentences), self._facts.context)
        return torch.cat(parts)

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`: a model that takes tokens."""
        target = self.target
        return TensorForm(
            model=model,
            call=lambda model, tokens: target.answers(self._outputs(model, {"tokens": tokens})),
            inputs=(self.tokenizer.slot,),
            output=target.slot(BATCH),
            draw=lambda sizes, generator: (self.tokenizer.draw(sizes["batch"], sizes["tokens"], generator),),
            open_axes={"tokens": tokens_axis(self._facts.context)},
            names=target.axis_names,
            files=self._facts.files,
        )

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """A row for each sentence: `file`, `line`, and the prediction.

        Files are tables as in training. Labels may be absent; present ones are checked.
        """
        rows: list[Prediction] = []
        for _, sentences in inputs.read(self._read, self.config.csv):
            answers = map(self.target.answer, self.outputs(model, sentences, device))
            rows += [
                Prediction(sentence.path, {"line": sentence.line, **cells}, probabilities)
                for sentence, (cells, probabilities) in zip(sentences, answers, strict=True)
            ]
        return rows

    def _read(self, file: Path) -> Sentences:
        facts = self._facts
        cells = read_sentences(file, facts.columns, self.config.columns)
        if cells.labels:
            with_answers(cells, facts.target.kind, facts.target.names)
        return cells.sentences
