import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image as Picture
from torch import Tensor, nn

from fredholm.encoders import ConvolutionalImage
from fredholm.models import ConvNeXt, ITNet, MLPConfig, ViT
from fredholm.models.images.infvit import InfViT
from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import ImageLearning, Task
from fredholm.tasks.images import InMemoryImages, open_images
from fredholm.tasks.images.augmentation import Augmentation
from fredholm.tasks.images.image_learning import DRAWINGS, learn_facts
from fredholm.tasks.targets import ClassAnswers, ClassTarget, LabelTarget, NumberTarget, TargetSettings
from tests.faults.samples import columns
from tests.refusals import refused
from tests.tasks.images.known import labels_of

SMALL = ITNet.Config(embed_dim=8, depth=1, num_heads=2, kernel=MLPConfig(width=4, num_frequencies=2, sigma=1.0))
CONFIG = ImageLearning.Config(data="digits", valid_fraction=0.0, patch_size=4, model=SMALL)

KNOWN = [ImageLearning.Facts, *ImageLearning.parts]


@pytest.fixture(scope="module")
def task() -> ImageLearning:
    return CONFIG.build()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def write_folder(path: Path, sizes: dict[str, int], rng: np.random.Generator) -> Path:
    for name, count in sizes.items():
        (path / name).mkdir(parents=True)
        for i in range(count):
            Picture.fromarray(rng.integers(0, 256, (6, 10, 3), dtype=np.uint8)).save(path / name / f"{i}.png")
    return path


def test_facts_are_the_training_splits(task: ImageLearning) -> None:
    train = open_images("digits").train
    pixels = train.images(torch.arange(len(train))).double().numpy() / 255
    facts = task.facts
    assert facts.target == ClassTarget(names=tuple("0123456789"))
    assert (facts.channels, facts.image_size) == (1, (8, 8))
    assert facts.mean == pytest.approx([pixels.mean()], rel=1e-9)
    assert facts.deviation == pytest.approx([pixels.std()], rel=1e-9)
    assert (task.num_train, task.num_held_out("test")) == (len(train), 1797 - len(train))


def test_channels_are_measured_apart_and_a_constant_one_is_left_unscaled() -> None:
    images = torch.randint(0, 256, (50, 3, 4, 5), dtype=torch.uint8, generator=generator())
    images[:, 1] = 51
    data = InMemoryImages(images, ClassAnswers(names=("a", "b"), values=torch.arange(50) % 2), str)
    facts = learn_facts(data, TargetSettings(), "x")
    pixels = images.double() / 255
    assert facts.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-9)
    deviations = pixels.std((0, 2, 3), correction=0).tolist()
    assert facts.deviation == pytest.approx([deviations[0], 1.0, deviations[2]], rel=1e-9)


