"""A conditional random field: a label for each word of a sentence, from its features and from the neighbouring labels.

Legend
    x_t          the features of word t that occur in training: 1 each     W (p, K), b (K,)   weights of the K labels
    T (K, K)     transition scores, from the label before                  λ                  penalty

    scores           e_t = x_tᵀ W + b
    probabilities    p(y) of a sequence of labels: those of a linear chain, from e and T (`linear_chain.py`)
    fit, one of
        together     argmin over W, b and T of  -Σ log p(y) + λ/2 (‖W‖² + ‖b‖² + ‖T‖²),  over the training sentences
        apart        argmin over W and b of  -Σ_t log softmax(e_t)[y_t] + λ/2 (‖W‖² + ‖b‖²),  and
                     T_jk = τ log p(k | j) / p(k),  from the shares of label k after j, and of all words

    features of a word
        its numbers of `word_forms.py`: the word, its lower case, its shapes, its beginnings and endings
        of each word at most `window` before and after: lower case and short shape; of direct neighbours two endings too
        of direct neighbours, pairs: the lower cases of it and the one before, or after; the same of short shapes, and
        those of all three
    The place before a sentence and the place after it count as words of their own, so that first words are known.

λ of PENALTIES and τ of FACTORS are those with the largest mean log p of the label of each left-out word. The fit is
together unless apart this mean is surely larger, or surely fewer labels of the likeliest sequences are wrong. The
sentences are divided into FOLDS parts, and left out part by part until LEFT_OUT words were left out: more words hardly
change the choice. The minimum is approached by at most STEPS steps of L-BFGS, from the largest penalty on, each from
the solution of the one before. Where equal labels follow each other, T explains most of them, and W learns little
together; apart, W learns as from single words.

Source: Lafferty, McCallum and Pereira, Conditional random fields (2001); W and T apart are piecewise training, Sutton
and McCallum (2005), and what W loses together is described in Sutton, Sindelar and McCallum, Reducing weight
undertraining in structured discriminative learning (2006); features of words are those of Ratnaparkhi, A maximum
entropy model for part-of-speech tagging (1996). Deviations: features that occur once are left out, whatever they are
of; sentences of more than LONGEST words are fitted in parts.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count, filled
from fredholm.domains.checks import values_can_be_read
from fredholm.models.closed_form_model import ClosedFormModel
from fredholm.models.fitted.linear_chain import Chains
from fredholm.models.fitted.ridge_head import check_groups, dealt, is_surely_less
from fredholm.models.fitted.word_forms import ENDINGS, LOWER, NUM_FORMS, SHORT_SHAPE

PENALTIES = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
FACTORS = (0.5, 0.75, 1.0)
"""Candidates of τ."""
EVIDENCE = 1.0
"""Words added to the count of each label, and of each label after one, as if labels were independent."""
FOLDS = 5
LEFT_OUT = 10_000
STEPS = 100
TOLERANCE = 1e-4
"""Largest entry of the mean gradient at which the steps stop."""
HISTORY = 8
"""Steps that L-BFGS remembers."""
LONGEST = 256
MOST_WEIGHTS = 1 << 22
"""Most weights of a model that is sized by its sentences."""
UNKNOWN = -100
"""Label of a word whose label is not known."""
_NONE = torch.iinfo(torch.int64).max
"""Filler of unused features."""
_EDGE = 0x5DEECE66D
"""Number of the places before and after a sentence."""
_FACTORS = (-0x61C8864680B583EB, 0x2545F4914F6CDD1D, -0x3C6EF372FE94F82B)
"""Odd factors that give the parts of a feature their order."""


@final
class ConditionalRandomField(ClosedFormModel):
    """Probabilities of a label for each word of a sentence.

    Takes the numbers of words (`models.word_forms`), int64 `(B, N, NUM_FORMS)`, padded at the ends by zeros.

    Args:
        num_labels: K, at least 2.
        config: window and number of features.

    Attributes:
        weight: W, `(num_features, K)`; 0 before a fit. A parameter, so that gradient steps may continue from it.
        bias: b, `(K,)`.
        transitions: T, `(K, K)`.
        penalty: λ of the last fit, a float64 scalar; NaN before one.
    """

    known: Tensor
    penalty: Tensor

    @final
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config:
        """Window and number of features."""

        learns_by_steps: ClassVar[bool] = False

        window: int = 2
        """Words before and after a word whose features are read; 0: the word alone."""
        num_features: int = 65_536
        """Most features: those that occur most often in training."""

        def __post_init__(self) -> None:
            check_count("models.ConditionalRandomField", "window", self.window, least=0)
            check_count("models.ConditionalRandomField", "num_features", self.num_features)

        def recommended(self, sentences: Sequence[Tensor], num_labels: int) -> "ConditionalRandomField.Config":
            """Returns the settings with as many features as occur at least twice, and at most MOST_WEIGHTS weights.

            A feature that occurs once explains its word alone, so that weights of features that are shared by several
            words, such as endings, would be learnt from fewer of them.

            Args:
                sentences: batches of numbers of words, `(B, N, NUM_FORMS)`.
                num_labels: K.
            """
            keys = torch.cat([_features(*_flat(forms), self.window).flatten() for forms in sentences])
            _, counts = keys[keys != 0].unique(return_counts=True)
            count = min(max(1, int((counts > 1).sum())), max(1, MOST_WEIGHTS // num_labels))
            return filled(self, [ConditionalRandomField.Config()], num_features=count)

    def __init__(self, num_labels: int, config: Config) -> None:
        super().__init__()
        check_count("models.ConditionalRandomField", "num_labels", num_labels, least=2)
        self.num_labels, self.config = num_labels, config
        self.register_buffer("known", torch.full((config.num_features,), _NONE))
        self.register_buffer("penalty", torch.tensor(torch.nan, dtype=torch.float64))
        self.weight = nn.Parameter(torch.zeros(config.num_features, num_labels))
        self.bias = nn.Parameter(torch.zeros(num_labels))
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))

    def forward(self, forms: Tensor) -> Tensor:
        """Maps words `(B, N, NUM_FORMS)` to the logarithms of the probabilities of each label, `(B, N, K)`.

        They are 0 at padding.
        """
        if not values_can_be_read(forms):
            raise ValueError(
                "models.ConditionalRandomField: the number of words depends on the values of the tensor, which no "
                "graph can hold; call the model outside of torch.compile and torch.export"
            )
        with without_autocast(forms):
            scores, chains = self._scores(forms)
            found = chains.sums(scores, self.transitions.double()).log_marginals
            return self._padded(forms, found.to(self.weight.dtype))

    @torch.no_grad()
    def best(self, forms: Tensor) -> Tensor:
        """Maps words `(B, N, NUM_FORMS)` to their labels in the likeliest sequence of labels, int64 `(B, N)`.

        They are 0 at padding.
        """
        with without_autocast(forms):
            scores, chains = self._scores(forms)
            return self._padded(forms, chains.best(scores, self.transitions.double()))

    def _scores(self, forms: Tensor) -> tuple[Tensor, Chains]:
        """e of all words `(n, K)`, float64, and the chains of the sentences."""
        words, lengths = _flat(forms)
        keys = _features(words, lengths, self.config.window)
        place = torch.searchsorted(self.known, keys).clamp_max(len(self.known) - 1)
        word, feature = ((self.known[place] == keys) & (keys != 0)).nonzero(as_tuple=True)
        scores = self.bias.double().expand(len(words), -1)
        return scores.index_add(0, word, self.weight[place[word, feature]].double()), Chains(lengths)

    @staticmethod
    def _padded(forms: Tensor, found: Tensor) -> Tensor:
        """Values of all words `(n, ...)` at their places, `(B, N, ...)`, and 0 at padding."""
        is_word = forms[..., LOWER] != 0
        start = found.new_zeros(*is_word.shape, *found.shape[1:])
        return start.masked_scatter(is_word.view(*is_word.shape, *[1] * (found.ndim - 1)).expand_as(start), found)

    @torch.no_grad()
    def fit(self, batches: Sequence[tuple[Tensor, Tensor]], *, groups: Tensor | None = None) -> None:
        """Fits the model to all training sentences; random folds come from the global torch seed.

        Args:
            batches: words `(B, N, NUM_FORMS)` and their labels, int64 `(B, N)`, UNKNOWN where they are not known and
                at padding.
            groups: int64, one per sentence: whole groups are left out together; None: each sentence by itself.

        Raises:
            ValueError: there are fewer than two sentences with known labels, or labels are out of range or of another
                shape.
        """
        keys, labels, lengths = list[Tensor](), list[Tensor](), list[Tensor]()
        for forms, targets in batches:
            words, counts = _flat(forms)
            if targets.shape != forms.shape[:2]:
                raise ValueError(
                    f"models.ConditionalRandomField: labels are {tuple(targets.shape)}; expected one for each word of "
                    f"{tuple(forms.shape[:2])}, padded alike"
                )
            keys.append(_features(words, counts, self.config.window))
            labels.append(targets[forms[..., LOWER] != 0])
            lengths.append(counts)
        with without_autocast(keys[0]):
            self._fit(torch.cat(keys), torch.cat(labels), torch.cat(lengths), groups)

    def _fit(self, keys: Tensor, labels: Tensor, lengths: Tensor, groups: Tensor | None) -> None:
        """Fits to the features of all words `(n, M)`, their labels `(n,)`, and the lengths of the sentences."""
        name, is_known = "models.ConditionalRandomField", labels != UNKNOWN
        sentence = torch.arange(len(lengths), device=labels.device).repeat_interleave(lengths)
        if len(sentence[is_known].unique()) < 2:
            raise ValueError(f"{name}: there are fewer than 2 sentences with labels; expected some to fit to")
        if not bool(((labels >= 0) & (labels < self.num_labels))[is_known].all()):
            raise ValueError(f"{name}: labels must be 0 to {self.num_labels - 1}, or {UNKNOWN}; got others")
        check_groups(name, groups, len(lengths))
        self._choose(keys[is_known])
        fold = dealt(len(lengths), groups, FOLDS, labels.device)
        # chains end where a label is unknown, and after LONGEST words
        place = torch.arange(len(labels), device=labels.device) - (lengths.cumsum(0) - lengths)[sentence]
        runs = torch.stack([sentence, place // LONGEST, (~is_known).cumsum(0)], 1)[is_known]
        _, chain, counts = runs.unique_consecutive(dim=0, return_inverse=True, return_counts=True)
        words = _Words(self._matrix(keys[is_known]), labels[is_known], chain, counts, self.num_labels)
        unit = sentence if groups is None else groups[sentence]
        solutions, penalty, factor, _ = self._chosen(words, fold[sentence[is_known]], unit[is_known])
        solution = words.solve(torch.stack(solutions).mean(0), penalty, factor)
        solution = words.joined(solution, factor)
        self.weight.copy_(solution[: len(self.known)])
        self.bias.copy_(solution[len(self.known)])
        self.transitions.copy_(solution[len(self.known) + 1 :])
        self.penalty.fill_(penalty)

    def _choose(self, keys: Tensor) -> None:
        """Chooses the features that occur most often, of equally frequent ones any that is reproducible."""
        found, counts = keys[keys != 0].unique(return_counts=True)
        most = counts.argsort(descending=True, stable=True)[: len(self.known)]
        self.known.fill_(_NONE)
        self.known[: len(most)] = found[most].sort().values

    def _matrix(self, keys: Tensor) -> Tensor:
        """X of all words, sparse float64 `(n, p)`."""
        place = torch.searchsorted(self.known, keys).clamp_max(len(self.known) - 1)
        word, feature = ((self.known[place] == keys) & (keys != 0)).nonzero(as_tuple=True)
        places, ones = torch.stack([word, place[word, feature]]), torch.ones(len(word), device=keys.device)
        shape = (len(keys), len(self.known))
        return torch.sparse_coo_tensor(places, ones.double(), shape, check_invariants=False).coalesce()

    def _chosen(self, words: "_Words", fold: Tensor, unit: Tensor) -> "_Choice":
        """Chooses the fit; `fold` and `unit` are of each word, and units are left out whole."""
        parts, left_out = list[tuple[_Words, _Words]](), list[Tensor]()
        for k in fold.unique().tolist():
            parts.append((words.part(fold != k), words.part(fold == k)))
            left_out.append(unit[fold == k])
            if sum(map(len, left_out)) >= LEFT_OUT:
                break
        together, apart = (_best_of(parts, factors) for factors in ((None,), FACTORS))
        units = torch.cat(left_out)
        is_likelier = is_surely_less(apart.losses, together.losses, units)
        is_better = is_likelier or is_surely_less(_wrong(parts, apart), _wrong(parts, together), units)
        return apart if is_better else together


@final
class _Choice(NamedTuple):
    """Solutions without each part, λ, τ, None for a fit together, and the losses of left-out words."""

    solutions: list[Tensor]
    penalty: float
    factor: float | None
    losses: Tensor


def _best_of(parts: "Sequence[tuple[_Words, _Words]]", factors: Sequence[float | None]) -> _Choice:
    """Chooses λ and τ for words with some left out, and these."""
    starts, best = [own.start() for own, _ in parts], None
    for penalty in PENALTIES:
        starts = [own.solve(start, penalty, factors[0]) for start, (own, _) in zip(starts, parts, strict=True)]
        found = list[_Choice]()
        for factor in factors:
            joined = [own.joined(start, factor) for start, (own, _) in zip(starts, parts, strict=True)]
            losses = [out.losses(each) for each, (_, out) in zip(joined, parts, strict=True)]
            found.append(_Choice(joined, penalty, factor, torch.cat(losses)))
        least = min(found, key=lambda choice: float(choice.losses.sum()))
        if best is not None and not least.losses.sum() < best.losses.sum():
            break
        best = least
    assert best is not None
    return best


def _wrong(parts: "Sequence[tuple[_Words, _Words]]", choice: _Choice) -> Tensor:
    """1 for each left-out word with another label in the likeliest sequence, else 0, float64 `(n,)`."""
    return torch.cat([out.wrong(each) for each, (_, out) in zip(choice.solutions, parts, strict=True)])


class _Words:
    """Words with known labels, in chains.

    Args:
        features: X, sparse COO `(n, p)`.
        labels: int64 `(n,)`.
        chain: number of the chain of each word, ascending.
        lengths: of the chains.
        num_labels: K.
    """

    def __init__(self, features: Tensor, labels: Tensor, chain: Tensor, lengths: Tensor, num_labels: int) -> None:
        self._coo, self._labels, self._chain, self._num_labels = features, labels, chain, num_labels
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
            self._features, self._turned = features.to_sparse_csr(), features.t().coalesce().to_sparse_csr()
        self._chains = Chains(lengths)
        self._one_hot = F.one_hot(labels, num_labels).double()
        pairs = self._chains.neighbours(labels)
        counts = torch.zeros(num_labels, num_labels, dtype=torch.float64, device=labels.device)
        self._counts = counts.index_put(pairs, counts.new_ones(()), accumulate=True)

    def __len__(self) -> int:
        return len(self._labels)

    def part(self, kept: Tensor) -> "_Words":
        """The words of a mask, which keeps chains whole."""
        features = self._coo.index_select(0, kept.nonzero()[:, 0]).coalesce()
        _, chain, counts = self._chain[kept].unique_consecutive(return_inverse=True, return_counts=True)
        return _Words(features, self._labels[kept], chain, counts, self._num_labels)

    def start(self) -> Tensor:
        """Zeros in the shape of W, b and T, one above the other, `(p + 1 + K, K)`."""
        rows = self._features.shape[1] + 1 + self._num_labels
        return torch.zeros(rows, self._num_labels, dtype=torch.float64, device=self._labels.device)

    def losses(self, solution: Tensor) -> Tensor:
        """-log p(y_t) of each word, `(n,)`."""
        found = self._chains.sums(*self._scored(solution)).log_marginals
        return -found.gather(1, self._labels[:, None])[:, 0]

    def wrong(self, solution: Tensor) -> Tensor:
        """1 for each word with another label in the likeliest sequence, else 0, float64 `(n,)`."""
        return (self._chains.best(*self._scored(solution)) != self._labels).double()

    def _scored(self, solution: Tensor) -> tuple[Tensor, Tensor]:
        p = self._features.shape[1]
        return self._features @ solution[:p] + solution[p], solution[p + 1 :]

    def objective(self, solution: Tensor, penalty: float, factor: float | None) -> tuple[Tensor, Tensor]:
        """The smoothed loss of a fit with τ, None for one together, and its gradient."""
        scores, transitions = self._scored(solution)
        if factor is None:
            found = self._chains.sums(scores, transitions)
            loss = (found.log_normaliser - self._chains.scored(scores, transitions, self._labels)).sum()
            log_marginals, of_pairs = found.log_marginals, found.expected - self._counts
        else:
            log_marginals, of_pairs = scores.log_softmax(1), torch.zeros_like(transitions)
            loss = -(log_marginals * self._one_hot).sum()
        errors = log_marginals.exp() - self._one_hot
        gradient = torch.cat([self._turned @ errors, errors.sum(0, keepdim=True), of_pairs])
        return loss + penalty / 2 * solution.square().sum(), gradient + penalty * solution

    def solve(self, start: Tensor, penalty: float, factor: float | None) -> Tensor:
        """Returns W, b and T of the smallest objective, from a start; with τ T is 0."""
        if not len(self):
            return start
        solution = start.clone()
        optimizer = torch.optim.LBFGS(
            [solution], max_iter=STEPS, tolerance_grad=TOLERANCE, history_size=HISTORY, line_search_fn="strong_wolfe"
        )

        def objective() -> Tensor:
            value, gradient = self.objective(solution, penalty, factor)
            solution.grad = gradient / len(self)
            return value / len(self)

        optimizer.step(objective)
        return solution

    def joined(self, solution: Tensor, factor: float | None) -> Tensor:
        """Returns a solution with T of these words for τ; None: as it is."""
        if factor is None:
            return solution
        shares = self._one_hot.sum(0) + EVIDENCE
        shares = shares / shares.sum()
        after = (self._counts + EVIDENCE * shares) / (self._counts.sum(1, keepdim=True) + EVIDENCE)
        return torch.cat([solution[: -self._num_labels], factor * (after / shares).log()])


def _flat(forms: Tensor) -> tuple[Tensor, Tensor]:
    """The words of sentences `(B, N, NUM_FORMS)`, one after the other `(n, NUM_FORMS)`, and the sentences' lengths."""
    if forms.ndim != 3 or forms.shape[2] != NUM_FORMS:
        raise ValueError(
            f"models.ConditionalRandomField: expected words (B, N, {NUM_FORMS}), of models.word_forms; got "
            f"{tuple(forms.shape)}"
        )
    is_word = forms[..., LOWER] != 0
    return forms[is_word], is_word.sum(1)


