"""A bank of patches beside a network: its training data, its share, and when there is none."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fredholm import from_pretrained
from fredholm.models import BlendedImages, ImageBank, ITNet, ViT
from fredholm.tasks import ImageLearning
from fredholm.tasks.blending import SHARES
from fredholm.tasks.images import image_learning
from fredholm.tasks.targets import NumberTarget
from fredholm.training import Run, TaskModel, TrainingConfig, train
from fredholm.training.scoring import score_split
from tests.refusals import refused

CPU = torch.device("cpu")
NETWORK = ViT.Config(image_size=(12, 14), patch_size=(6, 7), channels=1, embed_dim=4, depth=1, num_heads=1)
PIXELS: dict[str, Any] = {"patch_size": 16, "position_frequencies": 64, "position_sigma": 10.0}
DRAWN = np.random.default_rng(1).random(60)
BRIGHT = np.where(DRAWN < 0.5, 0.6 * DRAWN, 0.4 + 0.6 * DRAWN)
KINDS: dict[str, np.ndarray] = {
    "class": np.where(BRIGHT < 0.5, "dark", "light"),
    "labels": np.stack([BRIGHT < 0.5, BRIGHT > 0.15], 1),
    "number": BRIGHT,
}


def written(folder: Path, answers: np.ndarray = KINDS["class"], size: tuple[int, int] = (12, 14), **more: Any) -> str:
    """Images with a stripe whose brightness is given by BRIGHT."""
    pixels = np.random.default_rng(0).integers(0, 20, (len(answers), *size))
    pixels[:, 4:8] += (200 * BRIGHT[: len(answers)]).reshape(-1, 1, 1).astype(int)
    np.savez(folder / "set.npz", x=pixels.astype(np.uint8), y=answers, **more)
    return str(folder / "set.npz")


@pytest.fixture(autouse=True)
def few_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few filters, so that a bank is fitted quickly."""
    small = ImageBank.Config(num_filters=4)
    monkeypatch.setattr(
        ImageBank.Config, "build", lambda _, size, channels, outputs: ImageBank(size, channels, outputs, small)
    )


def task_of(data: str, **settings: Any) -> ImageLearning:
    given = {"data": data, "model": NETWORK, "bank": 60, "valid_fraction": 0.3, **PIXELS, **settings}
    return ImageLearning.Config(**given).build()


def fitted(task: ImageLearning) -> BlendedImages:
    torch.manual_seed(0)
    model = task.model()
    assert isinstance(model, BlendedImages)
    task.initialise(model, CPU)
    return model.eval()


def scores(task: ImageLearning, model: torch.nn.Module) -> dict[str, float]:
    return score_split(task, "valid", model, batch_size=5, device=CPU, dtype=torch.float32)


def settle(task: ImageLearning, model: BlendedImages) -> None:
    @torch.no_grad()
    def measure(score: Any, metrics: Any) -> Mapping[str, float]:
        for indices in torch.arange(task.num_held_out("valid")).split(5):
            score(model, task.held_out_batch("valid", indices), metrics)
        return {name: float(metric.compute()) for name, metric in metrics.items()}

    task.choose_by_validation(model, measure)


