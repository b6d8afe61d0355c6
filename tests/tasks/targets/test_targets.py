"""Targets of examples: metrics against scikit-learn, and losses against their definitions written out."""

import json
import warnings
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks.targets import (
    TARGETS,
    UNKNOWN,
    Answers,
    ClassAnswers,
    ClassTarget,
    ElementCounts,
    ElementTarget,
    LabelAnswers,
    LabelTarget,
    NumberAnswers,
    NumberTarget,
    Target,
    TargetSettings,
)
from tests.refusals import refused

CLASSES = ClassAnswers(names=("a", "b", "c"), values=torch.tensor([0, 0, 0, 0, 1, 1, 2, 0, 1]))
LABELS = LabelAnswers(
    names=("wet", "cold", "new"),
    values=torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0], [1, 1, 0], [1, 0, 0]]).bool(),
)
NUMBERS = NumberAnswers(
    names=("height", "width"), values=torch.randn(11, 2, generator=torch.Generator().manual_seed(0)).double() * 5 + 30
)
BALANCED = TargetSettings(class_weights="balanced")


def outputs_for(target: Target, n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, target.num_outputs, generator=torch.Generator().manual_seed(seed))


def scored(target: Target, outputs: Tensor, targets: Tensor, batch: int = 3) -> dict[str, float]:
    """Metrics over batches of uneven size, without a warning."""
    metrics = {name: metric.to("cpu") for name, metric in target.metrics().items()}  # as in the scoring of a split
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in torch.arange(len(outputs)).split(batch):
            target.score(outputs[rows], targets[rows], metrics)
        return {name: float(metric.compute()) for name, metric in metrics.items()}


@pytest.mark.parametrize("settings", [TargetSettings(), BALANCED])
def test_classes_are_scored_as_by_scikit_learn(settings: TargetSettings) -> None:
    target = CLASSES.learn(settings, "cells")
    outputs, truth = outputs_for(target, len(CLASSES)), target.targets(CLASSES.values)
    predicted, expected = outputs.argmax(1).numpy(), CLASSES.values.numpy()
    found = scored(target, outputs, truth)
    assert found == pytest.approx(
        {
            "accuracy": sk.accuracy_score(expected, predicted),
            "balanced_accuracy": sk.balanced_accuracy_score(expected, predicted),
            "macro_f1": sk.f1_score(expected, predicted, average="macro"),
            "matthews": sk.matthews_corrcoef(expected, predicted),
            "auroc": sk.roc_auc_score(expected, outputs.double().softmax(-1).numpy(), multi_class="ovr"),
        },
        abs=1e-6,
    )
    weights = torch.tensor([9 / (3 * 5), 9 / (3 * 3), 9 / 3]) if settings.class_weights == "balanced" else torch.ones(3)
    literal = torch.stack([-weights[k] * outputs[i].log_softmax(0)[k] for i, k in enumerate(CLASSES.values.tolist())])
    torch.testing.assert_close(target.losses(outputs, truth), literal)
    soft = torch.nn.functional.one_hot(CLASSES.values, 3).float()
    torch.testing.assert_close(target.losses(outputs, soft), literal)
    assert next(iter(target.objectives)) == (
        "balanced_accuracy" if settings.class_weights == "balanced" else "accuracy"
    )
    assert target.objectives.keys() == {*found, "loss"}


def test_with_two_classes_the_area_is_that_of_the_second() -> None:
    answers = ClassAnswers(names=("no", "yes"), values=torch.tensor([0, 1, 1, 0, 1]))
    target = answers.learn(TargetSettings(objective="auroc"), "x")
    assert target.objective(TargetSettings(objective="auroc")).metric == "auroc"
    outputs = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 2.5], [1.0, 0.0], [1.0, -3.0]])  # one tie
    area = scored(target, outputs, answers.values)["auroc"]
    assert area == pytest.approx(sk.roc_auc_score(answers.values, (outputs[:, 1] - outputs[:, 0]).numpy()))


