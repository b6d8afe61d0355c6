from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.tasks import ImageLearning
from fredholm.tasks.files.mapped import Rows
from fredholm.tasks.images import mirroring
from fredholm.tasks.images.arrays import ArrayImages
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.tasks.images.mirroring import mirroring_keeps_targets
from fredholm.tasks.targets import ClassTarget


def stripes(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A bright stripe on a grey ground: the pictures, the position of the stripe, and the brightness of the ground."""
    draw = np.random.default_rng(0)
    place, ground = draw.integers(0, 16, count), draw.integers(20, 150, count)
    pictures = np.broadcast_to(ground[:, None, None, None], (count, 12, 16, 3)) + draw.integers(
        0, 20, (count, 12, 16, 3)
    )
    pictures[np.arange(count), :, place] = 250
    return pictures.astype(np.uint8), place, ground


def share_mirrored(folder: Path, pictures: np.ndarray, expected: np.ndarray, **augmentation: float) -> float:
    """The share of images that training mirrors by default."""
    np.savez(folder / "a.npz", x=pictures, y=expected)
    changed = Augmentation.Config(**augmentation)  # pyright: ignore[reportArgumentType]
    task = ImageLearning.Config(data=str(folder / "a.npz"), augmentation=changed, stem_depth=1)
    config = task.recommended("small").config
    assert isinstance(config, ImageLearning.Config)
    return config.augmentation.horizontal_flip


def test_images_whose_answer_depends_on_left_and_right_are_not_mirrored(tmp_path: Path) -> None:
    pictures, place, ground = stripes(40)
    assert share_mirrored(tmp_path, pictures, place + 0.5) == 0
    assert share_mirrored(tmp_path, pictures, ground + 0.5) == 0.5
    assert share_mirrored(tmp_path, pictures, np.where(place < 8, "left", "right")) == 0
    assert share_mirrored(tmp_path, pictures, np.where(ground < 80, "dark", "light")) == 0.5
    assert share_mirrored(tmp_path, pictures, np.stack([place < 8, ground < 80], 1)) == 0  # labels
    assert share_mirrored(tmp_path, pictures, np.random.default_rng(1).normal(size=40)) == 0.5  # no evidence


def test_an_image_is_predicted_without_its_mirror_image() -> None:
    """Pictures that nearly equal their own mirror images, and are unlike all others."""
    draw = np.random.default_rng(0)
    half = np.kron(draw.integers(0, 150, (60, 4, 4, 1)), np.ones((1, 3, 2, 3)))
    pictures, is_right = np.concatenate([half, half[:, :, ::-1]], 2) + 40, draw.random(60) < 0.5
    pictures[:, :, 8:] += (np.where(is_right, 20, -20) + 15 * draw.normal(size=60))[:, None, None, None]
    images = ArrayImages(Rows([pictures.clip(0, 255).astype(np.uint8)], ["x"]), "x", None)
    assert not mirroring_keeps_targets(images, torch.from_numpy(is_right).long(), ClassTarget(names=("left", "right")))


def test_an_explicit_share_stays_and_few_images_give_no_evidence(tmp_path: Path) -> None:
    pictures, place, _ = stripes(40)
    assert share_mirrored(tmp_path, pictures, place + 0.5, horizontal_flip=0.3) == 0.3
    assert share_mirrored(tmp_path, pictures[:9], place[:9] + 0.5) == 0.5


def test_many_images_are_checked_by_a_sample_with_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "MOST", 60)
    pictures, place, ground = stripes(200)
    assert share_mirrored(tmp_path, pictures, place + 0.5) == 0
    assert share_mirrored(tmp_path, pictures, ground + 0.5) == 0.5


def test_the_check_leaves_the_random_state_unchanged(tmp_path: Path) -> None:
    pictures, place, _ = stripes(40)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    share_mirrored(tmp_path, pictures, place + 0.5)
    assert torch.equal(before, torch.get_rng_state())
