"""The bank of n-grams: features by a loop over each sentence, the fit by solving each system directly."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models import NGramBank, TokenReading
from fredholm.models.fitted import ridge_head
from fredholm.models.fitted.banks import n_gram_bank, sparse_ridge
from fredholm.tasks.targets import ClassTarget, LabelTarget, NumberTarget, Target
from tests.refusals import refused

SPELLING = ("", " ", " ", " a", " ab", "b", " cab", "ca", " c", "", " bb", "abc", " ")
"""Words of one to three letters, continuation pieces, a token without letters and one that is a space."""
READING = TokenReading(vocab_size=13, context=12, pad=0, separator=2, spelling=SPELLING)
CLASSES = ClassTarget(names=("a", "b", "c"))


Counts = Callable[[list[int], int], Counter[tuple[int, ...]]]
"""Counts the n-grams of a row up to a length in symbols."""


def rows(count: int = 30, *, pairs: bool = False, seed: int = 0) -> Tensor:
    """`[1] words [2]`, or `[1] words [2] words [2]`, of several lengths, padded with 0."""
    drawn = torch.Generator().manual_seed(seed)
    found = torch.zeros(count, 12, dtype=torch.int64)
    for i in range(count):
        ends = [3 + i % 4, 7 + i % 5] if pairs else [2 + i % 9]
        found[i, : ends[-1] + 1] = torch.randint(3, 13, (ends[-1] + 1,), generator=drawn)
        found[i, 0], found[i, ends] = 1, 2
    return found


def grams(row: list[int], order: int) -> Counter[tuple[int, ...]]:
    """Counts of the n-grams of a row, each with a leading 0 for the first sentence or 1 for the second."""
    tokens = [t for t in row if t != 0]
    return Counter(
        (int(2 in tokens[:i]), *tokens[i : i + k]) for k in range(1, order + 1) for i in range(len(tokens) - k + 1)
    )


def informative(counts: list[Counter[tuple[int, ...]]]) -> Counter[tuple[int, ...]]:
    """The number of rows with each n-gram, without n-grams of which all rows have equally many."""
    seen = Counter(g for each in counts for g in each)
    return Counter({g: n for g, n in seen.items() if len({each[g] for each in counts}) > 1})


def letter_grams(row: list[int], order: int) -> Counter[tuple[int, ...]]:
    """The same for letters: spaces only at the ends of n-grams, and the last one of a run of spaces."""
    tokens = [t for t in row if t != 0]
    spelt = [(int(2 in tokens[:i]), letter) for i, token in enumerate(tokens) for letter in SPELLING[token]]
    spelt = [s for i, s in enumerate(spelt) if s[1] != " " or i + 1 == len(spelt) or spelt[i + 1][1] != " "]
    found = Counter[tuple[int, ...]]()
    for i, (is_second, _) in enumerate(spelt):
        for k in range(1, min(order, len(spelt) - i) + 1):
            word = "".join(letter for _, letter in spelt[i : i + k])
            if " " not in word[1:-1]:
                found[is_second, *(" abc".index(letter) for letter in word)] += 1
    return found


def by_loop(train: Tensor, queries: Tensor, order: int, share: float = 1.0, counted: Counts = grams) -> np.ndarray:
    """Features `(n, p)` of rows, with a column for each n-gram of the training rows, by length and tokens."""
    counts = [counted(row, order) for row in train.tolist()]
    seen = informative(counts)
    names = sorted(seen, key=lambda g: (g[0], len(g), g))
    found = np.zeros((len(queries), len(names)))
    for i, row in enumerate(queries.tolist()):
        for g, count in counted(row, order).items():
            if g in seen:
                rarity = 1 + math.log((1 + len(train)) / (1 + seen[g]))
                found[i, names.index(g)] = share ** (len(g) - 2) * (1 + math.log(count)) * rarity
        if found[i].any():
            found[i] /= np.linalg.norm(found[i])
    return found


def dense(bank: NGramBank, tokens: Tensor) -> Tensor:
    """Features of n-grams without the unused columns."""
    row, gram, value = bank.features(tokens)
    found = torch.zeros(len(tokens), bank.num_features, dtype=torch.float64)
    found[row, gram] = value
    kinds = (bank.of_tokens,) if bank.of_letters is None else (bank.of_tokens, bank.of_letters)
    return found[:, : -len(bank.form)][:, torch.cat([kind.known != n_gram_bank._NONE for kind in kinds])]


@pytest.fixture
def scaled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Banks choose neither counts, nor the form, nor adapted factors."""
    monkeypatch.setattr(n_gram_bank._Texts, "are_better", lambda *_: False)


