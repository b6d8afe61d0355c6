"""Masked language modelling: prediction of masked tokens of a text."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import filled, refuse_idle
from fredholm.models.itnet import ITNet
from fredholm.models.kernel_configs import KERNELS, AttentionConfig, ConvolutionConfig, SumConfig
from fredholm.models.language.bert_masked import BertMasked
from fredholm.models.language.itnet_text import ITNetMaskedModel
from fredholm.models.language.language_model import MaskedModel
from fredholm.models.stack import Stack, stack_of
from fredholm.pretrained import PretrainedMasked
from fredholm.tasks.baselines import Baseline
from fredholm.tasks.files.cache import CacheEntry
from fredholm.tasks.files.data_files import user_path
from fredholm.tasks.files.mapped import is_mapped, shards_of
from fredholm.tasks.inputs import Inputs, Kinds
from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.schedule import DEPTH, Effort, fine_tuning_for, rate_for, schedule_for, width_for
from fredholm.tasks.splits.splits import HeldOut
from fredholm.tasks.task import Batch, Objective, Recommended, Task, Trained, own_facts
from fredholm.tasks.tensor_form import TensorForm
from fredholm.tasks.text import IGNORED, Documents, MarkedTokenizer, Tokens, checkpoint_tokenizer, joined
from fredholm.tasks.views import ShownExample, TextPart, TextView, device_of

from .checkpoint_tokenizer import FILES
from .counts import MOST_TOKENS, TwoSidedNGrams
from .documents import DOCUMENT_SUFFIXES
from .library import library_version
from .text_task import CONTEXTS, TextTask

if TYPE_CHECKING:
    from torchmetrics import Metric

BLOCKS = 16
"""Blocks of a file per batch of a prediction."""
CHUNK = 1 << 20
"""Number of tokens that are searched at a time."""
MASKED, RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become [MASK], and another token; the rest is unchanged."""


def _small() -> ITNetMaskedModel.Config:
    """Settings with the sum of a convolution, for the neighbours of a masked token, and attention, for the rest."""
    kernel = SumConfig(first=ConvolutionConfig(kernel_size=3, depthwise=True), second=AttentionConfig())
    stack = ITNet.Config(embed_dim=96, depth=4, kernel=kernel)
    return ITNetMaskedModel.Config(stack=stack, position_frequencies=16)


