import dataclasses
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fredholm.tasks.images.augmentation import Augmentation
from fredholm.tasks.targets import ClassTarget, LabelTarget, NumberTarget
from tests.refusals import refused

Config = Augmentation.Config

EVERYTHING = Config(
    shift=0.1,
    rotation=15,
    scale=(0.8, 1.2),
    horizontal_flip=0.5,
    crop_padding=2,
    rand_augment_ops=2,
    random_erasing=0.5,
    mixup_alpha=0.8,
    cutmix_alpha=1.0,
    label_smoothing=0.1,
)
WITHOUT_KORNIA = [Config(mixup_alpha=0.8), Config(cutmix_alpha=1.0), Config(label_smoothing=0.1)]
EACH = [
    Config(shift=0.1),
    Config(rotation=15),
    Config(scale=(0.8, 1.2)),
    Config(horizontal_flip=0.5),
    Config(crop_padding=2),
    Config(rand_augment_ops=2),
    Config(random_erasing=0.5),
    *WITHOUT_KORNIA,
]


def name_of(config: Config) -> str:
    return "-".join(field.name for field in dataclasses.fields(config) if getattr(config, field.name) != field.default)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(size: int = 32, channels: int = 1, height: int = 8, width: int = 8) -> tuple[Tensor, Tensor]:
    return torch.rand(size, channels, height, width), torch.arange(size) % 5


def classes(count: int) -> ClassTarget:
    return ClassTarget(names=tuple(map(str, range(count))))


def moved(config: Config, images: Tensor, seed: int = 0) -> Tensor:
    labels = torch.zeros(len(images), dtype=torch.int64)
    return Augmentation(config, classes(1))(images, labels, generator(seed))[0]


def test_defaults_change_nothing() -> None:
    images, labels = batch()
    same, targets = Augmentation(Config(), classes(5))(images, labels, generator())
    assert torch.equal(same, images)
    assert torch.equal(targets, torch.eye(5)[labels])
    assert targets.dtype == torch.float32


@pytest.mark.parametrize("config", [*EACH, EVERYTHING], ids=name_of)
@pytest.mark.parametrize("channels", [1, 3])
def test_each_setting_has_an_effect(config: Config, channels: int) -> None:
    """Images change and stay images, targets stay distributions, and the generator alone decides."""
    images, labels = batch(channels=channels)
    before = images.clone()
    augmentation = Augmentation(config, classes(5))
    torch.manual_seed(1)
    first_images, first_targets = augmentation(images, labels, generator(7))
    assert torch.equal(images, before)
    assert first_images.shape == images.shape
    assert first_images.dtype == images.dtype
    assert first_images.min() >= 0
    assert first_images.max() <= 1 + 1e-6
    torch.testing.assert_close(first_targets.sum(1), torch.ones(len(images)))
    assert not (torch.equal(first_images, images) and torch.equal(first_targets, torch.eye(5)[labels]))

    torch.manual_seed(2)
    augmentation(images[:3], labels[:3], generator(9))  # earlier calls do not matter
    again_images, again_targets = augmentation(images, labels, generator(7))
    assert torch.equal(again_images, first_images)
    assert torch.equal(again_targets, first_targets)
    if name_of(config) != "label_smoothing":
        assert not torch.equal(augmentation(images, labels, generator(8))[0], first_images)


@pytest.mark.parametrize("config", [*EACH, EVERYTHING], ids=name_of)
def test_the_given_generator_alone_is_used(config: Config) -> None:
    """The global generator of PyTorch is untouched, and the given one advances by one draw whatever is enabled."""
    given_generator, plain = generator(3), generator(3)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    Augmentation(config, classes(5))(*batch_without_draws(), given_generator)
    assert torch.equal(torch.get_rng_state(), before)
    Augmentation(Config(), classes(5))(*batch_without_draws(), plain)
    assert torch.equal(given_generator.get_state(), plain.get_state())
    assert not torch.equal(plain.get_state(), generator(3).get_state())


@pytest.mark.parametrize("config", [Config(), *EACH, EVERYTHING], ids=name_of)
@pytest.mark.parametrize("size", [1, 4, 37])  # 4 is also the number of dimensions
def test_selected_images_equal_those_of_the_whole_batch_and_few_others_are_read(config: Config, size: int) -> None:
    images, labels = batch(size, channels=3)
    generator_after = generator(7)
    whole_images, whole_targets = Augmentation(config, classes(5))(images, labels, generator_after)
    for selected in (*torch.arange(size).split(5), torch.arange(size)[::3].flip(0)):
        read: list[Tensor] = []

        def images_of(places: Tensor, read: list[Tensor] = read) -> Tensor:
            read.append(places)
            return images[places]

        given_generator = generator(7)
        found, targets = Augmentation(config, classes(5)).some(
            selected, images_of, images.shape, labels, given_generator
        )
        assert torch.equal(found, whole_images[selected])
        assert torch.equal(targets, whole_targets[selected])
        (places,) = read
        mixes = config.mixup_alpha > 0 or config.cutmix_alpha > 0
        assert len(places) <= (2 if mixes else 1) * len(selected)
        assert torch.isin(selected, places).all()
        assert torch.equal(given_generator.get_state(), generator_after.get_state())  # later draws are equal