def bank(order: int = 2, num_grams: int = 500, num_outputs: int = 3, letter_order: int = 0) -> NGramBank:
    letters = {"num_letter_grams": num_grams} if letter_order else {}
    config = NGramBank.Config(order=order, num_grams=num_grams, letter_order=letter_order, **letters)
    return config.build(READING, num_outputs)


def fitted(found: NGramBank, tokens: Tensor, values: Tensor, target: Target, groups: Tensor | None = None) -> NGramBank:
    torch.manual_seed(0)
    found.fit(list(zip(tokens.split(7), target.targets(values).split(7), strict=True)), target, groups=groups)
    return found


def ridge(x: np.ndarray, y: np.ndarray, penalty: float, queries: np.ndarray) -> np.ndarray:
    """Scores of the query rows by the ridge regression of y on x, whose constant is not penalised."""
    centred, middle = x - x.mean(0), y.mean(0)
    weight = np.linalg.solve(centred.T @ centred + penalty * np.eye(x.shape[1]), centred.T @ (y - middle))
    return middle + (queries - x.mean(0)) @ weight


@pytest.mark.usefixtures("scaled_alone")
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_features_of_tokens_follow_the_definition(order: int, pairs: bool) -> None:
    train, queries = rows(pairs=pairs), rows(9, pairs=pairs, seed=1)
    found = bank(order, 2000)
    found.fit([(train, torch.arange(30) % 3)], CLASSES)
    expected = by_loop(train, queries, order)
    np.testing.assert_allclose(dense(found, queries).numpy(), expected, atol=1e-6)


@pytest.mark.usefixtures("scaled_alone")
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("letter_order", [1, 3, 4])
def test_features_of_letters_follow_the_definition(letter_order: int, pairs: bool) -> None:
    train, queries = rows(pairs=pairs), rows(9, pairs=pairs, seed=1)
    found = bank(2, 2000, letter_order=letter_order)
    found.fit([(some, torch.arange(len(some)) % 3) for some in train.split(7)], CLASSES)
    found.letter_share.fill_(0.3)
    of_tokens, of_letters = by_loop(train, queries, 2), by_loop(train, queries, letter_order, counted=letter_grams)
    expected = np.concatenate([0.7**0.5 * of_tokens, 0.3**0.5 * of_letters], 1)
    np.testing.assert_allclose(dense(found, queries).numpy(), expected, atol=1e-6)


