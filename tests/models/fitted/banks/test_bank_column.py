"""Columns of files in a table: left-out scores of a bank, principal directions, and missing files."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.models import FilterBank, ImageBank, SeriesSampling, TableBatch, TableMachine, TableReading
from fredholm.models.fitted.banks import bank_column
from fredholm.models.fitted.banks.bank_column import FOLDS, ImageCells, ImageColumn, SeriesCells, SeriesColumn
from fredholm.models.fitted.kernel_machine import KernelMachine
from fredholm.models.fitted.ridge_head import dealt
from fredholm.tasks.targets import ClassTarget
from tests.refusals import refused

CLASSES = ClassTarget(names=("a", "b"))
BANK = ImageBank.Config(num_filters=8)
READING = TableReading(num_numbers=2, num_images=1, images_may_miss=(0,), channels=1, image_size=(11, 9))


def stripes(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images with a bright stripe, uint8, and whether it is vertical."""
    draw = torch.Generator().manual_seed(seed)
    images = (100 + 20 * torch.randn(n, 1, 11, 9, generator=draw)).clamp(0, 155)
    upright = torch.rand(n, generator=draw) < 0.5
    images[upright, :, :, 4] += 100
    images[~upright, :, 5] += 100
    return images.byte(), upright


def built(num_directions: int = 3, *, may_miss: bool = True) -> ImageColumn:
    torch.manual_seed(0)
    return ImageColumn(1, (11, 9), 2, num_directions, BANK, may_miss=may_miss)


def in_parts(cells: ImageCells, targets: Tensor, size: int = 7) -> list[tuple[ImageCells, Tensor]]:
    parts = zip(cells.images.split(size), cells.exists.split(size), targets.split(size), strict=True)
    return [(ImageCells(images, exists), own) for images, exists, own in parts]


def test_an_image_becomes_left_out_scores_and_principal_directions() -> None:
    images, upright = stripes(40)
    exists = torch.arange(40) % 5 > 0
    column, targets = built(), upright.long()
    found = column.fit(in_parts(ImageCells(images, exists), targets), CLASSES)
    assert found.shape == (40, column.num_coordinates) == (40, 2 + 3 + 1)
    assert torch.equal(found[:, 5] == 1, ~exists)
    assert bool((found[~exists, :5] == 0).all())
    plain = images[exists].float() / 255
    plain = (plain - plain.mean()) / plain.std(correction=0)
    torch.manual_seed(0)
    bank = BANK.build((11, 9), 1, 2)
    batches = [(part, own) for part, own in zip(plain.split(6), targets[exists].split(6), strict=True)]
    left_out = bank.fit(batches, CLASSES, groups=dealt(32, None, FOLDS, plain.device))
    columns = CLASSES.columns(targets[exists])
    for k in range(2):
        of, scores = found[exists, k], left_out[:, k]
        rho = max(torch.corrcoef(torch.stack([scores, each]))[0, 1] for each in columns.T)
        torch.testing.assert_close(
            of, (rho * (scores - scores.mean()) / scores.std()).clamp(-4, 4), rtol=1e-4, atol=1e-4
        )
    along = found[exists, 2:5] * math.sqrt(3)
    torch.testing.assert_close(along.mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cov(along.T), torch.eye(3, dtype=torch.float64), rtol=0, atol=2e-2)
    # in order of their variance, as those of X in the ridge regression
    x = bank.features(plain).double()
    ends = [0, *torch.tensor([block.size for block in bank.head.blocks]).cumsum(0).tolist()]
    blocks = []
    for block, share, start, end in zip(bank.head.blocks, bank.head.shares, ends, ends[1:], strict=False):
        own = x[:, start:end] - x[:, start:end].mean(0)
        deviation = own.std(0, correction=0)
        if block.standardised:
            own = torch.where(deviation > 1e-6, own / deviation.clamp_min(1e-6), 0.0)
        blocks.append(own * (share / own.square().mean(0).sum()).sqrt())
    left, _, _ = torch.linalg.svd(torch.cat(blocks, 1), full_matrices=False)
    shared = (left[:, :3].T @ along / along.norm(dim=0)).norm(dim=0)
    assert float(shared.min()) > 0.99


