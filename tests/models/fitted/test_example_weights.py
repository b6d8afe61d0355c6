"""A fit with whole weights is the fit with as many copies of each example, with the copies of one as a group."""

import math

import pytest
import torch
from torch import Tensor

from fredholm.models.fitted import boosted_trees
from fredholm.models.fitted.banks.sparse_ridge import sparse_ridge
from fredholm.models.fitted.boosted_trees import _Binned, _Growth
from fredholm.models.fitted.example_weights import check_weights, median_of
from fredholm.models.fitted.kernel_choice import Part, laplace
from fredholm.models.fitted.kernel_fit import PENALTIES, best_fit, members_of
from fredholm.models.fitted.kernel_machine import KernelMachine
from fredholm.models.fitted.logarithmic_scale import Logarithms
from fredholm.models.fitted.logistic_head import LogisticHead
from fredholm.models.fitted.ridge_head import FeatureBlock, RidgeHead, is_surely_less
from fredholm.models.fitted.table_machine import TableBatch, TableMachine, TableReading
from fredholm.tasks.targets import ClassTarget, LabelTarget, NumberTarget, Target
from tests.refusals import refused

NUM = 12
COPIES = torch.tensor([1, 3, 2, 1, 1, 4, 2, 1, 3, 1, 2, 1])
ROWS = torch.arange(NUM).repeat_interleave(COPIES)
WEIGHTS = COPIES.double()
FIRST = COPIES.cumsum(0) - COPIES
"""The first copy of each example."""
NUMBER = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
CLASSES = ClassTarget(names=("a", "b", "c"))
LABELS = LabelTarget(names=("a", "b"))