def batch_without_draws() -> tuple[Tensor, Tensor]:
    return torch.linspace(0, 1, 32 * 64).view(32, 1, 8, 8), torch.arange(32) % 5


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (1, 1, 1, 1), (2, 3, 1, 5), (3, 2, 9, 4)])
def test_unusual_shapes(shape: tuple[int, int, int, int]) -> None:
    images, targets = Augmentation(EVERYTHING, classes(5))(
        torch.rand(shape), torch.zeros(shape[0], dtype=torch.int64), generator()
    )
    assert images.shape == shape
    assert targets.shape == (shape[0], 5)
    assert torch.isfinite(images).all()


def test_one_augmentation_serves_images_of_several_shapes() -> None:
    augmentation = Augmentation(EVERYTHING, classes(5))
    for channels, height, width in ((1, 8, 8), (3, 8, 8), (3, 12, 8)):
        images, labels = batch(4, channels, height, width)
        fresh = Augmentation(EVERYTHING, classes(5))(images, labels, generator())[0]
        assert torch.equal(augmentation(images, labels, generator())[0], fresh)


def test_no_gradient_is_kept() -> None:
    images, labels = batch()
    assert not Augmentation(EVERYTHING, classes(5))(images.requires_grad_(), labels, generator())[0].requires_grad


def test_flip_mirrors_left_and_right() -> None:
    images, _ = batch(64)
    assert torch.equal(moved(Config(horizontal_flip=1.0), images), images.flip(-1))
    some = moved(Config(horizontal_flip=0.5), images)
    is_flipped = (some == images.flip(-1)).flatten(1).all(1)
    assert (is_flipped | (some == images).flatten(1).all(1)).all()
    assert 15 < int(is_flipped.sum()) < 49


def test_crop_shifts_by_whole_pixels_up_to_the_padding() -> None:
    images = torch.zeros(200, 1, 9, 9)
    images[:, 0, 4, 4] = 1.0
    positions = moved(Config(crop_padding=2), images)[:, 0].nonzero()
    assert positions.shape == (200, 3)
    offsets = positions[:, 1:] - 4
    assert offsets.amin(0).tolist() == [-2, -2]
    assert offsets.amax(0).tolist() == [2, 2]
    assert len(offsets.unique(dim=0)) == 25


def centroids(images: Tensor) -> Tensor:  # (B, 2): row, column
    rows, columns = (torch.arange(side, dtype=images.dtype) for side in images.shape[-2:])
    mass = images.sum((1, 2, 3))
    return torch.stack([(images.sum((1, 3)) @ rows) / mass, (images.sum((1, 2)) @ columns) / mass], 1)


def test_shift_is_a_fraction_of_each_side() -> None:
    images = torch.zeros(300, 1, 20, 40)
    images[:, :, 9:11, 19:21] = 1.0
    offsets = centroids(moved(Config(shift=0.2), images)) - torch.tensor([9.5, 19.5])
    for axis, side in enumerate((20, 40)):
        assert 0.17 * side < offsets[:, axis].amax() <= 0.2 * side + 1e-4
        assert -0.17 * side > offsets[:, axis].amin() >= -0.2 * side - 1e-4
    fractions = offsets - offsets.round()
    assert (fractions.abs() > 0.05).any()  # not in whole pixels


def test_rotation_is_about_the_centre_and_within_bounds() -> None:
    images = torch.zeros(300, 1, 33, 33)
    images[:, :, 15:18, 27:30] = 1.0  # 12 pixels to the right of the centre
    offsets = centroids(moved(Config(rotation=30), images)) - 16
    torch.testing.assert_close(offsets.norm(dim=1), torch.full((300,), 12.0), atol=0.15, rtol=0)
    degrees = torch.atan2(offsets[:, 0], offsets[:, 1]).rad2deg()
    assert 25 < degrees.max() <= 30.5
    assert -25 > degrees.min() >= -30.5