def test_new_images_are_read_like_training_images_and_missing_ones_are_ignored() -> None:
    images, upright = stripes(40)
    exists = torch.arange(40) % 5 > 0
    column = built()
    found = column.fit(in_parts(ImageCells(images, exists), upright.long()), CLASSES)
    with torch.no_grad():
        again = column(ImageCells(images, exists))
        other = column(ImageCells(torch.where(exists[:, None, None, None], images, 255), exists))
    torch.testing.assert_close(again[:, 2:], found[:, 2:].float(), rtol=1e-4, atol=1e-4)
    assert torch.equal(again, other)
    assert float((again[exists, :2] - found[exists, :2]).abs().mean()) > 0.01  # it has seen the row


def test_of_many_images_a_sample_is_fitted_and_the_others_count_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank_column, "MOST_FILES", 20)
    images, upright = stripes(60)
    column, exists = built(may_miss=False), torch.ones(60, dtype=torch.bool)
    groups = torch.arange(60) // 2
    found = column.fit(in_parts(ImageCells(images, exists), upright.long()), CLASSES, groups=groups)
    with torch.no_grad():
        same = (column(ImageCells(images, exists)) - found).abs().amax(1) < 1e-4
    assert int(same.sum()) == 40
    assert torch.equal(same[::2], same[1::2])  # whole groups


