"""Interpolated n-gram language model."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm._settings import check_count, check_whole
from fredholm.domains.checks import values_can_be_read
from fredholm.models.closed_form_model import ClosedFormModel
from fredholm.models.language.jelinek_mercer import bins, interpolation
from fredholm.models.language.language_model import LanguageModel, LanguageState
from fredholm.models.language.recall import NOTHING, Recall

STRETCHES = 8
"""Number of stretches of the text, each of which is predicted from the counts of the others to choose weights."""


@final
class NGramModel(ClosedFormModel, LanguageModel):
    """Interpolated n-grams of tokens, in closed form but for the weights of bins (Jelinek and Mercer, 1980).

        p_k(w | c) = λ(c) p_{k-1}(w | c') + (1 - λ(c)) N(c w) / N(c),        p_{-1} = 1 / V

    with c the last k tokens, c' the last k - 1 of them, and N their counts in the training text; λ(c) is 1 if c does
    not occur. So the prediction is an average over the text, Σ_y κ(x, y) δ(w, t_{y+1}), with a kernel that depends on
    the number of equal tokens before x and y.

    λ depends on the count of c and on the number of distinct next tokens. It maximises the likelihood of each of eight
    stretches of the text, predicted from the counts of the seven others: a text repeats itself within a stretch more
    than a new text will repeat the training text.

    With recall, n-grams in the text being read are counted too. The weights of `Recall` maximise the likelihood of the
    stretches, each read from its beginning, with the counts of the seven others.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence.
        config: the sizes.

    Attributes:
        keys: int64, key of each n-gram, sorted by length and then by key: V times the index of its first n - 1 tokens
            among the shorter n-grams, plus the last token.
        weights: float64, (1 - λ(c)) N(c w) / N(c) of each n-gram c w.
        kept: float64, λ(c) of each context, the empty one first; 1 before a fit.

    Raises:
        ValueError: sizes below 1.
    """

    keys: Tensor
    weights: Tensor
    kept: Tensor

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(LanguageModel.Config):
        """Numbers of n-grams, and length of the recall."""

        sizes: tuple[int, ...]
        """Numbers of distinct n-grams of 1, 2, ... tokens; see `distinct`."""
        recall: int = 0
        """Number of preceding tokens of the text being read that are counted too; 0: none."""

        def __post_init__(self) -> None:
            check_whole("models.NGramModel", "recall", self.recall)
            if self.recall < 0:
                raise ValueError(f"models.NGramModel: recall is {self.recall}; expected a number of tokens, or 0")
            if not self.sizes:
                raise ValueError("models.NGramModel: sizes is empty; expected the number of 1-grams at least")
            for size in self.sizes:
                check_count("models.NGramModel", "sizes", size)

        def build(self, vocab_size: int, context: int) -> "NGramModel":
            """Builds the model; see `NGramModel`."""
            return NGramModel(vocab_size, context, self)

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        super().__init__()
        for what, size in (("vocab_size", vocab_size), ("context", context)):
            check_count("models.NGramModel", what, size)
        self.vocab_size, self.context, self.config = vocab_size, context, config
        self.token_rows = ()
        total, contexts = sum(config.sizes), 1 + sum(config.sizes[:-1])
        self.register_buffer("keys", torch.arange(total))
        # float64 even where other weights have 16 bits: they are shares of 1
        self.register_buffer("weights", torch.zeros(total, dtype=torch.float64))
        self.register_buffer("kept", torch.ones(contexts, dtype=torch.float64))
        self.recall = Recall(vocab_size, config.recall) if config.recall else None

    @staticmethod
    def distinct(tokens: Tensor, vocab_size: int, order: int) -> tuple[int, ...]:
        """Numbers of distinct n-grams of 1 … `order` tokens in a text `(N,)`; fewer lengths for a shorter text."""
        _check_text(tokens, vocab_size)
        return tuple(len(level.keys) for level in _levels(tokens, vocab_size, min(order, len(tokens) - 1)))

    @torch.no_grad()
    def fit(self, tokens: Tensor) -> None:
        """Counts the n-grams of a text.

        Args:
            tokens: int64 `(N,)`, two at least, with as many distinct n-grams as `sizes`.

        Raises:
            TypeError, ValueError: tokens of another type or shape, or other numbers of n-grams.
        """
        _check_text(tokens, self.vocab_size)
        sizes = self.config.sizes
        found = self.distinct(tokens, self.vocab_size, len(sizes))
        if found != sizes:
            raise ValueError(f"models.NGramModel: the text has {found} n-grams; expected {sizes}: see `distinct`")
        count = len(tokens) - 1
        stretch = torch.arange(count) * min(STRETCHES, count) // count
        p = torch.full((count,), 1 / self.vocab_size, dtype=torch.float64)
        keys, weights, kept = list[Tensor](), list[Tensor](), list[Tensor]()
        for level in _levels(tokens, self.vocab_size, len(sizes)):
            rest = level.without_own(stretch)
            is_known = rest.times > 0
            of_place = bins(rest.times, rest.kinds)
            share = rest.together / rest.times.clamp(min=1)
            of_bins = interpolation(of_place[is_known], p[level.is_there][is_known], share[is_known])
            mixed = of_bins[of_place] * p[level.is_there] + (1 - of_bins[of_place]) * share
            p[level.is_there] = torch.where(is_known, mixed, p[level.is_there])
            own = torch.where(level.times > 0, of_bins[bins(level.times, level.kinds)], 1.0)
            before = level.keys // self.vocab_size
            keys.append(level.keys)
            weights.append((1 - own[before]) * level.together / level.times[before])
            kept.append(own)
        self.keys.copy_(torch.cat(keys))
        self.weights.copy_(torch.cat(weights))
        self.kept.copy_(torch.cat(kept))
        if self.recall is not None:
            self.recall.fit(tokens, p, stretch)

    def without_recall(self) -> "NGramModel":
        """Returns the model with the counts of the training text alone."""
        with torch.device("meta"):
            found = NGramModel(self.vocab_size, self.context, dataclasses.replace(self.config, recall=0))
        found.keys, found.weights, found.kept = self.keys, self.weights, self.kept
        return found.train(self.training)

    @property
    def length(self) -> int:
        """Number of tokens before a sequence that its predictions depend on."""
        return 0 if self.recall is None else self.recall.length

    def forward(self, tokens: Tensor, past: Tensor | None = None, *, recalled: float | None = None) -> Tensor:
        """Computes logits `(B, T, V)`, float32; see `LanguageModel.forward`.

        Args:
            tokens: int64 `(B, T)`, T up to `context`.
            past: int64 `(B, P)`, preceding tokens of the same text, at most `length`, for the recall alone; -1 before
                the first token of the text.
            recalled: share of the recall; None: that of `Recall`.

        Raises:
            TypeError, ValueError: on tokens of another type or shape, or a past or share in a model without recall.
        """
        self.check_tokens(tokens)
        if recalled is not None and self.recall is None:
            raise ValueError("models.NGramModel: recalled has no effect with recall=0; leave it out, or set recall")
        self._check_past(tokens, past)
        return self.logits(self.probabilities(tokens, past, recalled=recalled))

    def _check_past(self, tokens: Tensor, past: Tensor | None) -> None:
        if past is None:
            return
        if self.recall is None:
            raise ValueError("models.NGramModel: past has no effect with recall=0; leave it out, or set recall")
        if past.dtype != torch.int64 or past.ndim != 2 or len(past) != len(tokens):
            raise ValueError(
                f"models.NGramModel: past is {past.dtype} {tuple(past.shape)}; expected torch.int64 of {len(tokens)} "
                "sequences, (batch, length)"
            )
        if (
            values_can_be_read(past)
            and past.numel()
            and not NOTHING <= int(past.min()) <= int(past.max()) < self.vocab_size
        ):
            raise ValueError(
                f"models.NGramModel: past runs from {int(past.min())} to {int(past.max())}; expected 0 to "
                f"{self.vocab_size - 1}, or {NOTHING} before a text begins"
            )

    def initial_state(self, batch_size: int) -> LanguageState:
        """The number of tokens read, and the last tokens, which predictions depend on."""
        return ((torch.zeros(batch_size, dtype=torch.int64), torch.zeros(batch_size, 0, dtype=torch.int64)),)

    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """See `LanguageModel.read`; the signal holds the probabilities of the next token."""
        ((num_read, past),) = state
        self.check_tokens(tokens, int(num_read[0]) if len(num_read) else 0)
        seen, before = torch.cat([past.to(tokens.device), tokens], 1), len(self.config.sizes) - 1
        first = max(0, past.shape[1] - before)
        signal = self._of_text(seen[:, first:])[:, past.shape[1] - first :]
        if self.recall is not None:
            signal = self.recall(signal, seen)
        last = seen[:, max(0, seen.shape[1] - max(before, self.length)) :]
        return signal, ((num_read + tokens.shape[1], last),)

    def logits(self, signal: Tensor) -> Tensor:
        """See `LanguageModel.logits`: takes the probabilities."""
        return signal.log()

    def probabilities(self, tokens: Tensor, past: Tensor | None = None, *, recalled: float | None = None) -> Tensor:
        """Returns probabilities of the next token, float32 `(B, T, V)`, from tokens, int64 `(B, T)`; see `forward`."""
        p = self._of_text(tokens)
        if self.recall is None:
            return p
        return self.recall(p, tokens if past is None else torch.cat([past, tokens], 1), recalled)

    def _of_text(self, tokens: Tensor) -> Tensor:
        """Probabilities by the training text alone."""
        (keys, weights, kept), *longer = self._of_lengths()
        none = torch.zeros(self.vocab_size, dtype=torch.float64, device=tokens.device) + kept / self.vocab_size
        single = none.index_add(0, keys, weights.to(none.dtype))
        context, contexts = torch.zeros_like(tokens), list[Tensor]()
        for n, level in enumerate(longer):
            context = self._longer(context, tokens, keys, is_first=n == 0)
            contexts.append(context)
            keys = level[0]
        # weight left by longer contexts to those of each length, and finally to the distribution without context
        left = [torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)]
        for context, (_, _, kept) in zip(reversed(contexts), reversed(longer), strict=True):
            left.append(left[-1] * torch.where(context >= 0, kept[context.clamp(min=0)], 1.0))
        # a product of many small weights would underflow in float32
        p = left.pop().clamp(min=1e-25).float()[..., None] * single.float()
        for context, share, (keys, weights, _) in zip(contexts, reversed(left), longer, strict=True):
            p = self._added(p, context, share, keys, weights)
        return p

    def _of_lengths(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Keys and weights of the n-grams of each length, and λ of their contexts."""
        sizes = self.config.sizes
        kept = self.kept.split((1, *sizes[:-1]))
        return zip(self.keys.split(sizes), self.weights.split(sizes), kept, strict=True)

    def _longer(self, context: Tensor, tokens: Tensor, keys: Tensor, *, is_first: bool) -> Tensor:
        """Index of each context extended by its token among n-grams of that length; -1 if it does not occur."""
        start = context[:, :1] if is_first else torch.full_like(context[:, :1], -1)
        earlier = torch.cat([start, context], 1)[:, : tokens.shape[1]]
        return self._found(keys, earlier * self.vocab_size + tokens, earlier >= 0)

    @staticmethod
    def _found(keys: Tensor, wanted: Tensor, may_be: Tensor) -> Tensor:
        """Index of each wanted key among sorted keys; -1 if it does not occur."""
        at = torch.searchsorted(keys, wanted) if values_can_be_read(wanted) else _bisected(keys, wanted)
        at = at.clamp(max=len(keys) - 1)
        return torch.where(may_be & (keys[at] == wanted), at, -1)

    def _added(self, p: Tensor, context: Tensor, share: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
        """Adds `share` times the weights of the n-grams after each context to `p`, which may be overwritten."""
        size = self.vocab_size
        if not values_can_be_read(context):  # the shape of a traced graph cannot depend on the number of matches
            wanted = context[..., None] * size + torch.arange(size, device=context.device)
            at = self._found(keys, wanted, context[..., None] >= 0)
            return p + torch.where(at >= 0, weights[at.clamp(min=0)] * share[..., None], 0.0).float()
        rows = (context.flatten() >= 0).nonzero()[:, 0]
        first = context.flatten()[rows] * size
        first, end = torch.searchsorted(keys, first), torch.searchsorted(keys, first + size)
        count = end - first
        entry = torch.arange(int(count.sum()), device=p.device)
        entry += (first - count.cumsum(0) + count).repeat_interleave(count)
        place = (rows * size).repeat_interleave(count) + keys[entry] % size
        added = (weights[entry] * share.flatten()[rows].repeat_interleave(count)).float()
        return p.view(-1).index_add_(0, place, added).view_as(p)


def _bisected(keys: Tensor, wanted: Tensor) -> Tensor:
    """`torch.searchsorted` for export formats without such an operator."""
    below = torch.zeros_like(wanted)
    for bit in reversed(range(len(keys).bit_length())):
        next_one = below + (1 << bit)
        is_below = (next_one <= len(keys)) & (keys[next_one.clamp(max=len(keys)) - 1] < wanted)
        below = torch.where(is_below, next_one, below)
    return below


class _Level(NamedTuple):
    """Occurrences of the n-grams whose contexts have one length.

    Args:
        keys: keys of the n-grams, sorted.
        context: index of each occurrence's context among the shorter n-grams.
        gram: index of each occurrence's n-gram among `keys`.
        is_there: bool `(N - 1,)`, mask of the positions of the text with such an occurrence.
        num_contexts: number of contexts.
    """

    keys: Tensor
    context: Tensor
    gram: Tensor
    is_there: Tensor
    num_contexts: int

    @property
    def together(self) -> Tensor:
        """Count of each n-gram."""
        return self.gram.bincount(minlength=len(self.keys)).double()

    @property
    def times(self) -> Tensor:
        """Count of each context."""
        return self.context.bincount(minlength=self.num_contexts).double()

    @property
    def kinds(self) -> Tensor:
        """Number of distinct next tokens of each context."""
        grams = self.gram.new_zeros(len(self.keys)).scatter(0, self.gram, self.context)
        return grams.bincount(minlength=self.num_contexts).double()

    def without_own(self, stretch: Tensor) -> "_Rest":
        """Counts for each position, over all stretches but its own."""
        own = stretch[self.is_there]
        _, gram, in_own = (self.gram * STRETCHES + own).unique(return_inverse=True, return_counts=True)
        _, context, of_own = (self.context * STRETCHES + own).unique(return_inverse=True, return_counts=True)
        together = self.together[self.gram] - in_own[gram]
        # a next token that occurs in this stretch alone is not counted for the others
        is_own_alone = context.new_zeros(len(in_own)).scatter(0, gram, (together == 0).long())
        context_of_gram = context.new_zeros(len(in_own)).scatter(0, gram, context)
        own_kinds = torch.zeros(len(of_own), dtype=torch.int64).index_add(0, context_of_gram, is_own_alone)
        return _Rest(
            together, self.times[self.context] - of_own[context], self.kinds[self.context] - own_kinds[context]
        )


class _Rest(NamedTuple):
    """For each position, counts of its n-gram and context elsewhere, and the number of distinct next tokens."""

    together: Tensor
    times: Tensor
    kinds: Tensor


def _levels(tokens: Tensor, vocab_size: int, order: int) -> Iterator[_Level]:
    """Yields the levels of contexts of 0, 1, ... tokens."""
    count = len(tokens) - 1
    context, num_contexts = torch.zeros(count, dtype=torch.int64), 1
    for n in range(order):
        is_there = torch.arange(count) >= n  # n-grams must lie within the text
        keys, gram = (context[is_there] * vocab_size + tokens[1:][is_there]).unique(return_inverse=True)
        yield _Level(keys, context[is_there], gram, is_there, num_contexts)
        num_contexts = len(keys)
        context = torch.cat([context.new_zeros(count - len(gram) + 1), gram])[:count]


def _check_text(tokens: Tensor, vocab_size: int) -> None:
    if tokens.dtype != torch.int64 or tokens.ndim != 1 or len(tokens) < 2:
        raise ValueError(
            f"models.NGramModel: expected a text of two tokens or more, int64 (N,); got {tokens.dtype} "
            f"{tuple(tokens.shape)}"
        )
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size:
        raise ValueError(
            f"models.NGramModel: tokens run from {int(tokens.min())} to {int(tokens.max())}; expected 0 to "
            f"{vocab_size - 1}"
        )
