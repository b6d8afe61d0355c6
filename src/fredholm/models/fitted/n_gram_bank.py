"""How often each n-gram of tokens stands in a sentence, and a linear head in closed form.

Legend
    t_1 ... t_N  tokens of a sentence, its marks included      g       up to `order` tokens in a row, of the first or
                                                                       of the second sentence of a pair
    n            sentences to learn from; n_g of them hold g   μ       the even measure of mass 1 on the N places
    Y (n, c)     what is fitted, as a `Regressand` says        λ > 0   the penalty
    |g|          tokens of g                                   s       share of an n-gram by a further token, 0 to 1

    count           c_g = N ∫ 1[g stands at x] dμ(x)
    rarity          r_g = s^(|g| - 1) (1 + log((1 + n) / (1 + n_g)))
    features        x_g = (1 + log c_g) r_g, 0 where c_g is; of a sentence X = x / ‖x‖. An n-gram that all n sentences
                    hold equally often, such as a mark, has none: it tells nothing, and would take length from others
    W(λ) = argmin_W ‖(X - X̄) W - (Y - Ȳ)‖² + λ‖W‖² = (X - X̄)ᵀ A,   (C X Xᵀ C + λI) A = Y - Ȳ,   C = I - 1/n
    scores = Ȳ + (X - X̄) W(λ);  outputs are read from them as the regressand says

λ is the one with the smallest mean square of the errors on sentences that were left out: each of FOLDS parts by a fit
to the others. So is s of SHARES: 1, unless less has errors that are smaller by SURE standard errors of the difference.
Where single words decide, pairs of them are many more features that tell little else, and take length from the words.
The systems are solved by conjugate gradients in float64, from the largest penalty on, each from the solution of the one
before; penalties end once PATIENCE of them in a row were no better.

Source: term frequencies on a logarithmic scale and inverse document frequencies, Salton and Buckley, Term-weighting
approaches in automatic text retrieval (1988); 1 is added to counts and rarities, so that none is 0. That linear models
of pairs of words are hard to beat where texts are few is Wang and Manning's (2012) and Joulin et al.'s (arXiv
1607.01759) finding. Deviation: n-grams are of tokens, pieces of words among them, and the head is a ridge regression.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count, filled
from fredholm.domains.checks import values_can_be_read
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import Regressand, check_groups, dealt
from fredholm.models.language.sentence_model import SentenceModelConfig, TokenReading

PENALTIES = torch.logspace(1, -3, 9, dtype=torch.float64)
"""Values of λ that are tried, in multiples of the mean square of the rows of C X."""
FOLDS = 10
"""Parts that are left out in turn; where there are fewer sentences, or groups of them, as many as those."""
PATIENCE = 2
SHARES = (1.0, 0.5, 0.25, 0.0)
"""Values of s that are tried, each as long as the one before was better than those before it."""
SURE = 2.0
"""Standard errors by which less than 1 must be better."""
TOLERANCE = 1e-5
"""Of a system's residual, in units of its right-hand side."""
MOST_ITERATIONS = 1000
COLUMNS = 64
"""Of the systems that are solved at once."""
MOST_GRAMS = 262_144
"""N-grams of a bank that is sized by its sentences, at most."""

_NONE = torch.iinfo(torch.int64).max
"""In place of an n-gram, where there are fewer than there is room for."""