@final
class MaskedLanguageModelling(TextTask):
    """Prediction of masked tokens of a text, trained by cross-entropy on these alone (ITNet K.2, as BERT).

    Documents end with [SEP], and blocks begin with [CLS]. Packed, the documents are one stream, and every epoch cuts it
    at another place; otherwise a block holds one document, or as much of it as fits, and batches are padded. In each
    block a share of the tokens is chosen, at least one: of these 80 % become [MASK], 10 % a random token, and 10 % are
    unchanged. In evaluation the choice is fixed.

    Args:
        config: settings of the task.
        facts: facts of an earlier run; None learns the tokens from the training split.

    Raises:
        ValueError: the text cannot be opened, or does not match ``facts``.
        ImportError: tokens need a package that is not installed.
    """

    command: ClassVar[str] = "masked"
    predicts = Kinds(suffixes=DOCUMENT_SUFFIXES)
    objective = Objective(metric="perplexity", maximise=False)
    parts: ClassVar[tuple[type, ...]] = (ITNetMaskedModel.Config, BertMasked.Config, PretrainedMasked, *KERNELS)

    @dataclass(frozen=True, kw_only=True)
    class Facts(TextTask.Facts):
        """`tokenizer` is the library's JSON."""

        tokenizer: str
        model: MaskedModel.Config | None = None

        @property
        def files(self) -> dict[str, str]:
            """The tokenizer, in its library's format."""
            return {"tokenizer.json": self.tokenizer}

    @dataclass(frozen=True, kw_only=True)
    class Config(TextTask.Config):
        """A text, its tokens, and the model; see `TextTask.Config` for the text.

        Args:
            tokens: settings of the tokenizer; refused for a checkpoint, which has its own, except for a file.
            packed: whether blocks are filled with one document after the other; else each document is cut into its own
                blocks.
            mask_fraction: share of a block's tokens to predict, above 0 and below 1.
            model: model of the tokens, with new weights or those of a checkpoint; a recipe chooses its kind.
        """

        context: int = 128
        tokens: Tokens = field(default_factory=Tokens)
        packed: bool = True
        mask_fraction: float = 0.15
        model: MaskedModel.Config = field(default_factory=_small)

        weight_settings: ClassVar[tuple[str, ...]] = ("tokens", "context", "packed", "model")

        @property
        def prediction_settings(self) -> tuple[str, ...]:
            """See `Task.Config.prediction_settings`."""
            return ("documents", "text_column", "mask_fraction")

        def __post_init__(self) -> None:
            if self.context < 2:
                raise ValueError(f"context is {self.context}; expected at least 2, the class token and one more")
            if not 0 < self.mask_fraction < 1:
                raise ValueError(f"mask_fraction is {self.mask_fraction}; expected a number above 0 and below 1")
            if self.model.is_pretrained:
                given = {name: getattr(self.tokens, name) for name in ("kind", "vocab_size", "lowercase")}
                because = f"model={type(self.model).__qualname__}, which has tokens of its own"
                refuse_idle("", Tokens, because, "take another model", **given)

        def in_folder(self, folder: Path, facts: Task.Facts) -> Self:
            """See `Task.Config.in_folder`; a checkpoint's settings and the tokenizer are read from the folder."""
            assert isinstance(facts, MaskedLanguageModelling.Facts)
            tokens = Tokens(file=str(folder / "tokenizer.json"))
            return replace(self, tokens=tokens, model=facts.model or self.model)

        def _recommended(self, effort: Effort, start: Trained | None) -> Recommended:
            """See `Task.Config.recommended`; chooses the tokens, the context and the size of the model."""
            default, context = MaskedLanguageModelling.Config(), CONTEXTS[effort.preset]
            if self.model.is_pretrained:
                task = self.build()
                pretrained = task.pretrained
                assert pretrained is not None
                config = filled(self, [default], context=min(context, pretrained.max_input_tokens or context))
                task, width = config.build(task.facts), task.chosen.rated_width
                task.check_checkpoint(pretrained)
                has_valid = task.num_held_out("valid") > 0
                schedule = fine_tuning_for(task.num_train, effort.preset, has_valid=has_valid, width=width, share=1.0)
                return Recommended(config, schedule, config._notes(CONTEXTS[effort.preset]))
            config = replace(self, tokens=self.tokens.recommended(self.build().splits.train))
            config = filled(config, [default], context=context)
            task = config.build()
            width = width_for(task.num_train_tokens, effort, least=96, up_to=300_000)
            model = config.model.resized(width, DEPTH[effort.preset], default.model)
            schedule = schedule_for(
                task.num_train,
                effort,
                has_valid=task.num_held_out("valid") > 0,
                learning_rate=rate_for(model.rated_width),
                batch_size=16 if effort.preset == "small" else 64,
            )
            return Recommended(replace(config, model=model), schedule, config._notes(CONTEXTS[effort.preset]))

        @property
        def stack(self) -> Stack:
            """See `Task.Config.stack`; the network of the model."""
            return self.model.stack if isinstance(self.model, ITNetMaskedModel.Config) else stack_of(self.model)

        def with_stack(self, stack: Stack) -> Self:
            """See `Task.Config.with_stack`; an ITNet."""
            assert isinstance(stack, ITNet.Config)
            whole = self.model if isinstance(self.model, ITNetMaskedModel.Config) else _small()
            return replace(self, model=replace(whole, stack=stack))

        def build(self, facts: Task.Facts | None = None) -> "MaskedLanguageModelling":
            """Builds the task; see `MaskedLanguageModelling`."""
            return MaskedLanguageModelling(
                self, own_facts(facts, MaskedLanguageModelling.Facts, "masked language modelling")
            )

    def __init__(self, config: Config, facts: Facts | None = None) -> None:
        super().__init__(config)
        self.config = config
        self._facts = facts or self._learn_facts()
        self.tokenizer = MarkedTokenizer(self._facts.tokenizer)
        marks = self.tokenizer.marks
        self._others = torch.tensor([marks.pad, marks.unknown, marks.class_token, marks.separator, marks.mask])

    def _learn_facts(self) -> Facts:
        """Learns the tokens, or reads them and further settings from a checkpoint."""
        _ = self.splits  # before a checkpoint is fetched
        if (pretrained := self.pretrained) is None:
            return MaskedLanguageModelling.Facts(tokenizer=self._learnt())
        named = self.config.tokens.file
        found = checkpoint_tokenizer(pretrained.folder) if named is None else MarkedTokenizer.load(user_path(named))
        if found is None:
            raise ValueError(
                f"{pretrained.folder} has no tokenizer: expected {' or '.join(FILES)}; save that of the model there, "
                "or pass tokens.file"
            )
        return MaskedLanguageModelling.Facts(tokenizer=found.state, model=pretrained.model)

    @property
    def chosen(self) -> MaskedModel.Config:
        """The model's complete settings."""
        return self._facts.model or self.config.model

    def _learnt(self) -> str:
        """Returns the tokenizer; the result for a large text is cached."""
        tokens, train = self.config.tokens, self.splits.train
        if tokens.file is not None:
            return tokens.learn(train).state
        kept = CacheEntry("marked tokenizer", train.key, repr(tokens), library_version())
        return kept.value(lambda: {"state": tokens.learn(train).state}, size=train.file_bytes)["state"]

    @property
    def facts(self) -> Facts:
        """The tokens, and facts about the training text."""
        return self._facts

    @property
    def input_meaning(self) -> dict[str, object]:
        """The tokenizer and the context."""
        return {"tokenizer": self._facts.tokenizer, "context": self.config.context}

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """See `Task.baselines`; masked tokens by both neighbours."""
        hidden, size = self.tokenizer.marks.mask, self.tokenizer.vocab_size
        return (TwoSidedNGrams(self._first_tokens, self._hidden_places, hidden, size),)

    def _first_tokens(self) -> list[int]:
        return self._train_blocks.tokens[:MOST_TOKENS].tolist()

    def _hidden_places(self, split: HeldOut) -> Iterator[tuple[int, int, int]]:
        """Yields the previous, the masked and the next token of each masked one; after a block the next is a mask."""
        for indices in torch.arange(self.num_held_out(split)).split(BLOCKS):
            batch = self.held_out_batch(split, indices)
            for given, wanted in zip(batch["inputs"].tolist(), batch["targets"].tolist(), strict=True):
                after = [*given[1:], self.tokenizer.marks.mask]
                yield from (
                    (given[k - 1], token, after[k]) for k, token in enumerate(wanted) if token != IGNORED and k > 0
                )

    @property
    def num_train(self) -> int:
        """Number of training blocks."""
        return len(self._train_blocks)

    @property
    def num_train_tokens(self) -> int:
        """Number of training tokens."""
        return len(self._train_blocks.tokens)

    def num_held_out(self, split: HeldOut) -> int:
        """Number of blocks in the validation or the test split; 0 where there is none."""
        blocks = self._held_out_blocks.get(split)
        return 0 if blocks is None else len(blocks)

    @property
    def train_lengths(self) -> Tensor | None:
        """Number of tokens of each block; None where blocks are full."""
        blocks = self._train_blocks
        return None if self.config.packed else blocks.lengths(torch.arange(len(blocks)))

    @property
    def train_shards(self) -> Tensor | None:
        """Sizes of shards of blocks, where tokens are mapped."""
        blocks = self._train_blocks
        tokens = blocks.tokens
        return shards_of(len(blocks), tokens.nbytes / len(blocks)) if is_mapped(tokens) else None

    def model(self) -> nn.Module:
        """Returns a masked model over the tokens."""
        marks = self.tokenizer.marks
        return self.chosen.build(
            self.tokenizer.vocab_size, self.config.context, pad=marks.pad, separator=marks.separator
        )

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Returns ``inputs`` and ``targets`` (B, longest block), int64; masks are drawn from ``generator``."""
        offset = self._offset if self.config.packed else 0
        return self._hidden(self._train_blocks, indices, [generator], offset)

    def held_out_batch(self, split: HeldOut, indices: Tensor) -> Batch:
        """Returns ``inputs`` and ``targets`` (B, longest block), int64; masks depend on the block alone."""
        return self._fixed(self._held_out_blocks[split], indices)

    @torch.no_grad()
    def shown_example(self, split: HeldOut, index: int, model: nn.Module | None = None) -> ShownExample:
        """See `Task.shown_example`; a block, with the cost and the prediction of each masked token."""
        batch = self.held_out_batch(split, torch.tensor([index]))
        inputs, targets = batch["inputs"][0], batch["targets"][0]
        hidden = targets != IGNORED
        truth = torch.where(hidden, targets, inputs)
        costs = predicted = None
        if model is not None:
            logits = model(batch["inputs"].to(device_of(model)))[0].float().cpu()
            costs = F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)
            predicted = self.tokenizer.pieces(logits.argmax(-1))
        parts = list[TextPart]()
        for n, piece in enumerate(self.tokenizer.pieces(truth)):
            is_hidden = bool(hidden[n]) and costs is not None and predicted is not None
            cost, note = (float(costs[n]), f"predicted: {predicted[n]}") if is_hidden else (None, "")  # pyright: ignore
            parts.append(TextPart(f"{piece} ", cost, note))
        return ShownExample(name=f"block {index}", views=(TextView(parts=tuple(parts)),))

    def num_targets(self, batch: Batch) -> int:
        """Number of tokens to predict."""
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the cross-entropy in nats, summed over the tokens to predict."""
        return F.cross_entropy(*self._answers(model, batch), reduction="sum")

    def metrics(self) -> "dict[str, Metric]":
        """Returns ``perplexity`` and ``accuracy`` of the tokens to predict, and ``loss`` in nats per token.

        Raises:
            ImportError: torchmetrics is not installed.
        """
        with importing_metrics():
            from torchmetrics.metric import CompositionalMetric

            from fredholm.tasks.mean_metrics import Mean
        loss, accuracy = Mean(), Mean()
        return {"perplexity": CompositionalMetric(torch.exp, loss, None), "loss": loss, "accuracy": accuracy}

    def score(self, model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        """Updates the metrics with a batch of `held_out_batch`; the perplexity follows from the loss."""
        logits, targets = self._answers(model, batch)
        if len(targets) == 0:
            return
        metrics["loss"].update(F.cross_entropy(logits, targets), weight=len(targets))
        metrics["accuracy"].update((logits.argmax(-1) == targets).double().mean(), weight=len(targets))

    def tensor_form(self, model: nn.Module) -> TensorForm:
        """See `Task.tensor_form`; the input is tokens, some of them [MASK]."""
        tokenizer = self.tokenizer
        given = tokenizer.slot
        given = given._replace(about=f"{given.about}; in place of tokens to predict [MASK] ({tokenizer.marks.mask})")
        return self._logits_form(
            model,
            given,
            tokenizer.vocab_size,
            lambda sizes, generator: (tokenizer.draw(sizes["batch"], sizes["tokens"], generator),),
            self._facts.tokenizer,
        )

    @property
    def _about_logits(self) -> str:
        return "a logit of every token, at each place; their softmax is the model's prediction of a masked token"

    def _predictions(self, model: nn.Module, inputs: Inputs, device: torch.device) -> list[Prediction]:
        """Returns ``file``, masked ``tokens``, ``loss`` in nats a token, ``perplexity``, ``accuracy`` of each file."""
        rows: list[Prediction] = []
        for file, blocks in inputs.read(self._read):
            sums = torch.zeros(3, dtype=torch.float64)
            for indices in torch.arange(len(blocks)).split(BLOCKS):
                batch = {name: tensor.to(device) for name, tensor in self._fixed(blocks, indices).items()}
                logits, targets = self._answers(model, batch)
                right = (logits.argmax(-1) == targets).sum()
                nats = F.cross_entropy(logits, targets, reduction="sum")
                sums += torch.tensor([float(nats), float(right), len(targets)], dtype=torch.float64)
            nats, right, count = sums.tolist()
            row = {"tokens": int(count), "loss": nats / count, "perplexity": math.exp(nats / count)}
            rows.append(Prediction(file, {**row, "accuracy": right / count}))
        return rows

    def _read(self, file: Path) -> "_Blocks":
        return self._blocks(Documents([file], self.config.documents, self.config.text_column), str(file))

    def _answers(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns logits `(n, V)` and targets `(n,)` of the tokens to predict."""
        wanted = batch["targets"] != IGNORED
        return model(batch["inputs"])[wanted].float(), batch["targets"][wanted]

    @property
    def _num_places(self) -> int:
        return self.num_train_tokens

    @cached_property
    def _train_blocks(self) -> "_Blocks":
        return self._blocks(self.splits.train, self.config.data)

    @cached_property
    def _held_out_blocks(self) -> "dict[HeldOut, _Blocks]":
        return {split: self._blocks(own, self.config.data) for split, own in self._held_out_documents.items()}

    def _blocks(self, documents: Documents, where: str) -> "_Blocks":
        """Returns blocks of documents, with [SEP] after each document; a block leaves room for a class token."""
        end, size = self.tokenizer.marks.separator, self.config.context - 1
        tokens = joined(documents, self.tokenizer, after=end)
        if all(np.isin(tokens[k : k + CHUNK], self._others).all() for k in range(0, len(tokens), CHUNK)):
            raise ValueError(f"{where}: a split has no token that the training text has; pass more text")
        return _Blocks(tokens, size) if self.config.packed else _Blocks.of_documents(tokens, end, size)

    def _fixed(self, blocks: "_Blocks", indices: Tensor) -> Batch:
        """Returns blocks with a fixed random choice of masks for each."""
        return self._hidden(blocks, indices, [torch.Generator().manual_seed(index) for index in indices.tolist()])

    def _hidden(
        self, blocks: "_Blocks", indices: Tensor, generators: Sequence[torch.Generator], offset: int = 0
    ) -> Batch:
        """Returns blocks after a class token, with some tokens masked, which are the targets.

        Randomness comes from one generator, or from one per block.
        """
        marks, vocabulary, size = self.tokenizer.marks, self.tokenizer.vocab_size, blocks.size
        block = blocks.cut(indices, offset, marks.pad)
        drawn = [_Draws.of((len(block) // len(generators), size), generator) for generator in generators]
        order, kind, other = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        words = torch.arange(vocabulary)
        words = words[~torch.isin(words, self._others)]
        may_hide = ~torch.isin(block, self._others)
        count = may_hide.sum(-1, keepdim=True)
        rank = order.where(may_hide, 2.0).argsort(-1).argsort(-1)
        chosen = rank < (count * self.config.mask_fraction).round().clamp(min=1).minimum(count)
        inputs = block.where(~(chosen & (kind < MASKED)), marks.mask)
        another = words[(other * len(words)).long()]
        inputs = inputs.where(~(chosen & (kind >= MASKED) & (kind < MASKED + RANDOM)), another)
        targets = block.where(chosen, IGNORED)
        # draws are for full blocks, so that no choice depends on the longest block of a batch
        longest = int(blocks.lengths(indices).amax())
        return {
            "inputs": F.pad(inputs[:, :longest], (1, 0), value=marks.class_token),
            "targets": F.pad(targets[:, :longest], (1, 0), value=IGNORED),
        }


@final
class _Blocks:
    """Independent stretches of a token stream.

    Args:
        tokens: integers `(n,)`, which may be memory-mapped.
        size: tokens of a full block.
        places: start and number of tokens of each block, int64 `(m, 2)`; None: contiguous full blocks, of which the
            last may be smaller.
    """

    def __init__(self, tokens: np.ndarray, size: int, places: np.ndarray | None = None) -> None:
        self.tokens, self.size, self._places = tokens, size, places

    @classmethod
    def of_documents(cls, tokens: np.ndarray, end: int, size: int) -> Self:
        """Cuts documents that end with this token into blocks; the last block of a document may be smaller."""
        ends = [k + np.flatnonzero(tokens[k : k + CHUNK] == end) for k in range(0, len(tokens), CHUNK)]
        after = np.concatenate(ends) + 1
        starts = np.concatenate([[0], after[:-1]])
        counts = -((starts - after) // size)
        within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        first, last = np.repeat(starts, counts) + size * within, np.repeat(after, counts)
        return cls(tokens, size, np.stack([first, np.minimum(last - first, size)], axis=1))

    def __len__(self) -> int:
        return math.ceil(len(self.tokens) / self.size) if self._places is None else len(self._places)

    def lengths(self, indices: Tensor) -> Tensor:
        """Returns the numbers of tokens of some blocks, int64 `(B,)`."""
        if self._places is None:
            return (len(self.tokens) - indices * self.size).clamp(max=self.size)
        return torch.from_numpy(self._places[indices.numpy(), 1])

    def cut(self, indices: Tensor, offset: int, pad: int) -> Tensor:
        """Returns blocks `(B, size)`, int64, of the stream rolled to start at `offset`, padded at their ends."""
        starts = indices * self.size if self._places is None else torch.from_numpy(self._places[indices.numpy(), 0])
        inner = torch.arange(self.size)
        places = (starts[:, None] + inner + offset) % len(self.tokens)
        tokens = torch.from_numpy(self.tokens[places.numpy()].astype(np.int64))
        return tokens.where(inner < self.lengths(indices)[:, None], pad)


class _Draws(NamedTuple):
    """Random numbers of each token of some blocks, uniform in [0, 1)."""

    order: Tensor
    kind: Tensor
    other: Tensor

    @classmethod
    def of(cls, shape: tuple[int, int], generator: torch.Generator) -> Self:
        return cls(*torch.rand(3, *shape, generator=generator, dtype=torch.float64))
