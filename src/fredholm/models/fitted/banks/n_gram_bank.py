"""Counts of n-grams of tokens and of letters in a sentence, and a linear head in closed form.

Legend
    t_1 ... t_N  tokens of a sentence, its marks included      g       up to `order` tokens in a row, or `letter_order`
                                                                       letters of a word, of the first or of the second
                                                                       sentence of a pair
    n            training sentences; n_g of them contain g     μ       the uniform measure of mass 1 on the N positions,
                                                                       or on those of the letters
    |g|          tokens of g                                   s       factor of an n-gram per further token, 0 to 1
    a            share of letters, 0 or LETTERS                u       root mean square of ‖x‖ over training sentences
    f            numbers of the form of a sentence, such as its length (`text_form.py`)

    count           c_g = N ∫ 1[g begins at x] dμ(x)
    rarity          r_g = s^(|g| - 1) (1 + log((1 + n) / (1 + n_g))), without s for letters
    features        X = [√(1-a) x, √a x', f], where x is of tokens and x' of letters
    scaled          x_g = (1 + log c_g) r_g, 0 where c_g is, divided by ‖x‖
    counted         x_g = c_g r_g / u
                    An n-gram that is equally frequent in all sentences, such as a mark, has no feature: it is
                    uninformative, and would shorten the others in the normalisation
    outputs are the readout of a regressand from the scores of a ridge regression on X (`sparse_ridge.py`)

The choices are made one after the other, by the left-out errors of FOLDS parts:
    s        from SHARES, with a = 0: 1, unless a smaller one has errors smaller by two standard errors of the
             difference. Where single words decide, pairs of words are many more features with little further
             information, and shorten the words' features in the normalisation
    a        LETTERS if that has the smaller errors. N-grams of letters connect rare and unseen words to similar ones;
             the spaces before and after a word count as letters of it
    counted  where single words that are counted have errors smaller by two standard errors; then all n-grams, if these
             have still smaller ones. Numbers that are sums over a sentence grow with its length, which scaling hides
    f        where it explains left-out errors, and lowers them by two standard errors
    D        factors of n-grams in the ridge regression that are adapted to the targets, likewise. Where few n-grams
             decide, the many others are noise

Source: term frequencies on a logarithmic scale and inverse document frequencies, Salton and Buckley, Term-weighting
approaches in automatic text retrieval (1988); 1 is added to counts and rarities, so that none is 0. That linear models
of pairs of words are hard to beat where texts are few is Wang and Manning's (2012) and Joulin et al.'s (arXiv
1607.01759) finding; n-grams of letters are Cavnar and Trenkle's (1994). Deviation: n-grams are of tokens, pieces of
words among them, and the head is a ridge regression.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count, filled, refuse_idle
from fredholm.domains.checks import values_can_be_read
from fredholm.models.fitted.banks.sparse_ridge import SparseRidge, sparse_ridge
from fredholm.models.fitted.banks.text_form import Symbols, TextForm
from fredholm.models.fitted.example_weights import check_weights, mean_of
from fredholm.models.fitted.fitted_model import FittedModel
from fredholm.models.fitted.ridge_head import Regressand, check_groups, dealt, is_surely_less
from fredholm.models.language.sentence_model import SentenceModelConfig, TokenReading

FOLDS = 10
"""Number of folds of cross-validation; at most the number of sentences, or of groups of them."""
SHARES = (1.0, 0.5, 0.25, 0.0)
"""Candidates of s, tried in this order until one is no better."""
MOST_GRAMS = 262_144
"""Most n-grams of each kind in a bank that is sized by its sentences."""
LETTERS = 0.5
"""Candidate of a, besides 0."""
MOST_LETTERS = 1 << 21
"""Most letters of the training sentences for which n-grams of letters are a default; beyond it words suffice."""
MOST_FACTORS = 1 << 26
"""Most factors of n-grams, for all outputs and folds, which are held at once."""
_NONE = torch.iinfo(torch.int64).max
"""Filler of unused entries of the n-grams."""


@final
class _Grams(nn.Module):
    """The known n-grams of one kind, by number, with r of each without s.

    Args:
        size: number of symbols.
        order: most symbols of an n-gram.
        count: most n-grams.
        space: a symbol that an n-gram may only begin or end with; None: none.

    Attributes:
        unit: u, a float64 scalar; 0: x have length 1.
    """

    known: Tensor
    rarity: Tensor
    unit: Tensor

    def __init__(self, size: int, order: int, count: int, space: int | None = None) -> None:
        super().__init__()
        self.size, self.order, self.space = size, order, space
        self.register_buffer("known", torch.full((count,), _NONE))
        self.register_buffer("rarity", torch.zeros(count))
        self.register_buffer("unit", torch.tensor(0.0, dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.known)

    def occurrences(self, symbols: Symbols) -> tuple[Tensor, Tensor]:
        """Returns the row and the number of each occurrence of an n-gram, int64 `(E,)`.

        The symbols are the digits of a number, which follows the numbers of all shorter n-grams; numbers of second
        sentences come last.
        """
        row, symbol, is_second = symbols
        start = is_second * (_numbers(self.size, self.order) // 2)
        rows, keys = list[Tensor](), list[Tensor]()
        number, whole, shorter = torch.zeros_like(symbol), torch.ones_like(is_second), 0
        for k in range(self.order):
            ends = max(0, len(row) - k)
            number = number[:ends] * self.size + symbol[k:]
            whole = whole[:ends] & (row[:ends] == row[k:])
            if self.space is not None and k > 1:
                whole = whole & (symbol[k - 1 :][:ends] != self.space)
            rows.append(row[:ends][whole])
            keys.append((number + start[:ends])[whole] + shorter)
            shorter += self.size ** (k + 1)
        return torch.cat(rows), torch.cat(keys)

    def choose(self, batches: Iterable[tuple[Symbols, int]]) -> None:
        """Chooses the n-grams that occur in most rows, and their rarity, from batches of symbols and row counts."""
        found, num_rows = [torch.empty(2, 0, dtype=torch.int64, device=self.known.device)], 0
        for symbols, count in batches:
            row, key = self.occurrences(symbols)
            keys, place = key.unique(return_inverse=True)
            held, times = (row * len(keys) + place).unique(return_counts=True)
            found.append(torch.stack([keys[held % max(1, len(keys))], times]))
            num_rows += count
        held, times = torch.cat(found, 1)
        keys, place, counts = held.unique(return_inverse=True, return_counts=True)
        fewest, often = (
            torch.zeros_like(keys).scatter_reduce(0, place, times, how, include_self=False) for how in ("amin", "amax")
        )
        is_informative = (counts < num_rows) | (fewest < often)
        keys, counts = keys[is_informative], counts[is_informative]
        most = counts.argsort(descending=True, stable=True)[: len(self)].sort().values
        self.known.fill_(_NONE)
        self.rarity.zero_()
        self.known[: len(most)] = keys[most]
        self.rarity[: len(most)] = (1 + ((1 + num_rows) / (1 + counts[most].double())).log()).to(self.rarity)

    def scale(self, batches: Iterable[tuple[Symbols, int]]) -> None:
        """Sets u from batches of symbols and row counts."""
        self.unit.fill_(1)
        squares, num_rows = 0.0, 0
        for symbols, count in batches:
            squares += float(self.features(symbols, count)[2].square().sum())
            num_rows += count
        self.unit.fill_((squares / num_rows) ** 0.5)

    def features(self, symbols: Symbols, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns x as sparse entries: rows and n-grams, int64 `(E,)`, sorted, and values, float64 `(E,)`."""
        row, key = self.occurrences(symbols)
        gram = torch.searchsorted(self.known, key).clamp_max(len(self) - 1)
        is_known = (self.known[gram] == key) & (self.rarity[gram] > 0)
        place, count = (row * len(self) + gram)[is_known].unique(return_counts=True)
        row, gram = place.div(len(self), rounding_mode="floor"), place % len(self)
        if self.unit > 0:
            return row, gram, count.double() * self.rarity[gram] / self.unit
        value = (1 + count.double().log()) * self.rarity[gram]
        square = value.new_zeros(num_rows).index_add(0, row, value.square())
        return row, gram, value / square[row].sqrt()

    @property
    def num_symbols(self) -> Tensor:
        """|g| of each n-gram; undefined for unused entries."""
        place = self.known % (_numbers(self.size, self.order) // 2)
        ends = torch.tensor([self.size**k for k in range(1, self.order + 1)], device=place.device).cumsum(0)
        return 1 + torch.searchsorted(ends, place, right=True)


@final
class _Spelling(nn.Module):
    """The letters of tokens as indices; 0 is the space.

    Args:
        spelling: spelling of the tokens in a `TokenReading`.

    Attributes:
        size: number of letters, including the space.
    """

    letters: Tensor
    ends: Tensor

    def __init__(self, spelling: Sequence[str]) -> None:
        super().__init__()
        self.size = 1 + len(numbers := _alphabet(spelling))
        letters = [numbers.get(letter, 0) for token in spelling for letter in token]
        self.register_buffer("letters", torch.tensor(letters, dtype=torch.int64), persistent=False)
        ends = torch.tensor([0, *map(len, spelling)]).cumsum(0)
        self.register_buffer("ends", ends, persistent=False)

    def forward(self, tokens: Symbols) -> Symbols:
        """Spells tokens by letters; of consecutive spaces only the last is kept."""
        counts = self.ends.diff()[tokens.symbol]
        row, is_second = (each.repeat_interleave(counts) for each in (tokens.row, tokens.is_second))
        before = (counts.cumsum(0) - counts - self.ends[tokens.symbol]).repeat_interleave(counts)
        letter = self.letters[torch.arange(len(row), device=row.device) - before]
        is_double = (letter[:-1] == 0) & (letter[1:] == 0) & (row[:-1] == row[1:])
        kept = ~F.pad(is_double, (0, min(1, len(row))))
        return Symbols(row[kept], letter[kept], is_second[kept])


def _alphabet(spelling: Sequence[str]) -> dict[str, int]:
    """Indices of the letters other than the space, from 1."""
    return {letter: number for number, letter in enumerate(sorted({*"".join(spelling)} - {" "}), 1)}


@final
class NGramBank(FittedModel[Tensor]):
    """A ridge regression on weighted counts of the n-grams of a sentence.

    Takes rows of tokens, int64 `(B, N)`, padded at their ends; n-grams that were not seen in training are ignored.

    Args:
        reading: description of the rows.
        num_outputs: number of outputs, such as classes.
        config: lengths and numbers of n-grams.

    Attributes:
        num_features: number of n-grams of both kinds, and of numbers of the form.
        weight: `(num_features, num_outputs)`; 0 before a fit. A parameter, so that gradient steps may continue from it.
        bias: `(num_outputs,)`.
        penalty: λ of the last fit, a float64 scalar; NaN before one.
        letter_share: a of the last fit, a float64 scalar; 0 before one.

    Raises:
        ValueError: there are more n-grams than 64 bits can number, or letters are to be read and the reading has none.
    """

    penalty: Tensor
    letter_share: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(SentenceModelConfig):
        """Lengths and numbers of n-grams."""

        learns_by_steps: ClassVar[bool] = False

        order: int = 2
        """Most tokens of an n-gram."""
        num_grams: int = 65_536
        """Most n-grams of tokens: those in most of the training sentences, the shorter first. N-grams that all
        sentences contain equally often are left out."""
        letter_order: int = 5
        """Most letters of an n-gram of letters; 0: no n-grams of letters."""
        num_letter_grams: int = 65_536
        """Most n-grams of letters, likewise; refused if `letter_order` is 0."""

        def __post_init__(self) -> None:
            name = "models.NGramBank"
            for setting in ("order", "num_grams", "num_letter_grams"):
                check_count(name, setting, getattr(self, setting))
            check_count(name, "letter_order", self.letter_order, least=0)
            if self.letter_order == 0:
                given = {"num_letter_grams": self.num_letter_grams}
                refuse_idle(name, NGramBank.Config, "letter_order=0", "give letter_order", **given)

        def check(self) -> None:
            """See `SentenceModelConfig.check`: there is nothing to check, as there is one output per text."""

        def recommended(self, rows: Iterable[Tensor], reading: TokenReading, width: int, depth: int) -> Self:
            """See `SentenceModelConfig.recommended`: as many n-grams as the rows contain, at most MOST_GRAMS.

            Letters are left out by default where there are more than MOST_LETTERS. With an alphabet of thousands of
            letters the order is lowered until n-grams can be numbered.
            """
            default, config = NGramBank.Config(), self
            is_set = (self.letter_order, self.num_letter_grams) != (default.letter_order, default.num_letter_grams)
            if reading.spelling is None:
                config = self if is_set else dataclasses.replace(self, letter_order=0)
            elif self.letter_order == default.letter_order:
                config = dataclasses.replace(self, letter_order=_longest(reading.spelling, self.letter_order))
            bank, letters = NGramBank(reading, 1, dataclasses.replace(config, num_grams=1)), 0
            tokens_seen, letters_seen = _Distinct(), _Distinct()
            for tokens in rows:
                symbols = bank.tokens_of(tokens)
                tokens_seen.add(bank.of_tokens.occurrences(symbols)[1])
                if bank.spelling is None or bank.of_letters is None or (letters > MOST_LETTERS and not is_set):
                    continue
                spelt = bank.spelling(symbols)
                letters += len(spelt.symbol)
                if letters <= MOST_LETTERS or is_set:
                    letters_seen.add(bank.of_letters.occurrences(spelt)[1])
            if letters > MOST_LETTERS and not is_set:
                config = dataclasses.replace(config, letter_order=0)
            counted = {"num_grams": tokens_seen}
            if config.letter_order:
                counted["num_letter_grams"] = letters_seen
            sizes = {name: min(max(len(seen), 1), MOST_GRAMS) for name, seen in counted.items()}
            return filled(config, [default], **sizes)

        def build(self, reading: TokenReading, num_outputs: int) -> "NGramBank":
            """See `SentenceModelConfig.build`."""
            return NGramBank(reading, num_outputs, self)

    def __init__(self, reading: TokenReading, num_outputs: int, config: Config) -> None:
        super().__init__()
        check_count("models.NGramBank", "num_outputs", num_outputs)
        self.reading, self.config = reading, config
        _check_numbers("order", config.order, reading.vocab_size, "tokens")
        self.of_tokens = _Grams(reading.vocab_size, config.order, config.num_grams)
        self.spelling = self.of_letters = None
        if config.letter_order:
            if reading.spelling is None:
                raise ValueError(
                    f"models.NGramBank: letter_order is {config.letter_order}, and the reading has no spelling of its "
                    "tokens; give TokenReading.spelling, or letter_order=0"
                )
            self.spelling = _Spelling(reading.spelling)
            _check_numbers("letter_order", config.letter_order, self.spelling.size, "letters")
            self.of_letters = _Grams(self.spelling.size, config.letter_order, config.num_letter_grams, space=0)
        self.form = TextForm(reading)
        kinds = (self.of_tokens, self.of_letters, self.form)
        self.num_features = sum(len(kind) for kind in kinds if kind is not None)
        self.weight = nn.Parameter(torch.zeros(self.num_features, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        self.register_buffer("penalty", torch.tensor(torch.nan, dtype=torch.float64))
        self.register_buffer("letter_share", torch.tensor(0.0, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps rows `(B, N)` to outputs `(B, num_outputs)`, which are all equal before a fit."""
        if not values_can_be_read(tokens):
            raise ValueError(
                "models.NGramBank: the number of n-grams depends on the tokens, which no graph can hold; take a "
                "network, such as sentence-stack, or leave the texts of a table out"
            )
        row, gram, value = self.features(tokens)
        start = self.weight.new_zeros(len(tokens), len(self.bias))
        return start.index_add(0, row, value.to(start)[:, None] * self.weight[gram]) + self.bias

    @torch.no_grad()
    def fit(
        self,
        batches: Sequence[tuple[Tensor, Tensor]],
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Chooses the n-grams of the training sentences and fits the head; see `FittedModel.fit`."""
        if sum(len(targets) for _, targets in batches) < 2:
            raise ValueError("models.NGramBank: there are fewer than 2 sentences; expected some to fit to")
        check_groups("models.NGramBank", groups, sum(len(targets) for _, targets in batches))
        targets = torch.cat([targets for _, targets in batches])
        check_weights("models.NGramBank", weights, len(targets))
        wanted, rows = regressand.columns(targets), [tokens for tokens, _ in batches]
        self._choose(rows)
        texts = _Texts(rows, wanted, dealt(len(targets), groups, FOLDS, wanted.device), groups, weights)
        fit = self._fit_of_tokens(texts)
        for further in (self._with_letters, self._with_counts, self._with_form, self._adapted):
            fit = further(texts, fit)
        readout = regressand.readout(fit.left_out, targets, weights)
        if len(readout.gain) != len(self.bias):
            raise ValueError(
                f"models.NGramBank: the regressand has {len(readout.gain)} outputs; expected {len(self.bias)}"
            )
        self.weight.copy_(readout.gain * fit.weight[:, readout.column])
        self.bias.copy_(readout(fit.bias))
        self.penalty.fill_(fit.penalty)
        return readout(fit.left_out)

    def _choose(self, rows: Sequence[Tensor]) -> None:
        """Chooses the n-grams of both kinds from the training rows."""
        self.of_tokens.choose((self.tokens_of(tokens), len(tokens)) for tokens in rows)
        if self.spelling is not None and self.of_letters is not None:
            self.of_letters.choose((self.spelling(self.tokens_of(tokens)), len(tokens)) for tokens in rows)

    def _fitted(self, texts: "_Texts", *, num_adapted: int = 0) -> SparseRidge:
        """Fits to the features as they are set."""
        return texts.fitted(self.sparse(texts.rows), texts.wanted, num_adapted=num_adapted)

    def _fit_of_tokens(self, texts: "_Texts") -> SparseRidge:
        """Fits to n-grams of tokens alone, which chooses s."""
        grams = self.of_tokens
        further, rarity = grams.num_symbols - 1, grams.rarity.clone()
        for unset in (self.letter_share, grams.unit, self.form.factor):
            unset.zero_()
        errors, fit, chosen = list[Tensor](), None, rarity
        for share in SHARES[: 1 if self.config.order == 1 else None]:
            grams.rarity.copy_(rarity * share**further)
            found = self._fitted(texts)
            errors.append(found.squares(texts.wanted))
            if len(errors) > 1 and texts.mean(errors[-1]) >= texts.mean(errors[-2]):
                break
            if len(errors) == 1 or texts.are_less(errors[-1], errors[0]):
                fit, chosen = found, grams.rarity.clone()
        assert fit is not None
        grams.rarity.copy_(chosen)
        return fit

    def _with_letters(self, texts: "_Texts", fit: SparseRidge) -> SparseRidge:
        """Chooses a."""
        if self.of_letters is None:
            return fit
        self.of_letters.unit.zero_()
        self.letter_share.fill_(LETTERS)
        found = self._fitted(texts)
        if texts.mean(found.squares(texts.wanted)) < texts.mean(fit.squares(texts.wanted)):
            return found
        self.letter_share.zero_()
        return fit

    def _with_counts(self, texts: "_Texts", fit: SparseRidge) -> SparseRidge:
        """Chooses whether n-grams are counted: for words alone first, which is quick."""
        kinds, rarity, share = [self.of_tokens], self.of_tokens.rarity.clone(), self.letter_share.clone()
        self.of_tokens.scale((self.tokens_of(tokens), len(tokens)) for tokens in texts.rows)
        if self.spelling is not None and self.of_letters is not None:
            kinds.append(self.of_letters)
            self.of_letters.scale((self.spelling(self.tokens_of(tokens)), len(tokens)) for tokens in texts.rows)
        words = torch.where(self.of_tokens.num_symbols == 1, rarity, 0.0)
        self.of_tokens.rarity.copy_(words)
        self.letter_share.zero_()
        of_words = self._fitted(texts)
        self.of_tokens.rarity.copy_(rarity)
        self.letter_share.copy_(share)
        if not texts.are_better(of_words, fit):
            for grams in kinds:
                grams.unit.zero_()
            return fit
        found = self._fitted(texts)
        if texts.mean(found.squares(texts.wanted)) < texts.mean(of_words.squares(texts.wanted)):
            return found
        self.of_tokens.rarity.copy_(words)
        self.letter_share.zero_()
        return of_words

    def _with_form(self, texts: "_Texts", fit: SparseRidge) -> SparseRidge:
        """Chooses whether the form is read: where it explains left-out errors."""
        self.form.learn((self.tokens_of(tokens), len(tokens)) for tokens in texts.rows)
        form = torch.cat([self.form(self.tokens_of(tokens), len(tokens)) for tokens in texts.rows])
        errors = texts.wanted - fit.left_out
        explained = texts.fitted(form.to_sparse(), errors)
        if texts.are_less(explained.squares(errors), errors.square().mean(1)):
            found = self._fitted(texts)
            if texts.are_better(found, fit):
                return found
        self.form.factor.zero_()
        return fit

    def _adapted(self, texts: "_Texts", fit: SparseRidge) -> SparseRidge:
        """Chooses whether n-grams have factors that are adapted to the targets."""
        if self.num_features * texts.wanted.shape[1] * FOLDS > MOST_FACTORS:
            return fit
        found = self._fitted(texts, num_adapted=self.num_features - len(self.form))
        return found if texts.are_better(found, fit) else fit

    def sparse(self, batches: Sequence[Tensor]) -> Tensor:
        """Returns X of all rows, sparse float64 `(n, p)`."""
        parts, start = list[Tensor](), 0
        for tokens in batches:
            row, gram, value = self.features(tokens)
            parts.append(torch.stack([row + start, gram, value.view(torch.int64)]))
            start += len(tokens)
        row, gram, bits = torch.cat(parts, 1)
        places, shape = torch.stack([row, gram]), (start, self.num_features)
        return torch.sparse_coo_tensor(places, bits.view(torch.float64), shape, check_invariants=False).coalesce()

    def features(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns X of rows `(B, N)` as sparse entries: rows and n-grams, int64 `(E,)`, and values, float64 `(E,)`.

        N-grams of letters are numbered after those of tokens.
        """
        symbols, share = self.tokens_of(tokens), float(self.letter_share)
        row, gram, value = self.of_tokens.features(symbols, len(tokens))
        found = [(row, gram, (1 - share) ** 0.5 * value)]
        if self.spelling is not None and self.of_letters is not None and share > 0:
            row, gram, value = self.of_letters.features(self.spelling(symbols), len(tokens))
            found.append((row, gram + len(self.of_tokens), share**0.5 * value))
        if bool((self.form.factor > 0).any()):
            form = self.form(symbols, len(tokens))
            row, column = form.ne(0).nonzero(as_tuple=True)
            found.append((row, column + self.num_features - form.shape[1], form[row, column]))
        row, gram, value = (torch.cat(parts) for parts in zip(*found, strict=True))
        return row, gram, value

    def tokens_of(self, tokens: Tensor) -> Symbols:
        """Returns the tokens of rows `(B, N)`, without padding.

        Raises:
            ValueError: tokens out of range.
        """
        reading = self.reading
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < reading.vocab_size:
            raise ValueError(f"models.NGramBank: tokens must be 0 to {reading.vocab_size - 1}; got others")
        ends_before = F.pad((tokens == reading.separator).cumsum(1), (1, 0))[:, :-1]
        row, place = (tokens != reading.pad).nonzero(as_tuple=True)
        return Symbols(row, tokens[row, place], ends_before[row, place] > 0)


@final
class _Texts(NamedTuple):
    """Training texts: rows of tokens, Y, the fold of each, their groups, and their weights."""

    rows: Sequence[Tensor]
    wanted: Tensor
    part: Tensor
    groups: Tensor | None
    weights: Tensor | None

    def fitted(self, features: Tensor, wanted: Tensor, *, num_adapted: int = 0) -> SparseRidge:
        """Fits sparse features to values `(n, c)`."""
        return sparse_ridge(features, wanted, self.part, num_adapted=num_adapted, weights=self.weights)

    def mean(self, errors: Tensor) -> Tensor:
        """The mean of the errors of the texts `(n,)`."""
        return mean_of(errors, self.weights)

    def are_less(self, errors: Tensor, others: Tensor) -> bool:
        """Whether errors of the texts `(n,)` are significantly smaller than others."""
        return is_surely_less(errors, others, self.groups, self.weights)

    def are_better(self, found: SparseRidge, fit: SparseRidge) -> bool:
        """Whether the left-out errors of `found` are significantly smaller than those of `fit`."""
        return self.are_less(found.squares(self.wanted), fit.squares(self.wanted))


@final
class _Distinct:
    """Counts the distinct numbers in a sequence of tensors."""

    def __init__(self) -> None:
        self._seen, self._waiting, self._count = torch.empty(0, dtype=torch.int64), list[Tensor](), 0

    def add(self, numbers: Tensor) -> None:
        self._waiting.append(numbers)
        self._count += len(numbers)
        if self._count > len(self._seen):  # sorted whenever the count doubles, not for each tensor
            self._sort()

    def _sort(self) -> None:
        self._seen = torch.cat([self._seen, *self._waiting]).unique()
        self._waiting, self._count = [], 0

    def __len__(self) -> int:
        self._sort()
        return len(self._seen)


def _numbers(vocab_size: int, order: int) -> int:
    """Number of possible n-grams, in both sentences of a pair."""
    return 2 * sum(vocab_size**k for k in range(1, order + 1))


def _check_numbers(setting: str, order: int, size: int, what: str) -> None:
    if _numbers(size, order) >= _NONE:
        raise ValueError(
            f"models.NGramBank: {setting} is {order}, and there are too many n-grams of {size} {what} to number; lower "
            "one of them"
        )


def _longest(spelling: Sequence[str], most: int) -> int:
    """The largest order of letters, at most `most`, whose n-grams can be numbered."""
    size = 1 + len(_alphabet(spelling))
    return max(order for order in range(most + 1) if _numbers(size, order) < _NONE)