@pytest.mark.parametrize("scale", [(0.5, 0.5), (1.5, 1.5), (0.5, 1.5)])
def test_scale_magnifies_about_the_centre(scale: tuple[float, float]) -> None:
    images = torch.zeros(200, 1, 65, 65)
    images[:, :, 16:49, 16:49] = 1.0
    changed = moved(Config(scale=scale), images)
    torch.testing.assert_close(centroids(changed), torch.full((200, 2), 32.0), atol=1e-3, rtol=0)
    magnification = (changed.sum((1, 2, 3)) / 33**2).sqrt()
    assert magnification.min() == pytest.approx(scale[0], abs=0.05)
    assert magnification.max() == pytest.approx(scale[1], abs=0.05)


def test_the_affine_map_resamples_once() -> None:
    """Each bilinear resampling spreads a point by u (1 - u) along an axis, 1/6 on average over the offsets u."""
    images = torch.zeros(500, 1, 33, 33)
    images[:, :, 11, 23] = 1.0
    changed = moved(Config(shift=0.1, rotation=30, scale=(0.95, 1.05)), images)
    centres, places = centroids(changed), torch.arange(33.0)
    rows = changed.sum((1, 3)) / changed.sum((1, 2, 3)).unsqueeze(1)
    variance = (rows * (places - centres[:, :1]).square()).sum(1)
    assert variance.mean().item() == pytest.approx(1 / 6, abs=0.03)


def test_erasing_blanks_one_box() -> None:
    images = torch.ones(300, 1, 16, 16)
    erased = moved(Config(random_erasing=1.0), images)[:, 0] == 0
    shares = erased.double().mean((1, 2))
    assert shares.min() > 0
    assert shares.max() < 0.4
    for mask in erased[:50]:
        where = mask.nonzero()
        height, width = (where.amax(0) - where.amin(0) + 1).tolist()
        assert height * width == len(where)
    half = moved(Config(random_erasing=0.5), images)
    assert 100 < int((half == 0).flatten(1).any(1).sum()) < 200


def test_each_image_draws_for_itself() -> None:
    images = torch.rand(1, 1, 16, 16).expand(16, 1, 16, 16)
    for config in (Config(shift=0.2), Config(rotation=30), Config(scale=(0.5, 2.0)), Config(random_erasing=1.0)):
        assert len({tuple(image.flatten().tolist()) for image in moved(config, images)}) >= 12


@given(st.integers(2, 12), st.floats(0, 0.99))
def test_label_smoothing(num_classes: int, smoothing: float) -> None:
    labels = torch.arange(num_classes)
    targets = Augmentation(Config(label_smoothing=smoothing), classes(num_classes))(
        torch.rand(num_classes, 1, 2, 2), labels, generator()
    )[1]
    expected = torch.full((num_classes, num_classes), smoothing / num_classes)
    expected += (1 - smoothing) * torch.eye(num_classes)
    torch.testing.assert_close(targets, expected)


def test_smoothing_comes_after_mixing() -> None:
    images, labels = batch()
    mixed = Augmentation(Config(mixup_alpha=1.0), classes(5))(images, labels, generator())[1]
    both = Augmentation(Config(mixup_alpha=1.0, label_smoothing=0.2), classes(5))(images, labels, generator())[1]
    torch.testing.assert_close(both, 0.8 * mixed + 0.04)