def left_out_by_loop(x: np.ndarray, y: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Scores of each row by the fit without its part, times their gain, with the penalty of the smallest error.

    Returns that penalty and gain, too.
    """
    unit, best = ((x - x.mean(0)) ** 2).sum(1).mean(), None
    mean = np.stack([y[part != own].mean(0) for own in part])
    for multiple in sparse_ridge.PENALTIES.tolist():
        got = np.empty_like(y)
        for some in np.unique(part):
            out = part == some
            got[out] = ridge(x[~out], y[~out], multiple * unit, x[out])
        gain = max(0.0, np.linalg.lstsq((got - mean).reshape(-1, 1), (y - mean).reshape(-1), rcond=None)[0][0])
        got = mean + gain * (got - mean)
        if best is None or ((y - got) ** 2).mean() < ((y - best[0]) ** 2).mean():
            best = got, multiple * unit, gain
    assert best is not None
    return best


@pytest.mark.usefixtures("scaled_alone")
@pytest.mark.parametrize(("order", "source"), [(2, "words"), (3, "words"), (2, "pairs"), (2, "chance")])
@pytest.mark.parametrize("pairs", [False, True])
def test_longer_n_grams_get_a_smaller_share_only_where_that_is_surely_better(
    order: int, source: str, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_ridge, "TOLERANCE", 1e-10)
    monkeypatch.setattr(sparse_ridge, "PATIENCE", 100)
    tokens, draw = rows(60, pairs=pairs), torch.Generator().manual_seed(4)
    worth = torch.randn(13 * 13, generator=draw, dtype=torch.float64)
    if source == "words":
        values = worth[tokens].sum(1)
    elif source == "pairs":
        values = worth[13 * tokens[:, :-1] + tokens[:, 1:]].sum(1)
    else:
        values = worth[:60]
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    found = fitted(bank(order, 3000, 1), tokens, values[:, None], target)
    torch.manual_seed(0)
    part = (torch.randperm(60) % 10).numpy()
    y, errors, chosen = target.columns(target.targets(values[:, None])).numpy(), list[np.ndarray](), 1.0
    for share in n_gram_bank.SHARES:
        x = by_loop(tokens, tokens, order, share)
        errors.append(((y - left_out_by_loop(x, y, part)[0]) ** 2).mean(1))
        if len(errors) > 1 and errors[-1].mean() >= errors[-2].mean():
            break
        gain = errors[0] - errors[-1]
        if len(errors) > 1 and gain.mean() > ridge_head.SURE * gain.std(ddof=1) / math.sqrt(60):
            chosen = share
    assert (chosen < 1) == (source == "words")
    expected = by_loop(tokens, rows(9, seed=1), order, chosen)
    np.testing.assert_allclose(dense(found, rows(9, seed=1)).numpy(), expected, atol=1e-6)


def test_shares_are_tried_while_the_error_decreases(monkeypatch: pytest.MonkeyPatch) -> None:
    errors, fit = iter((3.0, 4.0, 1.0, 1.0)), sparse_ridge.sparse_ridge

    def found(features: Tensor, targets: Tensor, part: Tensor, **_: int) -> sparse_ridge.SparseRidge:
        return fit(features, targets, part)._replace(left_out=targets - next(errors))

    class EnoughError(Exception):
        pass

    def further(*_: object) -> None:
        raise EnoughError

    monkeypatch.setattr(n_gram_bank, "sparse_ridge", found)
    monkeypatch.setattr(NGramBank, "_with_letters", further)
    with pytest.raises(EnoughError):
        fitted(bank(), rows(), torch.arange(30) % 3, CLASSES)
    assert list(errors) == [1.0, 1.0]


def test_a_row_without_informative_n_grams_has_the_scores_of_the_bias() -> None:
    empty = torch.tensor([[1, 2] + [0] * 10])  # its marks occur in all rows, and their bigram in this one alone
    found = fitted(bank(), torch.cat([rows(), empty]), torch.arange(31) % 3, CLASSES)
    assert len(found.features(empty)[0]) == 1
    found.of_tokens.rarity[found.of_tokens.num_symbols > 1] = 0
    torch.testing.assert_close(found(empty)[0], found.bias)


@pytest.mark.usefixtures("scaled_alone")
def test_scores_match_ridge_regression_with_the_best_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_ridge, "TOLERANCE", 1e-12)
    monkeypatch.setattr(sparse_ridge, "PATIENCE", 100)
    tokens, values = rows(), torch.arange(30) * 7 % 3
    for groups in (None, torch.arange(30) // 4):
        found = fitted(bank(), tokens, values, CLASSES, groups)
        torch.manual_seed(0)
        units = torch.arange(30) if groups is None else groups
        part = (torch.randperm(int(units.max()) + 1)[units] % min(10, int(units.max()) + 1)).numpy()
        x, y = by_loop(tokens, tokens, 2), CLASSES.columns(values).numpy()
        left_out, penalty, gain = left_out_by_loop(x, y, part)
        assert float(found.penalty) == pytest.approx(penalty, rel=1e-6)
        readout = CLASSES.readout(torch.tensor(left_out), values)
        queries = rows(8, seed=1)
        scores = y.mean(0) + gain * (ridge(x, y, penalty, by_loop(tokens, queries, 2)) - y.mean(0))
        torch.testing.assert_close(found(queries).double(), readout(torch.tensor(scores)), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("scaled_alone")
@pytest.mark.parametrize("source", ["letters", "tokens"])
def test_letters_are_used_where_errors_are_smaller(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_ridge, "TOLERANCE", 1e-10)
    monkeypatch.setattr(sparse_ridge, "PATIENCE", 100)
    tokens, draw = rows(60), torch.Generator().manual_seed(4)
    worth = torch.randn(13, generator=draw, dtype=torch.float64)
    if source == "letters":
        worth = torch.tensor([float("b" in word) for word in SPELLING], dtype=torch.float64)
    values = worth[tokens].sum(1)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    found = fitted(bank(1, 3000, 1, letter_order=3), tokens, values[:, None], target)
    torch.manual_seed(0)
    part, y = (torch.randperm(60) % 10).numpy(), target.columns(target.targets(values[:, None])).numpy()
    x = by_loop(tokens, tokens, 1)
    both = 0.5**0.5 * np.concatenate([x, by_loop(tokens, tokens, 3, counted=letter_grams)], 1)
    errors = [((y - left_out_by_loop(each, y, part)[0]) ** 2).mean() for each in (x, both)]
    assert (errors[1] < errors[0]) == (source == "letters")
    assert float(found.letter_share) == (0.5 if source == "letters" else 0.0)
    expected = both if source == "letters" else x
    _, penalty, gain = left_out_by_loop(expected, y, part)
    got = y.mean(0) + gain * (ridge(expected, y, penalty, expected) - y.mean(0))
    torch.testing.assert_close(found(tokens).double(), torch.tensor(got), rtol=1e-3, atol=1e-3)


def number(values: Tensor) -> NumberTarget:
    return NumberTarget(names=("y",), mean=(float(values.mean()),), deviation=(float(values.std()),))


def explained(tokens: Tensor, values: Tensor) -> tuple[NGramBank, float]:
    """A bank of words fitted to half of the rows, and the share of the variance of the others that it explains."""
    found = fitted(bank(1, 500, 1), tokens[::2], values[::2, None], target := number(values))
    wanted = target.targets(values[1::2, None])
    return found, 1 - float((found(tokens[1::2]).detach() - wanted).square().mean() / wanted.square().mean())


def long_rows(vocab: int, count: int = 200) -> Tensor:
    """Rows of 1 to 12 tokens from 3 on, without marks."""
    draw = torch.Generator().manual_seed(0)
    found = torch.randint(3, vocab, (count, 12), generator=draw)
    return torch.where(torch.arange(12) < torch.randint(1, 13, (count, 1), generator=draw), found, 0)


def test_sums_over_a_sentence_are_learnt_from_counts() -> None:
    tokens = long_rows(13)
    worth = torch.randn(13, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found, share = explained(tokens, torch.where(tokens != 0, worth[tokens], 0.0).sum(1))
    assert found.of_tokens.unit > 0
    assert share > 0.99


def test_counts_follow_the_definition() -> None:
    tokens = long_rows(13)
    found, _ = explained(tokens, (tokens == 5).sum(1).double())
    times = (tokens[1:9, :, None] == found.of_tokens.known[:10]).sum(1)
    expected = times * found.of_tokens.rarity[:10].double() / found.of_tokens.unit
    torch.testing.assert_close(dense(found, tokens[1:9]), expected)
    size = dense(found, tokens[::2]).square().sum(1).mean()
    torch.testing.assert_close(size, torch.ones_like(size))


def test_the_length_of_a_sentence_is_read_where_it_matters() -> None:
    tokens = long_rows(13)
    lengths = (tokens != 0).sum(1).double()
    found, share = explained(tokens, lengths.log())
    assert bool(found.form.factor.any())
    assert share > 0.98
    noise = torch.randn(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, _ = explained(tokens, noise)
    assert not bool(found.form.factor.any())


def test_few_deciding_words_among_many_get_larger_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, draw = TokenReading(vocab_size=800, context=30, pad=0, separator=2), torch.Generator().manual_seed(0)
    tokens = torch.randint(10, 800, (240, 20), generator=draw)
    tokens[:, 7] = torch.randint(3, 9, (240,), generator=draw)
    labels, errors = (tokens[:, 7] < 6).long(), list[float]()
    for most in (n_gram_bank.MOST_FACTORS, 0):
        monkeypatch.setattr(n_gram_bank, "MOST_FACTORS", most)
        torch.manual_seed(0)
        found = NGramBank.Config(order=1, letter_order=0, num_grams=800).build(reading, 2)
        found.fit([(tokens[:120], labels[:120])], ClassTarget(names=("a", "b")))
        errors.append(float(F.cross_entropy(found(tokens[120:]).detach(), labels[120:])))
    assert errors[0] < 0.2 * errors[1]


def test_adapted_factors_are_computed_without_the_left_out_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_ridge, "TOLERANCE", 1e-12)
    monkeypatch.setattr(sparse_ridge, "PENALTIES", torch.tensor([0.1], dtype=torch.float64))
    draw, part = np.random.default_rng(0), np.arange(40) % 4
    x, y = draw.poisson(0.3, (40, 12)) * draw.random((40, 12)), draw.normal(size=(40, 2))
    penalty = 0.1 * ((x - x.mean(0)) ** 2).sum(1).mean()

    def factors(own: np.ndarray, column: int) -> np.ndarray:
        """D for a column of y of some examples; the last two features have the factor 1."""
        has = x[own] != 0
        found = np.abs(has.T @ (y[own, column] - y[own, column].mean())) / (has.sum(0) + sparse_ridge.EVIDENCE)
        weight = (x[:, :10] ** 2).sum(0)
        return np.append(found[:10] / np.sqrt((weight * found[:10] ** 2).sum() / weight.sum()), [1.0, 1.0])

    expected, mean = np.empty_like(y), np.stack([y[part != own].mean(0) for own in part])
    for own, column in itertools.product(range(4), range(2)):
        scaled, kept = x * factors(part != own, column), part != own
        expected[~kept, column] = ridge(scaled[kept], y[kept, column], penalty, scaled[~kept])
    gain = ((expected - mean) * (y - mean)).sum() / ((expected - mean) ** 2).sum()
    features = torch.tensor(x).to_sparse_coo().coalesce()
    found = sparse_ridge.sparse_ridge(features, torch.tensor(y), torch.tensor(part), num_adapted=10)
    np.testing.assert_allclose(found.left_out, mean + max(0.0, gain) * (expected - mean), atol=1e-8)


def test_predictions_anticorrelated_with_the_targets_have_no_gain() -> None:
    """Each word occurs in two sentences of opposite values, so that one predicts the other wrongly with any penalty."""
    features = torch.eye(20, dtype=torch.float64).repeat_interleave(2, 0).to_sparse_coo().coalesce()
    targets = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(20, 1)
    part = (torch.arange(40) + torch.arange(40) // 2) % 2  # one word per sentence, with both values equally often
    found = sparse_ridge.sparse_ridge(features, targets, part)
    assert not found.weight.any()
    torch.testing.assert_close(found.left_out, torch.zeros(40, 1, dtype=torch.float64))  # the mean of the others


def test_shares_are_compared_by_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, groups = list[Tensor | None](), torch.arange(30) // 3
    monkeypatch.setattr(n_gram_bank, "is_surely_less", lambda *given: seen.append(given[2]))
    values = rows().float().sum(1, keepdim=True)  # predictable from single words
    fitted(bank(2, 500, 1), rows(), values, NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,)), groups)
    assert seen
    assert all(each is groups for each in seen)


@pytest.mark.parametrize(("limit", "value"), [("COLUMNS", 1), ("MOST_OF_KERNEL", 0)])
def test_the_order_of_products_does_not_matter(limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems are solved together or one by one, with X Xᵀ or with X and Xᵀ."""
    tokens, values = rows(), torch.arange(30) * 7 % 3
    expected = fitted(bank(), tokens, values, CLASSES)
    monkeypatch.setattr(sparse_ridge, limit, value)
    torch.testing.assert_close(fitted(bank(), tokens, values, CLASSES).weight, expected.weight, rtol=1e-3, atol=1e-5)


def test_every_kind_of_target_is_learnt() -> None:
    tokens = rows(80)
    has, often = (tokens == 5).any(1), (tokens == 7).sum(1)
    predicted = fitted(bank(1, num_outputs=2), tokens, has.long(), ClassTarget(names=("no", "yes")))(tokens)
    assert (predicted.argmax(1) == has).float().mean() > 0.95
    both = torch.stack([has, often > 0], 1).long()
    predicted = fitted(bank(1, num_outputs=2), tokens, both, LabelTarget(names=("five", "seven")))(tokens)
    assert ((predicted > 0) == both).float().mean() > 0.9
    number = NumberTarget(names=("n",), mean=(float(often.double().mean()),), deviation=(float(often.double().std()),))
    predicted = fitted(bank(1, num_outputs=1), tokens, often[:, None].double(), number)(tokens).detach()
    targets = number.targets(often[:, None].double())
    assert float((predicted - targets).square().mean()) < 0.3 * float(targets.square().mean())


def test_with_a_limit_the_most_frequent_n_grams_are_kept() -> None:
    tokens = rows()
    seen = informative([grams(row, 2) for row in tokens.tolist()])
    found = fitted(bank(2, 6), tokens, torch.arange(30) % 3, CLASSES)
    counts = ((1 + 30) / torch.exp(found.of_tokens.rarity.double() - 1) - 1).round()
    assert sorted(counts.tolist()) == sorted(seen.values())[-6:]
    assert found(tokens).std() > 0


def test_n_grams_common_to_all_sentences_do_not_change_the_norm() -> None:
    tokens, labels = rows(), torch.arange(30) % 3
    with_mark, without = (fitted(bank(1), given, labels, CLASSES)(given) for given in (tokens, tokens[:, 1:]))
    torch.testing.assert_close(with_mark, without)


def test_equal_sentences_are_predicted_by_the_mean() -> None:
    found = fitted(bank(), rows(1).expand(30, -1), torch.arange(30) % 3, CLASSES)
    assert not bool(found.of_tokens.rarity.any())
    torch.testing.assert_close(found(rows(4, seed=1)), found.bias.expand(4, -1))


@pytest.mark.usefixtures("scaled_alone")
@pytest.mark.parametrize("count", [3, 4, 5])
def test_sentences_that_differ_by_rounding_alone_are_predicted_by_the_mean(count: int) -> None:
    words, none = torch.arange(3, 3 + count), torch.zeros(count, dtype=torch.int64)
    tokens = torch.stack([torch.cat([words] * k + [none] * (3 - k)) for k in (1, 2, 3)] * 10)  # each one equally often
    found = fitted(bank(1), tokens, torch.arange(30) % 3, CLASSES)
    assert found.weight.abs().max() < 1e-9
    assert found.penalty > 1e-6


def test_padding_and_batch_mates_change_nothing() -> None:
    found = fitted(bank(), rows(), torch.arange(30) % 3, CLASSES)
    queries = rows(5, seed=1)
    alone = torch.cat([found(row[None, : int((row != 0).sum())]) for row in queries])
    torch.testing.assert_close(found(queries), alone)


def test_a_sentence_of_unknown_words_has_the_scores_of_an_empty_one() -> None:
    few = rows()
    few[few == 12] = 11
    found = fitted(bank(1), few, torch.arange(30) % 3, CLASSES)
    assert torch.equal(found(torch.tensor([[12, 12]])), found.bias[None])
    assert torch.equal(found(torch.zeros(2, 4, dtype=torch.int64)), found.bias.expand(2, -1))
    assert found(torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 3)
    assert torch.equal(found(torch.zeros(1, 0, dtype=torch.int64)), found.bias[None])


def test_parameters_have_gradients_after_a_fit() -> None:
    found = fitted(bank(), rows(), torch.arange(30) % 3, CLASSES)
    found(rows(4, seed=1)).square().sum().backward()
    for parameter in (found.weight, found.bias):
        assert parameter.grad is not None
        assert bool(parameter.grad.any())


def test_the_recommended_size_is_the_number_of_n_grams_in_the_rows() -> None:
    tokens, config = rows(), NGramBank.Config()
    names, spelt = (
        {g for row in tokens.tolist() for g in counted(row, n)} for counted, n in ((grams, 2), (letter_grams, 5))
    )
    found = config.recommended(tokens.split(7), READING, 0, 0)
    assert (found.num_grams, found.letter_order, found.num_letter_grams) == (len(names), 5, len(spelt))
    given = NGramBank.Config(num_grams=5, num_letter_grams=7)
    assert given.recommended(tokens.split(7), READING, 0, 0) == given


def test_left_out_scores_do_not_depend_on_the_left_out_sentence() -> None:
    tokens = torch.arange(3, 11)[:, None]  # these have nothing in common, so that the mean of the others is predicted
    values = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0]).double()[:, None]
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    predicted = bank(1, 20, 1).fit([(tokens, values)], target)
    torch.testing.assert_close(predicted, (values.sum() - values) / 7)