@pytest.mark.parametrize(("num_there", "groups"), [(0, None), (1, None), (4, torch.arange(12) // 4)])
def test_for_a_single_image_or_group_the_scores_are_0(num_there: int, groups: Tensor | None) -> None:
    images, upright = stripes(12)
    cells = ImageCells(images, torch.arange(12) < num_there)
    column = built()
    found = column.fit(in_parts(cells, upright.long()), CLASSES, groups=groups)
    assert bool((found[:, :5] == 0).all())
    assert column(cells)[:, :5].abs().max() == 0
    assert all(bool(each.isfinite().all()) for each in column.state_dict().values())  # otherwise it could not be saved


def test_interactions_of_images_and_numbers_are_learnt() -> None:
    images, upright = stripes(260)
    numbers = torch.randn(260, 2, generator=torch.Generator().manual_seed(1))
    batch = TableBatch.of(numbers, images=images[:, None], has_image=torch.arange(260)[:, None] % 10 > 0)
    targets = (upright ^ (numbers[:, 0] > 0)).long()
    torch.manual_seed(0)
    machine = TableMachine.Config(images=BANK, num_trees=40).build(READING, 2)
    learnt, tested = (TableBatch(*(part[own] for part in batch)) for own in (slice(0, 200), slice(200, None)))
    machine.fit([(learnt, targets[:200])], CLASSES)
    with torch.no_grad():
        right = machine(tested).argmax(1) == targets[200:]
    there = tested.has_image[:, 0]
    assert float(right[there].float().mean()) > 0.85
    [count] = machine.counts().images.tolist()
    assert 0.5 < count <= 1
    with torch.no_grad():  # alone in a batch
        one = [machine(TableBatch(*(part[i : i + 1] for part in tested))) for i in range(3)]
        torch.testing.assert_close(torch.cat(one), machine(tested)[:3], rtol=1e-4, atol=1e-4)
    assert machine(TableBatch(*(part[:0] for part in tested))).shape == (0, 2)


def test_misfits_are_refused() -> None:
    machine = TableMachine.Config(images=BANK).build(READING, 2)
    numbers = torch.zeros(3, 2)
    with refused(ValueError, "rows have 2 numbers, 0 categories, 0 texts, 0 images", "expected 2 numbers, 0 cat"):
        machine(TableBatch.of(numbers))
    for images in (torch.zeros(3, 1, 1, 11, 9), torch.zeros(3, 1, 3, 11, 9, dtype=torch.uint8)):
        with refused(ValueError, "images are (3, 1, ", "expected (B, 1, 1, 11, 9) of uint8"):
            machine(TableBatch.of(numbers, images=images))
    with refused(ValueError, "num_images is 1, with image_size=None and channels=3; give all or none"):
        TableReading(num_numbers=1, num_images=1, channels=3)
    with refused(ValueError, "images_may_miss is (1,); expected columns from 0 to 0"):
        TableReading(num_numbers=0, num_images=1, images_may_miss=(1,), channels=3, image_size=(4, 4))


def test_scores_that_contradict_the_targets_get_no_weight_and_outliers_are_clipped() -> None:
    column = built()
    targets = torch.arange(6, dtype=torch.float64)[:, None]
    # the mean of the other examples, which an uninformed bank predicts, is anticorrelated with a left-out target
    column._set_scale(torch.cat([(targets.sum() - targets) / 5, targets], 1), targets, None)
    torch.testing.assert_close(column.gain, torch.tensor([0.0, 1 / float(targets.std())]))
    read = column._scaled(torch.tensor([[0.0, -1e3], [1e9, 1e3]]))
    torch.testing.assert_close(read[:, 1], torch.tensor([-4.0, 4.0]))


def test_a_second_fit_replaces_the_first() -> None:
    images, upright = stripes(40)
    exists, twice, once = torch.ones(40, dtype=torch.bool), built(8), built(8)
    twice.fit([(ImageCells(images, exists), upright.long())], CLASSES)
    for column in (twice, once):
        torch.manual_seed(1)
        column.fit([(ImageCells(images[:5], exists[:5]), torch.arange(5) % 2)], CLASSES)
    assert torch.equal(twice.directions, once.directions)
    assert bool((once.directions[:, 5:] == 0).all())


def test_groups_are_left_out_of_the_bank_together() -> None:
    images, _ = stripes(20)
    images, targets = images.repeat_interleave(2, 0), torch.arange(20).repeat_interleave(2) % 2
    images[:, :, 0, 0] = 10  # so that twins differ slightly
    cells = ImageCells(images, torch.ones(40, dtype=torch.bool))
    alone, together = (
        built().fit([(cells, targets)], CLASSES, groups=groups)[:, 0] for groups in (None, torch.arange(40) // 2)
    )
    column = CLASSES.columns(targets)[:, 0]
    agreement = [float(torch.corrcoef(torch.stack([each, column]))[0, 1]) for each in (alone, together)]
    assert agreement[0] > 0.85 > 0.8 > agreement[1]  # a twin reveals the target


def test_constant_images_are_read() -> None:
    column = built()
    cells = ImageCells(torch.full((6, 1, 11, 9), 7, dtype=torch.uint8), torch.ones(6, dtype=torch.bool))
    assert bool(column.fit([(cells, torch.arange(6) % 2)], CLASSES).isfinite().all())
    assert bool(column(cells).isfinite().all())


FILTERS = FilterBank.Config(num_thresholds=4, num_groups=2)


def waves(n: int, seed: int = 0) -> tuple[SeriesCells, Tensor]:
    """Series of 20 to 40 samples in two channels, one of them uninformative, and whether waves are fast."""
    draw = torch.Generator().manual_seed(seed)
    steps, fast = torch.arange(40.0), torch.rand(n, generator=draw) < 0.5
    turns = steps / torch.where(fast, 4.0, 9.0)[:, None] + torch.rand(n, 1, generator=draw)
    values = torch.stack([(2 * math.pi * turns).sin(), torch.zeros_like(turns)], 2)
    values = 5 + values + 0.3 * torch.randn(n, 40, 2, generator=draw)
    lengths = torch.randint(20, 41, (n, 1), generator=draw)
    times = torch.where(steps < lengths, steps.double(), torch.nan)
    return SeriesCells(values, times), fast


def test_a_series_is_read_by_its_times_without_padding_or_batch_mates() -> None:
    cells, fast = waves(50)
    values, times = cells.values.clone(), cells.times.clone()
    values[::7, 3, 1], times[::10] = torch.nan, torch.nan
    torch.manual_seed(0)
    sampling = SeriesSampling(channels=3, spacing=1.0, extent=39.0, observation=(1,))
    column = SeriesColumn(sampling, 2, 4, FILTERS, may_miss=True)
    found = column.fit([(SeriesCells(values, times), fast.long())], CLASSES)
    assert found.shape == (50, column.num_coordinates) == (50, 2 * 2 + 4 + 1)
    assert torch.equal(found[:, -1] == 1, times[:, 0].isnan())
    assert bool((found[::10, :-1] == 0).all())
    with torch.no_grad():
        plain = column(SeriesCells(values, times))
        beyond = torch.cat([torch.where(times.isnan()[..., None], 7.0, values), values.new_full((50, 3, 2), 1e9)], 1)
        longer = torch.cat([times, times.new_full((50, 3), torch.nan)], 1)
        torch.testing.assert_close(column(SeriesCells(beyond, longer)), plain, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(column(SeriesCells(values, times + 100)), plain, rtol=1e-4, atol=1e-4)
        alone = torch.cat([column(SeriesCells(values[i : i + 1], times[i : i + 1])) for i in range(3)])
        torch.testing.assert_close(alone, plain[:3], rtol=1e-4, atol=1e-4)
        other = SeriesCells(values, times * 2)  # at half the speed
        assert float((column(other) - plain).abs().amax()) > 0.1
    torch.testing.assert_close(plain[:, 4:], found[:, 4:].float(), rtol=1e-3, atol=1e-3)


def test_gaps_of_series_are_interpolated() -> None:
    cells, fast = waves(20)
    values = cells.values.clone()
    values[3, [0, 5, 6, 7], 0] = torch.nan
    sampling = SeriesSampling(channels=3, spacing=1.0, extent=39.0, observation=(0,))
    column = SeriesColumn(sampling, 2, 4, FILTERS, may_miss=False)
    column.fit([(SeriesCells(values, cells.times), fast.long())], CLASSES)
    read, mask, _, _ = column._batch(SeriesCells(values[3:4], cells.times[3:4]))
    assert mask is not None
    series, observed = read[0, mask[0], 0], read[0, mask[0], 2]
    torch.testing.assert_close(series[5:8], torch.lerp(series[4], series[8], torch.tensor([0.25, 0.5, 0.75])))
    assert series[0] == series[1] != 0
    assert (observed == 0).nonzero()[:, 0].tolist() == [0, 5, 6, 7]
    assert not read[0, ~mask[0]].any()


def test_interactions_of_series_and_numbers_are_learnt() -> None:
    cells, fast = waves(200)
    numbers = torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
    batch = TableBatch.of(numbers, series=cells.values[:, None], series_times=cells.times[:, None])
    targets = (fast ^ (numbers[:, 0] > 0)).long()
    reading = TableReading(num_numbers=2, series=(SeriesSampling(channels=2, spacing=1.0, extent=39.0),))
    torch.manual_seed(0)
    machine = TableMachine.Config(series=FILTERS, num_trees=40).build(reading, 2)
    learnt, tested = (TableBatch(*(part[own] for part in batch)) for own in (slice(0, 140), slice(140, None)))
    machine.fit([(learnt, targets[:140])], CLASSES)
    with torch.no_grad():
        assert float((machine(tested).argmax(1) == targets[140:]).float().mean()) > 0.85
    [count] = machine.counts().series.tolist()
    assert 0.2 < count <= 1
    with refused(
        ValueError, "series are (60, 1, 40, 1), with times (60, 1, 40) of torch.float64; expected (B, 1, N, 2)"
    ):
        machine(tested._replace(series=tested.series[..., :1]))


@pytest.mark.parametrize(("is_informative", "num_fits"), [(True, 1), (False, 2)])
def test_the_kernel_is_refitted_only_without_an_uninformative_bank(
    monkeypatch: pytest.MonkeyPatch, is_informative: bool, num_fits: int
) -> None:
    drawn = torch.Generator().manual_seed(1)
    classes = torch.arange(40) % 2
    images = torch.randint(100, (40, 1, 1, 11, 9), generator=drawn)
    images = images + 100 * classes[:, None, None, None, None] * is_informative
    fits, solve = list[int](), KernelMachine.solve

    def counted(self: KernelMachine, x: Tensor, *arguments: Any, **options: Any) -> Any:
        fits.append(len(x))
        return solve(self, x, *arguments, **options)

    monkeypatch.setattr(KernelMachine, "solve", counted)
    torch.manual_seed(0)
    machine = TableMachine.Config(images=BANK, num_trees=0).build(READING, 2)
    numbers = torch.randn(40, 2, generator=drawn)
    machine.fit([(TableBatch.of(numbers, images=images.byte()), classes)], CLASSES)
    assert len(fits) == num_fits
