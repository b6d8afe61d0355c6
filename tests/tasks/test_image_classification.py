import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from torch import Tensor, nn

from fredholm.models import ITNet, MLPConfig
from fredholm.models.infvit import InfViT
from fredholm.tasks import ImageClassification, Task
from fredholm.tasks.augmentation import Augmentation
from fredholm.tasks.image_classification import measure
from fredholm.tasks.images import InMemoryImages, open_images
from fredholm.training.config_json import from_json, to_json

SMALL = ITNet.Config(embed_dim=8, depth=1, num_heads=2, kernel=MLPConfig(width=4, num_frequencies=2, sigma=1.0))
CONFIG = ImageClassification.Config(data="digits", valid_fraction=0.0, patch_size=4, model=SMALL)


@pytest.fixture(scope="module")
def task() -> ImageClassification:
    return CONFIG.build()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def write_folder(path: Path, sizes: dict[str, int], rng: np.random.Generator) -> Path:
    for name, count in sizes.items():
        (path / name).mkdir(parents=True)
        for i in range(count):
            Picture.fromarray(rng.integers(0, 256, (6, 10, 3), dtype=np.uint8)).save(path / name / f"{i}.png")
    return path


def test_facts_are_the_training_splits(task: ImageClassification) -> None:
    train = open_images("digits").train
    pixels = train.images(torch.arange(len(train))).double().numpy() / 255
    facts = task.facts
    assert facts.classes == tuple("0123456789")
    assert (facts.channels, facts.image_size) == (1, (8, 8))
    assert facts.mean == pytest.approx([pixels.mean()], rel=1e-9)
    assert facts.deviation == pytest.approx([pixels.std()], rel=1e-9)
    assert (task.num_train, task.num_held_out("test")) == (len(train), 1797 - len(train))


def test_channels_are_measured_apart_and_a_constant_one_is_left_unscaled() -> None:
    images = torch.randint(0, 256, (50, 3, 4, 5), dtype=torch.uint8, generator=generator())
    images[:, 1] = 51
    data = InMemoryImages(images, torch.arange(50) % 2, ("a", "b"), str)
    facts = measure(data)
    pixels = images.double() / 255
    assert facts.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-9)
    deviations = pixels.std((0, 2, 3), correction=0).tolist()
    assert facts.deviation == pytest.approx([deviations[0], 1.0, deviations[2]], rel=1e-9)


