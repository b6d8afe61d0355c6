"""Banks of patches: their features, the use of each block of features, and mirror images."""

import pytest
import torch
from torch import Tensor

from fredholm.models import ImageBank
from fredholm.models.fitted.banks import image_bank
from fredholm.models.fitted.banks.image_bank import CONTRAST, MOST_NODES, PARTS
from fredholm.tasks.targets import ClassTarget, NumberTarget
from tests.refusals import refused

CLASSES = ClassTarget(names=("a", "b"))
NUMBER = NumberTarget(names=("how much",), mean=(0.0,), deviation=(1.0,), quantiles=())


def bank(size: tuple[int, int] = (12, 14), outputs: int = 2, *, may_mirror: bool = True) -> ImageBank:
    torch.manual_seed(0)
    return ImageBank.Config(num_filters=12, may_mirror=may_mirror).build(size, 1, outputs)


def noise(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 1, 12, 14, generator=torch.Generator().manual_seed(seed))


def discs(count: int) -> tuple[Tensor, Tensor]:
    """A bright or dark square of 4 pixels on a wide image, and its distance from the left."""
    draw = torch.Generator().manual_seed(1)
    images, column = 0.3 * torch.randn(count, 1, 9, 48, generator=draw), torch.randint(45, (count,), generator=draw)
    for number, c in enumerate(column.tolist()):
        images[number, :, 3:7, c : c + 4] += 3 if number % 2 else -3
    return images, (column / 10 - 2)[:, None].double()


def error_of(images: Tensor, targets: Tensor, built: ImageBank) -> float:
    """Mean squared error on the last 40 images, divided by the variance."""
    built.fit([(images[:-40], targets[:-40])], NUMBER)
    with torch.no_grad():
        return float((built(images[-40:]) - targets[-40:]).square().mean() / targets[-40:].var())


def test_a_feature_is_the_response_of_a_filter_to_a_normalised_patch() -> None:
    built, images = bank(), noise(5)
    built.fit([(images, torch.arange(5) % 2)], CLASSES)
    filters = built.filters[1]
    assert isinstance(filters, image_bank._Filters)
    assert (filters.side, filters.reduction) == (6, 1)
    patch = images[2, :, 3:9, 5:11]
    normed = (patch - patch.mean()) / (patch.var(correction=0) + CONTRAST).sqrt()
    answers = (filters.kernels * normed).sum((1, 2, 3)) - filters.offsets
    expected = torch.cat([(sign * answers - filters.threshold).clamp_min(0) for sign in (1, -1)])
    torch.testing.assert_close(filters(images)[2, :, 3, 5], expected, rtol=1e-4, atol=1e-4)
    assert 0.2 < float((filters(images) > 0).float().mean()) < 0.48  # at most half of the two signs


def test_filters_are_whitened_patches() -> None:
    built, images = bank(), noise(30)
    images = images + 3 * noise(30, seed=1).mean((2, 3), keepdim=True) + torch.linspace(-4, 4, 14)
    built.fit([(images, torch.arange(30) % 2)], CLASSES)
    filters = built.filters[0]
    assert isinstance(filters, image_bank._Filters)
    # a gradient common to all patches is removed: the mean response is near 0
    windows = images.unfold(2, 4, 1).unfold(3, 4, 1).reshape(-1, 16)
    windows = windows - windows.mean(1, keepdim=True)
    windows = windows / (windows.square().mean(1, keepdim=True) + CONTRAST).sqrt()
    answers = windows @ filters.kernels.flatten(1).T - filters.offsets
    assert float(answers.mean(0).abs().max()) < 0.15 * float(answers.std())


def test_filters_of_smooth_images_are_not_smooth() -> None:
    built, images = bank(), torch.nn.functional.avg_pool2d(noise(40), 3, 1)
    built.fit([(images, torch.arange(40) % 2)], CLASSES)
    filters = built.filters[1]
    assert isinstance(filters, image_bank._Filters)
    windows = images.unfold(2, 6, 1).unfold(3, 6, 1)
    windows = windows - windows.mean((-1, -2), keepdim=True)
    along = [float((each[..., 1:] * each[..., :-1]).sum() / each.square().sum()) for each in (filters.kernels, windows)]
    assert along[0] < 0.6 * along[1]


def test_textures_are_classified_in_left_out_and_in_new_images() -> None:
    images, kind = noise(100), torch.arange(100) % 2
    images[kind == 1] = (images + images.roll(1, -1))[kind == 1]
    built = bank()
    left_out = built.fit([(images[:30], kind[:30]), (images[30:60], kind[30:60])], CLASSES)
    assert left_out.shape == (60, 2)
    with torch.no_grad():
        found = built(images[60:])
    assert float((found.argmax(1) == kind[60:]).float().mean()) > 0.85
    assert float((left_out.argmax(1) == kind[:60]).float().mean()) > 0.85


