"""Language modelling: prediction of the next token of a text."""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count, filled, refuse_idle
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, AttentionConfig
from fredholm.models.language.aether import Aether
from fredholm.models.language.blended_language_model import BlendedLanguageModel, mixed_logarithms
from fredholm.models.language.ckcnn_text import CKCNNText
from fredholm.models.language.generation import Sampling
from fredholm.models.language.gpt2 import GPT2
from fredholm.models.language.itnet_text import ITNetLanguageModel
from fredholm.models.language.language_model import LanguageModel
from fredholm.models.language.llama import Llama
from fredholm.models.language.mamba import Mamba
from fredholm.models.language.n_gram_model import NGramModel
from fredholm.models.language.recall import LONGEST as LONGEST_RECALLED
from fredholm.models.stack import Stack, stack_of
from fredholm.pretrained import PretrainedText
from fredholm.tasks.baselines import Baseline
from fredholm.tasks.blending import SHARES, best_of, check_has_valid
from fredholm.tasks.files.cache import CacheEntry
from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import DEPTH, Effort, fine_tuning_for, schedule_for, width_for
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Batch, EntryNames, Measure, Objective, Recommended, Task, Trained, own_facts
from fredholm.tasks.tensor_form import BATCH, Axis, Sizes, Slot, TensorForm
from fredholm.tasks.text import (
    IGNORED,
    BytePairs,
    Bytes,
    ByteTokenizer,
    CheckpointTokens,
    Documents,
    Piece,
    TokenStream,
    checkpoint_tokens,
    continue_text,
    joined,
)
from fredholm.tasks.views import ShownExample, TextPart, TextView, device_of

from .counts import MOST_TOKENS, NGrams
from .documents import DOCUMENT_SUFFIXES
from .library import library_version, made_from_file
from .text_task import CONTEXTS, TextTask

if TYPE_CHECKING:
    from torchmetrics import Metric

WINDOWS = 16
"""Windows of a file per batch of a prediction."""
LONGEST = 9
"""Default length of the longest n-grams beside a network."""
FEWEST_COUNTED, MOST_COUNTED = 1_000, 1 << 21
"""Range of training tokens in which n-grams are counted by default."""
MOST_NGRAMS = 1 << 21
"""Largest number of different n-grams by default."""
RECALLED = 4096
"""Default number of earlier tokens of a text whose n-grams are counted too."""


def _small() -> LanguageModel.Config:
    return GPT2.Config(embed_dim=96, depth=4, num_heads=4, positions="rotary", bias=False)


def _network() -> ITNetLanguageModel.Config:
    """Settings of an ITNet as large as the default model, which has no kernel to choose."""
    stack = ITNet.Config(embed_dim=96, depth=4, kernel=AttentionConfig(), dropout=0.0, drop_path=0.0)
    return ITNetLanguageModel.Config(stack=stack, position_frequencies=16)