@pytest.mark.parametrize("count", [2, 3])
def test_probabilities_that_round_to_one_in_float32_keep_their_ranks(count: int) -> None:
    target = ClassAnswers(names=("a", "b", "c")[:count], values=torch.arange(2 * count) % count).learn(
        TargetSettings(), "x"
    )
    truth = torch.arange(400) % count
    outputs = 5 * torch.randn(400, count) + torch.nn.functional.one_hot(truth, count)
    outputs[:, -1] += 25
    assert (outputs.softmax(1)[:, -1] == 1).sum() > 100
    others = [torch.cat([outputs[:, :k], outputs[:, k + 1 :]], 1).double().logsumexp(1) for k in range(count)]
    areas = [sk.roc_auc_score(truth == k, outputs[:, k] - others[k]) for k in range(count)]
    assert scored(target, outputs, truth, 99)["auroc"] == pytest.approx(sum(areas) / count, abs=1e-5)


@pytest.mark.parametrize("count", [2, 4])
def test_equally_likely_examples_are_ties(count: int) -> None:
    """Logits that differ by a constant, or in the order of the other classes, must not rank one before another.

    Rounded logits often differ in this way.
    """
    target = ClassAnswers(names=tuple("abcd")[:count], values=torch.arange(count)).learn(TargetSettings(), "x")
    logits = torch.tensor([0.0, 0.0, -60.0, -61.0])[:count]
    outputs = torch.stack([logits + by for by in (50.0, -25.0, 25.0, 1.0)])  # each sum is exact
    outputs = torch.cat([outputs, outputs[:, [0, 1, 3, 2][:count]]]) if count > 2 else outputs
    truth = torch.tensor([0, 1, 1, 0]).repeat(len(outputs) // 4)
    assert scored(target, outputs, truth, 10)["auroc"] == 0.5


def test_float16_outputs_are_ranked_in_higher_precision() -> None:
    target = ClassAnswers(names=("a", "b"), values=torch.tensor([0, 1])).learn(TargetSettings(), "x")
    outputs = torch.tensor([[2.0**-7, 17.0], [0.0, 17.0]], dtype=torch.float16)  # the differences are equal in float16
    assert scored(target, outputs, torch.tensor([0, 1]), 2)["auroc"] == 1


def test_label_probabilities_that_round_to_one_in_float32_keep_their_ranks() -> None:
    target, truth = LABELS.learn(TargetSettings(), "cells"), torch.rand(300, 3) < 0.4
    outputs = 5 * torch.randn(300, 3) + truth + 25
    found = scored(target, outputs, truth.float(), 99)
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(truth, outputs))
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(truth, outputs))


def test_classes_missing_from_a_split_are_left_out_of_means() -> None:
    target = CLASSES.learn(TargetSettings(), "cells")
    truth, outputs = torch.tensor([0, 1, 1]), torch.tensor([[2.0, 0, 0], [0, 2.0, 0], [0, -1.0, 2.0]])
    found = scored(target, outputs, truth)
    assert found["balanced_accuracy"] == pytest.approx(0.75)
    assert found["auroc"] == pytest.approx((1.0 + 0.5) / 2)


def test_no_area_is_computed_for_many_classes() -> None:
    answers = ClassAnswers(names=tuple(map(str, range(101))), values=torch.arange(101))
    target = answers.learn(TargetSettings(), "x")
    assert "auroc" not in target.metrics()
    assert "auroc" not in target.objectives


@pytest.mark.parametrize("settings", [TargetSettings(), BALANCED])
def test_labels_are_scored_as_by_scikit_learn(settings: TargetSettings) -> None:
    target = LABELS.learn(settings, "cells")
    outputs = outputs_for(target, len(LABELS)).round(decimals=1)  # with ties
    truth, expected = target.targets(LABELS.values), LABELS.values.numpy()
    scores, predicted = outputs.sigmoid().numpy(), (outputs > 0).numpy()
    assert scored(target, outputs, truth) == pytest.approx(
        {
            "average_precision": sk.average_precision_score(expected, scores, average="macro"),
            "auroc": sk.roc_auc_score(expected, scores, average="macro"),
            "micro_f1": sk.f1_score(expected, predicted, average="micro"),
            "macro_f1": sk.f1_score(expected, predicted, average="macro", zero_division=0),  # pyright: ignore[reportArgumentType]
            "exact_match": sk.accuracy_score(expected, predicted),
        }
    )
    literal = []
    for logits, row in zip(outputs.tolist(), LABELS.values.tolist(), strict=True):
        total = 0.0
        for k, (logit, has) in enumerate(zip(logits, row, strict=True)):
            count = int(LABELS.values[:, k].sum())
            weight = 7 / (2 * (count if has else 7 - count)) if settings.class_weights == "balanced" else 1.0
            p = 1 / (1 + np.exp(-logit))
            total -= weight * np.log(p if has else 1 - p)
        literal.append(total / 3)
    torch.testing.assert_close(target.losses(outputs, truth).double(), torch.tensor(literal), atol=1e-6, rtol=1e-5)
    assert target.objectives.keys() == {*target.metrics(), "loss"}