def test_positions_are_predicted_from_features_by_place() -> None:
    images, column = discs(140)
    assert error_of(images, column, bank(size=(9, 48), outputs=1)) < 0.045


def test_brightness_of_constant_images_is_predicted() -> None:
    level = torch.randn(90, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = level.float()[..., None, None].expand(90, 1, 12, 14)
    assert error_of(images, level, bank(outputs=1)) < 1e-3


def test_mirror_images_are_averaged_where_that_helps_left_out_images() -> None:
    images, kind = noise(80), torch.arange(80) % 2
    streaks = images + images.roll((1, 1), (-1, -2)) + images.roll((2, 2), (-1, -2))
    images[1::4], images[3::4] = streaks[1::4], streaks.flip(-1)[3::4]
    built = bank()
    built.fit([(images[:40], kind[:40])], CLASSES)
    assert float(built.mirrored) == 0.5
    torch.testing.assert_close(built(images.flip(-1)), built(images), rtol=1e-3, atol=1e-3)
    built = bank(may_mirror=False)
    built.fit([(images[:40], kind[:40])], CLASSES)
    assert float(built.mirrored) == 0
    ramps = 0.5 * noise(80) + torch.where(kind == 1, 1.0, -1.0)[:, None, None, None] * torch.linspace(-1, 1, 14)
    built = bank()
    built.fit([(ramps, kind)], CLASSES)
    assert float(built.mirrored) == 0
    assert float((built(ramps.flip(-1)).argmax(1) != kind).float().mean()) > 0.9


def test_images_of_a_group_are_left_out_together() -> None:
    images, group = noise(24), torch.arange(24) // 2
    images[1::2] = images[::2]
    values = torch.randn(12, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64).repeat_interleave(2, 0)
    alone = bank(outputs=1).fit([(images, values)], NUMBER)
    together = bank(outputs=1).fit([(images, values)], NUMBER, groups=group)
    errors = [float((predicted - values).square().mean()) for predicted in (alone, together)]
    assert 4 * errors[0] < errors[1]


def test_shares_are_chosen_by_a_sample_of_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images, column = discs(60)
    monkeypatch.setattr(image_bank, "CHOSEN_BY", 25)
    sizes = list[int]()
    built = bank(outputs=1)
    fit = built.head.fit

    def counted(features: Tensor, *given: object, **more: object) -> Tensor:
        sizes.append(len(features))
        return fit(features, *given, **more)  # pyright: ignore

    monkeypatch.setattr(built.head, "fit", counted)
    built.fit([(images[:35], column[:35]), (images[35:], column[35:])], NUMBER)
    assert sizes == [25] * 8 + [60]


def test_images_of_any_size_are_read_and_large_ones_by_fewer_patches() -> None:
    built = bank()
    built.fit([(noise(6), torch.arange(6) % 2)], CLASSES)
    assert built(torch.randn(2, 1, 17, 31)).shape == (2, 2)
    filters = built.filters[0]
    assert filters(torch.randn(1, 1, 12, 3 * MOST_NODES)).shape[2:] == (9, 63)
    assert len(bank(size=(41, 60)).filters) == 6
    for size in ((1, 1), (2, 5), (3, 40)):
        small = bank(size=size)
        small.fit([(torch.randn(6, 1, *size), torch.arange(6) % 2)], CLASSES)
        assert bool(small(torch.randn(3, 1, *size)).isfinite().all())


def test_gradients_are_finite_where_no_filter_responds() -> None:
    built = bank()
    built.fit([(noise(6), torch.arange(6) % 2)], CLASSES)
    images = torch.zeros(2, 1, 12, 14, requires_grad=True)
    built(images).sum().backward()
    assert images.grad is not None
    assert bool(images.grad.isfinite().all())


def test_parts_are_averages_of_thirds() -> None:
    values = torch.arange(7.0 * 8).view(1, 1, 7, 8)
    found = image_bank._in_parts(values, PARTS)
    torch.testing.assert_close(found, torch.nn.functional.adaptive_avg_pool2d(values, PARTS))


def test_unreadable_images_are_refused_by_name() -> None:
    built = bank()
    with refused(ValueError, "models.ImageBank", "no image"):
        built.fit([], CLASSES)
    for shape in ((2, 3, 12, 14), (2, 12, 14), (2, 1, 4, 14)):
        with refused(ValueError, "models.ImageBank", "(batch, 1, at least 6, at least 6)", str(shape)):
            built(torch.zeros(shape))
    with refused(ValueError, "models.ImageBank", "num_filters", "0"):
        ImageBank.Config(num_filters=0)
    with refused(ValueError, "models.ImageBank", "width", "0"):
        ImageBank.Config().build((3, 0), 1, 2)
