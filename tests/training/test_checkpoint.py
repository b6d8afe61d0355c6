import errno
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fredholm.training import Checkpoints, load_weights
from fredholm.training.checkpoint import fill, model_tensors, start_from

FILES = ["ema.safetensors", "state.pt", "weights.safetensors"]


def model(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))


def save(checkpoints: Checkpoints, step: int, best_step: int = -1, note: int = 0) -> nn.Module:
    saved = model()
    tensors = model_tensors(saved)
    average = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    checkpoints.save(step, tensors, average, {"note": note}, best_step)
    return saved


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_weights_average_and_state_come_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    saved, loaded, averaged = save(checkpoints, 12, note=5), model(), model()
    checkpoints.load_weights(12, loaded, "weights.safetensors")
    checkpoints.load_weights(12, averaged)
    assert checkpoints.load_state(12)["note"] == 5
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in saved.state_dict().items())
    assert torch.equal(averaged.state_dict()["0.weight"], saved.state_dict()["0.weight"] + 1)
    assert sorted(path.name for path in (checkpoints.folder / "step-00000012").iterdir()) == FILES


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.last_step() is None
    for step, best_step in ((10, 10), (20, 10), (30, 10)):
        save(checkpoints, step, best_step)
    assert checkpoints.steps() == [10, 30]
    save(checkpoints, 40, 40)
    assert checkpoints.steps() == [40]
    assert checkpoints.last_step() == 40


def test_a_second_save_of_a_step_replaces_its_state(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, note=1)
    save(checkpoints, 10, note=2)
    assert checkpoints.load_state(10)["note"] == 2
    assert checkpoints.steps() == [10]


def test_a_full_disk_leaves_the_last_checkpoint_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    reason = "cannot save the checkpoint of step 20 (No space left on device); the one of step 10 is intact"
    with pytest.raises(OSError, match=re.escape(reason)):
        save(checkpoints, 20)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    checkpoints.load_weights(10, model())
    assert checkpoints.load_state(10)["step"] == 10


def test_what_a_crash_left_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    (tmp_path / ".partial-step-00000020").mkdir()
    (tmp_path / ".partial-step-00000020" / "ema.safetensors").write_bytes(b"half")
    assert checkpoints.last_step() == 10
    checkpoints.clear_partial()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_shared_tensors_are_stored_once(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert model_tensors(tied).keys() == {"0.weight", "0.bias", "1.bias"}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, model_tensors(tied), model_tensors(tied), {}, -1)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    other[1].weight = other[0].weight
    checkpoints.load_weights(1, other)
    assert torch.equal(other.state_dict()["1.weight"], tied.state_dict()["0.weight"])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def scribble(path: Path) -> None:
    path.write_bytes(b"no checkpoint at all")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_program(path: Path) -> None:
    save_file(load_file(path), path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "is not a readable checkpoint; it is damaged or of another kind"),
        (scribble, "is not a readable checkpoint; it is damaged or of another kind"),
        (empty, "is not a readable checkpoint; it is damaged or of another kind"),
        (of_another_program, "is a safetensors file of another program, not a checkpoint of this library"),
        (Path.unlink, "is missing; the checkpoint is not whole"),
    ],
)
def test_damaged_or_foreign_weights_are_refused(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    damage(tmp_path / "step-00000010" / "ema.safetensors")
    target = model()
    before = tensors(target)
    with pytest.raises(ValueError, match=message) as caught:
        checkpoints.load_weights(10, target)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, target.state_dict()[name]) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (model(5), r"is of another model: 0\.\w+ is torch.float32 \(4,( 3)?\), expected torch.float32 \(5,( 3)?\)$"),
        (nn.Linear(3, 4), r"of the 2 tensors here it lacks 2 of them, as bias and has 7 others, as 0\.bias$"),
        (model().double(), r"is torch.float32 .*, expected torch.float64"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, other: nn.Module, message: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    before = tensors(other)
    with pytest.raises(ValueError, match=message):
        load_weights(tmp_path / "step-00000010" / "weights.safetensors", other)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in before.items())


@pytest.mark.parametrize("damage", [truncate, scribble, empty])
def test_a_damaged_state_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    damage(tmp_path / "step-00000010" / "state.pt")
    with pytest.raises(ValueError, match=r"is not a readable checkpoint state; it is damaged or of another kind$"):
        checkpoints.load_state(10)


def test_a_state_of_another_step_or_program_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    path = tmp_path / "step-00000010" / "state.pt"
    for foreign in ({"schema": 1, "step": 9}, {"step": 10}, [1, 2]):
        torch.save(foreign, path)
        with pytest.raises(ValueError, match=r"is no state of step 10 in schema 1 of this library$"):
            checkpoints.load_state(10)


class Planted:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.write_text, (self.path, "ran"))


def test_a_state_that_carries_code_is_refused_and_not_run(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    save(checkpoints, 10)
    path = tmp_path / "checkpoints" / "step-00000010" / "state.pt"
    planted = tmp_path / "planted"
    torch.save({"schema": 1, "step": 10, "extra": Planted(planted)}, path)
    with pytest.raises(ValueError, match="is not a readable checkpoint state"):
        checkpoints.load_state(10)
    path.write_bytes(pickle.dumps(Planted(planted)))
    with pytest.raises(ValueError, match="is not a readable checkpoint state"):
        checkpoints.load_state(10)
    assert not planted.exists()


def test_a_model_is_filled_under_the_first_of_several_names() -> None:
    def tied() -> nn.ModuleDict:
        layer = nn.Linear(2, 2)
        return nn.ModuleDict({"one": layer, "other": layer})

    source, model = tied(), tied()
    found = start_from(model_tensors(source), model)
    assert (sorted(found.fitting), found.new, found.left) == (["one.bias", "one.weight"], [], [])
    fill(model, found.fitting)
    assert torch.equal(model["other"].weight, source["one"].weight)  # pyright: ignore[reportArgumentType]