def test_labels_of_all_examples_or_of_none_are_left_out() -> None:
    target = LABELS.learn(TargetSettings(), "cells")
    truth = torch.tensor([[1.0, 1, 0], [1, 0, 0]])
    found = scored(target, torch.tensor([[1.0, 2, 3], [0, 1, 2]]), truth)
    assert (found["average_precision"], found["auroc"]) == (1.0, 1.0)


def test_numbers_are_scored_as_by_scikit_learn() -> None:
    target = NUMBERS.learn(TargetSettings(), "cells")
    standard = target.targets(NUMBERS.values)
    torch.testing.assert_close(standard.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(standard.std(0, correction=0), torch.ones(2))
    outputs = standard + 0.5 * outputs_for(target, len(NUMBERS))
    predicted = outputs.double() * torch.tensor(target.deviation) + torch.tensor(target.mean)
    errors = (predicted - NUMBERS.values).numpy()
    assert scored(target, outputs, standard) == pytest.approx(
        {
            "mean_absolute_error": np.abs(errors).mean(),
            "root_mean_squared_error": np.sqrt((errors**2).mean()),
            "r2": sk.r2_score(NUMBERS.values.numpy(), predicted.numpy()),
        },
        rel=1e-5,
    )
    torch.testing.assert_close(target.losses(outputs, standard), ((outputs - standard) ** 2).sum(1) / 2)
    cells = target.answer(outputs[0]).cells
    assert cells == pytest.approx(dict(zip(("height", "width"), predicted[0].tolist(), strict=True)), rel=1e-5)


def test_a_single_number_has_correlations() -> None:
    from scipy import stats

    answers = NumberAnswers(names=("y",), values=NUMBERS.values[:, :1].round())  # with ties
    target = answers.learn(TargetSettings(objective="spearman"), "x")
    standard = target.targets(answers.values)
    outputs = (standard + outputs_for(target, len(answers))).round(decimals=1)
    found = scored(target, outputs, standard)
    predicted, true = outputs[:, 0].numpy(), answers.values[:, 0].numpy()
    assert found["pearson"] == pytest.approx(stats.pearsonr(predicted, true)[0], abs=1e-5)
    assert found["spearman"] == pytest.approx(stats.spearmanr(predicted, true)[0], abs=1e-5)
    assert target.objectives.keys() == {*found, "loss"}
    same = scored(target, torch.zeros(3, 1), standard[:3])
    assert (same["pearson"], same["spearman"]) == (0.0, 0.0)


def test_quantiles_have_the_quantile_loss_and_are_sorted() -> None:
    settings = TargetSettings(quantiles=(0.1, 0.6, 0.9))
    target = NUMBERS.learn(settings, "cells")
    standard, outputs = target.targets(NUMBERS.values), outputs_for(target, len(NUMBERS))
    literal = torch.zeros(len(NUMBERS))
    for i in range(len(NUMBERS)):
        for t in range(2):
            for q, level in enumerate(settings.quantiles):
                error = standard[i, t] - outputs[i, 3 * t + q]
                literal[i] += max(level * error, (level - 1) * error) / 6
    torch.testing.assert_close(target.losses(outputs, standard), literal)
    cells = target.answer(outputs[0]).cells
    in_unit = (
        outputs[0].view(2, 3) * torch.tensor(target.deviation)[:, None] + torch.tensor(target.mean)[:, None]
    ).sort(1)
    expected = {}
    for name, (low, middle, high) in zip(target.names, in_unit.values.tolist(), strict=True):
        expected |= {name: middle, f"{name} at 0.1": low, f"{name} at 0.6": middle, f"{name} at 0.9": high}
    assert cells == pytest.approx(expected, rel=1e-5)
    within = 0
    for row, true in zip(outputs.view(-1, 2, 3).tolist(), standard.tolist(), strict=True):
        within += sum(min(levels) <= y <= max(levels) for levels, y in zip(row, true, strict=True))
    found = scored(target, outputs, standard, batch=len(outputs))
    assert found["coverage"] == pytest.approx(within / (2 * len(NUMBERS)))


def test_the_constant_with_the_smallest_quantile_loss_is_the_quantile() -> None:
    answers = NumberAnswers(names=("y",), values=torch.arange(1.0, 102.0).double()[:, None])
    target = answers.learn(TargetSettings(quantiles=(0.25,)), "x")
    standard = target.targets(answers.values)
    losses = [target.losses(constant.expand(101, 1), standard).sum() for constant in standard]
    best = int(torch.stack(losses).argmin())
    assert float(answers.values[best]) == 26.0


@pytest.mark.parametrize(
    ("answers", "strata"),
    [
        (CLASSES, CLASSES.values.tolist()),
        (LABELS, [0, 1, 3, 2, 1, 1, 0]),
        (NUMBERS, [0] * 11),
    ],
)
def test_strata_are_the_classes_that_a_split_balances(answers: Answers, strata: list[int]) -> None:
    assert answers.strata.tolist() == strata
    chosen = answers.select(torch.tensor([3, 0]))
    assert (len(chosen), chosen.names) == (2, answers.names)
    assert torch.equal(chosen.values, answers.values[[3, 0]])


@pytest.mark.parametrize(
    "target", [CLASSES.learn(BALANCED, "x"), LABELS.learn(BALANCED, "x"), NUMBERS.learn(TargetSettings(), "x")]
)
def test_targets_survive_json(target: Target) -> None:
    assert from_json(json.loads(json.dumps(to_json(target))), Target, TARGETS) == target


def test_answers_are_made_from_outputs() -> None:
    classes = CLASSES.learn(TargetSettings(), "x").answer(torch.tensor([0.0, np.log(2.0), 0.0]))
    assert classes.cells == {}
    assert classes.probabilities == pytest.approx({"a": 0.25, "b": 0.5, "c": 0.25})
    labels = LABELS.learn(TargetSettings(), "x").answer(torch.tensor([3.0, -3.0, 0.0]))
    high = 1 / (1 + np.exp(-3))
    assert labels.cells.pop("labels") == "wet|new"
    assert labels.cells == pytest.approx(
        {"probability of wet": high, "probability of cold": 1 - high, "probability of new": 0.5}
    )


@pytest.mark.parametrize(
    ("answers", "settings", "message"),
    [
        (
            ClassAnswers(names=("a",), values=torch.zeros(2).long()),
            TargetSettings(),
            "cells has the classes ['a']; expected at least 2",
        ),
        (CLASSES, TargetSettings(quantiles=(0.5,)), "quantiles=(0.5,) has no effect with classes"),
        (
            CLASSES.select(torch.tensor([0, 4])),
            BALANCED,
            "no training example of the class 'c', which cannot be weighed",
        ),
        (LABELS.select(torch.tensor([0, 0])), TargetSettings(), "every training example of cells has the same labels"),
        (
            LabelAnswers(names=("spam",), values=torch.tensor([[True], [False]])),
            TargetSettings(),
            "cells has one label, 'spam', which an example has or lacks; make it two classes",
        ),
        (LABELS.select(torch.tensor([0, 1])), BALANCED, "every training example of cells has the label 'wet'"),
        (LABELS.select(torch.tensor([0, 4])), BALANCED, "no training example of cells has the label 'new'"),
        (NUMBERS, BALANCED, "class_weights='balanced' has no effect with numbers"),
        (
            NUMBERS,
            TargetSettings(quantiles=(0.5, 0.5)),
            "quantiles are (0.5, 0.5); expected numbers above 0 and below 1, increasing",
        ),
        (NUMBERS, TargetSettings(quantiles=(0.0, 0.5)), "quantiles are (0.0, 0.5)"),
        (NUMBERS, TargetSettings(quantiles=(0.5, 1.0)), "quantiles are (0.5, 1.0)"),
        (
            NUMBERS,
            TargetSettings(quantiles=(0.1, torch.nan)),
            "quantiles are (0.1, nan); expected numbers above 0 and below 1",
        ),
        (NUMBERS.select(torch.tensor([3, 3])), TargetSettings(), "all training values of 'height' of cells are"),
    ],
)
def test_targets_that_cannot_be_learnt_are_refused(answers: Answers, settings: TargetSettings, message: str) -> None:
    with refused(ValueError, message):
        answers.learn(settings, "cells")


def test_unknown_class_weights_are_refused() -> None:
    with refused(ValueError, "class_weights is 'equal'; expected one of none, balanced"):
        TargetSettings(class_weights=cast(Any, "equal"))


@pytest.mark.parametrize("answers", [CLASSES, LABELS, NUMBERS])
def test_settings_and_answers_that_differ_from_the_run_are_refused(answers: Answers) -> None:
    target = answers.learn(TargetSettings(), "x")
    assert target.objective(TargetSettings()).metric == next(iter(target.objectives))
    assert target.objective(TargetSettings(objective="loss")).maximise is False
    with refused(ValueError, "objective is 'speed'; expected one of"):
        target.objective(TargetSettings(objective="speed"))
    with refused(ValueError, "class_weights is 'balanced'; the run was made with 'none'"):
        target.objective(BALANCED)
    with refused(ValueError, "quantiles is (0.5,); the run was made with ()"):
        target.objective(TargetSettings(quantiles=(0.5,)))
    target.check(answers, "x")
    for other in (CLASSES, LABELS, NUMBERS):
        if other is not answers:
            with refused(ValueError, "the run was made with the"):
                target.check(other, "x")


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ClassAnswers, torch.tensor([0, 2]), "example 1: class 2, but 2 classes are named"),
        (ClassAnswers, torch.tensor([-1, 0]), "example 0: class -1"),
        (ClassAnswers, torch.tensor([0.0]), "classes are torch.float32 (1,); pass int64 (n,)"),
        (LabelAnswers, torch.zeros(3, 1).bool(), "labels are torch.bool (3, 1); pass bool (n, 2)"),
        (NumberAnswers, torch.zeros(3).double(), "numbers are torch.float64 (3,); pass float64 (n, 2)"),
        (NumberAnswers, torch.tensor([[0.0, torch.inf]]).double(), "example 0: b is inf; expected a finite number"),
    ],
)
def test_answers_of_the_wrong_form_are_refused(kind: type[Answers], values: Tensor, message: str) -> None:
    with refused(ValueError, message):
        kind(names=("a", "b"), values=values)