def problem(width: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(NUM, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, torch.stack([x[:, 0].sin() + x[:, 1], x[:, 0] * x[:, 1]], 1)


def targets_of(target: Target) -> Tensor:
    x, y = problem()
    if target is NUMBER:
        return y[:, :1].float()
    return torch.arange(NUM) % 3 if target is CLASSES else torch.stack([x[:, 0] > 0, x[:, 1] > 0.2], 1).float()


@pytest.mark.parametrize("width", [3, 40], ids=["primal", "dual"])
def test_of_a_ridge_head(width: int) -> None:
    x, _ = problem(width)
    blocks = [FeatureBlock(width // 2, standardised=False)]
    one, other = (RidgeHead(width, 3, further=blocks) for _ in range(2))
    y = targets_of(CLASSES)
    left_out = one.fit(x, y, CLASSES, weights=WEIGHTS)
    expected = other.fit(x[ROWS], y[ROWS], CLASSES, groups=ROWS)
    torch.testing.assert_close(left_out, expected[FIRST])
    for name, value in other.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], value)
    torch.testing.assert_close(one.error, other.error)
    assert not torch.allclose(left_out, RidgeHead(width, 3, further=blocks).fit(x, y, CLASSES))
    aligned = one.directions(x, 2, WEIGHTS), one.directions(x[ROWS], 2)
    torch.testing.assert_close(*(each.abs() for each in aligned), rtol=1e-3, atol=1e-5)


def test_of_a_ridge_head_with_groups() -> None:
    x, y = problem()
    groups = torch.arange(NUM) // 2
    one, other = (RidgeHead(3, 1) for _ in range(2))
    left_out = one.fit(x, y[:, :1], NUMBER, groups=groups, weights=WEIGHTS)
    torch.testing.assert_close(left_out, other.fit(x[ROWS], y[ROWS, :1], NUMBER, groups=groups[ROWS])[FIRST])


def test_of_a_kernel_fit_with_one_penalty() -> None:
    x, y = problem()
    one, other = Part(x, y, None, weights=WEIGHTS), Part(x[ROWS], y[ROWS], ROWS)
    kernels = [laplace(torch.cdist(part.x, part.x), 1.0) for part in (one, other)]
    found, copied = (part._fit_of(kernel, 0.3).dual for part, kernel in zip((one, other), kernels, strict=True))
    torch.testing.assert_close(kernels[0] @ found, (kernels[1] @ copied)[FIRST])


@pytest.mark.parametrize("grouped", [False, True])
def test_of_kernel_ridge_regression(grouped: bool) -> None:
    x, y = problem()
    kernel = laplace(torch.cdist(x, x), 1.0)
    rest = y - (WEIGHTS @ y) / WEIGHTS.sum()
    groups = torch.arange(NUM) // 2 if grouped else torch.arange(NUM)
    members = members_of(groups) if grouped else None
    one = best_fit(kernel, rest, members, PENALTIES, WEIGHTS)
    other = best_fit(kernel[ROWS][:, ROWS], rest[ROWS], members_of(groups[ROWS]), PENALTIES)
    assert one.penalty == other.penalty
    assert math.isclose(one.error, other.error)
    torch.testing.assert_close(one.dual, torch.zeros_like(rest).index_add(0, ROWS, other.dual))
    torch.testing.assert_close(one.left_out, other.left_out[FIRST])
    machine = KernelMachine(3, 2, 6)
    for found in (
        machine._whole(x, rest, [one.penalty], members, WEIGHTS),
        machine._by_centres(x, x[:6], rest, [one.penalty], members, WEIGHTS),
    ):
        given = x[ROWS], rest[ROWS], [one.penalty], members_of(groups[ROWS]), None
        whole = len(found.dual) == NUM
        expected = machine._whole(*given) if whole else machine._by_centres(given[0], x[:6], *given[1:])
        torch.testing.assert_close(found.left_out, expected.left_out[FIRST], rtol=1e-3, atol=1e-3)
        assert math.isclose(found.error, expected.error, rel_tol=1e-3)
        if not whole:
            torch.testing.assert_close(found.dual, expected.dual)


def test_of_choices_by_left_out_errors() -> None:
    x, y = problem()
    rest, groups = y - (WEIGHTS @ y) / WEIGHTS.sum(), torch.arange(NUM)
    one, other = Part(x, rest, None, weights=WEIGHTS), Part(x[ROWS], rest[ROWS], ROWS)
    answers = rest + 0.3 * torch.randn(2, NUM, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert math.isclose(one.error(answers[0]), other.error(answers[0][ROWS]))
    assert math.isclose(one.square, other.square)
    for share in torch.linspace(0, 1, 21, dtype=torch.float64):
        better = torch.lerp(rest, answers[0], share)
        assert one.is_surely_better(better, answers[1]) == other.is_surely_better(better[ROWS], answers[1][ROWS])
    torch.manual_seed(0)
    folds = [*one.folds()]
    torch.manual_seed(0)
    for (held, part), (their_held, their_part) in zip(folds, other.folds(), strict=True):
        assert torch.equal(held[ROWS], their_held)
        torch.testing.assert_close(part.offset, their_part.offset)
    metrics = [part.plain()[1]._replace(rounds=()) for part in (one, one)]
    dual = metrics[0].fit.dual
    their = metrics[1]._replace(
        distance=metrics[1].distance[ROWS][:, ROWS],
        kernel=metrics[1].kernel[ROWS][:, ROWS],
        fit=metrics[1].fit._replace(dual=dual[ROWS] / WEIGHTS[ROWS, None]),
    )
    torch.testing.assert_close(one._outer(metrics[0]), other._outer(their))
    for p in (1, 2):
        torch.testing.assert_close(one._steepness(p, metrics[0]), other._steepness(p, their))
    errors = answers.square().mean(2)
    given = errors[0, ROWS], errors[1, ROWS], groups[ROWS]
    assert is_surely_less(errors[0], errors[1] + 0.1, None, WEIGHTS) == is_surely_less(given[0], given[1] + 0.1, ROWS)


@pytest.mark.parametrize("target", [CLASSES, LABELS], ids=["classes", "labels"])
def test_of_logistic_regression(target: Target) -> None:
    assert isinstance(target, ClassTarget | LabelTarget)
    x, y = problem()[0], targets_of(target)
    one, other = (LogisticHead(3, len(target.names)) for _ in range(2))
    torch.manual_seed(0)
    left_out = one.fit(x, y, target, weights=WEIGHTS)
    torch.manual_seed(0)
    expected = other.fit(x[ROWS], y[ROWS], target, groups=ROWS)
    torch.testing.assert_close(left_out, expected[FIRST], rtol=1e-3, atol=1e-3)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("num_adapted", [0, 4])
def test_of_sparse_ridge_regression(num_adapted: int) -> None:
    x, y = problem(6)
    x, part = torch.where(x > 0, x, 0.0), torch.arange(NUM) % 3
    one = sparse_ridge(x.to_sparse(), y, part, num_adapted=num_adapted, weights=WEIGHTS)
    other = sparse_ridge(x[ROWS].to_sparse(), y[ROWS], part[ROWS], num_adapted=num_adapted)
    torch.testing.assert_close(one.left_out, other.left_out[FIRST], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one.bias, other.bias, rtol=1e-3, atol=1e-3)
    assert math.isclose(one.penalty, other.penalty, rel_tol=1e-9)


def test_of_trees_where_each_reads_all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_trees, "DRAWN", 1.0)
    monkeypatch.setattr(boosted_trees, "BINS", 8)  # fewer than values, so that thresholds are quantiles
    copies = torch.tensor([1, 2, 3, 1]).repeat_interleave(5)  # every fold has as many copies
    rows, fold = torch.arange(20).repeat_interleave(copies), torch.arange(20) % 5
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(2))
    y = (x[:, :1] * 2).sin().double() + x[:, 1:2].double()
    one = _Growth(_Binned.of(x, copies.double()), y, fold, copies.double())
    other = _Growth(_Binned.of(x[rows]), y[rows], fold[rows])
    torch.testing.assert_close(one.edges, other.edges)
    for grow in (lambda own: own.grow(2), lambda own: own.grow(3), lambda own: own.grow_leafwise()):
        for found, wanted in zip(grow(one), grow(other), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    first = copies.cumsum(0) - copies
    torch.testing.assert_close(one.left_out(), other.left_out()[first], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", [NUMBER, CLASSES, LABELS], ids=["number", "classes", "labels"])
def test_of_readouts(target: Target) -> None:
    quantiles = (0.05, 0.3, 0.5, 0.9)
    regressand = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,), quantiles=quantiles)
    own = regressand if target is NUMBER else target
    y = targets_of(target)
    wanted = own.columns(y)
    scores = wanted + torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for found, expected in zip(own.readout(scores, y, WEIGHTS), own.readout(scores[ROWS], y[ROWS]), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(own.readout(scores, y, torch.ones(NUM).double()).shift, own.readout(scores, y).shift)


def test_quantiles_of_errors_with_small_weights_increase() -> None:
    scores, y = torch.arange(6.0).double()[:, None], torch.zeros(6, 1)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,), quantiles=tuple(k / 20 for k in range(1, 20)))
    shift = target.readout(scores, y, torch.tensor([0.1, 2.5, 0.3, 0.3, 0.01, 2.79], dtype=torch.float64)).shift
    assert bool((shift.diff() >= 0).all())
    assert -5 <= float(shift[0]) < -4 < -1.5 < float(shift[-1]) <= 0


