import pytest
import torch
from torch import Tensor

from fredholm.tasks.images.rand_augment import MAX_MAGNITUDE, MAX_OPS, _policy, rand_augment


def apply(images: Tensor, num_ops: int = 2, magnitude: int = 9) -> Tensor:
    count, channels, height, width = images.shape
    change = rand_augment(num_ops, magnitude, channels=channels, height=height, width=width)
    return change(images.shape)(images, torch.arange(count))


@pytest.mark.pairs
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (2, 9), (8, 8), (11, 7)])
@pytest.mark.parametrize("magnitude", [1, 15, MAX_MAGNITUDE - 1])
def test_any_image_stays_a_valid_image(channels: int, size: tuple[int, int], magnitude: int) -> None:
    images = torch.rand(5, channels, *size)
    before = images.clone()
    changed = apply(images, MAX_OPS, magnitude)
    assert torch.equal(images, before)
    assert changed.shape == images.shape
    assert torch.isfinite(changed).all()
    assert changed.min() >= 0
    assert changed.max() <= 1 + 1e-6


def test_every_operation_occurs() -> None:
    grey, colour = {row[0] for row in _policy(9, False, True)}, {row[0] for row in _policy(9, True, True)}
    assert colour - grey == {"color"}
    assert grey - {row[0] for row in _policy(9, False, False)} == {"sharpness"}
    assert len(_policy(9, False, False)) == 2 * MAX_OPS


def test_groups_draw_their_own_operations() -> None:
    images = torch.rand(1, 1, 8, 8).expand(160, 1, 8, 8)
    changed = apply(images, num_ops=1)
    assert len({tuple(image.flatten().tolist()) for image in changed}) > 4


def test_motions_have_the_extents_of_the_paper() -> None:
    """At m = 29: a slope of 0.29, 29 degrees, and 0.435 of the side, in either direction."""
    from kornia.augmentation.auto import RandAugment

    rows = {row[0]: row for row in _policy(29, False, True)}
    dots = torch.zeros(64, 1, 101, 101)  # a dot 20 pixels right of the centre and one 20 pixels below it
    dots[:32, :, 49:52, 69:72] = 1.0
    dots[32:, :, 69:72, 49:52] = 1.0
    starts = torch.tensor([[0.0, 20.0], [20.0, 0.0]]).repeat_interleave(32, 0)  # row, column from the centre
    turn = torch.deg2rad(torch.tensor(29.0))
    expected = {
        "shear_x": (torch.tensor([0.0, 0.0]), torch.tensor([0.0, 0.29 * 20])),
        "shear_y": (torch.tensor([0.29 * 20, 0.0]), torch.tensor([0.0, 0.0])),
        "translate_x": (torch.tensor([0.0, 0.435 * 101]),) * 2,
        "translate_y": (torch.tensor([0.435 * 101, 0.0]),) * 2,
        "rotate": (
            torch.tensor([20 * turn.sin(), 20 * (1 - turn.cos())]),
            torch.tensor([20 * (1 - turn.cos()), 20 * turn.sin()]),
        ),
    }
    places = torch.arange(-50.0, 51.0)
    for name, moves in expected.items():
        changed = RandAugment(1, 29, policy=[[rows[name]]])(dots)
        mass = changed.sum((1, 2, 3))
        ends = torch.stack([changed.sum((1, 3)) @ places / mass, changed.sum((1, 2)) @ places / mass], 1)
        stays = mass > 1  # a translation may move a dot out of the picture
        extent = torch.stack(moves).repeat_interleave(32, 0)
        torch.testing.assert_close((ends - starts).abs()[stays], extent[stays], atol=0.3, rtol=0, msg=name)
        assert stays.sum() > 40


def test_each_operation_grows_with_the_magnitude() -> None:
    from kornia.augmentation.auto import RandAugment

    images = torch.rand(32, 3, 16, 16).square()
    rows = list(zip(*(_policy(magnitude, True, True) for magnitude in (1, 15, 29)), strict=True))
    for weak, middle, strong in rows:
        if weak[0] in ("auto_contrast", "equalize"):
            continue  # these two have no strength
        change = []
        for magnitude, row in ((1, weak), (15, middle), (29, strong)):
            changed = RandAugment(1, magnitude, policy=[[row]])(images)
            change.append((changed - images).abs().mean().item())
        assert change[0] < change[1] < change[2], weak[0]
        assert change[0] < 0.35 * change[2], weak[0]