@pytest.mark.parametrize("settings", [TargetSettings(), BALANCED])
def test_elements_are_scored_as_by_scikit_learn(settings: TargetSettings) -> None:
    counts = torch.tensor([6, 2, 4, 1])
    target = ElementCounts(names=("sky", "tree", "car", "sign"), counts=counts).learn(settings, "scenes")
    assert [each.metric for each in target.shown] == ["mean_iou", "accuracy", "balanced_accuracy"]
    assert target.objective(settings).metric == "mean_iou"
    outputs = outputs_for(target, 12)
    truth = torch.tensor([0, 0, 2, 1, 0, 2, 2, 0, 0, 1, 0, 2])  # no sign
    predicted, labels = outputs.argmax(1).numpy(), truth.numpy()
    found = scored(target, outputs, truth)
    seen = sorted(set(predicted) | set(labels))
    assert found == pytest.approx(
        {
            "mean_iou": sk.jaccard_score(labels, predicted, labels=seen, average="macro"),
            "accuracy": sk.accuracy_score(labels, predicted),
            "balanced_accuracy": sk.recall_score(labels, predicted, labels=[0, 1, 2], average="macro"),
            "macro_f1": sk.f1_score(labels, predicted, labels=seen, average="macro"),
        }
    )
    weights = counts.sum() / (4 * counts) if settings == BALANCED else torch.ones(4)
    own = -outputs.log_softmax(1)[torch.arange(12), truth] * weights[truth]
    torch.testing.assert_close(target.losses(outputs, truth), own)
    some = torch.where(torch.arange(12) % 3 == 1, UNKNOWN, truth)
    torch.testing.assert_close(target.losses(outputs, some), torch.where(some == UNKNOWN, 0.0, own))
    assert (target.count(some), target.count(torch.full((3,), UNKNOWN))) == (8, 0)
    soft = target.soft(some.view(3, 4), 0.4)
    torch.testing.assert_close(soft[0, 0], torch.tensor([0.7, 0.1, 0.1, 0.1]))
    assert not soft[some.view(3, 4) == UNKNOWN].any()
    smoothed = target.losses(outputs, soft.flatten(0, 1))
    expected = torch.nn.functional.cross_entropy(
        outputs, some, weight=weights, label_smoothing=0.4, reduction="none", ignore_index=UNKNOWN
    )
    torch.testing.assert_close(smoothed, expected)