def test_of_medians_and_logarithmic_scales() -> None:
    y = problem()[1].exp() ** 3
    torch.testing.assert_close(median_of(y, WEIGHTS), y[ROWS].median(0).values)
    one, other = Logarithms.of(y, WEIGHTS), Logarithms.of(y[ROWS])
    assert one is not None
    assert other is not None
    one = one.calibrated(0.9 * one.of_columns(y), y, WEIGHTS)
    other = other.calibrated(0.9 * other.of_columns(y[ROWS]), y[ROWS])
    for found, expected in zip(one, other, strict=True):
        torch.testing.assert_close(found, expected)


def test_of_quantiles_of_columns() -> None:
    numbers = problem()[0].float()
    numbers[3, 0] = torch.nan
    one, other = (TableMachine.Config(num_trees=0).build(TableReading(num_numbers=3), 1) for _ in range(2))
    one._take_quantiles(numbers, WEIGHTS)
    other._take_quantiles(numbers[ROWS])
    torch.testing.assert_close(one.quantiles, other.quantiles)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3), "models.X: weights are torch.float32 (3,); expected float64 (3,)"),
        (torch.ones(2).double(), "models.X: weights are torch.float64 (2,); expected float64 (3,)"),
        (torch.tensor([1.0, 0.0, 1.0]).double(), "models.X: the weight of example 1 is 0.0; expected a number above 0"),
        (torch.tensor([1.0, 1.0, torch.nan]).double(), "models.X: the weight of example 2 is nan; expected a number"),
    ],
)
def test_wrong_weights_are_refused(weights: Tensor, message: str) -> None:
    with refused(ValueError, message):
        check_weights("models.X", weights, 3)


@pytest.mark.parametrize("target", [NUMBER, CLASSES], ids=["number", "classes"])
def test_a_table_machine_learns_from_the_rows_that_weigh_much(target: Target) -> None:
    x = torch.linspace(-1, 1, 20).repeat(2)[:, None]
    weights = torch.tensor([1.0, 1e-6], dtype=torch.float64).repeat_interleave(20)
    y = torch.where(weights == 1, x[:, 0], -x[:, 0])
    targets = (y > 0).long() if target is CLASSES else y[:, None]
    machine = TableMachine.Config(num_trees=4).build(TableReading(num_numbers=1), target.num_outputs)
    machine.fit([(TableBatch.of(x), targets)], target, weights=weights)
    found = machine(TableBatch.of(x[:20])).detach()
    found = found[:, 1] - found[:, 0] if target is CLASSES else found[:, 0]
    assert bool(((found > 0) == (x[:20, 0] > 0)).all())