@final
class NGramBank(FittedModel[Tensor]):
    """Weighted counts of the n-grams of a sentence, and a ridge regression on them.

    Takes rows of tokens, int64 `(B, N)`, filled up at their ends; what an n-gram was not seen in training says nothing.

    Args:
        reading: the rows.
        num_outputs: such as classes.
        config: which n-grams.

    Attributes:
        weight: `(num_grams, num_outputs)`; 0 before a fit. A parameter, so that gradient steps may go on from the fit.
        bias: `(num_outputs,)`.
        penalty: λ of the last fit, a float64 scalar; NaN before one.

    Raises:
        ValueError: there are more n-grams than 64 bits can number.
    """

    grams: Tensor
    rarity: Tensor
    penalty: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SentenceModelConfig):
        """Which n-grams count."""

        learns_by_steps: ClassVar[bool] = False

        order: int = 2
        """Most tokens of an n-gram."""
        num_grams: int = 65_536
        """N-grams that have a weight, at most: those in most of the training sentences, the shorter first. What all of
        these hold equally often has none."""

        def __post_init__(self) -> None:
            for name in ("order", "num_grams"):
                check_count("models.NGramBank", name, getattr(self, name))

        def check(self) -> None:
            """See `SentenceModelConfig.check`: it gives one answer in any case."""

        def suited(self, rows: Iterable[Tensor], reading: TokenReading, width: int, depth: int) -> Self:
            """See `SentenceModelConfig.suited`: as many n-grams as the rows have, but at most MOST_GRAMS."""
            found = torch.empty(0, dtype=torch.int64)
            for tokens in rows:
                found = torch.cat([found, occurrences(tokens, reading, self.order)[1]]).unique()
            return filled(self, [NGramBank.Config()], num_grams=min(max(len(found), 1), MOST_GRAMS))

        def build(self, reading: TokenReading, num_outputs: int) -> "NGramBank":
            """See `SentenceModelConfig.build`."""
            return NGramBank(reading, num_outputs, self)

    def __init__(self, reading: TokenReading, num_outputs: int, config: Config) -> None:
        super().__init__()
        check_count("models.NGramBank", "num_outputs", num_outputs)
        _check_numbers(reading.vocab_size, config.order)
        self.reading, self.config = reading, config
        self.weight = nn.Parameter(torch.zeros(config.num_grams, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        self.register_buffer("grams", torch.full((config.num_grams,), _NONE))
        self.register_buffer("rarity", torch.zeros(config.num_grams))
        self.register_buffer("penalty", torch.tensor(torch.nan, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        """Rows `(B, N)` to outputs `(B, num_outputs)`, all equal before a fit."""
        if not values_can_be_read(tokens):
            raise ValueError(
                "models.NGramBank: how many n-grams rows have depends on their tokens, and no graph of operations "
                "holds that; take a model that learns by steps, such as sentence-stack; of a table leave its texts out"
            )
        row, gram, value = self.features(tokens)
        start = self.weight.new_zeros(len(tokens), len(self.bias))
        return start.index_add(0, row, value.to(start)[:, None] * self.weight[gram]) + self.bias

    @torch.no_grad()
    def fit(
        self, batches: Sequence[tuple[Tensor, Tensor]], regressand: Regressand, *, groups: Tensor | None = None
    ) -> Tensor:
        """Takes the n-grams from the training sentences, and fits the head; see `FittedModel.fit`."""
        if sum(len(targets) for _, targets in batches) < 2:
            raise ValueError("models.NGramBank: there are fewer than 2 sentences; expected some to fit to")
        check_groups("models.NGramBank", groups, sum(len(targets) for _, targets in batches))
        self._choose([tokens for tokens, _ in batches])
        targets = torch.cat([targets for _, targets in batches])
        wanted, rows = regressand.columns(targets), [tokens for tokens, _ in batches]
        part, rarity = dealt(len(targets), groups, FOLDS, wanted.device), self.rarity.clone()
        further = _num_tokens(self.grams, self.reading.vocab_size, self.config.order) - 1
        errors, fit, chosen = list[Tensor](), None, rarity
        for share in SHARES[: 1 if self.config.order == 1 else None]:
            self.rarity.copy_(rarity * share**further)
            found = _ridge(self.sparse(rows), wanted, part)
            errors.append((wanted - found.left_out).square().mean(1))
            if len(errors) > 1 and errors[-1].mean() >= errors[-2].mean():
                break
            if len(errors) == 1 or _is_surely_less(errors[-1], errors[0]):
                fit, chosen = found, self.rarity.clone()
        assert fit is not None
        self.rarity.copy_(chosen)
        readout = regressand.readout(fit.left_out, targets)
        if len(readout.gain) != len(self.bias):
            raise ValueError(
                f"models.NGramBank: the regressand has {len(readout.gain)} outputs; expected {len(self.bias)}"
            )
        self.weight.copy_(readout.gain * fit.weight[:, readout.column])
        self.bias.copy_(readout(fit.bias))
        self.penalty.fill_(fit.penalty)
        return readout(fit.left_out)

    def sparse(self, batches: Sequence[Tensor]) -> Tensor:
        """X of all rows, float64 `(n, p)`."""
        parts, start = list[Tensor](), 0
        for tokens in batches:
            row, gram, value = self.features(tokens)
            parts.append(torch.stack([row + start, gram, value.view(torch.int64)]))
            start += len(tokens)
        row, gram, bits = torch.cat(parts, 1)
        places, shape = torch.stack([row, gram]), (start, len(self.grams))
        return torch.sparse_coo_tensor(places, bits.view(torch.float64), shape, check_invariants=False).coalesce()

    def features(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """X of rows `(B, N)`, entry by entry: rows and n-grams, int64 `(E,)`, in order, and values, float64 `(E,)`."""
        row, key = occurrences(tokens, self.reading, self.config.order)
        gram = torch.searchsorted(self.grams, key).clamp_max(len(self.grams) - 1)
        is_known = (self.grams[gram] == key) & (self.rarity[gram] > 0)
        place, count = (row * len(self.grams) + gram)[is_known].unique(return_counts=True)
        row, gram = place.div(len(self.grams), rounding_mode="floor"), place % len(self.grams)
        value = (1 + count.double().log()) * self.rarity[gram]
        square = value.new_zeros(len(tokens)).index_add(0, row, value.square())
        return row, gram, value / square[row].sqrt()

    def _choose(self, batches: Sequence[Tensor]) -> None:
        """The n-grams in most rows, and their rarity."""
        found: list[Tensor] = []
        for tokens in batches:
            row, key = occurrences(tokens, self.reading, self.config.order)
            (_, key), times = torch.stack([row, key]).unique(dim=1, return_counts=True)
            found.append(torch.stack([key, times]))
        held, times = torch.cat(found, 1)
        keys, place, counts = held.unique(return_inverse=True, return_counts=True)
        fewest, often = (
            torch.zeros_like(keys).scatter_reduce(0, place, times, how, include_self=False) for how in ("amin", "amax")
        )
        num_rows = sum(map(len, batches))
        tells = (counts < num_rows) | (fewest < often)
        keys, counts = keys[tells], counts[tells]
        most = counts.argsort(descending=True, stable=True)[: len(self.grams)].sort().values
        self.grams.fill_(_NONE)
        self.rarity.zero_()
        self.grams[: len(most)] = keys[most]
        self.rarity[: len(most)] = (1 + ((1 + num_rows) / (1 + counts[most].double())).log()).to(self.rarity)


def occurrences(tokens: Tensor, reading: TokenReading, order: int) -> tuple[Tensor, Tensor]:
    """Where n-grams stand: the row, and the number of each n-gram, int64 `(E,)`.

    The numbers are the tokens' as digits, after those of all shorter n-grams; those of a second sentence come last.

    Args:
        tokens: int64 `(B, N)`.
        reading: of the rows.
        order: most tokens of an n-gram.

    Raises:
        ValueError: tokens out of range, or more n-grams than 64 bits can number.
    """
    _check_numbers(reading.vocab_size, order)
    size, exists = reading.vocab_size, tokens != reading.pad
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < size:
        raise ValueError(f"models.NGramBank: tokens must be 0 to {size - 1}; got others")
    ends_before = F.pad((tokens == reading.separator).cumsum(1), (1, 0))[:, :-1]
    start = (ends_before > 0) * (_numbers(size, order) // 2)
    rows, keys = [tokens.new_empty(0)], [tokens.new_empty(0)]
    number, whole, shorter = torch.zeros_like(tokens), torch.ones_like(exists), 0
    for k in range(min(order, tokens.shape[1])):
        ends = tokens.shape[1] - k
        number = number[:, :ends] * size + tokens[:, k:]
        whole = whole[:, :ends] & exists[:, k:]
        rows.append(whole.nonzero()[:, 0])
        keys.append((number + start[:, :ends])[whole] + shorter)
        shorter += size ** (k + 1)
    return torch.cat(rows), torch.cat(keys)


def _num_tokens(grams: Tensor, vocab_size: int, order: int) -> Tensor:
    """How many tokens n-grams have, by their numbers."""
    place = grams % (_numbers(vocab_size, order) // 2)  # of what is no n-gram it is of no account
    ends = torch.tensor([vocab_size**k for k in range(1, order + 1)], device=grams.device).cumsum(0)
    return 1 + torch.searchsorted(ends, place, right=True)


def _is_surely_less(errors: Tensor, others: Tensor) -> bool:
    """Whether the mean of some numbers is smaller than that of others, example by example, and not by chance."""
    difference = others - errors
    return float(difference.mean()) > SURE * float(difference.std()) / math.sqrt(len(difference))


def _numbers(vocab_size: int, order: int) -> int:
    """How many n-grams there can be, in both sentences of a pair."""
    return 2 * sum(vocab_size**k for k in range(1, order + 1))


def _check_numbers(vocab_size: int, order: int) -> None:
    if _numbers(vocab_size, order) >= _NONE:
        raise ValueError(
            f"models.NGramBank: order is {order}, and there are too many n-grams of {vocab_size} tokens to number; "
            "lower one of them"
        )


class _Ridge(NamedTuple):
    """W, the scores' constant, λ, and the scores of each sentence by the fit without its part."""

    weight: Tensor
    bias: Tensor
    penalty: float
    left_out: Tensor


def _ridge(features: Tensor, wanted: Tensor, part: Tensor) -> _Ridge:
    """The fit of sparse features `(n, p)` to `(n, c)`; parts from 0 on."""
    turned = features.t().coalesce()
    parts = torch.arange(int(part.max()) + 1, device=part.device)
    together = max(1, COLUMNS // wanted.shape[1])
    without = [_Fits(features, turned, wanted, part[:, None] != some) for some in parts.split(together)]
    whole = _Fits(features, turned, wanted, torch.ones_like(part, dtype=torch.bool)[:, None])
    unit, best, least, worse = whole.mean_square() or 1.0, None, float("inf"), 0
    for penalty in (PENALTIES * unit).tolist():
        scores = torch.cat([fits.scores(penalty) for fits in without], 1)
        left_out = scores.take_along_dim(part[:, None, None], 1)[:, 0]
        error = float((wanted - left_out).square().mean())
        if error < least:
            least, worse, best = error, 0, (penalty, left_out)
        else:
            worse += 1
            if worse == PATIENCE:
                break
    assert best is not None
    penalty, left_out = best
    weight, bias = whole.solved(penalty)
    return _Ridge(weight[:, 0], bias[0], penalty, left_out)


@final
class _Fits:
    """Fits, each to some of the sentences, whose features and targets are centred.

    Args:
        features: sparse `(n, p)`, of all sentences.
        turned: their transpose.
        wanted: `(n, c)`.
        counts: bool `(n, f)`, the sentences that each fit is to.
    """

    def __init__(self, features: Tensor, turned: Tensor, wanted: Tensor, counts: Tensor) -> None:
        self._features, self._turned = features, turned
        self._counts = counts[..., None].to(wanted)
        self._mean = self._mean_of(wanted[:, None])
        self._errors = self._counts * (wanted[:, None] - self._mean)
        self._dual = torch.zeros_like(self._errors)

    def _mean_of(self, values: Tensor) -> Tensor:
        """`(n, f, c)` to `(f, c)`."""
        return (self._counts * values).sum(0) / self._counts.sum(0)

    def _times(self, matrix: Tensor, values: Tensor) -> Tensor:
        """A sparse `(m, n)` with `(n, f, c)`, to `(m, f, c)`."""
        return (matrix @ values.flatten(1)).unflatten(1, values.shape[1:])

    def _gram(self, dual: Tensor) -> Tensor:
        """C X Xᵀ C of what is centred."""
        found = self._times(self._features, self._times(self._turned, dual))
        return self._counts * (found - self._mean_of(found))

    def mean_square(self) -> float:
        """Of the rows of C X, of one fit."""
        squares = torch.sparse.sum(self._features * self._features, dim=1).to_dense()
        mean = self._times(self._turned, self._counts).square().sum() / self._counts.sum() ** 2
        return float(self._mean_of(squares[:, None, None]) - mean)

    def solved(self, penalty: float) -> tuple[Tensor, Tensor]:
        """The weights `(p, f, c)` and the scores' constants `(f, c)`."""
        self._dual = _conjugate_gradients(lambda a: self._gram(a) + penalty * a, self._errors, self._dual)
        weight = self._times(self._turned, self._dual)
        return weight, self._mean - self._mean_of(self._times(self._features, weight))

    def scores(self, penalty: float) -> Tensor:
        """Of all sentences, `(n, f, c)`."""
        weight, bias = self.solved(penalty)
        return self._times(self._features, weight) + bias


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], wanted: Tensor, start: Tensor) -> Tensor:
    """The solution of a positive definite system for each column of `wanted` `(n, ...)`, from a start on."""
    x, left = start.clone(), wanted - apply(start)
    direction, square = left.clone(), left.square().sum(0)
    goal = TOLERANCE**2 * wanted.square().sum(0)
    for _ in range(MOST_ITERATIONS):
        if bool((square <= goal).all()):
            break
        image = apply(direction)
        bend = (direction * image).sum(0)
        step = torch.where(bend > 0, square / bend, 0.0)
        x += step * direction
        left -= step * image
        before, square = square, left.square().sum(0)
        direction = left + torch.where(before > 0, square / before, 0.0) * direction
    return x