def test_elements_that_cannot_be_learnt_are_refused() -> None:
    with refused(ValueError, "scenes has no training example of the class 'car', which cannot be weighed"):
        ElementCounts(names=("sky", "car"), counts=torch.tensor([3, 0])).learn(BALANCED, "scenes")
    with refused(ValueError, "scenes has the classes ['sky']; expected at least 2"):
        ElementCounts(names=("sky",), counts=torch.tensor([3])).learn(TargetSettings(), "scenes")
    target = ElementCounts(names=("sky", "car"), counts=torch.tensor([3, 1])).learn(TargetSettings(), "scenes")
    assert from_json(to_json(target), Target, TARGETS) == target
    assert isinstance(target, ElementTarget)
    with refused(ValueError, "the targets of cells are a, b, c; the run was made with the classes sky, car"):
        target.check(CLASSES, "cells")
    with refused(ValueError, "the targets of clouds are sky, car; the run was made with the classes sky, car"):
        target.check(ClassAnswers(names=("sky", "car"), values=torch.tensor([0, 1])), "clouds")
    with refused(ValueError, "class_weights is 'balanced'; the run was made with 'none'"):
        target.objective(BALANCED)
    with refused(ValueError, "objective is 'auroc'; expected one of mean_iou, accuracy, balanced_accuracy, macro_f1"):
        target.objective(TargetSettings(objective="auroc"))


