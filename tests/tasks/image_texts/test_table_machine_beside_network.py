"""A table machine beside a network of images with text: its training data, its share, and when there is none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.models import BlendedImageTexts, ImageBank, ITNet, MLPConfig, TableMachine
from fredholm.tasks import ImageTextLearning
from fredholm.tasks.image_texts import image_text_learning
from fredholm.tasks.text import Tokens
from fredholm.training import Run, TrainingConfig, train
from tests.refusals import refused

SMALL = ITNet.Config(embed_dim=4, depth=1, num_heads=1, kernel=MLPConfig(width=2, num_frequencies=2))


def written(folder: Path, **more: Any) -> str:
    """Texts with a word that gives the class, and two uninformative images each."""
    draw, targets = np.random.default_rng(0), np.arange(60) % 2
    texts = [f"number {draw.integers(9)} is {'good' if each else 'bad'}" for each in targets]
    np.savez(
        folder / "a.npz",
        images=draw.integers(0, 256, (60, 2, 6, 5, 1), dtype=np.uint8),
        text=texts,
        label=targets,
        **more,
    )
    return str(folder / "a.npz")


def config(data: str, **settings: Any) -> ImageTextLearning.Config:
    given = {"model": SMALL, "patch_size": (2, 5), "context": 16, "position_frequencies": 2, "valid_fraction": 0.3}
    return ImageTextLearning.Config(
        data=data, **{**given, "tokens": Tokens(vocab_size=60), "table_machine": 60, **settings}
    )


@pytest.fixture(autouse=True)
def few_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few filters and no trees, so that a machine is fitted quickly."""
    small = ImageBank.Config(num_filters=4)
    monkeypatch.setattr(
        ImageBank.Config, "build", lambda _, size, channels, outputs: ImageBank(size, channels, outputs, small)
    )
    monkeypatch.setattr(image_text_learning, "affordable_trees", lambda *_: 0)


def test_a_run_has_a_machine_where_a_validation_split_can_choose_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = written(tmp_path)

    def count(**settings: Any) -> int | None:
        found: Any = ImageTextLearning.Config(data=data, **settings).recommended("small").config
        return found.table_machine

    every = ImageTextLearning.Config(data=data).build().num_train
    assert count() == every > 20
    assert (
        count(table_machine=0) == count(modalities="text") == count(objective="loss") == count(valid_fraction=0.0) == 0
    )
    monkeypatch.setattr(image_text_learning, "MOST_VALUES", 2 * 6 * 5 * 30)
    assert count() == 30
    assert count(image_size=(12, 10)) == 0, "7 examples are too few"
    monkeypatch.setattr(image_text_learning, "MOST_WITH_MACHINE", every - 1)
    assert count() == 0
    assert ImageTextLearning.Config(data=data, table_machine=20).with_stack(SMALL).table_machine == 0


def test_a_machine_is_fitted_to_training_pixels_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()
    monkeypatch.setattr(TableMachine, "fit", lambda _, batches, target, groups: seen.append((batches, groups)))
    task = config(written(tmp_path, groups=np.arange(60) // 2), table_machine=20).build()
    model = task.model()
    task.initialise(model, torch.device("cpu"))
    ((batches, groups),) = seen
    rows, part = batches[0][0], task.splits.train
    known = part.images(torch.arange(len(part)))
    place = (rows.images[:, None] == known).flatten(2).all(2).long().argmax(1)
    assert torch.equal(known[place], rows.images)
    assert len(place.unique()) == 20 < task.num_train
    batch = task.train_batch(place, torch.Generator())
    assert torch.equal(rows.tokens[:, 0], batch["tokens"])
    assert torch.equal(batches[0][1], batch["targets"])
    numbers = part.marks.group_numbers()
    assert numbers is not None
    assert torch.equal(groups, numbers[place])


@pytest.mark.slow
def test_a_run_predicts_what_its_machine_has_learnt(tmp_path: Path) -> None:
    given = config(written(tmp_path))
    training = TrainingConfig(epochs=1, learning_rate=1e-6, tensorboard=False)
    result = train(Run.Config(task=given, training=training), tmp_path / "run")
    assert result.metrics["accuracy"] == 1
    run = Run(tmp_path / "run")
    model = run.model()
    assert isinstance(model, BlendedImageTexts)
    assert float(model.share) < 1
    rows = run.predict([Path(given.data)])
    assert sum(row["class"] == str(i % 2) for i, row in enumerate(rows)) == 60
    with refused(ValueError, "no graph can hold; train with table_machine=0"):
        run.task.tensor_form(model)


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    data = written(tmp_path)
    with refused(ValueError, "image-text: table_machine must be at least 2; got 1"):
        config(data, table_machine=1)
    with refused(ValueError, "objective='loss' is of the network alone, beside table_machine=60; leave one out"):
        config(data, objective="loss")
    with refused(ValueError, "table_machine=60 has no effect with modalities='text'"):
        ImageTextLearning.Config(data=data, modalities="text", table_machine=60)
    with refused(ValueError, "table_machine is 60, whose share is chosen by a validation split, and there is none"):
        config(data, valid_fraction=0.0).build()
