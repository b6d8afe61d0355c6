import dataclasses
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import TASKS, ImageLearning
from fredholm.training import Run, TrainingConfig


@dataclass(frozen=True, kw_only=True)
class Shape(ABC):
    """A base class of which a field may hold any subclass."""

    @abstractmethod
    def area(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Disc(Shape):
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.radius < 0:
            raise ValueError(f"radius is {self.radius}; expected at least 0")

    def area(self) -> float:
        return 3.14 * self.radius**2


@dataclass(frozen=True, kw_only=True)
class Box(Shape):
    sides: tuple[int, int] = (1, 2)

    def area(self) -> float:
        return self.sides[0] * self.sides[1]


@dataclass(frozen=True, kw_only=True)
class Everything:
    name: str
    count: int = 1
    rate: float = 0.5
    on: bool = False
    folder: Path = Path("a/b")
    mode: Literal["x", "y"] = "x"
    sizes: tuple[float, ...] = ()
    patch: int | tuple[int, int] = 4
    limit: float | None = None
    shape: Shape = field(default_factory=Disc)
    either: Disc | Box = field(default_factory=Box)


def through_json(config: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(config))), type(config), [Disc, Box])


@pytest.mark.parametrize(
    "config",
    [
        Everything(name="plain"),
        Everything(name="", count=-3, rate=1e-9, on=True, folder=Path("/x"), mode="y", sizes=(1.5, 2.0)),
        Everything(name="n", patch=(2, 3), limit=0.25, shape=Box(sides=(3, 4)), either=Disc(radius=2.5)),
    ],
)
def test_configs_survive_json(config: Everything) -> None:
    back = through_json(config)
    assert back == config
    assert [type(getattr(back, f.name)) for f in dataclasses.fields(back)] == [
        type(getattr(config, f.name)) for f in dataclasses.fields(config)
    ]


def test_a_whole_run_survives_json() -> None:
    config = Run.Config(
        task=ImageLearning.Config(data="somewhere", patch_size=(2, 4), image_size=(8, 8)),
        training=TrainingConfig(epochs=7, betas=(0.8, 0.95), precision="bfloat16"),
        seed=3,
    )
    known = [kind for task in TASKS for kind in (task.Config, *task.parts)]
    assert from_json(json.loads(json.dumps(to_json(config))), Run.Config, known) == config


def test_a_missing_field_takes_its_default_and_a_required_one_is_an_error() -> None:
    assert from_json({"type": "Everything", "name": "n"}, Everything, [Disc, Box]) == Everything(name="n")
    with pytest.raises(ValueError, match=r"^config is incomplete: .*name"):
        from_json({"type": "Everything"}, Everything, [Disc, Box])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": "1"}, "config.count is '1'; expected int"),
        ({"count": True}, "config.count is True; expected int"),
        ({"count": 1.5}, "config.count is 1.5; expected int"),
        ({"rate": None}, "config.rate is None; expected float"),
        ({"folder": 3}, "config.folder is 3; expected Path"),
        ({"mode": "z"}, "config.mode is 'z'; expected 'x', 'y'$"),
        ({"sizes": [1, "2"]}, r"config.sizes\[1\] is '2'; expected float"),
        ({"patch": [1, 2, 3]}, "config.patch fits no allowed type: .*expected a list of 2 values"),
        ({"colour": 1}, "config has unknown fields 'colour'; was it written by another version?"),
        ({"shape": {"type": "Sphere"}}, "config.shape is of type 'Sphere'; expected one of Box, Disc$"),
        ({"shape": {"type": "Shape"}}, "config.shape is of type 'Shape'; expected one of Box, Disc$"),
        ({"shape": {"type": "Disc", "radius": -1}}, "config.shape: radius is -1.0; expected at least 0$"),
        ({"shape": 3}, "config.shape is 3; expected an object with a 'type'"),
        ({"shape": {"type": "Everything"}}, "config.shape is of type 'Everything'; expected one of Box, Disc$"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        from_json({"type": "Everything", "name": "n", **change}, Everything, [Disc, Box])


def test_numbers_of_numpy_are_stored_as_plain_numbers() -> None:
    given: Any = {"count": np.int64(3), "rate": np.float32(0.5), "on": np.bool_(True), "sides": (np.uint8(1), 2)}
    assert json.dumps(to_json(given)) == '{"count": 3, "rate": 0.5, "on": true, "sides": [1, 2]}'
    assert to_json(np.float32("inf")) == "inf"
    with pytest.raises(TypeError, match="a config holds a complex"):
        to_json(np.complex64(1))


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^a config holds a object; expected plain values"):
        to_json(Everything(name=object()))  # pyright: ignore[reportArgumentType]