def test_kinds_of_targets() -> None:
    assert (ClassTarget, ElementTarget, LabelTarget, NumberTarget) == TARGETS


@pytest.mark.parametrize(
    ("answers", "expected", "rows", "undefined"),
    [
        (CLASSES, torch.eye(3)[[0, 1, 0]], [0, 1, 2], {"matthews", "auroc"}),
        (CLASSES, torch.eye(3)[:1], [4], {"matthews", "auroc"}),
        (LABELS, torch.tensor([[1.0, -1, 1]]), [2], {"average_precision", "auroc", "micro_f1", "macro_f1"}),
        (LABELS, torch.tensor([[1.0, -1, 1]]), [0], {"average_precision", "auroc"}),
        (NUMBERS, torch.zeros(1, 2), [3], {"r2"}),
    ],
    ids=["one class", "one example", "no label", "one example with labels", "one number"],
)
def test_metrics_that_a_split_leaves_undefined_are_nan(
    answers: Answers, expected: Tensor, rows: list[int], undefined: set[str]
) -> None:
    target = answers.learn(TargetSettings(), "cells")
    found = scored(target, expected, target.targets(answers.select(torch.tensor(rows)).values))
    assert {name for name, value in found.items() if np.isnan(value)} == undefined
    assert {
        name for name, each in target.objectives.items() if each.format(np.nan).startswith("undefined (it needs ")
    } == {name for name, each in target.objectives.items() if each.needs}
    assert undefined <= {name for name, each in target.objectives.items() if each.needs}


def test_equal_numbers_have_no_r2_and_no_correlation() -> None:
    answers = NumberAnswers(names=("y",), values=torch.tensor([[0.1], [0.1], [0.1], [0.3]], dtype=torch.float64))
    target = answers.learn(TargetSettings(), "x")
    truth = target.targets(answers.values)
    found = scored(target, torch.tensor([[0.1], [0.2], [0.4]]), truth[:3], batch=2)  # their mean is rounded
    assert {name for name, value in found.items() if np.isnan(value)} == {"r2", "pearson", "spearman"}
    found = scored(target, torch.full((4, 1), 0.1), truth)
    assert (found["pearson"], found["spearman"]) == (0.0, 0.0)