def replace_forward(part: Any, outputs: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces the forward pass of a part of a model; returns a list of the batch sizes it is called with."""
    sizes = list[int]()

    def forward(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return outputs(images)

    monkeypatch.setattr(part, "forward", forward)
    return sizes


def test_a_run_has_a_bank_where_images_are_neither_few_nor_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = written(tmp_path)

    def banked(**settings: Any) -> int | None:
        config: Any = ImageLearning.Config(data=data, **settings).recommended("small").config
        assert config.model.learns_by_steps
        return config.bank

    assert banked(bank=0) == 0  # few images, for which a bank alone would be used
    assert banked(stem_depth=1) == 0
    monkeypatch.setattr(image_learning, "MOST_OF_BANK", 40)
    count = ImageLearning.Config(data=data).build().num_train
    assert count > 40
    assert banked() == banked(model=NETWORK) == count
    assert banked(bank=0) == banked(objective="loss") == banked(stem_depth=1, valid_fraction=0.0) == 0
    assert banked(bank=20) == 20
    assert banked(image_size=(24, 28)) == count
    monkeypatch.setattr(image_learning, "MOST_VALUES", 12 * 14 * 30)
    assert (banked(), banked(image_size=(24, 28))) == (30, 7)
    monkeypatch.setattr(image_learning, "MOST_BESIDE", 9)
    assert banked() == 9
    for most, expected in ((count, 9), (count - 1, 0)):
        monkeypatch.setattr(image_learning, "MOST_WITH_BANK", most)
        assert banked() == expected
    stack = ImageLearning.Config(data=data, bank=20).with_stack(ITNet.Config())
    assert stack.bank == 0, "kernels are compared without a bank"


def test_a_bank_is_fitted_to_training_images_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    monkeypatch.setattr(ImageBank, "fit", lambda _, batches, target, groups: seen.append((batches, groups)))
    task = task_of(written(tmp_path, groups=np.arange(60) // 2), bank=20)
    fitted(task)
    ((batches, groups),) = seen
    images = torch.cat([images for images, _ in batches])
    known = task._standardise(task.splits.train.images(torch.arange(task.num_train)) / 255)
    place = (images[:, None] == known).flatten(2).all(2).long().argmax(1)
    assert torch.equal(known[place], images)
    assert len(place.unique()) == 20 < task.num_train
    numbers = task.splits.train.marks.group_numbers()
    assert numbers is not None
    assert torch.equal(groups, numbers[place])
    assert torch.equal(torch.cat([answers for _, answers in batches]), task._targets(task.splits.train, place))


@pytest.mark.parametrize("kind", KINDS)
def test_the_share_with_the_smallest_loss_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    task = task_of(written(tmp_path, KINDS[kind]))
    model = fitted(task)
    bright = task._deviation * 255 / 200

    def true(images: Tensor) -> Tensor:
        """Nearly perfect outputs, computed from the images, in the units of the outputs."""
        value = ((images + task._mean / task._deviation) * bright)[:, 0, 4:8].mean((1, 2))[:, None] - 0.05
        if kind == "number":
            target = task.facts.target
            assert isinstance(target, NumberTarget)
            return (value - torch.tensor(target.mean)) / torch.tensor(target.deviation)
        sure = 20 * (value - torch.tensor([0.5, 0.15]))
        return torch.cat([0 * value, 20 * (value - 0.5)], 1) if kind == "class" else sure * torch.tensor([-1.0, 1.0])

    for parts, best in (((1.0, -1.0), 0.0), ((-1.0, 1.0), 1.0), ((-1.0, 3.0), 0.5 if kind == "number" else 1.0)):
        for part, factor in zip((model.fitted, model.network), parts, strict=True):
            replace_forward(part, lambda images, factor=factor: factor * true(images), monkeypatch)
        task = task.config.build()
        settle(task, model)
        settled, found = float(model.share), dict[float, float]()
        for share in SHARES:
            batch = {**task.held_out_batch("valid", torch.arange(task.num_held_out("valid")))}
            found[share] = float(task.target.losses(model.with_share(share)(batch["images"]), batch["targets"]).mean())
        assert settled == min(found, key=lambda share: found[share]) == best


def test_training_and_the_loss_use_the_network_alone(tmp_path: Path) -> None:
    task = task_of(written(tmp_path))
    model = fitted(task)
    model.share.fill_(0.25)
    found, alone = scores(task, model), scores(task, model.network)
    assert found["loss"] == pytest.approx(alone["loss"])
    assert found["accuracy"] > 0.9 > 0.7 > alone["accuracy"]
    batch = task.train_batch(torch.arange(4), torch.Generator())
    loss = task.loss(model.train(), batch)
    torch.testing.assert_close(loss, task.loss(model.network, batch))
    loss.backward()
    learnt = {name.split(".")[0] for name, each in model.named_parameters() if each.requires_grad}
    assert learnt == {"network"}


def test_scored_outputs_equal_predictions(tmp_path: Path) -> None:
    task = task_of(written(tmp_path, KINDS["number"]))
    model = fitted(task)
    batch = task.held_out_batch("valid", torch.arange(7))
    for share in SHARES:
        model.share.fill_(share)
        with torch.no_grad():
            ((outputs, learnt, _),) = task._scored(model, batch)
        torch.testing.assert_close(outputs, model(batch["images"]))
        torch.testing.assert_close(learnt, model.network(batch["images"]))
        parts = model.network(batch["images"]), model.fitted(batch["images"])
        torch.testing.assert_close(outputs, share * parts[0] + (1 - share) * parts[1])


def test_a_bank_is_computed_once_for_the_validation_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(written(tmp_path))
    model, count = fitted(task), task.num_held_out("valid")
    sizes = replace_forward(model.fitted, model.fitted.forward, monkeypatch)
    model.share.fill_(0.5)
    first = scores(task, model)
    settle(task, model)
    model.share.fill_(0.5)
    assert scores(task, model) == first
    assert sum(sizes) == count
    score_split(task, "test", model, batch_size=5, device=CPU, dtype=torch.float32)
    assert sum(sizes) == count + task.num_held_out("test")
    other = fitted(task)
    with torch.no_grad():
        other.fitted.head.weight.mul_(-1)
        other.fitted.head.bias.mul_(-1)
    other.share.zero_()
    assert scores(task, other)["accuracy"] < 0.2 < 0.8 < first["accuracy"], "another bank has other scores"
    batch = task.held_out_batch("valid", torch.arange(3))
    batch["images"].requires_grad_()
    ((outputs, _, _),) = task._scored(other, batch)
    assert torch.autograd.grad(outputs[:, 0].sum(), batch["images"])[0].any(), "gradients flow"


def test_a_bank_that_overflows_gets_no_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(written(tmp_path))
    model = fitted(task)
    replace_forward(model.fitted, lambda images: images.new_full((len(images), 2), torch.nan), monkeypatch)
    settle(task, model)
    assert float(model.share) == 1
    assert scores(task, model)["accuracy"] == scores(task, model.network)["accuracy"]


def test_a_run_predicts_what_its_bank_has_learnt(tmp_path: Path) -> None:
    config = task_of(written(tmp_path)).config
    run = Run.Config(task=config, training=TrainingConfig(epochs=1, learning_rate=1e-6, tensorboard=False))
    result = train(run, tmp_path / "run")
    assert result.metrics["accuracy"] > 0.9
    model = Run(tmp_path / "run").model()
    assert isinstance(model, BlendedImages)
    assert float(model.share) < 1
    found = list[list[float]]()
    for dtype in (torch.float32, torch.bfloat16):
        read = from_pretrained(tmp_path / "run", dtype=dtype)
        assert isinstance(read, TaskModel)
        assert isinstance(read.network, BlendedImages)
        assert not any(each.requires_grad for each in read.network.fitted.parameters())
        assert all(each.requires_grad for each in read.network.network.parameters())
        found.append([row.probabilities["dark"] for row in read.predict([config.data])])
    np.testing.assert_allclose(found[0], found[1], atol=0.05)
    assert np.ptp(found[0]) > 0.5


def test_runs_start_from_networks_beside_banks_and_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = task_of(written(tmp_path)).config
    training = TrainingConfig(epochs=1, learning_rate=1e-9, final_learning_rate=0.0, tensorboard=False)
    network: dict[str, dict[str, Tensor]] = {}
    for name, bank, init in (("with", 60, None), ("without", 0, "with"), ("again", 60, "without")):
        task = dataclasses.replace(config, bank=bank)
        given = None if init is None else str(tmp_path / init)
        train(Run.Config(task=task, training=training, seed=len(name), init=given), tmp_path / name)
        model = Run(tmp_path / name).model()
        network[name] = (model.network if isinstance(model, BlendedImages) else model).state_dict()
    assert "new here" not in capsys.readouterr().out
    for name in ("without", "again"):
        for tensor, value in network["with"].items():
            torch.testing.assert_close(network[name][tensor], value, atol=1e-5, rtol=1e-5)


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    data = written(tmp_path)
    with refused(ValueError, "bank=5 has no effect with model=ImageBank, which is fitted in closed form"):
        ImageLearning.Config(data=data, model=ImageBank.Config(), bank=5)
    with refused(ValueError, "images: bank must be at least 2; got 1"):
        ImageLearning.Config(data=data, bank=1)
    with refused(ValueError, "objective='loss' is of the network alone, beside bank=5; leave one out"):
        ImageLearning.Config(data=data, bank=5, objective="loss")
    with refused(ValueError, "bank is 60, whose share is chosen by a validation split, and there is none"):
        task_of(data, valid_fraction=0.0)
