"""A bank is computed for few images: when, and which settings of the task then have no effect."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.models import ImageBank, ITNet
from fredholm.tasks import ImageLearning
from fredholm.tasks.images import image_learning
from fredholm.tasks.images.augmentation import Augmentation
from tests.refusals import refused

FEW = ImageBank.Config(num_filters=8)


def written(folder: Path, answers: np.ndarray, size: tuple[int, ...] = (12, 14), **more: Any) -> str:
    """Images with a stripe whose brightness is the first answer."""
    draw = np.random.default_rng(0)
    first = (answers if answers.ndim == 1 else answers[:, 0]).astype(float)
    pixels = draw.integers(0, 60, (len(answers), *size))
    pixels[:, 4:8] += (100 * (first - first.min()) / np.ptp(first)).reshape(-1, *[1] * len(size)).astype(int)
    np.savez(folder / "set.npz", x=pixels.astype(np.uint8), y=answers, **more)
    return str(folder / "set.npz")


def chosen(**settings: Any) -> type:
    config: Any = ImageLearning.Config(**settings).recommended("small").config
    return type(config.model)


def test_for_few_images_a_bank_is_computed_from_all_of_them(tmp_path: Path) -> None:
    config: Any
    config, schedule, _ = ImageLearning.Config(data=written(tmp_path, np.arange(60) % 2)).recommended("small")
    assert config.model == ImageBank.Config()
    assert (schedule.settings, config.augmentation) == ({"epochs": 0}, Augmentation.Config())
    task = config.build()
    assert not task.learns_by_steps
    assert (task.num_held_out("valid"), task.num_train + task.num_held_out("test")) == (0, 60)


def test_a_network_is_trained_if_requested_or_if_images_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = written(tmp_path, np.arange(60) % 2)
    requests: tuple[dict[str, Any], ...] = (
        {"model": ITNet.Config()},
        {"augmentation": Augmentation.Config(shift=0.2)},
        {"valid_fraction": 0.3},
        {"patch_size": 2},
        {"stem_depth": 1},
        {"position_frequencies": 8},
        {"position_sigma": 2.0},
    )
    assert [chosen(data=data, **each) for each in requests] == [ITNet.Config] * len(requests)
    config: Any = ImageLearning.Config(data=data)
    assert type(config.recommended("small", epochs=3).config.model) is ITNet.Config
    assert type(config.recommended("base").config.model) is ImageBank.Config
    count = config.build().num_train
    for most, expected in ((count, ImageBank.Config), (count - 1, ITNet.Config)):
        monkeypatch.setattr(image_learning, "MOST_OF_BANK", most)
        assert chosen(data=data) is expected


def test_notes_name_the_settings_that_select_a_network_instead_of_a_bank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = written(tmp_path, np.arange(60) % 2)
    instead = "there is a bank of patches, fitted in closed form and better on up to 400 images"

    def notes(epochs: int | None = None, **settings: Any) -> tuple[str, ...]:
        return ImageLearning.Config(data=data, **settings).recommended("small", epochs=epochs).notes

    assert notes(3) == (f"epochs=3 takes a network; without it {instead}",)
    assert notes(patch_size=2) == (f"patch_size=2 takes a network; without it {instead}",)
    both = f"augmentation and epochs=3 take a network; without them {instead}"
    assert notes(3, augmentation=Augmentation.Config(shift=0.2)) == (both,)
    assert notes() == notes(3, bank=0) == notes(3, model=ITNet.Config()) == ()
    monkeypatch.setattr(image_learning, "MOST_OF_BANK", 40)
    assert notes(3) == ()


def test_large_images_are_scaled_down_and_others_keep_their_size(tmp_path: Path) -> None:
    sizes = list[object]()
    for size in ((37, 41), (130, 65)):
        config: Any = ImageLearning.Config(data=written(tmp_path, np.arange(12) % 2, size)).recommended("small").config
        sizes.append(config.image_size)
    assert sizes == [None, (64, 32)]


@pytest.mark.parametrize("channels", [(), (3,)])
def test_classes_labels_and_numbers_are_predicted(tmp_path: Path, channels: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    bright = draw.random(60)
    for answers in (
        np.where(bright < 0.5, "dark", "light"),
        np.stack([bright < 0.5, draw.random(60) < 0.5], 1),
        bright,
    ):
        first = bright if answers.dtype.kind == "U" else answers
        data = written(tmp_path, first, (12, 14, *channels))
        held = dict(np.load(data))
        np.savez(data, x=held["x"], y=answers)
        task = ImageLearning.Config(data=data, model=FEW).build()
        torch.manual_seed(0)
        model = task.model()
        task.initialise(model, torch.device("cpu"))
        batch = task.held_out_batch("test", torch.arange(task.num_held_out("test")))
        with torch.no_grad():
            outputs = model(batch["images"])
        if answers.dtype.kind == "U":
            assert float((outputs.argmax(1) == batch["targets"]).float().mean()) > 0.8
        elif answers.ndim == 2:
            assert float(((outputs[:, 0] > 0) == (batch["targets"][:, 0] > 0.5)).float().mean()) > 0.8
        else:
            assert float(np.corrcoef(outputs[:, 0], batch["targets"][:, 0])[0, 1]) > 0.9


def test_groups_are_left_out_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(tmp_path, np.arange(40) % 2, groups=np.arange(40) // 4)
    task, seen = ImageLearning.Config(data=data, model=FEW).build(), list[Any]()
    monkeypatch.setattr(ImageBank, "fit", lambda *_, groups: seen.append(groups))
    task.initialise(task.model(), torch.device("cpu"))
    assert len(seen[0].unique()) == task.num_train // 4


def test_settings_without_effect_on_a_bank_are_refused(tmp_path: Path) -> None:
    config = ImageLearning.Config(data=written(tmp_path, np.arange(20) % 2), model=FEW)
    message = "model=ImageBank, which is fitted in closed form"
    with refused(ValueError, f"augmentation has no effect with {message}"):
        dataclasses.replace(config, augmentation=Augmentation.Config(shift=0.1))
    with refused(ValueError, f"valid_fraction=0.3 has no effect with {message}"):
        dataclasses.replace(config, valid_fraction=0.3)
    dataclasses.replace(config, valid_fraction=0.0)
    with refused(ValueError, "stem_depth=1 has no effect with model=ImageBank"):
        dataclasses.replace(config, stem_depth=1)