def test_the_root_mean_square_survives_squares_beyond_float32() -> None:
    answers = NumberAnswers(names=("y",), values=torch.tensor([[0.0], [2e30]], dtype=torch.float64))
    target = answers.learn(TargetSettings(), "x")
    found = scored(target, torch.zeros(2, 1), target.targets(answers.values))
    assert found["root_mean_squared_error"] == pytest.approx(1e30)
    answers = NumberAnswers(names=("y",), values=torch.tensor([[1e38], [3e38]], dtype=torch.float64).repeat(5, 1))
    target = answers.learn(TargetSettings(), "x")
    found = scored(target, torch.zeros(10, 1), target.targets(answers.values))
    assert found["mean_absolute_error"] == pytest.approx(1e38)  # their sum is beyond float32 too


def test_numbers_far_from_0_are_predicted_and_scored_exactly() -> None:
    values = 1e9 + 1.5 * torch.arange(8, dtype=torch.float64)[:, None]  # float32 represents every 64th integer there
    target = NumberAnswers(names=("y",), values=values).learn(TargetSettings(), "x")
    found = scored(target, torch.zeros(8, 1), target.targets(values))
    assert found["mean_absolute_error"] == pytest.approx(3.0)
    assert found["r2"] == pytest.approx(0.0, abs=1e-6)
    torch.testing.assert_close(target.predictions(target.targets(values)), values, atol=1e-5, rtol=0.0)
    assert target.answer(target.targets(values)[0]).cells["y"] == pytest.approx(1e9, abs=1e-5)
    close = NumberAnswers(names=("y",), values=1e9 + 1e-4 * values.new_tensor([[0.0], [1.0]]))
    assert close.learn(TargetSettings(), "x").deviation[0] > 0  # they differ, and are accepted


def test_numbers_that_vary_little_around_a_large_mean_have_an_r2() -> None:
    values = 1e9 + 1e-3 * torch.randn(64, 1, dtype=torch.float64)
    target = NumberAnswers(names=("y",), values=values).learn(TargetSettings(), "x")
    z = target.targets(values)
    found = scored(target, z + 0.5, z)["r2"]
    assert found == pytest.approx(0.75, abs=1e-3)


def test_a_constant_number_is_left_out_of_the_mean() -> None:
    target = NUMBERS.learn(TargetSettings(), "x")
    truth = target.targets(NUMBERS.values)
    truth[:, 1] = 0.5
    outputs = outputs_for(target, len(truth))
    predicted, true = outputs[:, 0].double(), truth[:, 0].double()
    assert scored(target, outputs, truth)["r2"] == pytest.approx(sk.r2_score(true, predicted), rel=1e-4)


def test_labels_without_examples_are_left_out_of_the_mean() -> None:
    target = LABELS.learn(TargetSettings(), "cells")
    truth, outputs = torch.tensor([[1.0, 1, 0], [1, 0, 0]]), torch.tensor([[1.0, 1, -1], [1, 1, -1]])
    found = scored(target, outputs, truth)
    assert found["macro_f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["micro_f1"] == pytest.approx(2 * 3 / (2 * 3 + 1))


def test_predicting_one_class_for_all_has_a_correlation_of_0() -> None:
    target = ClassAnswers(names=("a", "b"), values=torch.tensor([0, 1, 0, 0])).learn(TargetSettings(), "x")
    assert scored(target, torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 1, 0, 0]))["matthews"] == 0.0


def test_displayed_metrics_and_advice() -> None:
    for answers, shown in (
        (CLASSES, ["accuracy", "balanced_accuracy", "auroc"]),
        (LABELS, ["auroc", "exact_match"]),
        (NUMBERS, ["mean_absolute_error", "root_mean_squared_error", "r2"]),
    ):
        target = answers.learn(TargetSettings(), "x")
        assert [each.metric for each in target.shown] == shown
        assert set(shown) <= target.metrics().keys()
    assert (LABELS.advice, NUMBERS.advice) == ((), ())
    rare = ClassAnswers(names=("a", "b", "c"), values=torch.tensor([0] * 7 + [1] * 2 + [2] * 3))
    assert rare.advice == (
        "'a' has 7 training examples, 'b' 2: watch the balanced accuracy, and try --task.class-weights balanced",
    )
    assert rare.select(torch.arange(1, 12)).advice == ()  # 3 times as many
    assert (rare.absent, rare.select(torch.tensor([0, 9])).absent) == ((), ("b",))
    assert (LABELS.absent, LABELS.select(torch.tensor([0])).absent) == ((), ("cold", "new"))
    assert NUMBERS.absent == ()