def test_mixed_targets_match_the_pixels() -> None:
    """End to end: with image values equal to the label, the mean pixel equals the mixture of the targets."""
    labels = torch.arange(10)
    images = (labels / 10).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    for config in (Config(mixup_alpha=1.0), Config(cutmix_alpha=1.0), Config(mixup_alpha=1.0, cutmix_alpha=1.0)):
        mixed, targets = Augmentation(config, classes(10))(images, labels, generator())
        torch.testing.assert_close(mixed.mean((1, 2, 3)), targets @ (labels / 10))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shift": -0.1}, "shift is -0.1; expected from 0 to 1"),
        ({"shift": float("nan")}, "shift is nan"),
        ({"rotation": 181}, "rotation is 181; expected from 0 to 180 degrees"),
        ({"scale": (1.2, 0.8)}, r"scale is \(1.2, 0.8\); expected two positive numbers, the smaller first"),
        ({"scale": (0.0, 1.0)}, "scale is"),
        ({"horizontal_flip": 1.5}, "horizontal_flip is 1.5; expected a probability"),
        ({"crop_padding": -1}, "crop_padding is -1; expected 0 or more pixels"),
        ({"rand_augment_ops": 12}, "rand_augment_ops is 12; expected from 0 to 11"),
        ({"rand_augment_magnitude": 30}, "rand_augment_magnitude is 30; expected from 1 to 29"),
        ({"rand_augment_magnitude": 0}, "rand_augment_magnitude is 0; expected from 1 to 29"),
        ({"random_erasing": -1}, "random_erasing is -1; expected a probability"),
        ({"mixup_alpha": -1}, "mixup_alpha is -1; expected 0 or more"),
        ({"cutmix_alpha": float("inf")}, "cutmix_alpha is inf; expected 0 or more"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0; expected from 0 to below 1"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**settings)


@pytest.mark.parametrize(
    ("images", "labels", "error", "message"),
    [
        (torch.zeros(2, 1, 4, 4).byte(), torch.zeros(2).long(), TypeError, r"images are torch.uint8; pass floating"),
        (
            torch.zeros(2, 4, 4),
            torch.zeros(2).long(),
            ValueError,
            r"images have shape \(2, 4, 4\); pass \(B, C, H, W\)",
        ),
        (
            torch.zeros(2, 1, 4, 4),
            torch.zeros(3).long(),
            ValueError,
            r"targets have shape \(3,\); pass one for each of 2 images",
        ),
    ],
)
def test_bad_batches(images: Tensor, labels: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Augmentation(EVERYTHING, classes(5))(images, labels, generator())


def test_labels_are_mixed_and_smoothed_as_shares() -> None:
    images, _ = batch()
    target = LabelTarget(names=("a", "b"))
    has = (torch.arange(32)[:, None] % torch.tensor([2, 3]) == 0).float()
    targets = Augmentation(Config(label_smoothing=0.2), target)(images, has, generator())[1]
    torch.testing.assert_close(targets, torch.where(has > 0, 0.9, 0.1))
    brightness = has[:, :1, None, None].expand(-1, 1, 8, 8)
    mixed, targets = Augmentation(Config(cutmix_alpha=1.0), target)(brightness, has, generator())
    torch.testing.assert_close(mixed.mean((1, 2, 3)), targets[:, 0])


def test_numbers_are_mixed_linearly_and_have_no_shares() -> None:
    target = NumberTarget(names=("a",), mean=(0.0,), deviation=(1.0,))
    values = torch.linspace(0, 1, 32)
    images = values.view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    mixed, targets = Augmentation(Config(mixup_alpha=1.0), target)(images, values[:, None], generator())
    torch.testing.assert_close(mixed.mean((1, 2, 3)), targets[:, 0])
    assert not torch.equal(targets[:, 0], values)
    for name in ("cutmix_alpha", "label_smoothing"):
        with refused(ValueError, f"{name} is 0.5; numbers have no shares of an image: leave it at 0"):
            Augmentation(dataclasses.replace(Config(), **{name: 0.5}), target)
    with refused(ValueError, "smoothing is 0.1; numbers cannot be smoothed"):
        target.soft(values, 0.1)


def test_missing_kornia_matters_only_for_settings_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    for config in WITHOUT_KORNIA:
        Augmentation(config, classes(5))(*batch(), generator())
        Augmentation(config, classes(5)).check_packages()
    augmentation = Augmentation(Config(shift=0.1), classes(5))  # as when a model trained with it is read back
    for needs in (augmentation.check_packages, lambda: augmentation(*batch(), generator())):
        with pytest.raises(ImportError, match=r'pip install "fredholm\[augment\]"'):
            needs()


@pytest.mark.slow
def test_torchvision_is_never_imported() -> None:
    program = (
        "import sys, torch\n"
        "sys.modules['torchvision'] = None\n"
        "from fredholm.tasks.images.augmentation import Augmentation\n"
        "from fredholm.tasks.targets import ClassTarget\n"
        "config = Augmentation.Config(shift=0.1, crop_padding=1, rand_augment_ops=3, random_erasing=1.0)\n"
        "augmentation = Augmentation(config, ClassTarget(names=('a', 'b')))\n"
        "augmentation(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1]), torch.Generator())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("config", [*EACH, EVERYTHING], ids=name_of)
def test_cuda_draws_like_the_cpu_and_leaves_its_generator_alone(config: Config) -> None:
    if config not in WITHOUT_KORNIA:
        pytest.importorskip("kornia")
    images, labels = batch(channels=3)
    before = torch.cuda.get_rng_state()
    on_cuda = Augmentation(config, classes(5))(images.cuda(), labels.cuda(), generator())
    assert torch.equal(torch.cuda.get_rng_state(), before)
    on_cpu = Augmentation(config, classes(5))(images, labels, generator())
    for here, there in zip(on_cpu, on_cuda, strict=True):
        assert there.is_cuda
        # rounding may tip a value over a step of the quantising operations
        assert (here - there.cpu()).abs().mean() < 1e-2
