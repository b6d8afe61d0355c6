"""Logistic regression: equal to scikit-learn's, for classes and labels, without the examples left out."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models.fitted import logistic_head
from fredholm.models.fitted.logistic_head import LogisticHead
from fredholm.models.fitted.ridge_head import LogitRegressand, dealt
from fredholm.tasks.targets import ClassTarget, LabelTarget

CLASSES = ClassTarget(names=("a", "b", "c"))


def examples(n: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=drawn) * torch.tensor([1, 2, 0.5, 1, 3]) + 4
    scores = (x - 4) @ torch.randn(5, 3, generator=drawn)
    return x, (scores + torch.randn(n, 3, generator=drawn)).argmax(1)


def reference_logits(x: Tensor, y: Tensor, penalty: float, queries: Tensor) -> Tensor:
    linear_model = pytest.importorskip("sklearn.linear_model")
    model = linear_model.LogisticRegression(C=1 / penalty, tol=1e-9, max_iter=5000).fit((x - x.mean(0)).numpy(), y)
    return torch.from_numpy(model.decision_function((queries - x.mean(0)).numpy()))


def centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(1, keepdim=True)


def test_the_fit_and_those_without_a_part_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic_head, "PENALTIES", (2.0,))
    x, y = examples(53)
    head = LogisticHead(5, 3).double()
    torch.manual_seed(0)
    left_out = head.fit(x.double(), y, CLASSES)
    torch.testing.assert_close(centred(head(x)), reference_logits(x.double(), y, 2.0, x.double()), rtol=1e-3, atol=1e-3)
    spread = x.double().std(0, correction=0) * head.weight.detach().norm(dim=0)
    torch.testing.assert_close(head.relevance, spread / spread.max())
    torch.manual_seed(0)
    fold = dealt(53, None, 5, x.device)
    for k in (0, 4):
        own = fold == k
        found = reference_logits(x[~own].double(), y[~own], 2.0, x[own].double())
        torch.testing.assert_close(centred(left_out[own]), found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("weights", [(), (0.5, 1.0, 4.0)])
def test_the_gradient_is_zero_at_the_fit(weights: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic_head, "PENALTIES", (3.0,))
    x, y = examples(60)
    labels = LabelTarget(names=("a", "b", "c"))
    kinds: tuple[tuple[LogitRegressand, Tensor], ...] = (
        (ClassTarget(names=("a", "b", "c"), weights=weights), y),
        (labels, F.one_hot(y, 3).float()),
    )
    for target, targets in kinds:
        head = LogisticHead(5, 3).double()
        head.fit(x.double(), targets, target)
        loss = target.losses(head(x), targets).sum() + 1.5 * head.weight.square().sum()
        weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
        # the constants are those of centred coordinates
        assert float((weight - bias[:, None] * x.double().mean(0)).abs().max()) < 1e-2
        assert float(bias.abs().max()) < 1e-3


def test_groups_are_left_out_whole() -> None:
    group = torch.arange(60) % 20
    x, y = torch.eye(20)[group], (group * 7 % 20 < 10).long()
    target = ClassTarget(names=("a", "b"))
    for groups, least, most in ((None, 0.9, 1.0), (group, 0.0, 0.6)):
        torch.manual_seed(0)
        left_out = LogisticHead(20, 2).fit(x, y, target, groups=groups)
        assert least <= float((left_out.argmax(1) == y).double().mean()) <= most


def test_the_penalty_is_chosen_on_a_part_of_many_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logistic_head, "PENALTIES", (10.0, 1.0))
    x, y = examples(120)
    found = []
    for most in (120, 60):
        monkeypatch.setattr(logistic_head, "CHOSEN", most)
        torch.manual_seed(0)
        left_out = LogisticHead(5, 3).fit(x, y, CLASSES)
        assert left_out.shape == (120, 3)
        found.append(float(CLASSES.losses(left_out, y).mean()))
    assert found[1] == pytest.approx(found[0], rel=0.2)
    assert found[0] < 0.7