def test_predictions_from_outputs() -> None:
    outputs = torch.tensor([[0.0, float(np.log(3.0)), 0.0], [1.0, 1.0, 1.0]])
    predicted = CLASSES.learn(TargetSettings(), "x").predictions(outputs)
    torch.testing.assert_close(predicted, torch.tensor([[0.2, 0.6, 0.2], [1 / 3, 1 / 3, 1 / 3]]))
    torch.testing.assert_close(LABELS.learn(TargetSettings(), "x").predictions(outputs), outputs.sigmoid())
    numbers = NUMBERS.learn(TargetSettings(quantiles=(0.1, 0.6, 0.9)), "x")
    found = numbers.predictions(outputs_for(numbers, 4))
    cells = [numbers.answer(each).cells for each in outputs_for(numbers, 4)]
    assert found.tolist() == [[each["height"], each["width"]] for each in cells]


def test_soft_targets() -> None:
    torch.testing.assert_close(
        CLASSES.learn(TargetSettings(), "x").soft(torch.tensor([2]), 0.3), torch.tensor([[0.1, 0.1, 0.8]])
    )
    torch.testing.assert_close(
        LABELS.learn(TargetSettings(), "x").soft(torch.tensor([[1.0, 0, 0]]), 0.3), torch.tensor([[0.85, 0.15, 0.15]])
    )
    assert [kind.has_shares for kind in TARGETS] == [True, True, True, False]
    assert [kind.kind for kind in TARGETS] == ["class", "class", "labels", "number"]
    assert [type(each).kind for each in (CLASSES, LABELS, NUMBERS)] == ["class", "labels", "number"]


def test_two_quantiles_equally_near_to_a_half_are_averaged() -> None:
    target = NUMBERS.learn(TargetSettings(quantiles=(0.1, 0.9)), "cells")
    cells = target.answer(torch.tensor([0.0, 1.0, 4.0, 2.0])).cells
    for name in target.names:
        low, high = cells[f"{name} at 0.1"], cells[f"{name} at 0.9"]
        assert cells[name] == pytest.approx((float(low) + float(high)) / 2)


def test_a_label_of_probability_one_half_is_predicted_and_scored_as_such() -> None:
    target, outputs = LABELS.learn(TargetSettings(), "x"), torch.zeros(len(LABELS), len(LABELS.names))
    assert target.answer(outputs[0]).cells["labels"] == "|".join(LABELS.names)
    every = torch.ones_like(outputs)
    found = scored(target, outputs, every)
    assert [found[name] for name in ("micro_f1", "macro_f1", "exact_match")] == [1.0, 1.0, 1.0]


def test_shares_are_not_rounded_to_float32() -> None:
    counted = ElementCounts(names=("sky", "car"), counts=torch.tensor([3, 1])).learn(TargetSettings(), "scenes")
    true, outputs = torch.tensor([0, 0, 0, 1, 1, 1]), torch.eye(2)[[0, 0, 1, 1, 1, 1]]
    found = scored(counted, outputs, true)
    shares = {"mean_iou": (2 / 3 + 3 / 4) / 2, "accuracy": 5 / 6, "balanced_accuracy": 5 / 6}
    assert found == pytest.approx(shares | {"macro_f1": (4 / 5 + 6 / 7) / 2}, rel=1e-15)
    classes = CLASSES.learn(TargetSettings(), "cells")
    assert scored(classes, torch.eye(3)[[0, 1, 0]], torch.tensor([0, 1, 2]))["accuracy"] == 2 / 3
    labels = LABELS.learn(TargetSettings(), "cells")
    outputs = torch.tensor([[1.0, -1, -1], [-1, 1, 1], [1, -1, -1]])
    assert scored(labels, outputs, torch.tensor([[1.0, 0, 0], [0, 1, 1], [1, 1, 0]]))["exact_match"] == 2 / 3
