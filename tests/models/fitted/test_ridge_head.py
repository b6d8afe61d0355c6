"""The ridge head against explicit refits without each example, and its outputs for every kind of target."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models import FeatureBlock, RidgeHead
from fredholm.models.fitted import ridge_head
from fredholm.models.fitted.ridge_head import PENALTIES, SHARES, ScoreRecorder, shares_of, some_drawn
from fredholm.tasks.targets import ClassTarget, LabelTarget, NumberTarget, Target
from tests.refusals import refused


def classes_of(count: int) -> ClassTarget:
    return ClassTarget(names=tuple(f"class {k}" for k in range(count)))


def data(n: int, p: int, classes: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Noisy features with shifted means, one of which is constant."""
    labels = torch.arange(n) % classes
    features = 5 + torch.randn(n, p, dtype=dtype) * torch.linspace(0.1, 9, p, dtype=dtype)
    features += labels[:, None] * torch.randn(p, dtype=dtype)
    features[:, p // 2] = 0.1
    return features, labels


def standard(features: Tensor) -> Tensor:
    centred = features - features.mean(0)
    scale = centred.square().mean(0).sqrt()
    return torch.where(scale > 1e-9, centred / scale, 0.0)


def solved(x: Tensor, targets: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Ridge regression with a free intercept, by its normal equations."""
    n, p = x.shape
    wide = torch.cat([x, x.new_ones(n, 1)], 1)
    ridge = torch.full((p + 1,), penalty, dtype=x.dtype).diag()
    ridge[-1, -1] = 0
    both = torch.linalg.solve(wide.T @ wide + ridge, wide.T @ targets)
    return both[:-1], both[-1]


def gained(expected: Tensor, targets: Tensor, gain: float) -> Tensor:
    mean = targets.mean(0)
    return mean + gain * (expected - mean)


def means(targets: Tensor, groups: Tensor | None = None) -> Tensor:
    """For each example, the mean of the others, or of the other groups."""
    groups = torch.arange(len(targets)) if groups is None else groups
    return torch.stack([targets[groups != group].mean(0) for group in groups])


def refits(x: Tensor, targets: Tensor, penalty: float, groups: Tensor | None = None) -> Tensor:
    """The prediction for each example by a fit to the others, or to the other groups."""
    rows, groups = [], torch.arange(len(x)) if groups is None else groups
    for i in range(len(x)):
        others = groups != groups[i]
        weight, offset = solved(x[others], targets[others], penalty)
        rows.append(x[i] @ weight + offset)
    return torch.stack(rows)


class Chosen(NamedTuple):
    """Penalty and gain with the smallest left-out error, preferring fits better than the mean, which need no gain.

    The penalty is a multiple of the mean eigenvalue.
    """

    is_worse: bool
    error: float
    plain_error: float
    multiple: float
    gain: float


def chosen(x: Tensor, targets: Tensor, groups: Tensor | None = None) -> Chosen:
    unit, mean, found = float(x.square().sum()) / len(x), means(targets, groups), list[Chosen]()
    for multiple in PENALTIES.tolist():
        got = refits(x, targets, multiple * unit, groups)
        plain, gain = float((targets - got).square().mean()), 1.0
        is_worse = plain > float((targets - targets.mean(0)).square().mean())
        if is_worse:
            gain = np.linalg.lstsq((got - mean).reshape(-1, 1).numpy(), (targets - mean).reshape(-1).numpy())[0][0]
            gain = min(max(gain, 0.0), 1.0)
        error = float((targets - mean - gain * (got - mean)).square().mean())
        found.append(Chosen(is_worse, error, plain, multiple, gain or 1.0))
    return min(found)


def left_out(x: Tensor, targets: Tensor, groups: Tensor | None = None) -> Tensor:
    """The prediction for each example by the chosen fit without it."""
    multiple, gain = chosen(x, targets, groups)[3:]
    mean = means(targets, groups)
    return mean + gain * (refits(x, targets, multiple * float(x.square().sum()) / len(x), groups) - mean)


def whole(x: Tensor, targets: Tensor) -> Tensor:
    """The prediction for each example by the chosen fit to all examples."""
    multiple, gain = chosen(x, targets)[3:]
    weight, offset = solved(x, targets, multiple * float(x.square().sum()) / len(x))
    return gained(x @ weight + offset, targets, gain)


@pytest.mark.parametrize(("n", "p", "classes"), [(11, 5, 3), (7, 19, 2), (13, 13, 4), (5, 2, 2)])
def test_left_out_logits_and_penalty_match_those_of_refits(n: int, p: int, classes: int) -> None:
    features, labels = data(n, p, classes)
    head = RidgeHead(p, classes).double()
    logits = head.fit(features, labels, classes_of(classes))
    x, targets = standard(features), 2 * F.one_hot(labels, classes).double() - 1
    scores = left_out(x, targets)
    torch.testing.assert_close(logits, logits.norm() / scores.norm() * scores, rtol=1e-6, atol=1e-6)
    assert float(head.penalty) / (float(x.square().sum()) / n) == pytest.approx(chosen(x, targets).multiple)


@pytest.mark.parametrize("p", [1, 7])
def test_a_group_of_almost_all_examples_is_left_out_exactly(p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the smallest penalty 1 - h is about λ, to which nothing may be added."""
    monkeypatch.setattr(ridge_head, "PENALTIES", PENALTIES[:1])
    features, groups = torch.linspace(-1, 2, 5).double()[:, None] ** torch.arange(1, p + 1), torch.arange(5) > 3
    x, labels = standard(features), torch.tensor([1, 0, 0, 0, 0])
    logits = RidgeHead(p, 2).double().fit(features, labels, classes_of(2), groups=groups)
    targets = 2 * F.one_hot(labels, 2).double() - 1
    mean, unit = means(targets, groups), float(x.square().sum()) / len(x)
    fall = refits(x, targets, float(PENALTIES[0]) * unit, groups) - mean
    gain = min(1.0, max(0.0, float((fall * (targets - mean)).sum() / fall.square().sum())))
    scores = mean + gain * fall
    torch.testing.assert_close(logits, logits.norm() / scores.norm() * scores, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("n", "p"), [(13, 5), (9, 17)])
def test_groups_are_left_out_together(n: int, p: int) -> None:
    features, labels = data(n, p, 3)
    groups = torch.tensor([4, 1, 4, 7, 1, 1, 7, 4, 2, 1, 2, 7, 4])[:n]
    head = RidgeHead(p, 3).double()
    logits = head.fit(features, labels, classes_of(3), groups=groups)
    x, targets = standard(features), 2 * F.one_hot(labels, 3).double() - 1
    scores = left_out(x, targets, groups)
    torch.testing.assert_close(logits, logits.norm() / scores.norm() * scores, rtol=1e-6, atol=1e-6)
    assert float(head.penalty) / (float(x.square().sum()) / n) == pytest.approx(chosen(x, targets, groups).multiple)
    alone = RidgeHead(p, 3).double()
    by_itself = alone.fit(features, labels, classes_of(3), groups=torch.arange(n) * 3)
    torch.testing.assert_close(by_itself, RidgeHead(p, 3).double().fit(features, labels, classes_of(3)))


@pytest.mark.parametrize(("n", "p"), [(20, 6), (6, 20)])
def test_logits_match_ridge_regression(n: int, p: int) -> None:
    features, labels = data(n, p, 3)
    head = RidgeHead(p, 3).double()
    head.fit(features, labels, classes_of(3))
    scores = whole(standard(features), 2 * F.one_hot(labels, 3).double() - 1)
    logits = head(features)
    torch.testing.assert_close(logits, logits.norm() / scores.norm() * scores, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("n", "p", "last"), [(12, 7, 3), (9, 14, 5)])
def test_two_blocks_are_weighted_by_left_out_errors(n: int, p: int, last: int) -> None:
    features = torch.randn(n, p, dtype=torch.float64)
    y = features[:, :1] - 0.5 * features[:, -1:] + 0.3 * torch.randn(n, 1, dtype=torch.float64)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    head = RidgeHead(p, 1, further=[FeatureBlock(last)]).double()
    predicted = head.fit(features, y, target)
    x, tried = standard(features), {}
    for share in SHARES:
        first = ((1 - share) / (p - last)) ** 0.5 * x[:, : p - last]
        both = torch.cat([first, (share / last) ** 0.5 * x[:, p - last :]], 1)
        tried[share] = both, chosen(both, y)
    share = min(tried, key=lambda share: tried[share][1])
    both, best = tried[share]
    assert head.shares.tolist() == pytest.approx([1 - share, share])
    assert float(head.penalty) == pytest.approx(best.multiple * float(both.square().sum()) / n)
    torch.testing.assert_close(predicted, left_out(both, y), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(head(features), whole(both, y), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("num_groups", "is_sure"), [(40, True), (3, False)])
def test_shares_are_equal_in_doubt(num_groups: int, is_sure: bool) -> None:
    features = torch.randn(40, 36, dtype=torch.float64)
    y = features[:, :6].sum(1, keepdim=True) + 0.3 * torch.randn(40, 1, dtype=torch.float64)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    head, smallest = (RidgeHead(36, 1, further=[FeatureBlock(30)]).double() for _ in range(2))
    groups = torch.arange(40) % num_groups  # three are too few for a significant difference
    predicted = head.fit(features, y, target, groups=groups, equal_in_doubt=True)
    best = smallest.fit(features, y, target, groups=groups)
    assert smallest.shares[0] > 0.5
    if not is_sure:
        best = smallest.fit(features, y, target, groups=groups, shares=[(2.0, 2.0)])
    torch.testing.assert_close(predicted, best)
    torch.testing.assert_close(head.state_dict(), smallest.state_dict())


def test_an_uninformative_block_gets_no_share() -> None:
    features = torch.randn(60, 12, dtype=torch.float64)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    for own in (slice(0, 8), slice(8, 12)):
        head = RidgeHead(12, 1, further=[FeatureBlock(4)]).double()
        head.fit(features, features[:, own].sum(1, keepdim=True), target)
        other = torch.ones(12).bool()
        other[own] = False
        assert not head.weight[:, other].any()
    constant = RidgeHead(12, 1, further=[FeatureBlock(4)]).double()
    features[:, 8:] = 2.0
    constant.fit(features, features[:, :1], target)
    plain = RidgeHead(8, 1).double()
    plain.fit(features[:, :8], features[:, :1], target)
    torch.testing.assert_close(constant.weight[:, :8], plain.weight)
    assert constant.shares.tolist() == [1.0, 0.0]


def test_tried_shares_distribute_the_remainder_of_the_last_block() -> None:
    assert shares_of(1) == [(1.0,)]
    assert shares_of(2) == [(1 - s, s) for s in SHARES]
    three = shares_of(3)
    assert len(three) == len(set(three)) == 4 * len(SHARES) + 1  # the full share of the last block is one case
    assert {shares[2] for shares in three} == set(SHARES)
    assert all(sum(shares) == pytest.approx(1) for shares in three)
    assert {round(shares[1] / (1 - shares[2]), 6) for shares in three if shares[2] < 1} == set(SHARES)


@pytest.mark.parametrize(("n", "sizes"), [(30, (4, 3, 5)), (11, (6, 9, 5))])
def test_three_blocks_with_one_not_standardised(n: int, sizes: tuple[int, ...]) -> None:
    p = sum(sizes)
    features = torch.randn(n, p, dtype=torch.float64) * torch.linspace(0.1, 4, p, dtype=torch.float64)
    y = features[:, :1] + 0.3 * features[:, -1:] + 0.3 * torch.randn(n, 1, dtype=torch.float64)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    further = [FeatureBlock(sizes[1], standardised=False), FeatureBlock(sizes[2])]
    head, shares = RidgeHead(p, 1, further=further).double(), (0.3, 0.6, 0.1)
    predicted = head.fit(features, y, target, shares=[shares])
    one, two, three = standard(features).split(sizes, 1)
    two = features.split(sizes, 1)[1]
    two = two - two.mean(0)
    x = torch.cat([(s * n) ** 0.5 * part / part.norm() for s, part in zip(shares, (one, two, three), strict=True)], 1)
    best = chosen(x, y)
    assert float(head.penalty) == pytest.approx(best.multiple)  # X scaled to mean eigenvalue 1
    assert float(head.error) == pytest.approx(best.error)
    torch.testing.assert_close(predicted, left_out(x, y), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(head(features), whole(x, y), rtol=1e-6, atol=1e-6)
    errors = [
        float(RidgeHead(p, 1, further=further).double().fit(features, y, target, shares=[each]).sub(y).square().mean())
        for each in shares_of(3)
    ]
    head.fit(features, y, target)
    assert float(head.error) == pytest.approx(min(errors))
    assert head.shares.tolist() == pytest.approx(list(shares_of(3)[errors.index(min(errors))]))


def test_features_without_a_share_do_not_influence_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are fewer examples than the 12 features, but more than the 8 in use, which decide on the form solved."""
    features, target = (
        torch.randn(10, 12, dtype=torch.float64),
        NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,)),
    )
    y = features.sum(1, keepdim=True)
    head = RidgeHead(12, 1, further=[FeatureBlock(1), FeatureBlock(4)]).double()
    sizes, eigh = list[int](), torch.linalg.eigh

    def watched(matrix: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(matrix))
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", watched)
    predicted = head.fit(features, y, target, shares=[(0.3, 0.7, 0.0)])
    assert sizes == [8]
    head.fit(features, y, target, shares=[(0.3, 0.6, 0.1)])
    assert sizes == [8, 10]
    head.fit(features, y, target, shares=[(0.3, 0.7, 0.0)])
    other = RidgeHead(8, 1, further=[FeatureBlock(1)]).double()
    torch.testing.assert_close(predicted, other.fit(features[:, :8], y, target, shares=[(3.0, 7.0)]))
    torch.testing.assert_close(head.weight[:, :8], other.weight)
    assert not head.weight[:, 8:].any()
    assert head.shares.tolist() == pytest.approx([0.3, 0.7, 0.0], rel=1e-12)
    features[:, :8] = 1.0
    head.fit(features, y, target, shares=[(0.5, 0.5, 0.0)])  # the blocks that should share are constant
    assert head.shares.tolist() == [0.0, 0.0, 1.0]
    assert head.weight[:, 8:].any()


def test_an_informative_fit_is_chosen_even_if_its_scores_are_too_large() -> None:
    """With every penalty the errors on twelve examples exceed those of their mean."""
    torch.manual_seed(48)
    features = torch.randn(12, 12, dtype=torch.float64)
    y = features[:, :1] + 0.5 * torch.randn(12, 1, dtype=torch.float64)
    x, alone = standard(features), float((y - y.mean()).square().mean())
    plain = [float((y - refits(x, y, multiple * 12)).square().mean()) for multiple in PENALTIES.tolist()]
    assert min(plain) > 1.04 * alone
    head, target = RidgeHead(12, 1).double(), NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    assert float((head.fit(features, y, target) - y).square().mean()) < 0.9 * float((y - means(y)).square().mean())
    assert float(head.penalty) < 0.1 * 12 * PENALTIES[plain.index(min(plain))]


def test_a_gain_is_at_most_1() -> None:
    """With the largest penalties the predictions for eight examples are far too small, but better than the mean."""
    torch.manual_seed(1)
    features = torch.randn(8, 4, dtype=torch.float64)
    y = 0.5 * features[:, :1] + torch.randn(8, 1, dtype=torch.float64)
    head, target = RidgeHead(4, 1).double(), NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    torch.testing.assert_close(head.fit(features, y, target), left_out(standard(features), y))


def test_shares_without_a_gain_are_preferred_to_those_that_need_one() -> None:
    torch.manual_seed(261)
    features = torch.randn(12, 16, dtype=torch.float64)
    y = 0.6 * features[:, :1] + 0.4 * features[:, 8:9] + torch.randn(12, 1, dtype=torch.float64)
    found = [chosen(standard(features[:, own]), y) for own in (slice(8), slice(8, 16))]
    assert [each.is_worse for each in found] == [False, True]
    assert found[1].error < found[0].error - 0.01
    head = RidgeHead(16, 1, further=[FeatureBlock(8)]).double()
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    head.fit(features, y, target, shares=[(1.0, 0.0), (0.0, 1.0)])
    assert head.shares.tolist() == [1.0, 0.0]


def test_examples_of_a_group_count_as_one_observation() -> None:
    errors, others = torch.zeros(40), torch.tensor([1.0, 1.0, 1.0, -0.5]).repeat_interleave(10)
    groups = torch.arange(40) // 10 * 7
    # over forty examples the mean is 0.63, with standard error 0.10; over four sums it is 6.3, with 3.8
    for given, is_sure in ((None, True), (groups, False), (torch.arange(40), True)):
        assert ridge_head.is_surely_less(errors, others, given) == is_sure
        assert not ridge_head.is_surely_less(others, errors, given)


def test_small_penalties_are_not_lost_to_rounding() -> None:
    features, y = torch.randn(9, 13, dtype=torch.float64), torch.randn(9, 1, dtype=torch.float64)
    spectrum, _ = ridge_head._Table(features, (FeatureBlock(13),)).spectrum((1.0,), y - y.mean(0))
    penalty = 1e-6 * spectrum.unit
    errors = spectrum.left_out_errors(y - y.mean(0) - spectrum.fitted(penalty), penalty, None)
    torch.testing.assert_close(errors, y - refits(standard(features), y, penalty), rtol=1e-7, atol=1e-7)


def test_for_uninformative_features_the_smallest_errors_decide() -> None:
    features = torch.randn(6, 3, dtype=torch.float64)
    y = torch.tensor([[1.0], [-1.0]] * 3).double() + 0.01 * features[:, :1]
    features[:, 1:] = 0
    features[:, 0] = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    head, target = RidgeHead(3, 1).double(), NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    predicted = head.fit(features, y, target)
    x = standard(features)
    assert float(head.penalty) == pytest.approx(PENALTIES[-1].item() * float(x.square().sum()) / 6)
    torch.testing.assert_close(predicted, refits(x, y, float(head.penalty)))
    assert float(head.error) == pytest.approx(float((y - means(y)).square().mean()))
    assert head.weight.any()


def test_primal_and_dual_form_agree() -> None:
    features, labels = data(12, 11, 3)
    primal, dual = RidgeHead(11, 3).double(), RidgeHead(22, 3).double()
    primal.fit(features, labels, classes_of(3))
    dual.fit(torch.cat([features, features], 1), labels, classes_of(3))  # each feature twice: the penalty counts twice
    torch.testing.assert_close(dual.penalty, 2 * primal.penalty)
    torch.testing.assert_close(dual.weight[:, :11] + dual.weight[:, 11:], primal.weight, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(dual.bias, primal.bias, rtol=1e-6, atol=1e-9)


def test_probabilities_are_calibrated_on_left_out_scores() -> None:
    labels = torch.arange(400) % 2
    features = labels[:, None] + 1.5 * torch.randn(400, 3, dtype=torch.float64)
    logits = RidgeHead(3, 2).double().fit(features, labels, classes_of(2))

    def entropy(factor: float) -> float:
        return float(F.cross_entropy(factor * logits, labels))

    assert entropy(1) < min(entropy(0.8), entropy(1.25))
    probabilities = logits.softmax(-1)[:, 1]
    for low in (0.2, 0.4, 0.6):
        within = (probabilities > low) & (probabilities <= low + 0.2)
        assert float(labels[within].double().mean()) == pytest.approx(low + 0.1, abs=0.12)


def test_losses_of_scores_are_those_of_the_outputs_read_from_them() -> None:
    target, some = classes_of(3), torch.tensor([5, 1, 7, 2])
    targets, scores = torch.arange(8) % 3, torch.randn(4, 3, dtype=torch.float64)
    expected = target.losses(target.readout(scores, targets[some])(scores), targets[some])
    for regressand in (target, ScoreRecorder(target)):
        losses = regressand.losses_of_scores(targets)
        assert losses is not None
        torch.testing.assert_close(losses(scores, some), expected)
    number = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    assert ScoreRecorder(number).losses_of_scores(scores[:, :1]) is None


def test_class_and_label_weights_enter_the_logits() -> None:
    labels = (torch.arange(600) % 6 == 0).long()
    features = labels[:, None] + 1.0 * torch.randn(600, 2, dtype=torch.float64)
    plain, weighed = classes_of(2), ClassTarget(names=("a", "b"), weights=(0.6, 3.0))
    logits = [RidgeHead(2, 2).double().fit(features, labels, target) for target in (plain, weighed)]
    torch.testing.assert_close(logits[1] - logits[0], torch.tensor([0.6, 3.0]).double().log().expand(600, 2))
    losses = [float(weighed.losses(each, labels).mean()) for each in logits]
    assert losses[1] < losses[0]
    one, other = (LabelTarget(names=("l",), **weights) for weights in ({}, {"present": (3.0,), "absent": (0.6,)}))
    has = labels[:, None].float()
    found = [RidgeHead(2, 1).double().fit(features, has, target) for target in (one, other)]
    torch.testing.assert_close(found[1] - found[0], torch.full((600, 1), math.log(5.0)).double())
    assert float(other.losses(found[1], has.double()).mean()) < float(other.losses(found[0], has.double()).mean())


@pytest.mark.parametrize(("n", "p"), [(14, 5), (9, 13)])
def test_each_label_has_its_own_factor(n: int, p: int) -> None:
    features = torch.randn(n, p, dtype=torch.float64)
    has = (features[:, :3] + torch.tensor([0.1, 1.0, 2.0]) * torch.randn(n, 3, dtype=torch.float64) > 0).float()
    has[:, 2] = 0.0  # a label without examples
    head, target = RidgeHead(p, 3).double(), LabelTarget(names=("x", "y", "z"))
    logits = head.fit(features, has, target)
    scores = left_out(standard(features), 2 * has.double() - 1)
    factors = logits[0] / scores[0]
    torch.testing.assert_close(logits, scores * factors, rtol=1e-6, atol=1e-6)
    for k in range(3):
        count = float(has[:, k].sum())
        wanted = torch.where(has[:, k] > 0, (count + 1) / (count + 2), 1 / (n - count + 2)).double()

        def entropy(a: float, k: int = k, wanted: Tensor = wanted) -> float:
            return float(F.binary_cross_entropy_with_logits(a * logits[:, k], wanted))

        assert entropy(1) <= min(entropy(0.98), entropy(1.02))
    assert len(factors.round(decimals=6).unique()) == 3
    assert head(features).isfinite().all()


def test_numbers_are_predicted_as_fitted() -> None:
    features = torch.randn(12, 7, dtype=torch.float64)
    y = torch.randn(12, 2, dtype=torch.float64) + features[:, :2]
    head, target = RidgeHead(7, 2).double(), NumberTarget(names=("a", "b"), mean=(0.0, 0.0), deviation=(1.0, 1.0))
    predicted = head.fit(features, y, target)
    torch.testing.assert_close(predicted, left_out(standard(features), y))
    torch.testing.assert_close(head(features), whole(standard(features), y))


@pytest.mark.parametrize("n", [11, 3])
def test_quantiles_come_from_the_left_out_errors(n: int) -> None:
    features = torch.randn(n, 3, dtype=torch.float64)
    y, levels = torch.randn(n, 2, dtype=torch.float64) + features[:, :2], (0.01, 0.3, 0.5, 0.99)
    target = NumberTarget(names=("a", "b"), mean=(0.0, 0.0), deviation=(1.0, 1.0), quantiles=levels)
    head = RidgeHead(3, 8).double()
    head.fit(features, y, target)
    x = standard(features)
    errors = y - left_out(x, y)
    found = whole(x, y)[:, :, None]
    shift = np.quantile(errors.numpy(), levels, axis=0, method="weibull")  # numpy's name for position τ (n + 1)
    torch.testing.assert_close(head(features).view(n, 2, 4), found + torch.from_numpy(shift).T)


def test_quantiles_are_calibrated() -> None:
    features = torch.randn(300, 4, dtype=torch.float64)
    y = features.sum(1, keepdim=True) + torch.randn(300, 1, dtype=torch.float64)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,), quantiles=(0.1, 0.9))
    head = RidgeHead(4, 2).double()
    head.fit(features[:150], y[:150], target)
    low, high = head(features[150:]).T
    assert float(((low < y[150:, 0]) & (y[150:, 0] < high)).double().mean()) == pytest.approx(0.8, abs=0.08)


def test_separable_classes_have_finite_logits() -> None:
    features, labels = torch.randn(40, 3), torch.arange(40) % 2
    features[:, 0] += 100 * labels
    for target, given in ((classes_of(2), labels), (LabelTarget(names=("l",)), labels[:, None].float())):
        head = RidgeHead(3, target.num_outputs)
        head.fit(features, given, target)
        assert head(features).isfinite().all()
        assert (target.predictions(head(features))[:, -1] > 0.5).equal(labels.bool())
    head = RidgeHead(3, 2)
    head.fit(features, labels, classes_of(2))
    assert head(features).softmax(-1).amax(-1).mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_examples_and_rare_classes(dtype: torch.dtype) -> None:
    features, labels = data(9, 4, 2, dtype)
    labels[:] = 0
    labels[4] = 2  # one example of a class, none of another
    head = RidgeHead(4, 3).to(dtype)
    head.fit(features, labels, classes_of(3))
    assert head(features).isfinite().all()
    assert head.weight.dtype == dtype
    constant = RidgeHead(4, 3).to(dtype)
    constant.fit(torch.full((9, 4), 0.3, dtype=dtype), labels, classes_of(3))
    assert not constant.weight.any()
    assert constant.bias.argmax() == 0
    numbers: list[Target] = [
        NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,), quantiles=levels) for levels in ((), (0.2, 0.7))
    ]
    for target, given in (
        (classes_of(3), labels),
        (LabelTarget(names=("a", "b")), F.one_hot(labels, 3)[:, :2].float()),
        *((target, labels[:, None].float()) for target in numbers),
    ):
        one = RidgeHead(4, target.num_outputs).to(dtype)
        one.fit(features[:1], given[:1], target)
        assert one(features).isfinite().all()


def test_float32_and_float64_features_give_the_same() -> None:
    features, labels = data(15, 31, 3)
    features = features.float()
    single, double = RidgeHead(31, 3), RidgeHead(31, 3).double()
    single.fit(features, labels, classes_of(3))
    double.fit(features.double(), labels, classes_of(3))
    torch.testing.assert_close(single.weight.double(), double.weight, rtol=1e-5, atol=1e-6)
    assert math.isnan(float(RidgeHead(2, 2).penalty))
    assert single.shares.tolist() == [1.0]
    assert RidgeHead(2, 2, further=[FeatureBlock(1)]).shares.isnan().tolist() == [True, True]


def test_bad_arguments_are_refused() -> None:
    head, (features, labels) = RidgeHead(4, 2), data(6, 4, 2)
    target = classes_of(2)
    with refused(ValueError, "expected features (n, 4) and n targets with n at least 1; got (6, 3) and (6,)"):
        head.fit(features[:, :3], labels, target)
    with refused(ValueError, "got (0, 4) and (0,)"):
        head.fit(features[:0], labels[:0], target)
    with refused(ValueError, "the regressand has 3 outputs; expected 2"):
        head.fit(features, labels, classes_of(3))
    with refused(ValueError, "groups are (6,), 1 of them; expected (6,), at least 2"):
        head.fit(features, labels, target, groups=torch.zeros(6))
    with refused(ValueError, "groups are (5,), 5 of them"):
        head.fit(features, labels, target, groups=torch.arange(5))
    features[2, 1] = torch.nan
    with refused(ValueError, "features hold NaN or infinite numbers"):
        head.fit(features, labels, target)
    with refused(ValueError, "num_features must be at least 1; got 0"):
        RidgeHead(0, 2)
    with refused(ValueError, "further blocks have 3 and 1 of 4 features; leave the first block one"):
        RidgeHead(4, 2, further=[FeatureBlock(3), FeatureBlock(1)])
    with refused(ValueError, "the size of a block must be at least 1; got 0"):
        RidgeHead(4, 2, further=[FeatureBlock(0)])
    features[2, 1] = 0.0
    for shares in ((0.5, 0.5), (-1.0,)):
        with refused(ValueError, f"shares are {shares}; expected 1, none below 0"):
            head.fit(features, labels, target, shares=[shares])


def test_sampled_examples_are_balanced_for_any_order() -> None:
    drawn = some_drawn(4000, None, 1000)
    assert int(drawn.sum()) == 1000
    for period in (2, 3, 4):  # alternating labels
        counts = (torch.arange(4000) % period)[drawn].bincount()
        assert int(counts.max() - counts.min()) < 0.2 * 1000 / period
    assert int((torch.arange(4000) // 2000)[drawn].bincount().diff().abs()) < 0.1 * 1000  # or sorted labels
    groups = torch.arange(4000) // 7 * 5
    of_groups = some_drawn(4000, groups, 1000)
    assert 990 <= int(of_groups.sum()) <= 1000
    assert all(len(of_groups[groups == group].unique()) == 1 for group in groups[::7].tolist())


@pytest.mark.parametrize(("count", "is_sure"), [(1, False), (4, False), (5, True)])
def test_no_comparison_is_significant_with_very_few_examples(count: int, is_sure: bool) -> None:
    less = torch.linspace(1.0, 1.1, count, dtype=torch.float64)
    more = less + torch.linspace(1.0, 1.1, count, dtype=torch.float64)
    assert ridge_head.is_surely_less(less, more) == is_sure
    twice = torch.arange(count).repeat(2)
    assert ridge_head.is_surely_less(less.repeat(2), more.repeat(2), twice) == is_sure


def test_directions_are_those_of_the_largest_variance_of_standardised_features() -> None:
    drawn = torch.Generator().manual_seed(0)
    hidden = torch.randn(60, 2, generator=drawn, dtype=torch.float64) * torch.tensor([3.0, 1.5])
    features = hidden @ torch.randn(2, 7, generator=drawn, dtype=torch.float64)
    features = (features + 0.05 * torch.randn(60, 7, generator=drawn, dtype=torch.float64)) * 10.0 ** torch.arange(
        -3, 4
    )
    head = RidgeHead(7, 2)
    head.fit(features, torch.arange(60) % 2, ClassTarget(names=("a", "b")))
    along = features @ head.directions(features, 2)
    standard = (features - features.mean(0)) / features.std(0, correction=0)
    left, values, _ = torch.linalg.svd(standard, full_matrices=False)
    expected = left[:, :2] * values[:2]
    found = along - along.mean(0)
    torch.testing.assert_close(found * (found * expected).sum(0).sign(), expected, rtol=1e-6, atol=1e-6)