def _features(words: Tensor, lengths: Tensor, window: int) -> Tensor:
    """The numbers of the features of each word, int64 `(n, M)`, 0 for none."""
    sentence = torch.arange(len(lengths), device=words.device).repeat_interleave(lengths)

    def near(offset: int) -> Tensor:
        """The numbers of the words at an offset; at the places outside of their sentence `_EDGE`."""
        place = torch.arange(len(words), device=words.device) + offset
        inside = (place >= 0) & (place < len(words))
        place = place.clamp(0, max(0, len(words) - 1))
        inside &= sentence[place] == sentence if len(words) else inside
        return torch.where(inside[:, None], words[place], _EDGE)

    found = [words]
    for offset in range(1, window + 1):
        for each in (near(-offset), near(offset)):
            found.append(each[:, [LOWER, SHORT_SHAPE]])
            if offset == 1:
                found.append(each[:, [ENDINGS + 1, ENDINGS + 2]])
    if window:
        before, after = near(-1), near(1)
        for form in (LOWER, SHORT_SHAPE):
            found.append(_joined(before[:, form], words[:, form]))
            found.append(_joined(words[:, form], after[:, form]))
        found.append(_joined(before[:, SHORT_SHAPE], words[:, SHORT_SHAPE], after[:, SHORT_SHAPE]))
    keys = torch.cat(found, 1)
    # equal numbers at different places of the list are different features
    return torch.where(keys == 0, 0, keys + _FACTORS[0] * torch.arange(keys.shape[1], device=keys.device))


def _joined(*numbers: Tensor) -> Tensor:
    """A number of several in order, `(n, 1)`; products keep their lowest 64 bits."""
    return sum(factor * number for factor, number in zip(_FACTORS, numbers, strict=False))[:, None]  # type: ignore