def test_an_explicit_patch_size_keeps_the_size_of_images(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a": 12, "b": 12}, np.random.default_rng(0))  # 6 x 10, which patches of 2 divide
    config = ImageLearning.Config(data=str(folder), stem_depth=1)  # a setting of networks alone

    def chosen(patch_size: int | tuple[int, int]) -> tuple[object, object]:
        task: Any = dataclasses.replace(config, patch_size=patch_size).recommended("small")[0]
        return task.patch_size, task.image_size

    assert [chosen(size) for size in (config.patch_size, 1, (6, 5))] == [(2, None), (1, None), ((6, 5), None)]
    for image in folder.rglob("*.png"):
        Picture.open(image).crop((0, 0, 10, 5)).save(image)  # 5 x 10, which no patch size divides
    assert [chosen(size) for size in (config.patch_size, 5)] == [(2, (4, 10)), (5, None)]


def test_batches_are_standardised(task: ImageLearning) -> None:
    every = task.train_batch(torch.arange(task.num_train), generator())
    assert float(every["images"].mean()) == pytest.approx(0, abs=1e-5)
    assert float(every["images"].std(correction=0)) == pytest.approx(1, abs=1e-4)
    batch = task.held_out_batch("test", torch.tensor([3, 5]))
    test = open_images("digits").held_out("test")
    raw = test.images(torch.tensor([3, 5])) / 255
    torch.testing.assert_close(batch["images"], (raw - task.facts.mean[0]) / task.facts.deviation[0])
    assert torch.equal(batch["targets"], labels_of(test, torch.tensor([3, 5])))


def test_training_targets_come_from_the_augmentation() -> None:
    config = dataclasses.replace(CONFIG, augmentation=Augmentation.Config(label_smoothing=0.2))
    augmenting = config.build()
    batch = augmenting.train_batch(torch.arange(4), generator())
    labels = labels_of(open_images("digits").train, torch.arange(4))
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


@pytest.mark.parametrize(
    ("augmentation", "most"), [(Augmentation.Config(shift=0.2), 4), (Augmentation.Config(mixup_alpha=0.4), 8)]
)
def test_a_process_reads_only_its_own_images_and_those_mixed_into_them(
    augmentation: Augmentation.Config, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = dataclasses.replace(CONFIG, augmentation=augmentation).build()
    read, plain = list[Tensor](), type(task.splits.train).images

    def images(part: InMemoryImages, indices: Tensor) -> Tensor:
        read.append(indices)
        return plain(part, indices)

    monkeypatch.setattr(type(task.splits.train), "images", images)
    indices = torch.arange(16).flip(0)
    task.train_batch_rows(indices, slice(8, 12), generator())
    (found,) = read
    assert len(found) <= most
    assert torch.isin(indices[8:12], found).all()


def test_the_loss_is_summed_cross_entropy_and_metrics_are_right(task: ImageLearning) -> None:
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
    task.score(Fixed(), {"images": torch.zeros(2, 1, 8, 8), "targets": labels[:2]}, metrics)
    logits = logits[2:]
    task.score(Fixed(), {"images": torch.zeros(1, 1, 8, 8), "targets": labels[2:]}, metrics)
    assert float(metrics["accuracy"].compute()) == pytest.approx(2 / 3)
    nll = [1 + 9 * np.exp(-2.0), 1 + 9 * np.exp(-3.0), np.exp(1.0) + 9]
    assert float(metrics["loss"].compute()) == pytest.approx(float(np.log(nll).mean()), rel=1e-5)


def test_the_model_fits_the_data(task: ImageLearning) -> None:
    model = task.model()
    assert isinstance(model, ITNet)
    assert model(task.held_out_batch("test", torch.arange(2))["images"]).shape == (2, 10)


def test_any_model_of_signals_trains_and_is_stored_in_a_run() -> None:
    for small in (SMALL, InfViT.Config(embed_dim=8, depth=2, num_heads=2, attention="pure")):
        config = dataclasses.replace(CONFIG, model=small)
        kept = from_json(
            json.loads(json.dumps(to_json(config))),
            Task.Config,
            [ImageLearning.Config, *ImageLearning.parts],
        )
        assert kept == config
        built = kept.build()
        model = built.model()
        assert type(model).__name__ == type(small).__qualname__.partition(".")[0]
        built.loss(model, built.train_batch(torch.arange(3), generator())).backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad and p.numel())


def test_a_trained_model_is_evaluated_at_another_resolution(task: ImageLearning) -> None:
    larger = dataclasses.replace(CONFIG, image_size=(16, 12)).build(task.facts)
    batch = larger.held_out_batch("test", torch.arange(2))
    assert batch["images"].shape == (2, 1, 16, 12)
    model = task.model()
    trained = larger.model()
    trained.load_state_dict(model.state_dict())
    assert trained(batch["images"]).shape == (2, 10)


def test_images_of_a_folder_in_colour_with_a_rectangular_patch(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "data", {"cat": 6, "dog": 7}, np.random.default_rng(0))
    config = ImageLearning.Config(data=str(path), patch_size=(3, 5), model=SMALL, valid_fraction=0.0)
    folder = config.build()
    assert (folder.facts.target.names, folder.facts.channels, folder.facts.image_size) == (("cat", "dog"), 3, (6, 10))
    batch = folder.train_batch(torch.arange(3), generator())
    assert folder.model()(batch["images"]).shape == (3, 2)


def test_prediction_needs_no_data(tmp_path: Path, task: ImageLearning) -> None:
    facts = from_json(
        json.loads(json.dumps(to_json(task.facts))), Task.Facts, [ImageLearning.Facts, *ImageLearning.parts]
    )
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
    table = tmp_path / "a.parquet"
    table.write_bytes(columns(".parquet", None, image=[file.read_bytes() for file in files]))
    found = moved.predict(model, [table, files[1]], torch.device("cpu"))
    assert [row["file"] for row in found] == [*(f"{table}[{i}]" for i in range(3)), str(files[1])]
    assert [row["probability"] for row in found[:3]] == [row["probability"] for row in rows]
    with pytest.raises(ValueError, match="no data called"):
        moved.num_train  # noqa: B018 - opens the data


def test_data_that_changed_since_training_are_refused(tmp_path: Path, task: ImageLearning) -> None:
    path = write_folder(tmp_path / "data", {"cat": 4, "dog": 4}, np.random.default_rng(0))
    other = dataclasses.replace(CONFIG, data=str(path)).build(task.facts)
    with pytest.raises(ValueError, match=r"^the channels of .* are 3; the run was made with 1$"):
        other.num_held_out("test")


def write_arrays(path: Path, y: np.ndarray) -> Path:
    np.savez(path, x=np.random.default_rng(0).integers(0, 255, (len(y), 8, 8), dtype=np.uint8), y=y)
    return path


@pytest.mark.parametrize(
    ("y", "settings", "kind", "width"),
    [
        (np.arange(40) % 3, {"class_weights": "balanced"}, ClassTarget, 3),
        (np.arange(80).reshape(40, 2) % 3 == 0, {"objective": "auroc"}, LabelTarget, 2),
        (np.arange(80).reshape(40, 2) / 7, {}, NumberTarget, 2),
        (np.arange(40), {"target": "number", "quantiles": (0.1, 0.5, 0.9)}, NumberTarget, 3),
    ],
)
def test_labels_and_numbers_are_learnt_scored_and_predicted(
    tmp_path: Path, y: np.ndarray, settings: dict[str, Any], kind: type, width: int
) -> None:
    path = write_arrays(tmp_path / "set.npz", y)
    built = ImageLearning.Config(data=str(path), patch_size=4, model=SMALL, **settings).build()
    assert isinstance(built.target, kind)
    model = built.model().eval()
    batch = built.held_out_batch("test", torch.arange(5))
    assert model(batch["images"]).shape == (5, width)
    metrics = built.metrics()
    built.score(model, batch, metrics)
    assert built.objective.metric in metrics
    built.loss(model, built.train_batch(torch.arange(7), generator())).backward()
    rows = built.predict(model, [path], torch.device("cpu"))
    assert len(rows) == 40
    again = built.config.build(from_json(json.loads(json.dumps(to_json(built.facts))), Task.Facts, KNOWN))
    assert [list(row.values()) for row in again.predict(model, [path], torch.device("cpu"))] == [
        list(row.values()) for row in rows
    ]
    truth = built.splits.held_out("test").answers
    assert truth is not None
    torch.testing.assert_close(batch["targets"], built.target.targets(truth.values[:5]))


def test_recommended_settings_for_numbers_do_not_smooth_labels(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "set.npz", np.arange(40) / 7)
    recommended = ImageLearning.Config(data=str(path), stem_depth=1).recommended("small").config
    assert isinstance(recommended, ImageLearning.Config)
    assert recommended.augmentation == dataclasses.replace(DRAWINGS, label_smoothing=0.0)
    with refused(ValueError, "label_smoothing is 0.1; numbers have no shares of an image"):
        dataclasses.replace(recommended, augmentation=DRAWINGS).build()


def test_answers_that_changed_since_training_are_refused(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "set.npz", np.arange(40) % 3)
    made = ImageLearning.Config(data=str(path), patch_size=4, model=SMALL).build()
    write_arrays(path, np.arange(40) % 4)
    with refused(ValueError, "the targets of", "are 0, 1, 2, 3; the run was made with the classes 0, 1, 2"):
        made.config.build(made.facts).num_train  # noqa: B018 - opens the data


def test_groups_stay_together_and_the_newest_are_tested(tmp_path: Path) -> None:
    groups, times = np.arange(40) // 4, np.arange(40) * 7 % 40
    pixels = np.zeros((40, 8, 8), np.uint8)
    np.savez(tmp_path / "grouped.npz", x=pixels, y=np.arange(40) // 4 % 2, groups=groups)
    config = ImageLearning.Config(data=str(tmp_path / "grouped.npz"), test_fraction=0.4, valid_fraction=0.2)
    splits = config.build().splits
    own = [set(part.keys.groups or ()) for part in (splits.train, splits.held_out("valid"), splits.held_out("test"))]
    assert sum(map(len, own)) == 10
    assert set().union(*own) == set(map(str, range(10)))
    np.savez(tmp_path / "timed.npz", x=pixels, y=np.arange(40) % 2, example_times=times)
    splits = ImageLearning.Config(data=str(tmp_path / "timed.npz"), split_by="time").build().splits
    newest = splits.held_out("test").keys.times
    assert newest is not None
    assert sorted(newest.tolist()) == list(range(32, 40))


def test_a_class_missing_from_the_test_split_is_reported(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", {"a": 9, "b": 1}, np.random.default_rng(0))
    with pytest.warns(UserWarning, match="set: no image of 'b' is in the test set; add images of it"):
        found = ImageLearning.Config(data=str(folder), valid_fraction=0.0).build().splits
    assert labels_of(found.train, torch.arange(len(found.train))).bincount().tolist() == [7, 1]
    pixels = np.zeros((20, 4, 4), np.uint8)
    np.savez(
        tmp_path / "from_1.npz", x_train=pixels, y_train=np.arange(20) % 2 + 1, x_test=pixels[:4], y_test=[1, 2, 1, 2]
    )
    with pytest.warns(UserWarning, match=r"no image of '0' is in the test set \(labels count from 0\); add"):
        _ = ImageLearning.Config(data=str(tmp_path / "from_1.npz"), valid_fraction=0.0).build().splits


def test_split_settings_take_effect_or_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", {"a": 10, "b": 10}, np.random.default_rng(0))

    def tested(**settings: Any) -> set[str]:
        test = ImageLearning.Config(data=str(folder), **settings).build().held_out("test")
        return {test.name(i) for i in range(len(test))}

    assert len(tested(test_fraction=0.5)) == 10
    assert len(tested()) == 4
    assert tested() != tested(split_seed=1)
    write_folder(tmp_path / "few", {"a": 1, "b": 1}, np.random.default_rng(0))
    cases: list[tuple[object, dict[str, Any], str]] = [
        (tmp_path / "few", {}, "few: 2 examples in 2 classes leave none to hold out"),
        ("digits", {"test_fraction": 0.3}, "test_fraction=0.3 has no effect with digits, which has its own split"),
        (folder, {"split_by": "time"}, "set: the data have no times"),
    ]
    for data, settings, message in cases:
        with refused(ValueError, message):
            ImageLearning.Config(data=str(data), **settings).build()


def test_a_model_with_outputs_at_every_point_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^model\.pool is 'none'; leave it out, since an image has one"):
        ImageLearning.Config(data="digits", model=ITNet.Config(pool="none"))


def test_facts_of_another_task_and_a_single_class_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^the facts are of Task\.Facts, not of images$"):
        CONFIG.build(Task.Facts())
    np.savez(tmp_path / "one.npz", x=np.zeros((9, 4, 4), np.uint8), y=np.zeros(9, int))
    with pytest.raises(ValueError, match=r"one\.npz has the classes \['0'\]; expected at least 2$"):
        ImageLearning.Config(data=str(tmp_path / "one.npz")).build()


def test_missing_torchmetrics_gives_an_install_hint(task: ImageLearning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "fredholm.tasks.mean_metrics", raising=False)
    with pytest.raises(ImportError, match=r'pip install "fredholm\[train\]"'):
        task.metrics()


def test_a_trained_model_is_read_back_without_the_packages_of_its_augmentation(
    task: ImageLearning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    config = dataclasses.replace(CONFIG, augmentation=dataclasses.replace(CONFIG.augmentation, shift=0.1))
    same = config.build(task.facts)
    assert same.held_out_batch("test", torch.arange(2))["images"].shape[0] == 2
    with pytest.raises(ImportError, match=r'pip install "fredholm\[augment\]"'):
        same.check_packages()


def test_a_stem_reads_images_by_convolutions() -> None:
    task = dataclasses.replace(CONFIG, stem_depth=2, position_frequencies=3).build()
    model: Any = task.model()
    stages, frequencies = model.encoder.stages, model.encoder.frequencies
    assert isinstance(model.encoder, ConvolutionalImage)
    assert ([len(stage.stencils) for stage in stages], frequencies.shape) == ([2, 2], (3, 2))
    larger = task.held_out_batch("test", torch.arange(2))["images"].repeat(1, 1, 2, 1)
    assert model(larger).shape == (2, 10)  # like patches, a stem takes other sizes
    recommended, *_ = ImageLearning.Config(data="digits").recommended("base")
    assert isinstance(recommended, ImageLearning.Config)
    assert recommended.stem_depth == 2


PIXELS = ViT.Config(image_size=(8, 8), patch_size=(4, 4), channels=1, embed_dim=8, depth=1, num_heads=2)
STAGES = ConvNeXt.Config(channels=1, depths=(1, 1), dims=(4, 6), patch_size=2)


@pytest.mark.parametrize("model", [PIXELS, STAGES])
def test_models_of_pixels(model: Any) -> None:
    task = ImageLearning.Config(data="digits", model=model, mean=(0.3,), deviation=(0.2,)).build()
    batch = task.held_out_batch("test", torch.arange(3))
    pixels = task.held_out("test").images(torch.arange(3)) / 255
    torch.testing.assert_close(batch["images"], (pixels - 0.3) / 0.2)
    assert task.model()(batch["images"]).shape == (3, 10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": dataclasses.replace(PIXELS, image_size=(4, 8))}, "image_size=4 8, and the images have 8 8"),
        ({"model": dataclasses.replace(PIXELS, channels=3)}, "channels=3, and the images have 1"),
        ({"model": dataclasses.replace(PIXELS, num_classes=5)}, "num_classes=5 has no effect"),
        ({"model": dataclasses.replace(STAGES, num_classes=5)}, "num_classes=5 has no effect"),
        ({"model": dataclasses.replace(STAGES, patch_size=8)}, "pass an image_size of at least 16"),
        ({"stem_depth": -1}, "images: stem_depth must be at least 0; got -1"),
        ({"model": PIXELS, "stem_depth": 1}, "stem_depth=1 has no effect with model=ViT"),
        ({"model": PIXELS, "mean": (0.5,)}, "mean=(0.5,) and deviation=() must be a number each"),
        ({"model": PIXELS, "mean": (0.5,), "deviation": (0.0,)}, "deviations above 0"),
    ],
)
def test_settings_that_a_model_of_pixels_does_not_take_are_refused(settings: dict[str, Any], message: str) -> None:
    with refused(ValueError, message):
        ImageLearning.Config(data="digits", **settings).build().model()


def test_moments_for_one_channel_or_from_another_run_are_refused(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x=pixels, y=np.arange(20) % 2)
    with refused(ValueError, "mean=(0.5,) is for images of 1 channel, and these have 3"):
        ImageLearning.Config(data=str(tmp_path / "data.npz"), mean=(0.5,), deviation=(0.2,)).build()
    facts = ImageLearning.Config(data="digits").build().facts
    with refused(ValueError, "deviation is (0.2,); the run was made with"):
        ImageLearning.Config(data="digits", mean=facts.mean, deviation=(0.2,)).build(facts)


def test_a_new_vit_is_sized_by_the_images() -> None:
    found = ImageLearning.Config(data="digits", model=ViT.Config()).recommended("small")
    config: Any = found.config
    assert (config.model.image_size, config.model.patch_size, config.model.channels) == ((8, 8), (2, 2), 1)
    assert (config.model.embed_dim, config.model.depth, config.patch_size) == (64, 1, 16)
    assert found.schedule.learning_rate == 2e-3
    wide = ImageLearning.Config(data="digits", model=ViT.Config(embed_dim=256, num_heads=4)).recommended("small")
    assert wide.schedule.learning_rate == pytest.approx(5e-4)
