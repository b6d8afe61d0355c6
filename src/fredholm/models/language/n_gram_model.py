"""What came in a text after the last few tokens, as often as it came."""

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
"""Of the text, each of which is predicted from the counts of the others."""


@final
class NGramModel(ClosedFormModel, LanguageModel):
    """Interpolated n-grams of tokens, in closed form but for some weights of bins (Jelinek and Mercer, 1980).

        p_k(w | c) = λ(c) p_{k-1}(w | c') + (1 - λ(c)) N(c w) / N(c),        p_{-1} = 1 / V

    with c the last k tokens, c' the last k - 1 of them, and N how often they came in the training text; λ(c) is 1 where
    c did not. So the next token is an average over the text, Σ_y κ(x, y) δ(w, t_{y+1}), by a kernel that says how many
    tokens before x and y agree.

    λ depends on how often c came and on how many different tokens came after it. It is that by which each of eight
    stretches of the text is likeliest, predicted from the counts of the seven others: a text repeats itself within a
    stretch more than it will repeat what was learnt of it.

    Where it recalls, what came earlier in the text that is being read is counted too. The weights of `Recall` are those
    by which the stretches are likeliest, each read from its beginning, with the counts of the seven others.

    Args:
        vocab_size: number of tokens V.
        context: longest sequence.
        config: the sizes.

    Attributes:
        keys: int64, of each n-gram, sorted by length and in it by this number: V times the place of its first n - 1
            tokens among the shorter ones, and the last token.
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
        """How much is counted."""

        sizes: tuple[int, ...]
        """Different n-grams of 1, 2, ... tokens; see `distinct`."""
        recall: int = 0
        """Tokens before a place, of the text that is being read, that are counted too; 0: none."""

        def __post_init__(self) -> None:
            check_whole("models.NGramModel", "recall", self.recall)
            if self.recall < 0:
                raise ValueError(f"models.NGramModel: recall is {self.recall}; expected a number of tokens, or 0")
            if not self.sizes:
                raise ValueError("models.NGramModel: sizes is empty; expected the number of 1-grams at least")
            for size in self.sizes:
                check_count("models.NGramModel", "sizes", size)

        def build(self, vocab_size: int, context: int) -> "NGramModel":
            """The model; see `NGramModel`."""
            return NGramModel(vocab_size, context, self)

    def __init__(self, vocab_size: int, context: int, config: Config) -> None:
        super().__init__()
        for what, size in (("vocab_size", vocab_size), ("context", context)):
            check_count("models.NGramModel", what, size)
        self.vocab_size, self.context, self.config = vocab_size, context, config
        self.token_rows = ()
        total, contexts = sum(config.sizes), 1 + sum(config.sizes[:-1])
        self.register_buffer("keys", torch.arange(total))
        # in float64, which weights that are read in 16 bits keep: they are shares of 1
        self.register_buffer("weights", torch.zeros(total, dtype=torch.float64))
        self.register_buffer("kept", torch.ones(contexts, dtype=torch.float64))
        self.recall = Recall(vocab_size, config.recall) if config.recall else None

    @staticmethod
    def distinct(tokens: Tensor, vocab_size: int, order: int) -> tuple[int, ...]:
        """How many different n-grams of 1 … `order` tokens a text `(N,)` has; fewer lengths where it is shorter."""
        _check_text(tokens, vocab_size)
        return tuple(len(level.keys) for level in _levels(tokens, vocab_size, min(order, len(tokens) - 1)))

    @torch.no_grad()
    def fit(self, tokens: Tensor) -> None:
        """Counts the n-grams of a text.

        Args:
            tokens: int64 `(N,)`, two at least, with as many different n-grams as the sizes say.

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
        """The same counts of the training text, alone."""
        with torch.device("meta"):
            found = NGramModel(self.vocab_size, self.context, dataclasses.replace(self.config, recall=0))
        found.keys, found.weights, found.kept = self.keys, self.weights, self.kept
        return found.train(self.training)

    @property
    def length(self) -> int:
        """Tokens before a sequence that change anything."""
        return 0 if self.recall is None else self.recall.length

    def forward(self, tokens: Tensor, past: Tensor | None = None, *, recalled: float | None = None) -> Tensor:
        """Logits `(B, T, V)`, float32; see `LanguageModel.forward`.

        Args:
            tokens: int64 `(B, T)`, T up to `context`.
            past: int64 `(B, P)`, tokens of the same text before these, `length` of them or fewer, which are recalled
                and in which no n-gram begins; -1 in place of those before its first one.
            recalled: the share of what is recalled; None: that of `Recall`.

        Raises:
            TypeError, ValueError: on tokens of another type or shape, or of a past or a share where nothing recalls.
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
        """How many tokens were read, and the last of them."""
        return ((torch.zeros(batch_size, dtype=torch.int64), torch.zeros(batch_size, 0, dtype=torch.int64)),)

    def read(self, tokens: Tensor, state: LanguageState) -> tuple[Tensor, LanguageState]:
        """See `LanguageModel.read`; the signal are the probabilities of the next token."""
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
        """See `LanguageModel.logits`: of the probabilities."""
        return signal.log()

    def probabilities(self, tokens: Tensor, past: Tensor | None = None, *, recalled: float | None = None) -> Tensor:
        """Of the token after each place, `(B, T, V)`, float32, from `tokens`, int64 `(B, T)`; see `forward`."""
        p = self._of_text(tokens)
        if self.recall is None:
            return p
        return self.recall(p, tokens if past is None else torch.cat([past, tokens], 1), recalled)

    def _of_text(self, tokens: Tensor) -> Tensor:
        """The same by the training text alone."""
        (keys, weights, kept), *longer = self._of_lengths()
        none = torch.zeros(self.vocab_size, dtype=torch.float64, device=tokens.device) + kept / self.vocab_size
        single = none.index_add(0, keys, weights.to(none.dtype))
        context, contexts = torch.zeros_like(tokens), list[Tensor]()
        for n, level in enumerate(longer):
            context = self._longer(context, tokens, keys, is_first=n == 0)
            contexts.append(context)
            keys = level[0]
        # what longer contexts leave to those of each length, and at last to none
        left = [torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)]
        for context, (_, _, kept) in zip(reversed(contexts), reversed(longer), strict=True):
            left.append(left[-1] * torch.where(context >= 0, kept[context.clamp(min=0)], 1.0))
        # a product of many that are small would be 0 in float32
        p = left.pop().clamp(min=1e-25).float()[..., None] * single.float()
        for context, share, (keys, weights, _) in zip(contexts, reversed(left), longer, strict=True):
            p = self._added(p, context, share, keys, weights)
        return p

    def _of_lengths(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Keys and weights of the n-grams of each length, and what is kept of shorter ones after their contexts."""
        sizes = self.config.sizes
        kept = self.kept.split((1, *sizes[:-1]))
        return zip(self.keys.split(sizes), self.weights.split(sizes), kept, strict=True)

    def _longer(self, context: Tensor, tokens: Tensor, keys: Tensor, *, is_first: bool) -> Tensor:
        """The place of a context with the token at each place, among n-grams of their length; -1: it did not come."""
        start = context[:, :1] if is_first else torch.full_like(context[:, :1], -1)
        earlier = torch.cat([start, context], 1)[:, : tokens.shape[1]]
        return self._found(keys, earlier * self.vocab_size + tokens, earlier >= 0)

    @staticmethod
    def _found(keys: Tensor, wanted: Tensor, may_be: Tensor) -> Tensor:
        """Where keys are among sorted ones; -1: nowhere."""
        at = torch.searchsorted(keys, wanted) if values_can_be_read(wanted) else _bisected(keys, wanted)
        at = at.clamp(max=len(keys) - 1)
        return torch.where(may_be & (keys[at] == wanted), at, -1)

    def _added(self, p: Tensor, context: Tensor, share: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
        """The probabilities with a share of the weights of what came after each context; `p` may be written to."""
        size = self.vocab_size
        if not values_can_be_read(context):  # the shape of a traced graph cannot depend on how much came
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
    """`torch.searchsorted`, for graphs in formats that have no such operator."""
    below = torch.zeros_like(wanted)
    for bit in reversed(range(len(keys).bit_length())):
        next_one = below + (1 << bit)
        is_below = (next_one <= len(keys)) & (keys[next_one.clamp(max=len(keys)) - 1] < wanted)
        below = torch.where(is_below, next_one, below)
    return below


class _Level(NamedTuple):
    """What came after the contexts of one length.

    Args:
        keys: of n-grams, sorted.
        context: the place of each context among the shorter n-grams, of the places of the text where there is one.
        gram: the place of each with the token after it, among `keys`.
        is_there: bool `(N - 1,)`, these places.
        num_contexts: how many there are.
    """

    keys: Tensor
    context: Tensor
    gram: Tensor
    is_there: Tensor
    num_contexts: int

    @property
    def together(self) -> Tensor:
        """How often each n-gram came."""
        return self.gram.bincount(minlength=len(self.keys)).double()

    @property
    def times(self) -> Tensor:
        """How often something came after each context."""
        return self.context.bincount(minlength=self.num_contexts).double()

    @property
    def kinds(self) -> Tensor:
        """How many different tokens did."""
        grams = self.gram.new_zeros(len(self.keys)).scatter(0, self.gram, self.context)
        return grams.bincount(minlength=self.num_contexts).double()

    def without_own(self, stretch: Tensor) -> "_Rest":
        """What the stretches other than its own say of each place."""
        own = stretch[self.is_there]
        _, gram, in_own = (self.gram * STRETCHES + own).unique(return_inverse=True, return_counts=True)
        _, context, of_own = (self.context * STRETCHES + own).unique(return_inverse=True, return_counts=True)
        together = self.together[self.gram] - in_own[gram]
        # a kind that came in this stretch alone is none of the others'
        is_own_alone = context.new_zeros(len(in_own)).scatter(0, gram, (together == 0).long())
        context_of_gram = context.new_zeros(len(in_own)).scatter(0, gram, context)
        own_kinds = torch.zeros(len(of_own), dtype=torch.int64).index_add(0, context_of_gram, is_own_alone)
        return _Rest(
            together, self.times[self.context] - of_own[context], self.kinds[self.context] - own_kinds[context]
        )


class _Rest(NamedTuple):
    """Of each place, how often its n-gram and its context came elsewhere, and how many kinds followed that."""

    together: Tensor
    times: Tensor
    kinds: Tensor


def _levels(tokens: Tensor, vocab_size: int, order: int) -> Iterator[_Level]:
    """What came after contexts of 0, 1, ... tokens."""
    count = len(tokens) - 1
    context, num_contexts = torch.zeros(count, dtype=torch.int64), 1
    for n in range(order):
        is_there = torch.arange(count) >= n  # of what the first token is the last of, nothing is counted
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
