"""The ridge head against explicit refits without each example."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models import RidgeHead
from fredholm.models.ridge_head import PENALTIES
from tests.refusals import refused


def data(n: int, p: int, classes: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Noisy features of shifted means, one of which is constant."""
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


def left_out(x: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """What is said of each example by a fit to the others."""
    rows = []
    for i in range(len(x)):
        others = torch.arange(len(x)) != i
        weight, offset = solved(x[others], targets[others], penalty)
        rows.append(x[i] @ weight + offset)
    return torch.stack(rows)


@pytest.mark.parametrize(("n", "p", "classes"), [(11, 5, 3), (7, 19, 2), (13, 13, 4), (5, 2, 2)])
def test_left_out_logits_and_penalty_are_those_of_refits(n: int, p: int, classes: int) -> None:
    features, labels = data(n, p, classes)
    head = RidgeHead(p, classes).double()
    logits = head.fit(features, labels)
    x, targets = standard(features), 2 * F.one_hot(labels, classes).double() - 1
    scores = left_out(x, targets, float(head.penalty))
    torch.testing.assert_close(logits, logits.norm() / scores.norm() * scores, rtol=1e-6, atol=1e-6)
    unit = float(x.square().sum()) / n
    tried = {multiple: left_out(x, targets, multiple * unit) for multiple in PENALTIES.tolist()}
    errors = {multiple: float((targets - each).square().mean()) for multiple, each in tried.items()}
    assert float(head.penalty) / unit == pytest.approx(min(errors, key=lambda multiple: errors[multiple]))


@pytest.mark.parametrize(("n", "p"), [(20, 6), (6, 20)])
def test_logits_are_those_of_ridge_regression(n: int, p: int) -> None:
    features, labels = data(n, p, 3)
    head = RidgeHead(p, 3).double()
    head.fit(features, labels)
    weight, offset = solved(standard(features), 2 * F.one_hot(labels, 3).double() - 1, float(head.penalty))
    scores = standard(features) @ weight + offset
    logits = head(features)
    torch.testing.assert_close(logits, logits.norm() / scores.norm() * scores, rtol=1e-7, atol=1e-7)


def test_both_forms_agree() -> None:
    features, labels = data(12, 11, 3)
    primal, dual = RidgeHead(11, 3).double(), RidgeHead(22, 3).double()
    primal.fit(features, labels)
    dual.fit(torch.cat([features, features], 1), labels)  # every feature twice: the penalty counts twice
    torch.testing.assert_close(dual.penalty, 2 * primal.penalty)
    torch.testing.assert_close(dual.weight[:, :11] + dual.weight[:, 11:], primal.weight, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(dual.bias, primal.bias, rtol=1e-6, atol=1e-9)


def test_probabilities_are_calibrated_on_what_was_left_out() -> None:
    labels = torch.arange(400) % 2
    features = labels[:, None] + 1.5 * torch.randn(400, 3, dtype=torch.float64)
    head = RidgeHead(3, 2).double()
    logits = head.fit(features, labels)

    def entropy(factor: float) -> float:
        return float(F.cross_entropy(factor * logits, labels))

    assert entropy(1) < min(entropy(0.8), entropy(1.25))
    probabilities = logits.softmax(-1)[:, 1]
    for low in (0.2, 0.4, 0.6):
        chosen = (probabilities > low) & (probabilities <= low + 0.2)
        assert float(labels[chosen].double().mean()) == pytest.approx(low + 0.1, abs=0.12)


def test_separable_classes_have_finite_logits() -> None:
    features, labels = torch.randn(40, 3), torch.arange(40) % 2
    features[:, 0] += 100 * labels
    head = RidgeHead(3, 2)
    head.fit(features, labels)
    assert head(features).isfinite().all()
    assert (head(features).argmax(1) == labels).all()
    assert head(features).softmax(-1).amax(-1).mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges(dtype: torch.dtype) -> None:
    features, labels = data(9, 4, 2, dtype)
    labels[:] = 0
    labels[4] = 2  # one example of a class, none of another
    head = RidgeHead(4, 3).to(dtype)
    head.fit(features, labels)
    assert head(features).isfinite().all()
    assert head.weight.dtype == dtype
    constant = RidgeHead(4, 3).to(dtype)
    constant.fit(torch.full((9, 4), 0.3, dtype=dtype), labels)
    assert not constant.weight.any()
    assert constant.bias.argmax() == 0
    one = RidgeHead(4, 3).to(dtype)
    one.fit(features[:1], labels[:1])
    assert one(features).isfinite().all()


def test_float32_features_give_what_float64_ones_give() -> None:
    features, labels = data(15, 31, 3)
    features = features.float()
    single, double = RidgeHead(31, 3), RidgeHead(31, 3).double()
    single.fit(features, labels)
    double.fit(features.double(), labels)
    torch.testing.assert_close(single.weight.double(), double.weight, rtol=1e-5, atol=1e-6)
    assert math.isnan(float(RidgeHead(2, 2).penalty))


def test_refusals() -> None:
    head, (features, labels) = RidgeHead(4, 2), data(6, 4, 2)
    with refused(ValueError, "expected features (n, 4) and labels (n,) with n at least 1; got (6, 3) and (6,)"):
        head.fit(features[:, :3], labels)
    with refused(ValueError, "got (0, 4) and (0,)"):
        head.fit(features[:0], labels[:0])
    with refused(ValueError, "labels run from 0 to 2; expected 0 to 1"):
        head.fit(features, torch.arange(6) % 3)
    features[2, 1] = torch.nan
    with refused(ValueError, "features hold NaN or infinite numbers"):
        head.fit(features, labels)
    with refused(ValueError, "num_features must be at least 1; got 0"):
        RidgeHead(0, 2)
