import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from fredholm.cli.option_names import _levels, with_option_names
from fredholm.tasks import TASKS, ImageLearning, Task
from fredholm.training import Run, TrainingConfig

CONFIG = Run.Config(task=ImageLearning.Config(), training=TrainingConfig(epochs=1))


def test_settings_become_options() -> None:
    found = {
        "pass image_size, the height and width": "pass --task.image-size, the height and width",
        "test_fraction=0.3 has no effect; leave it.": "--task.test-fraction 0.3 has no effect; leave it.",
        "try a lower learning_rate.": "try a lower --training.learning-rate.",
        "embed_dim is 3, and image_size None": "--task.model.embed-dim is 3, and --task.image-size None",
    }
    for text, expected in found.items():
        assert with_option_names(text, CONFIG) == expected


def test_values_are_shown_as_they_are_typed() -> None:
    found = {
        "pool='mean' is": "--task.model.pool mean is",
        "init='/a b/c' is": "--init '/a b/c' is",
        "image_size=(64, 32) is": "--task.image-size 64 32 is",
        "image_size=None is": "--task.image-size None is",
        "tensorboard=False is": "--training.no-tensorboard is",
        "tensorboard=True is": "--training.tensorboard is",
        "learning_rate=1e-05, and": "--training.learning-rate 1e-05, and",
        "model=NeighbourhoodBank, which": "--task.model neighbourhood-bank, which",
        "model=ITNet.Config, which": "--task.model itnet, which",
        "kernel=LowRankConfig; leave": "--task.model.kernel low-rank; leave",
        "kernel=OnEdgesConfig(ConstantConfig); leave": "--task.model.kernel on-edges (constant); leave",
        "name it (image_size=), or": "name it (--task.image-size), or",
        "size=4 of it": "size=4 of it",
    }
    for text, expected in found.items():
        assert with_option_names(text, CONFIG) == expected
    pairs = {
        "image_size=(64, 32), or": "--task image-size=64,32, or",
        "leave image_size out": "leave --task image-size out",
    }
    for text, expected in pairs.items():
        assert with_option_names(text, CONFIG, is_pair=True) == expected


def test_a_cause_that_was_not_typed_is_marked_as_a_default() -> None:
    text = "dropout=0.1 has no effect with pool='mean'; leave it out"
    typed = "--task.model.dropout 0.1 has no effect with --task.model.pool mean; leave it out"
    default = typed.replace("with ", "with the default ")
    assert with_option_names(text, CONFIG, ["--task.model.pool=mean"]) == typed
    assert with_option_names(text, CONFIG, ["--task.model.dropout", "0.1"]) == default
    assert with_option_names(text, CONFIG, [], usual="the recipe's") == default.replace("the default", "the recipe's")
    switch = "dropout=0.1 has no effect with tensorboard=False"
    assert with_option_names(switch, CONFIG, ["--training.no-tensorboard"]).endswith("with --training.no-tensorboard")


def test_names_of_files_and_arrays_and_other_words_stay() -> None:
    for text in (
        "data/image_size/a.png: cannot be read",
        "image_size.csv is a file",
        "has no array 'image_size'",
        "the seed, the data and the model differ",
        "my_image_size is 3",
        "pass --task.image_size",
    ):
        assert with_option_names(text, CONFIG) == text


def test_an_error_in_a_part_of_a_config_names_its_options() -> None:
    found = {
        "Error parsing run.training: epochs is -1; expected at least 0; see fredholm": (
            "--training.epochs is -1; expected at least 0; see fredholm"
        ),
        "Error parsing run.task.model: models.ITNet: depth must be at least 1; got 0": (
            "--task.model.depth must be at least 1; got 0"
        ),
        "Error parsing run.task: model.pool is 'none'; leave it out": "--task.model.pool is 'none'; leave it out",
        "Error parsing run.task: something is wrong": "--task: something is wrong",
        "Error parsing run: seed is -1": "--seed is -1",
        "Error parsing --task.image-size: expected INT INT": "Error parsing --task.image-size: expected INT INT",
        "training.epochs is 1; pass more": "--training.epochs is 1; pass more",
        "models.ITNet: num_heads=3 is too much": "--task.model.num-heads 3 is too much",
        "models.ITNet: no num_heads": "models.ITNet: no --task.model.num-heads",
    }
    for text, expected in found.items():
        assert with_option_names(text, CONFIG) == expected


def refusals(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Pairs (option, error message) for wrong values of every setting of a config."""
    for field in dataclasses.fields(_at(config, path)):
        setting = (*path, field.name)
        value = _at(config, setting)
        for wrong in (-1, 0, 1.5, "nonsense", 10**6, True):
            if isinstance(wrong, str) and not isinstance(value, str):
                continue  # the parser itself refuses a text for a number
            if (found := _refusal(config, setting, wrong)) is not None:
                yield f"--{'.'.join(setting)}".replace("_", "-"), found
        if dataclasses.is_dataclass(value):
            yield from refusals(config, setting)


def _at(config: Any, path: Sequence[str]) -> Any:
    return functools.reduce(getattr, path, config)


def _refusal(config: Any, path: tuple[str, ...], value: object) -> str | None:
    """The parser's error message for a value of a setting; None if the value is accepted."""
    for depth in range(len(path) - 1, -1, -1):
        try:
            value = dataclasses.replace(_at(config, path[:depth]), **{path[depth]: value})
        except ValueError as error:
            return f"Error parsing {'.'.join(('run', *path[:depth]))}: {error}"
        except Exception:  # the parser would never pass on a value of this type
            return None
    return None


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.command)
def test_refusals_of_settings_name_options(task: type[Task]) -> None:
    config = Run.Config(task=cast(Any, task.Config)(), training=TrainingConfig())
    names = {name for _, fields in _levels(config) for name in fields if "_" in name}
    found = list(refusals(config))
    assert len(found) > 20
    for option, text in found:
        got = with_option_names(text, config)
        left = names & set(re.findall(r"(?<![\w'\"./-])[a-z]+(?:_[a-z0-9]+)+", got))
        assert not left, got
        assert option in got, got
        assert "Error parsing" not in got