@final
class LanguageModelling(TextTask):
    """A language model on blocks of a token stream, trained by cross-entropy.

    Documents are concatenated with an end-of-text token before each; a block may hold parts of several documents, and
    each part sees the parts before it. Every epoch cuts the training stream at another place, and every token but the
    first is a target once. On the test split every token is scored once.

    Args:
        config: settings of the task.
        facts: facts of an earlier run; None learns the tokens from the training split.

    Raises:
        ValueError: the text cannot be opened.
        ImportError: byte pairs need a package that is not installed.
    """

    command: ClassVar[str] = "text"
    predicts = Kinds(suffixes=DOCUMENT_SUFFIXES)
    objective = Objective(metric="perplexity", maximise=False)
    parts: ClassVar[tuple[type, ...]] = (
        Aether.Config,
        CKCNNText.Config,
        GPT2.Config,
        ITNetLanguageModel.Config,
        Llama.Config,
        Mamba.Config,
        PretrainedText,
        *KERNELS,
    )

    @dataclass(frozen=True, kw_only=True)
    class Facts(TextTask.Facts):
        """`tokenizer` is the library's JSON, None for bytes."""

        tokenizer: str | None
        has_marks: bool = False
        """Whether the tokenizer marks starts and ends of documents, as a checkpoint's; else it is a `BytePairs`."""
        ngrams: tuple[int, ...] = ()
        """Numbers of different n-grams of 1, 2, ... tokens that are counted."""
        model: LanguageModel.Config | None = None

        @property
        def files(self) -> dict[str, str]:
            """The tokenizer of a checkpoint, in its library's format."""
            return {"tokenizer.json": self.tokenizer} if self.has_marks and self.tokenizer is not None else {}

    @dataclass(frozen=True, kw_only=True)
    class Config(TextTask.Config):
        """A text, its tokens, and the model; see `TextTask.Config` for the text.

        Args:
            vocab_size: byte-pair tokens to learn from the training split, at least 257; None: one token per byte, or
                the tokens of a checkpoint.
            tokenizer: tokenizer.json of a run that began with a checkpoint, in place of all these; None: none.
            stride: tokens that each window of a held-out split scores; fewer than the context give each token more
                context, and take longer. None: the context.
            ngrams: length of the longest n-grams of the training split that are counted beside the network; their share
                in the prediction is chosen on the validation split. 0: none; None: none, unless a run chooses.
            recall: number of earlier tokens of a measured or predicted text whose n-grams are counted too, if that is
                better on the validation split. 0: none; None: none, unless a run chooses.
            model: language model, with new weights or those of a checkpoint, which then has its own tokens; a recipe
                chooses its kind.
        """

        vocab_size: int | None = None
        tokenizer: str | None = None
        stride: int | None = None
        ngrams: int | None = None
        recall: int | None = None
        model: LanguageModel.Config = field(default_factory=_small)

        weight_settings: ClassVar[tuple[str, ...]] = ("vocab_size", "tokenizer", "context", "ngrams", "recall", "model")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("documents", "text_column", "stride")

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.stride is not None and not 1 <= self.stride <= self.context:
                raise ValueError(f"stride is {self.stride}; expected 1 to the context of {self.context}")
            if self.tokenizer is not None:
                because = f"tokenizer={self.tokenizer!r}"
                refuse_idle("", type(self), because, "leave the tokenizer out", vocab_size=self.vocab_size)
            if self.model.is_pretrained:
                because = f"model={type(self.model).__qualname__}, which has tokens of its own"
                refuse_idle("", type(self), because, "take another model", vocab_size=self.vocab_size)
                if self.ngrams:
                    raise ValueError(f"ngrams is {self.ngrams} with {because}; leave it out, or take another model")
            if self.recall:
                check_count("text", "recall", self.recall)
            if self.ngrams:
                check_count("text", "ngrams", self.ngrams)
                if self.ngrams > self.context + 1:
                    raise ValueError(
                        f"ngrams is {self.ngrams}, of which a context of {self.context} tokens and the next one have "
                        f"{self.context + 1} at most; take no more, or a longer context"
                    )

        def in_folder(self, folder: Path, facts: Task.Facts) -> Self:
            """See `Task.Config.in_folder`; a checkpoint's settings and tokenizer are read from the folder."""
            assert isinstance(facts, LanguageModelling.Facts)
            tokenizer = str(folder / "tokenizer.json") if facts.has_marks else None
            return dataclasses.replace(self, tokenizer=tokenizer, model=facts.model or self.model)

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`; chooses the context and the size of the model.

            A width of 96 channels for up to 300,000 tokens grows by half with each factor of 10.
            """
            default, facts, pretrained, context = LanguageModelling.Config(), None, None, CONTEXTS[effort.preset]
            if self.model.is_pretrained:
                task = self.build()
                facts, pretrained = task.facts, task.pretrained
                assert pretrained is not None
                context = min(context, pretrained.max_input_tokens or context)
            config = self if start is not None else filled(self, [default], context=context)
            config = filled(config, [default], stride=max(1, config.context // 2))
            task = dataclasses.replace(config, recall=None).build(facts)
            has_valid = task.num_held_out("valid") > 0
            config = filled(config, [default], ngrams=task.longest_counted)
            config = filled(config, [default], recall=RECALLED if config.ngrams else 0)
            if self.model.is_pretrained:
                if pretrained is not None:
                    task.check_checkpoint(pretrained)
                width = task.chosen.rated_width
                schedule = fine_tuning_for(task.num_train, effort.preset, has_valid=has_valid, width=width, share=1.0)
                return Recommended(config, schedule, config._notes(CONTEXTS[effort.preset]))
            if start is None:
                width = width_for(task.train_stream.num_targets, effort, least=96, up_to=300_000)
                config = dataclasses.replace(
                    config, model=config.model.resized(width, DEPTH[effort.preset], default.model)
                )
            schedule = schedule_for(
                task.num_train,
                effort,
                has_valid=has_valid,
                learning_rate=6e-3,
                weight_decay=0.1,
                batch_size=8 if effort.preset == "small" else 32,
            )
            return Recommended(config, schedule, config._notes(CONTEXTS[effort.preset]))

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`; the network of an ITNet, where the model is one or the default."""
            if isinstance(self.model, ITNetLanguageModel.Config):
                return self.model.stack
            return _network().stack if self.model == _small() else stack_of(self.model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`; an ITNet without n-grams, which would be the same for all kernels."""
            assert isinstance(stack, ITNet.Config)
            whole = self.model if isinstance(self.model, ITNetLanguageModel.Config) else _network()
            return dataclasses.replace(self, model=dataclasses.replace(whole, stack=stack), ngrams=0, recall=0)

        def build(self, facts: Task.Facts | None = None) -> "LanguageModelling":
            """Builds the task; see `LanguageModelling`."""
            return LanguageModelling(self, own_facts(facts, LanguageModelling.Facts, "language modelling"))

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()
        state = self._facts.tokenizer
        self.tokenizer: ByteTokenizer
        if state is None:
            self.tokenizer = Bytes()
        else:
            self.tokenizer = CheckpointTokens(state) if self._facts.has_marks else BytePairs(state)
        if config.recall and not config.ngrams:
            raise ValueError(
                f"recall={config.recall} has no effect without n-grams, and ngrams is {config.ngrams}; leave it "
                "out, or count n-grams"
            )
        if facts is None and config.ngrams:
            check_has_valid("ngrams", config.ngrams, self.num_held_out("valid"), "text")
            self._facts = dataclasses.replace(self._facts, ngrams=self._distinct(config.ngrams))

    def _learn_facts(self) -> Facts:
        """Learns the tokens, or reads them and further settings from a checkpoint."""
        train = self.splits.train  # before a checkpoint is fetched
        named, size, pretrained = self.config.tokenizer, self.config.vocab_size, self.pretrained
        model = None if pretrained is None else pretrained.model
        if named is not None:
            state = made_from_file(user_path(named), CheckpointTokens).state
        elif pretrained is not None:
            if (found := checkpoint_tokens(pretrained.folder)) is None:
                raise ValueError(
                    f"{pretrained.folder} has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt; "
                    "save that of the model there"
                )
            state = found.state
        else:
            return LanguageModelling.Facts(tokenizer=None if size is None else _learnt(train, size))
        return LanguageModelling.Facts(tokenizer=state, has_marks=True, model=model)

    @property
    def chosen(self) -> LanguageModel.Config:
        """The model's complete settings."""
        return self._facts.model or self.config.model

    @property
    def facts(self) -> Facts:
        """The tokens, and facts about the training text."""
        return self._facts

    @property
    def num_train(self) -> int:
        """Number of training blocks."""
        return self.train_stream.num_blocks(self.config.context)

    def num_held_out(self, split: HeldOut) -> int:
        """Number of windows in the validation or the test split; 0 where there is none."""
        stream = self.held_out_streams.get(split)
        return 0 if stream is None else stream.num_blocks(self._stride)

    @cached_property
    def train_stream(self) -> TokenStream:
        """Tokens of the training split. Warns where they do not fill one context."""
        stream, context = self._stream(self.splits.train), self.config.context
        if stream.num_targets < context:
            warnings.warn(
                f"{self.config.data} has {stream.num_targets} tokens to learn from, less than one context of "
                f"{context}; pass more text",
                stacklevel=2,
            )
        return stream

    @cached_property
    def held_out_streams(self) -> dict[HeldOut, TokenStream]:
        """Tokens of the existing held-out splits."""
        return {split: self._stream(own) for split, own in self._held_out_documents.items()}

    @property
    def train_shards(self) -> Tensor | None:
        """Sizes of shards of blocks, where tokens are mapped."""
        return self.train_stream.shards(self.config.context)

    @property
    def longest_counted(self) -> int:
        """Default length of the longest counted n-grams; 0: none."""
        is_counted = FEWEST_COUNTED <= self.train_stream.num_targets <= MOST_COUNTED
        if self.config.model.is_pretrained or self.num_held_out("valid") == 0 or not is_counted:
            return 0
        totals = itertools.accumulate(self._distinct(min(LONGEST, self.config.context + 1)))
        return sum(total <= MOST_NGRAMS for total in totals)

    def _distinct(self, longest: int) -> tuple[int, ...]:
        """Returns the numbers of different n-grams of the training split by length."""
        return NGramModel.distinct(self._train_tokens, self.tokenizer.vocab_size, longest)

    @property
    def _train_tokens(self) -> Tensor:
        return torch.as_tensor(np.asarray(self.train_stream.tokens).astype(np.int64))

    def model(self) -> nn.Module:
        """Returns a language model over the tokens, blended with n-grams where these are counted."""
        size, context, ngrams = self.tokenizer.vocab_size, self.config.context, self._facts.ngrams
        network = self.chosen.build(size, context)
        if not ngrams:
            return network
        counted = NGramModel.Config(sizes=ngrams, recall=self.config.recall or 0)
        return BlendedLanguageModel(network, NGramModel(size, context, counted))

    def initialise(self, model: nn.Module, device: torch.device) -> None:
        """See `Task.initialise`; counts the n-grams of the training split."""
        if isinstance(model, BlendedLanguageModel):
            model.fitted.fit(self._train_tokens)

    def choose_by_validation(self, model: nn.Module, measure: Measure) -> None:
        """See `Task.choose_by_validation`; chooses a network's share beside n-grams, and whether recall is used."""
        if not isinstance(model, BlendedLanguageModel):
            return
        recall = model.fitted.recall
        recalled = (None,) if recall is None else (1.0, 0.0)

        def errors(model: nn.Module, batch: Batch) -> Iterator[Tensor]:
            assert isinstance(model, BlendedLanguageModel)
            learnt, past = _of_targets(model.network(batch["inputs"]), batch), batch.get("past")
            for each in recalled:
                fitted = _of_targets(model.fitted(batch["inputs"], past, recalled=each), batch)
                yield from (-mixed_logarithms(learnt, fitted, share) for share in SHARES)

        best, share = best_of(list(itertools.product(recalled, SHARES)), measure, errors)
        model.share.fill_(share)
        if recall is not None and best is not None:
            recall.share.fill_(best)

    def entry_names(self, model: nn.Module) -> EntryNames:
        """See `Task.entry_names`; token embeddings are named by their bytes, position embeddings by their positions."""
        assert isinstance(model, LanguageModel)
        return model.row_entry_names(self.tokenizer.token_names)

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """See `Task.baselines`; n-grams of the tokens."""

        def held_out(split: HeldOut) -> list[int]:
            return self.held_out_streams[split].tokens.tolist()

        return (NGrams(lambda: self.train_stream.tokens[:MOST_TOKENS].tolist(), held_out, self.tokenizer.vocab_size),)

    @property
    def _num_places(self) -> int:
        return self.train_stream.num_targets

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Returns ``inputs`` and ``targets`` (B, context), int64; nothing is drawn from ``generator``."""
        inputs, targets = self.train_stream.blocks(indices, self.config.context, self._offset)
        return {"inputs": inputs, "targets": targets}

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Returns ``inputs`` and ``targets`` (B, context), int64, and with recall ``past``, the tokens before."""
        return self._windows(self.held_out_streams[split], indices)

    def _windows(self, stream: TokenStream, indices: Tensor) -> Batch:
        context, stride = self.config.context, self._stride
        inputs, targets = stream.windows(indices, context, stride)
        batch = {"inputs": inputs, "targets": targets}
        if self._facts.ngrams and self.config.recall:
            batch["past"] = stream.before(indices, context, stride, self.config.recall + LONGEST_RECALLED - 1)
        return batch

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`; a window, with each token's cost to the model in nats."""
        batch = self.held_out_batch(split, torch.tensor([index]))
        targets, costs = batch["targets"][0], None
        if model is not None:
            moved = {name: tensor.to(device_of(model)) for name, tensor in batch.items()}
            logits = self.logits(model, moved)[0].float().cpu()
            costs = F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED).tolist()
        parts = list[TextPart]()
        for n, token in enumerate(batch["inputs"][0, 1:].tolist() + targets[-1:].tolist()):
            if token == IGNORED:
                continue
            cost = None if costs is None or int(targets[n]) == IGNORED else costs[n]
            parts.append(TextPart(self.tokenizer.token_bytes(token).decode(errors="replace"), cost))
        return ShownExample(name=f"window {index}", views=(TextView(parts=tuple(parts)),))

    @staticmethod
    def logits(model: nn.Module, batch: Batch) -> Tensor:
        """Returns logits `(B, context, V)` of a batch; models with recall also read the text before its windows."""
        if "past" in batch and isinstance(model, BlendedLanguageModel):
            return model(batch["inputs"], batch["past"])
        return model(batch["inputs"])

    def num_targets(self, batch: Batch) -> int:
        """Number of targets that are not ignored."""
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the cross-entropy in nats, summed over the tokens."""
        return _nats(self.logits(model, batch), batch["targets"])

    def metrics(self) -> "dict[str, Metric]":
        """Returns ``perplexity``, ``loss`` in nats per token, and ``bits_per_byte``, comparable between tokenizers.

        An end-of-text token counts as a token and as one byte. With n-grams beside a network, all three are those of
        the blend, though training minimises the loss of the network alone.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        with importing_metrics():
            from torchmetrics.metric import CompositionalMetric

            from fredholm.tasks.mean_metrics import Mean
        nats = CompositionalMetric(torch.exp, Mean(), None)
        return {"perplexity": nats, "loss": Mean(), "bits_per_byte": Mean()}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Updates the metrics with a batch of `held_out_batch`."""
        nats = float(self.loss(model, batch))
        num_tokens, num_bytes = self._counted(batch)
        metrics["perplexity"].update(nats / num_tokens, weight=num_tokens)
        metrics["loss"].update(nats / num_tokens, weight=num_tokens)
        metrics["bits_per_byte"].update(nats / num_bytes / math.log(2), weight=num_bytes)

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`; the input is tokens."""
        size, end = self.tokenizer.vocab_size, self.tokenizer.end_of_text
        tokens = "bytes of UTF-8" if self._facts.tokenizer is None else "numbers of the tokens of tokenizer.json"

        def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
            return (torch.randint(size, (sizes["batch"], sizes["tokens"]), generator=generator),)

        start = self.tokenizer.start_of_text
        marks = f"{end} stands before each document" if start is None else f"documents stand between {start} and {end}"
        slot = Slot("tokens", (BATCH, Axis("tokens")), f"{tokens}; {marks}")
        form = self._logits_form(model, slot, size, draw, self._facts.tokenizer)
        return dataclasses.replace(form, notes=(_OWN_TOKENS,)) if _recalls(model) else form

    @property
    def _about_logits(self) -> str:
        return "a logit of every token that may come next, after each place"

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """Returns ``file``, ``tokens``, ``loss`` in nats per token, ``perplexity``, ``bits_per_byte`` of each file."""
        rows: list[Prediction] = []
        for file, stream in inputs.read(self._read):
            sums = torch.zeros(3, dtype=torch.float64)
            for indices in torch.arange(stream.num_blocks(self._stride)).split(WINDOWS):
                batch = {name: tokens.to(device) for name, tokens in self._windows(stream, indices).items()}
                sums += torch.tensor([float(self.loss(model, batch)), *self._counted(batch)], dtype=sums.dtype)
            nats, num_tokens, num_bytes = sums.tolist()
            loss = nats / num_tokens
            row = {"tokens": int(num_tokens), "loss": loss, "perplexity": math.exp(loss)}
            rows.append(Prediction(file, {**row, "bits_per_byte": nats / num_bytes / math.log(2)}))
        return rows

    def _read(self, file: Path) -> TokenStream:
        return self._stream(Documents([file], self.config.documents, self.config.text_column))

    def _stream(self, documents: Documents) -> TokenStream:
        start, end = self.tokenizer.start_of_text, self.tokenizer.end_of_text
        marks = {"before": end} if start is None else {"before": start, "after": end}
        return TokenStream(joined(documents, self.tokenizer, **marks))

    def generate(
        self,
        model: nn.Module,
        prompt: str,
        *,
        max_tokens: int,
        sampling: Sampling,
        generator: torch.Generator,
        device: torch.device,
        cache: bool = True,
        stop: Sequence[str] = (),
    ) -> Iterator[Piece]:
        """Generates the model's continuation of a prompt; see `fredholm.tasks.text.continue_text`.

        Recall is off: generated text would become likelier each time it is generated again.
        """
        assert isinstance(model, LanguageModel)
        if isinstance(model, BlendedLanguageModel):
            model = model.without_recall()
        return continue_text(
            model,
            self.tokenizer,
            prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            generator=generator,
            device=device,
            cache=cache,
            stop=stop,
        )

    def _counted(self, batch: Batch) -> tuple[int, int]:
        """Returns the tokens and bytes of the targets that are not ignored."""
        targets = batch["targets"]
        counted = targets[targets != IGNORED].cpu()
        return len(counted), int(self.tokenizer.num_bytes[counted].sum())

    @property
    def _stride(self) -> int:
        return self.config.stride or self.config.context


_OWN_TOKENS = (
    "earlier tokens are recalled only within the given ones; fredholm predict recalls longer texts, and so predicts "
    "their later tokens better"
)


def _recalls(model: nn.Module) -> bool:
    """Whether text before a window affects the predictions in it."""
    if not isinstance(model, BlendedLanguageModel) or model.fitted.recall is None:
        return False
    return float(model.share) < 1.0 and float(model.fitted.recall.share) > 0.0


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross-entropy, summed over the targets that are not ignored."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED)


def _of_targets(logits: Tensor, batch: Batch) -> Tensor:
    """Returns the log-probabilities of the targets that are not ignored."""
    targets = batch["targets"].flatten()
    nats = F.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none", ignore_index=IGNORED)
    return -nats[targets != IGNORED]


def _learnt(train: Documents, vocab_size: int) -> str:
    """Learns byte pairs from the training split; the result for a large text is cached."""
    kept = CacheEntry("byte pairs", train.key, vocab_size, library_version())
    return kept.value(lambda: {"state": BytePairs.learn(train, vocab_size).state}, size=train.file_bytes)["state"]
