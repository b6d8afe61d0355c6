"""Losses, metrics and targets of weighted examples are those of copies of the examples."""

import math

import pytest
import torch
from torch import Tensor

from fredholm.tasks.targets import (
    Answers,
    ClassAnswers,
    ClassTarget,
    LabelAnswers,
    LabelTarget,
    NumberAnswers,
    NumberTarget,
    Target,
    TargetSettings,
)

NUM = 10
COPIES = torch.tensor([1, 3, 2, 1, 1, 4, 2, 1, 3, 1])
ROWS = torch.arange(NUM).repeat_interleave(COPIES)
CLASSES = ClassTarget(names=("a", "b", "c"))
TWO = ClassTarget(names=("a", "b"))
LABELS = LabelTarget(names=("a", "b"))
NUMBER = NumberTarget(names=("y",), mean=(2.0,), deviation=(3.0,), quantiles=(0.1, 0.5, 0.9))
TARGETS: dict[str, Target] = {"classes": CLASSES, "two": TWO, "labels": LABELS, "number": NUMBER}


def problem(target: Target) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(NUM, target.num_outputs, generator=generator)
    outputs[4] = outputs[5]  # ties in rankings
    if target is NUMBER:
        return outputs, torch.randn(NUM, 1, generator=generator)
    if target is LABELS:
        return outputs, (torch.rand(NUM, 2, generator=generator) > 0.5).float()
    return outputs, torch.randint(len(target.names), (NUM,), generator=generator)


@pytest.mark.parametrize("name", TARGETS)
def test_metrics_of_weighted_examples_are_those_of_copies(name: str) -> None:
    target, (outputs, targets) = TARGETS[name], problem(TARGETS[name])
    weighted, copied, plain = (target.metrics() for _ in range(3))
    for part in torch.arange(NUM).split(4):  # metrics add up over batches
        target.score(outputs[part], targets[part], weighted, 0.5 * COPIES[part].double())
    target.score(outputs[ROWS], targets[ROWS], copied)
    target.score(outputs, targets, plain)
    values = {name: [float(each[name].compute()) for each in (weighted, copied, plain)] for name in weighted}
    for found, expected, of_equal in values.values():
        assert math.isclose(found, expected, rel_tol=1e-9)
        assert not math.isclose(found, of_equal, rel_tol=1e-4)


@pytest.mark.parametrize(
    ("answers", "settings"),
    [
        (NumberAnswers(names=("y",), values=torch.arange(10.0, dtype=torch.float64)[:, None]), TargetSettings()),
        (ClassAnswers(names=("a", "b"), values=torch.arange(10) % 2), TargetSettings(class_weights="balanced")),
        (
            LabelAnswers(names=("a", "b"), values=torch.stack([torch.arange(10) < 4, torch.arange(10) % 3 == 0], 1)),
            TargetSettings(class_weights="balanced"),
        ),
    ],
    ids=["number", "classes", "labels"],
)
def test_a_target_learnt_from_weighted_answers_is_that_of_copies(answers: Answers, settings: TargetSettings) -> None:
    found, expected = answers.learn(settings, "data", COPIES.double()), answers.select(ROWS).learn(settings, "data")
    assert found != answers.learn(settings, "data")
    for name, value in vars(expected).items():
        assert vars(found)[name] == pytest.approx(value) if name != "names" else vars(found)[name] == value