def test_patches_that_were_given_keep_the_size_of_images(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a": 12, "b": 12}, np.random.default_rng(0))  # 6 x 10, which suits patches of 2
    config = ImageClassification.Config(data=str(folder))

    def chosen(patch_size: int | tuple[int, int]) -> tuple[object, object]:
        task: Any = dataclasses.replace(config, patch_size=patch_size).suited("small")[0]
        return task.patch_size, task.image_size

    assert [chosen(size) for size in (config.patch_size, 1, (6, 5))] == [(2, None), (1, None), ((6, 5), None)]
    for image in folder.rglob("*.png"):
        Picture.open(image).crop((0, 0, 10, 5)).save(image)  # 5 x 10: no patch suits these
    assert [chosen(size) for size in (config.patch_size, 5)] == [(2, (4, 10)), (5, None)]


def test_batches_are_standardised(task: ImageClassification) -> None:
    every = task.train_batch(torch.arange(task.num_train), generator())
    assert float(every["images"].mean()) == pytest.approx(0, abs=1e-5)
    assert float(every["images"].std(correction=0)) == pytest.approx(1, abs=1e-4)
    batch = task.held_out_batch("test", torch.tensor([3, 5]))
    test = open_images("digits").held_out("test")
    raw = test.images(torch.tensor([3, 5])) / 255
    torch.testing.assert_close(batch["images"], (raw - task.facts.mean[0]) / task.facts.deviation[0])
    assert torch.equal(batch["labels"], test.labels(torch.tensor([3, 5])))


def test_training_targets_are_the_augmentations() -> None:
    config = dataclasses.replace(CONFIG, augmentation=Augmentation.Config(label_smoothing=0.2))
    augmenting = config.build()
    batch = augmenting.train_batch(torch.arange(4), generator())
    labels = open_images("digits").train.labels(torch.arange(4))
    torch.testing.assert_close(batch["targets"], 0.8 * F.one_hot(labels, 10) + 0.02)


def test_augmentation_draws_from_the_given_generator_alone() -> None:
    config = dataclasses.replace(CONFIG, augmentation=Augmentation.Config(shift=0.2, mixup_alpha=0.4))
    augmenting = config.build()
    indices = torch.arange(16)
    torch.manual_seed(1)
    first = augmenting.train_batch(indices, generator())
    torch.manual_seed(2)
    second = augmenting.train_batch(indices, generator())
    other = augmenting.train_batch(indices, torch.Generator().manual_seed(5))
    for name in ("images", "targets"):
        assert torch.equal(first[name], second[name])
        assert not torch.equal(first[name], other[name])


def test_the_loss_is_the_sum_of_cross_entropies_and_the_metrics_are_right(task: ImageClassification) -> None:
    logits = torch.tensor([[2.0, 0, 0] + [0] * 7, [0, 3.0, 0] + [0] * 7, [0, 0, 1.0] + [0] * 7])

    class Fixed(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return logits[: len(images)]

    targets = torch.rand(3, 10).softmax(-1)
    expected = -(targets * logits.log_softmax(-1)).sum()
    batch = {"images": torch.zeros(3, 1, 8, 8), "targets": targets}
    torch.testing.assert_close(task.loss(Fixed(), batch), expected)
    assert task.num_targets(batch) == 3

    metrics = task.metrics()
    labels = torch.tensor([0, 1, 9])
    task.score(Fixed(), {"images": torch.zeros(2, 1, 8, 8), "labels": labels[:2]}, metrics)
    logits = logits[2:]
    task.score(Fixed(), {"images": torch.zeros(1, 1, 8, 8), "labels": labels[2:]}, metrics)
    assert float(metrics["accuracy"].compute()) == pytest.approx(2 / 3)
    nll = [1 + 9 * np.exp(-2.0), 1 + 9 * np.exp(-3.0), np.exp(1.0) + 9]
    assert float(metrics["loss"].compute()) == pytest.approx(float(np.log(nll).mean()), rel=1e-5)


def test_the_model_fits_the_data(task: ImageClassification) -> None:
    model = task.model()
    assert isinstance(model, ITNet)
    assert model(task.held_out_batch("test", torch.arange(2))["images"]).shape == (2, 10)


def test_any_model_of_signals_is_kept_in_a_run_and_trains() -> None:
    for small in (SMALL, InfViT.Config(embed_dim=8, depth=2, num_heads=2, attention="pure")):
        config = dataclasses.replace(CONFIG, model=small)
        kept = from_json(
            json.loads(json.dumps(to_json(config))),
            Task.Config,
            [ImageClassification.Config, *ImageClassification.parts],
        )
        assert kept == config
        built = kept.build()
        model = built.model()
        assert type(model).__name__ == type(small).__qualname__.partition(".")[0]
        built.loss(model, built.train_batch(torch.arange(3), generator())).backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad and p.numel())


def test_a_trained_model_is_measured_at_another_resolution(task: ImageClassification) -> None:
    larger = dataclasses.replace(CONFIG, image_size=(16, 12)).build(task.facts)
    batch = larger.held_out_batch("test", torch.arange(2))
    assert batch["images"].shape == (2, 1, 16, 12)
    model = task.model()
    trained = larger.model()
    trained.load_state_dict(model.state_dict())
    assert trained(batch["images"]).shape == (2, 10)


def test_images_of_a_folder_in_colour_with_a_rectangular_patch(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "data", {"cat": 6, "dog": 7}, np.random.default_rng(0))
    config = ImageClassification.Config(data=str(path), patch_size=(3, 5), model=SMALL, valid_fraction=0.0)
    folder = config.build()
    assert (folder.facts.classes, folder.facts.channels, folder.facts.image_size) == (("cat", "dog"), 3, (6, 10))
    batch = folder.train_batch(torch.arange(3), generator())
    assert folder.model()(batch["images"]).shape == (3, 2)


def test_prediction_needs_no_data(tmp_path: Path, task: ImageClassification) -> None:
    facts = from_json(json.loads(json.dumps(to_json(task.facts))), Task.Facts, [ImageClassification.Facts])
    moved = dataclasses.replace(CONFIG, data=str(tmp_path / "gone")).build(facts)
    torch.manual_seed(0)
    model = moved.model().eval()
    test = open_images("digits").held_out("test")
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for i, file in enumerate(files):
        Picture.fromarray(test.images(torch.tensor([i]))[0, 0].numpy()).save(file)
    rows = moved.predict(model, files, torch.device("cpu"))
    probabilities = model(task.held_out_batch("test", torch.arange(3))["images"]).softmax(-1)
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert [row["class"] for row in rows] == [str(int(i)) for i in probabilities.argmax(-1)]
    assert [row["probability"] for row in rows] == pytest.approx(probabilities.max(-1).values.tolist(), rel=1e-5)
    with pytest.raises(ValueError, match="no data called"):
        moved.num_train  # noqa: B018 - opens the data


def test_data_that_changed_since_training_are_refused(tmp_path: Path, task: ImageClassification) -> None:
    path = write_folder(tmp_path / "data", {"cat": 4, "dog": 4}, np.random.default_rng(0))
    other = dataclasses.replace(CONFIG, data=str(path)).build(task.facts)
    with pytest.raises(ValueError, match=r"^the classes of .* are \('cat', 'dog'\); the run was made with \('0', "):
        other.num_held_out("test")


def test_a_model_that_answers_at_every_point_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^model\.pool is 'none'; leave it out, since an image has one"):
        ImageClassification.Config(data="digits", model=ITNet.Config(pool="none"))


def test_facts_of_another_task_and_a_single_class_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^the facts are of Task\.Facts, not of image classification$"):
        CONFIG.build(Task.Facts())
    facts: dict[str, Any] = {"channels": 1, "image_size": (8, 8), "mean": (0.5,), "deviation": (0.5,)}
    with pytest.raises(ValueError, match=r"^digits has the classes \['x'\]; expected at least 2$"):
        CONFIG.build(ImageClassification.Facts(classes=("x",), **facts))


def test_without_torchmetrics_the_error_says_what_to_install(
    task: ImageClassification, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchmetrics", None)
    with pytest.raises(ImportError, match=r'pip install "fredholm\[train\]"'):
        task.metrics()
