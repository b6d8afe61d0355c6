"""Table machines: coordinates of columns by loops, and predictions for rows with all kinds of columns."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.models import NGramBank, TableBatch, TableMachine, TableReading, TokenReading
from fredholm.models.fitted import logistic_head, table_machine
from fredholm.models.fitted.banks import bank_column
from fredholm.models.fitted.table_machine import NUM_QUANTILES, NumbersMachine
from fredholm.tasks.targets import ClassTarget, NumberTarget
from tests.refusals import refused

TEXT = TokenReading(vocab_size=13, context=12, pad=0, separator=2)
BANK = NGramBank.Config(num_grams=400, letter_order=0)
READING = TableReading(num_numbers=3, may_miss=(1,), num_categories=(2, 3), num_texts=2, text=TEXT)
CLASSES = ClassTarget(names=("a", "b"))
pytestmark = pytest.mark.usefixtures("quick_choices")  # kernels and trees have their own tests


def rows(n: int, seed: int = 0) -> TableBatch:
    drawn = torch.Generator().manual_seed(seed)
    numbers = torch.randn(n, 3, generator=drawn)
    numbers[::4, 1] = torch.nan
    numbers[:, 2] = numbers[:, 2].round()  # values that recur
    categories = torch.stack([torch.randint(-1, k, (n,), generator=drawn) for k in (2, 3)], 1)
    tokens = torch.randint(3, 13, (n, 2, 6), generator=drawn)
    tokens[:, :, 0], tokens[:, :, 4] = 1, 2
    tokens[:, :, 5] = 0
    return TableBatch.of(numbers, categories=categories, tokens=tokens)


def answers(batch: TableBatch) -> Tensor:
    """Labels that follow a word of the first text, unless the first number is high."""
    return ((batch.tokens[:, 0] == 7).any(1) ^ (batch.numbers[:, 0] > 0)).long()


def fitted(batch: TableBatch, targets: Tensor, config: TableMachine.Config, reading: TableReading) -> TableMachine:
    torch.manual_seed(0)
    machine = config.build(reading, 2)
    parts = [TableBatch(*each) for each in zip(*(part.split(37) for part in batch), strict=True)]
    machine.fit(list(zip(parts, targets.split(37), strict=True)), CLASSES)
    return machine


def test_numbers_and_categories_become_coordinates() -> None:
    batch, reading = rows(90), dataclasses.replace(READING, num_texts=0, text=None)
    batch = batch._replace(tokens=batch.tokens[:, :0])
    machine = fitted(batch, torch.arange(90) % 2, TableMachine.Config(num_centres=90), reading)
    inputs = rows(20, seed=1)._replace(tokens=batch.tokens[:20])
    inputs.numbers[0, 0], inputs.numbers[1, 0] = 99.0, -99.0
    found = machine._of_columns(inputs)
    assert found.shape == (20, machine.num_coordinates) == (20, 3 * 2 + 1 + 2 + 3)
    for i in range(20):
        expected = list[float]()
        for k in range(3):
            value = float(inputs.numbers[i, k])
            expected.append(0.0 if math.isnan(value) else max(-4.0, min(4.0, value)) / math.sqrt(2))
        for k in range(3):
            value, known = float(inputs.numbers[i, k]), sorted(v for v in batch.numbers[:, k].tolist() if v == v)
            knots = [known[int((j + 0.5) / NUM_QUANTILES * len(known))] for j in range(NUM_QUANTILES)]
            scores = [
                float(torch.special.ndtri(torch.tensor((j + 0.5) / NUM_QUANTILES, dtype=torch.float64)))
                for j in range(NUM_QUANTILES)
            ]
            rank = scores[0]
            for j in range(NUM_QUANTILES - 1):
                low, high = knots[j], knots[j + 1]
                share = (
                    (float(value > low) + float(value >= low)) / 2
                    if low == high
                    else max(0.0, min(1.0, (value - low) / (high - low)))
                )
                rank += (scores[j + 1] - scores[j]) * share
            expected.append(0.0 if math.isnan(value) else rank / math.sqrt(2))
        expected.append(float(inputs.numbers[i, 1].isnan()))
        for k, count in enumerate((2, 3)):
            expected += [float(inputs.categories[i, k] == level) for level in range(count)]
        torch.testing.assert_close(found[i], torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_texts_become_left_out_scores_of_a_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank_column, "SURE", 0.0)
    monkeypatch.setattr(table_machine, "FEW", 0)  # otherwise the bank of texts, which do not help, is switched off
    batch = rows(60)
    targets = answers(batch)
    config = TableMachine.Config(num_centres=60, num_trees=5, texts=BANK, num_directions=3)
    machine = fitted(batch, targets, config, READING)
    text: Any = machine.texts[0]
    torch.manual_seed(0)
    bank = BANK.build(TEXT, 2)
    predicted = bank.fit([(batch.tokens[:, 0], targets)], CLASSES)
    found = text(batch.tokens[:, 0])
    expected = (bank(batch.tokens[:, 0]) - predicted.mean(0)) / predicted.std(0)
    both = torch.cat([predicted, CLASSES.columns(targets)], 1).T
    agreement = torch.corrcoef(both)[:2, 2:].amax(1).clamp_min(1e-6)
    torch.testing.assert_close(found[:, :2], (agreement * expected).float(), rtol=1e-4, atol=1e-4)
    along = found[:, 2:] * math.sqrt(3)
    torch.testing.assert_close(along.std(0), torch.ones(3), rtol=1e-4, atol=1e-4)
    learnt = text.fit([(batch.tokens[:, 0], targets)], CLASSES)
    assert not torch.allclose(learnt[:, :2], found[:, :2].double(), atol=0.05)  # the left-out score of a row


def test_interactions_between_kinds_of_columns_are_learnt() -> None:
    batch = rows(300)
    machine = fitted(batch, answers(batch), TableMachine.Config(num_centres=300, texts=BANK), READING)
    new_rows = rows(300, seed=1)
    predicted = machine(new_rows).argmax(1)
    assert float((predicted == answers(new_rows)).float().mean()) > 0.8
    alone = machine(new_rows._replace(tokens=rows(300, seed=2).tokens)).argmax(1)
    assert float((alone == answers(new_rows)).float().mean()) < 0.7


def test_an_uninformative_text_does_little_harm() -> None:
    batch = rows(300)
    y = torch.randn(300, 1, generator=torch.Generator().manual_seed(5))
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    torch.manual_seed(0)
    machine = TableMachine.Config(num_centres=300, texts=BANK).build(READING, 1)
    left_out = machine.fit([(batch, y)], target)
    assert float((left_out - y).square().mean()) > 0.7 * float(y.var())
    new_rows = rows(600, seed=9)
    assert float(machine(new_rows).detach().var()) < 0.3 * float(y.var())


def test_groups_are_left_out_together_by_banks_and_by_the_machine() -> None:
    once = rows(40)
    batch = TableBatch(*(part.repeat(2, *[1] * (part.ndim - 1)) for part in once))  # each row twice
    y = torch.randn(40, 1, generator=torch.Generator().manual_seed(5)).repeat(2, 1)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    errors = []
    for groups in (None, torch.arange(40).repeat(2)):
        torch.manual_seed(0)
        machine = TableMachine.Config(num_centres=80, num_trees=10, texts=BANK).build(READING, 1)
        left_out = machine.fit([(batch, y)], target, groups=groups)
        errors.append(float((left_out - y).square().mean() / y.var()))
    assert errors[0] < 0.1  # its twin reveals it
    assert errors[1] > 0.5


def test_a_row_is_predicted_alone_as_in_a_batch() -> None:
    batch = rows(60)
    machine = fitted(batch, answers(batch), TableMachine.Config(num_centres=60, num_trees=5, texts=BANK), READING)
    whole = machine(batch)
    for i in (0, 7):
        one = TableBatch(*(part[i : i + 1] for part in batch))
        longer = one._replace(tokens=torch.nn.functional.pad(one.tokens, (0, 4)))
        for each in (one, longer):
            torch.testing.assert_close(machine(each), whole[i : i + 1], rtol=1e-4, atol=1e-5)
    assert machine(TableBatch(*(part[:0] for part in batch))).shape == (0, 2)


@pytest.mark.parametrize(
    "reading",
    [
        TableReading(num_numbers=3, may_miss=(1,)),
        TableReading(num_numbers=0, num_categories=(2, 3)),
        TableReading(num_numbers=0, num_texts=2, text=TEXT),
    ],
    ids=["numbers", "categories", "texts"],
)
def test_one_kind_of_column_is_enough(reading: TableReading) -> None:
    batch = rows(40)
    some = batch._replace(
        numbers=batch.numbers[:, : reading.num_numbers],
        categories=batch.categories[:, : len(reading.num_categories)],
        tokens=batch.tokens[:, : reading.num_texts],
    )
    machine = fitted(some, answers(batch), TableMachine.Config(texts=BANK), reading)
    assert bool(machine(some).isfinite().all())
    assert float(machine(some).detach().std()) > 0


def test_missing_and_constant_columns() -> None:
    numbers = torch.stack([torch.full((20,), torch.nan), torch.zeros(20), torch.arange(20.0)], 1)
    reading = TableReading(num_numbers=3, may_miss=(0,))
    batch = TableBatch.of(numbers)
    torch.manual_seed(0)
    machine = TableMachine.Config(num_centres=20).build(reading, 1)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    left_out = machine.fit([(batch, torch.arange(20.0)[:, None] / 10)], target)
    assert bool(left_out.isfinite().all())
    assert bool(machine(batch).isfinite().all())


@pytest.mark.parametrize("decide", [True, False], ids=["thresholds", "smooth"])
def test_trees_predict_thresholds_and_the_kernel_smooth_functions(decide: bool) -> None:
    numbers = torch.randn(1250, 5, generator=torch.Generator().manual_seed(0))
    first, second, third = numbers.T[:3]
    steps = ((first * 2).floor() + (second > 0.3).float()) * torch.where(third > 0, 1.0, -1.0)
    y = (steps if decide else torch.sin(2 * first) + second * third)[:, None]
    batch = TableBatch.of(numbers)
    learnt, tested = (TableBatch(*(part[some] for part in batch)) for some in (slice(0, 250), slice(250, None)))
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    errors = []
    for num_trees in (0, 100):
        torch.manual_seed(0)
        config = TableMachine.Config(num_centres=250, num_trees=num_trees)
        machine = config.build(TableReading(num_numbers=5), 1)
        machine.fit([(learnt, y[:250])], target)
        errors.append(float((machine(tested).detach() - y[250:]).square().mean() / y.var()))
    assert errors[1] < (0.5 if decide else 1.01) * errors[0]
    assert machine.share >= 0.8 if decide else machine.share <= 0.3
    assert machine.trees is not None
    assert machine.trees.leaves.any() == (machine.share > 0)


def test_the_share_of_trees_and_the_readout_come_from_left_out_scores() -> None:
    numbers = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    y = ((numbers[:, 0] > 0.4) ^ (numbers[:, 1] + numbers[:, 2] > 0)).long()
    batch = TableBatch.of(numbers)
    machine, other = (
        TableMachine.Config(num_centres=200, num_trees=40).build(TableReading(num_numbers=4), 2) for _ in "ab"
    )
    torch.manual_seed(0)
    left_out = machine.fit([(batch, y)], CLASSES)
    other._take_quantiles(numbers)
    x, expected = other._of_columns(batch).double(), CLASSES.columns(y)
    assert other.trees is not None
    torch.manual_seed(0)
    kernel, trees = other.machine.solve(x, expected), other.trees.solve(numbers, expected)
    predicted = [(1 - tenths / 10) * kernel.left_out + tenths / 10 * trees.left_out for tenths in range(11)]
    errors = [float((expected - each).square().mean()) for each in predicted]
    best = min(range(11), key=errors.__getitem__)
    assert 0 < best < 10
    assert float(machine.share) == pytest.approx(best / 10)
    readout = CLASSES.readout(predicted[best], y)
    torch.testing.assert_close(left_out, readout(predicted[best]))
    other.machine.read(kernel, readout)
    other.trees.read(trees, readout)
    both = (1 - best / 10) * other.machine(x.float()) + best / 10 * other.trees(numbers)
    torch.testing.assert_close(machine(batch), both, rtol=1e-4, atol=1e-4)


def test_classes_whose_log_odds_are_linear_are_left_to_logistic_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = torch.Generator().manual_seed(0)
    numbers = torch.randn(500, 4, generator=drawn)
    noise = -torch.rand(500, 6, generator=drawn).log().neg().log()
    y = (2 * numbers @ torch.randn(4, 6, generator=drawn) + noise).argmax(1)
    learnt, asked = TableBatch.of(numbers[:150]), TableBatch.of(numbers[150:])
    target, losses, machines = ClassTarget(names=tuple("abcdef")), list[float](), list[TableMachine]()
    for most in (0, logistic_head.MOST):
        monkeypatch.setattr(logistic_head, "MOST", most)
        torch.manual_seed(0)
        machines.append(TableMachine.Config(num_centres=150, num_trees=0).build(TableReading(num_numbers=4), 6))
        left_out = machines[-1].fit([(learnt, y[:150])], target)
        losses.append(float(target.losses(machines[-1](asked), y[150:]).detach().mean()))
        assert float(target.losses(left_out, y[:150]).mean()) == pytest.approx(losses[-1], rel=0.2)
    plain, both = machines
    share = float(both.logistic_share)
    assert not plain.logistic.weight.any()
    assert share >= 0.5
    assert losses[1] < 0.9 * losses[0]
    alone = both._of_columns(asked)
    torch.testing.assert_close(both(asked), (1 - share) * plain(asked) + both.logistic(alone), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("quantiles", [(), (0.1, 0.5)])
def test_skewed_numbers_are_fitted_on_a_logarithmic_scale(
    monkeypatch: pytest.MonkeyPatch, quantiles: tuple[float, ...]
) -> None:
    drawn = torch.Generator().manual_seed(0)
    numbers = torch.randn(400, 3, generator=drawn)
    size = (numbers[:, 0] + 0.7 * numbers[:, 1].sin() + 0.2 * torch.randn(400, generator=drawn)).exp()
    y = torch.stack([size, numbers[:, 2]], 1)
    target = NumberTarget(names=("size", "other"), mean=(0.0, 0.0), deviation=(1.0, 1.0), quantiles=quantiles)
    learnt, new = TableBatch.of(numbers[:150]), TableBatch.of(numbers[150:])
    errors, machines, left_out = list[Tensor](), list[TableMachine](), list[Tensor]()
    for has_numbers in (False, True):
        monkeypatch.setattr(NumberTarget, "has_numbers", has_numbers)
        torch.manual_seed(0)
        machine = TableMachine.Config(num_trees=20).build(TableReading(num_numbers=3), len(target.output_names))
        left_out.append(machine.fit([(learnt, y[:150])], target))
        errors.append((target.predictions(machine(new).detach()) - y[150:]).abs().mean(0))
        machines.append(machine)
    assert not machines[0].scale.is_skewed.any()
    assert machines[1].scale.is_skewed.tolist() == [name.startswith("size") for name in target.output_names]
    assert float(errors[1][0]) < 0.8 * float(errors[0][0])
    assert float(errors[1][1]) < 0.05
    predicted = target.predictions(left_out[1])
    assert float((predicted - y[:150]).abs().mean()) < float((target.predictions(left_out[0]) - y[:150]).abs().mean())
    again = TableMachine.Config(num_trees=20).build(TableReading(num_numbers=3), len(target.output_names))
    again.load_state_dict(machines[1].state_dict())
    assert torch.equal(again(new), machines[1](new))
    if quantiles:
        between = machines[1](new)[:, 1] - machines[1](new)[:, 0]
        torch.testing.assert_close(between, between[:1].expand(250), rtol=1e-3, atol=1e-3)
    again.fit([(learnt, numbers[:150, 1:])], target)
    assert not again.scale.is_skewed.any()


def test_skewed_numbers_that_a_logarithm_does_not_suit_keep_their_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    y = (3 * numbers[:, :1].clamp_min(0) ** 2 + 2 * numbers[:, 1:2]).float()
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,))
    outputs = list[Tensor]()
    for has_numbers in (False, True):
        monkeypatch.setattr(NumberTarget, "has_numbers", has_numbers)
        torch.manual_seed(0)
        machine = TableMachine.Config(num_trees=20).build(TableReading(num_numbers=3), 1)
        machine.fit([(TableBatch.of(numbers), y)], target)
        outputs.append(machine(TableBatch.of(numbers)))
    assert float(((y - y.mean()) ** 3).mean() / y.var() ** 1.5) > 1
    assert torch.equal(*outputs)


@pytest.mark.parametrize("share", [0.05, 0.0], ids=["outliers", "none"])
def test_outliers_among_numbers_lose_weight(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    drawn = torch.Generator().manual_seed(0)
    numbers, noise = torch.randn(300, 3, generator=drawn), torch.randn(300, 1, generator=drawn)
    exact = numbers[:, :1] + (2 * numbers[:, 1:2]).sin()
    is_outlier = torch.rand(300, 1, generator=drawn) < share
    y = exact + torch.where(is_outlier, 20 * noise, 0.2 * noise)
    target = NumberTarget(names=("y",), mean=(0.0,), deviation=(1.0,), quantiles=(0.05, 0.5))
    outputs = list[Tensor]()
    for has_numbers in (False, True):
        monkeypatch.setattr(NumberTarget, "has_numbers", has_numbers)
        torch.manual_seed(0)
        machine = TableMachine.Config(num_trees=20).build(TableReading(num_numbers=3), len(target.output_names))
        left_out = machine.fit([(TableBatch.of(numbers[:150]), y[:150])], target)
        outputs.append(machine(TableBatch.of(numbers[150:])))
    if share == 0:
        assert torch.equal(*outputs)
        return
    errors = [float((each[:, 1:] - exact[150:]).detach().square().mean()) for each in outputs]
    assert errors[1] < 0.5 * errors[0]
    # quantiles are those of all errors, outliers included
    assert 0.04 < float((y[:150] < left_out[:, :1]).float().mean()) < 0.06


def test_inputs_of_the_trees_do_not_depend_on_the_batch() -> None:
    numbers = torch.randint(0, 7, (300, 3), generator=torch.Generator().manual_seed(0)).float() / 7
    numbers[::5, 1] = torch.nan
    batch = TableBatch.of(numbers)
    machine = TableMachine.Config(num_centres=300).build(TableReading(num_numbers=3, may_miss=(1,)), 1)
    inputs = machine._for_trees(numbers, machine._of_columns(batch))
    torch.testing.assert_close(inputs[:, :3], numbers.nan_to_num(nan=0.0), rtol=0, atol=0)
    torch.testing.assert_close(inputs[:, 3], numbers[:, 1].isnan().float(), rtol=0, atol=0)
    assert inputs.shape == (300, 4)


def test_ranks_are_the_same_in_float64() -> None:
    """Repeated numbers are quantiles themselves, and ranked in the middle of equal numbers."""
    numbers = (torch.arange(40) % 3)[:, None] / 3
    built = NumbersMachine(1, 1, num_centres=40, num_trees=0)
    target = NumberTarget(names=("y",), mean=(0.3,), deviation=(0.3,), quantiles=())
    built.fit(numbers, numbers.double(), target)
    expected = built.coordinates(numbers)
    torch.testing.assert_close(built.double().coordinates(numbers), expected, rtol=1e-6, atol=1e-6)
    built.fit(numbers.double(), numbers.double(), target)
    torch.testing.assert_close(built.coordinates(numbers.double()), expected, rtol=1e-6, atol=1e-6)


def test_the_importance_of_a_column_is_the_largest_of_its_coordinates() -> None:
    machine = TableMachine.Config(texts=dataclasses.replace(BANK, num_grams=9), num_directions=3).build(READING, 2)
    assert machine.trees is not None
    assert machine.num_coordinates == 3 * 2 + 1 + (2 + 3) + 2 * (2 + 3)
    machine.machine.shares.copy_(torch.tensor([0.5, 0.1, 0.3, 0.1]))
    weight = torch.arange(22.0)
    machine.machine.relevance.copy_(torch.stack([weight, weight.flip(0)]) / 22)
    mean = (0.1 * weight + 0.4 * weight.flip(0)) / 0.5 / 22
    numbers, categories, texts, *_ = machine.counts()
    expected = [mean[[0, 3]].max(), mean[[1, 4, 6]].max(), mean[[2, 5]].max()]
    torch.testing.assert_close(numbers, torch.stack(expected))
    torch.testing.assert_close(categories, torch.stack([mean[7:9].max(), mean[9:12].max()]))
    torch.testing.assert_close(texts, torch.stack([mean[12:17].max(), mean[17:22].max()]))
    machine.share.fill_(0.25)
    machine.trees.gains.copy_(torch.linspace(1, 0, 19).square())  # number, then the flag for missing ones, and so on
    tree_gains = torch.cat([torch.zeros(3), torch.linspace(1, 0, 19)])
    numbers, categories, texts, *_ = machine.counts()
    for found, places in (
        (numbers[0], [0, 3]),
        (numbers[1], [1, 4, 6]),
        (categories[0], [7, 8]),
        (categories[1], [9, 10, 11]),
        (texts[1], list(range(17, 22))),
    ):
        torch.testing.assert_close(found, 0.75 * mean[places].max() + 0.25 * tree_gains[places].max())


def test_bad_arguments_are_refused() -> None:
    batch = rows(5)
    machine = TableMachine.Config(texts=dataclasses.replace(BANK, num_grams=10)).build(READING, 2)
    with refused(
        ValueError,
        "rows have 2 numbers, 2 categories, 2 texts, 0 images",
        "expected 3 numbers, 2 categories, 2 texts, ",
    ):
        machine(batch._replace(numbers=batch.numbers[:, :2]))
    with refused(ValueError, "fewer than 2 rows"):
        machine.fit([(TableBatch(*(part[:1] for part in batch)), torch.zeros(1, dtype=torch.int64))], CLASSES)
    with refused(ValueError, "a row needs columns"):
        TableReading(num_numbers=0)
    with refused(ValueError, "num_texts is 0, and text is given"):
        TableReading(num_numbers=1, text=TEXT)
    with refused(ValueError, "may_miss is (3,); expected columns from 0 to 2"):
        TableReading(num_numbers=3, may_miss=(3,))