def test_letters_are_switched_off_where_there_are_none_or_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    without = dataclasses.replace(READING, spelling=None)
    found = NGramBank.Config().recommended([rows()], without, 0, 0)
    assert found == NGramBank.Config(num_grams=found.num_grams, letter_order=0)
    with refused(ValueError, "letter_order is 5", "give TokenReading.spelling, or letter_order=0"):
        NGramBank.Config().build(without, 2)
    with refused(ValueError, "letter_order is 4", "give TokenReading.spelling"):
        NGramBank.Config(letter_order=4).recommended([rows()], without, 0, 0)
    letters = sum(count for row in rows().tolist() for count in letter_grams(row, 1).values())
    for most, order in ((letters, 5), (letters - 1, 0)):
        monkeypatch.setattr(n_gram_bank, "MOST_LETTERS", most)
        assert NGramBank.Config().recommended(rows().split(7), READING, 0, 0).letter_order == order
    queries = NGramBank.Config(letter_order=2).recommended(rows().split(7), READING, 0, 0)
    assert queries.letter_order == 2
    assert queries.num_letter_grams == len({g for row in rows().tolist() for g in letter_grams(row, 2)})


def test_n_grams_of_a_large_alphabet_are_limited_by_the_range_of_their_numbers() -> None:
    spelling = ("", " ", " ", *(" " + chr(0x4E00 + k) for k in range(9000)))
    reading = TokenReading(vocab_size=len(spelling), context=12, pad=0, separator=2, spelling=spelling)
    found = NGramBank.Config().recommended([rows()], reading, 0, 0)
    assert found.letter_order == 4
    found.build(reading, 2)
    with refused(ValueError, "letter_order is 5", "too many n-grams of 9001 letters"):
        NGramBank.Config().build(reading, 2)


def test_bad_input_is_refused() -> None:
    found = bank()
    with refused(ValueError, "there are fewer than 2 sentences"):
        found.fit([(rows(1), torch.zeros(1, dtype=torch.int64))], CLASSES)
    for tokens in (torch.tensor([[13]]), torch.tensor([[-1]])):
        with refused(ValueError, "tokens must be 0 to 12"):
            found(tokens)
    with refused(ValueError, "the regressand has 3 outputs; expected 2"):
        fitted(bank(num_outputs=2), rows(), torch.arange(30) % 3, CLASSES)
    with refused(ValueError, "too many n-grams of 100000 tokens"):
        NGramBank.Config(order=4).build(TokenReading(vocab_size=100_000, context=8, pad=0, separator=1), 2)
    with refused(ValueError, "order is 30", "too many n-grams of 13 tokens"):
        NGramBank.Config(order=30).recommended([rows()], READING, 0, 0)
    for settings in ({"order": 0}, {"num_grams": 0}, {"num_letter_grams": 0}):
        with refused(ValueError, "must be at least 1"):
            NGramBank.Config(**settings)
    with refused(ValueError, "letter_order must be at least 0"):
        NGramBank.Config(letter_order=-1)
    with refused(ValueError, "num_letter_grams=9 has no effect with letter_order=0"):
        NGramBank.Config(letter_order=0, num_letter_grams=9)
    with refused(ValueError, "spelling is of 2 tokens; expected vocab_size, 13"):
        dataclasses.replace(READING, spelling=("a", "b"))
    for settings in ({"pad": 13}, {"separator": -1}):
        with refused(ValueError, "expected a token, 0 to 12"):
            dataclasses.replace(READING, **settings)
