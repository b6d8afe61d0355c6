import errno
import json
import os
import re
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fredholm.storage.atomic import Draft
from fredholm.storage.integrity import listed, seal
from fredholm.storage.tensors import model_tensors, tensor_bytes
from fredholm.training import Checkpoints, load_weights
from fredholm.training.storage.checkpoint import Background
from tests.refusals import refused

FILES = ["ema.safetensors", "manifest.json", "optimizer.safetensors", "weights.safetensors"]


def model(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))


def save(
    checkpoints: Checkpoints, step: int, best_step: int = -1, note: int = 0, saved: nn.Module | None = None
) -> nn.Module:
    saved = saved or model()
    own = model_tensors(saved)
    average = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in own.items()}
    files = {
        "weights.safetensors": own,
        "ema.safetensors": average,
        "optimizer.safetensors": {"a.step": torch.ones(())},
    }
    checkpoints.save(step, files, {"note": note}, best_step)
    return saved


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_weights_average_and_state_are_restored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", "ours")
    saved, loaded, averaged = save(checkpoints, 12, note=5), model(), model()
    checkpoints.load_weights(12, loaded, "weights.safetensors")
    checkpoints.load_weights(12, averaged)
    assert checkpoints.load_state(12) == {"note": 5}
    assert checkpoints.load_tensors(12, "optimizer.safetensors") == {"a.step": torch.ones(())}
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in saved.state_dict().items())
    assert torch.equal(averaged.state_dict()["0.weight"], saved.state_dict()["0.weight"] + 1)
    assert sorted(path.name for path in (checkpoints.folder / "step-00000012").iterdir()) == FILES
    assert Checkpoints(checkpoints.folder).load_state(12) == {"note": 5}


def test_the_last_and_the_best_checkpoint_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.last_step() is None
    for step, best_step in ((10, 10), (20, 10), (30, 10)):
        save(checkpoints, step, best_step)
    assert checkpoints.steps() == [10, 30]
    save(checkpoints, 40, 40)
    assert checkpoints.steps() == [40]
    assert checkpoints.last_step() == 40


def test_a_second_save_of_a_step_replaces_only_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved = save(checkpoints, 10, note=1)
    replaced: list[str] = []
    rename = Path.replace
    monkeypatch.setattr(Path, "replace", lambda one, other: (replaced.append(other.name), rename(one, other)))
    save(checkpoints, 10, note=2, saved=saved)
    assert replaced == ["manifest.json"]  # so that files of two saves are never mixed
    assert checkpoints.load_state(10) == {"note": 2}
    assert checkpoints.steps() == [10]


def test_a_second_save_repairs_damaged_tensors(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, note=1)
    (tmp_path / "step-00000010" / "ema.safetensors").write_bytes(b"")
    (tmp_path / "step-00000010" / "manifest.json").unlink()
    save(checkpoints, 10, note=2)
    checkpoints.check(10)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_folders_with_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    for name in (
        "step-99",
        "step-000000099",
        "step-\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668",
        "step-" + "9" * 200,
        "step-0000001x",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000010").write_text("a file")
    assert Checkpoints(tmp_path).steps() == []


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
    assert checkpoints.load_state(10) == {"note": 0}


def test_partial_files_of_a_crash_are_no_checkpoint_and_are_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    (tmp_path / ".partial-step-00000020").mkdir()
    (tmp_path / ".partial-step-00000020" / "ema.safetensors").write_bytes(b"half")
    (tmp_path / "step-00000010" / ".partial-manifest.json").write_bytes(b"half")
    assert checkpoints.last_step() == 10
    checkpoints.clear_partial()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    assert sorted(path.name for path in (tmp_path / "step-00000010").iterdir()) == FILES


def test_shared_tensors_are_stored_once(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert model_tensors(tied).keys() == {"0.weight", "0.bias", "1.bias"}
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, saved=tied)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    other[1].weight = other[0].weight
    checkpoints.load_weights(1, other, "weights.safetensors")
    assert torch.equal(other.state_dict()["1.weight"], tied.state_dict()["0.weight"])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def scribble(path: Path) -> None:
    path.write_bytes(b"no checkpoint at all")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def of_another_file(path: Path) -> None:
    path.write_bytes((path.parent / "weights.safetensors").read_bytes())


def nothing_finite(path: Path) -> None:
    """Keeps the header and the size of the file, and makes all numbers NaN."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:start] + b"\xff" * (len(data) - start))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = [truncate, scribble, empty, flip, Path.unlink, a_folder, a_pipe]


@pytest.mark.parametrize("damage", [*DAMAGES, of_another_file, nothing_finite])
@pytest.mark.parametrize("name", ["ema.safetensors", "optimizer.safetensors"])
def test_damaged_tensors_are_refused(tmp_path: Path, damage: Callable[[Path], None], name: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    damage(tmp_path / "step-00000010" / name)
    with refused(ValueError, f"step-00000010/{name} ", "; no earlier one is whole: remove the folder "):
        checkpoints.load_tensors(10, name)
    with refused(ValueError, name):
        checkpoints.check(10)
    assert checkpoints.load_state(10) == {"note": 0}


def test_damaged_weights_leave_the_model_unchanged(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    flip(tmp_path / "step-00000010" / "ema.safetensors")
    target = model()
    before = tensors(target)
    with refused(ValueError, "ema.safetensors is damaged: its SHA-256 is not the one that manifest.json lists"):
        checkpoints.load_weights(10, target)
    assert all(torch.equal(tensor, target.state_dict()[name]) for name, tensor in before.items())


@pytest.mark.parametrize("free", [0, 1])
def test_too_many_open_files_are_an_error_of_the_system_not_of_the_file(tmp_path: Path, free: int) -> None:
    """The reader of tensors opens a file once, and torch a second time."""
    file, target = tmp_path / "w.safetensors", model()
    file.write_bytes(tensor_bytes(model_tensors(model()), {}))
    load_weights(file, target)  # so that lazy imports are done
    limits, lowest = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            load_weights(file, target)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (caught.value.errno, caught.value.filename) == (errno.EMFILE, str(file))
    load_weights(file, target)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    damage(tmp_path / "step-00000010" / "manifest.json")
    for load in (checkpoints.load_state, checkpoints.check, lambda step: checkpoints.load_weights(step, model())):
        with refused(ValueError, "step-00000010/manifest.json "):
            load(10)


def test_any_changed_value_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, note=5)
    path = tmp_path / "step-00000010" / "manifest.json"
    content = json.loads(path.read_text())
    for change in ({"step": 11}, {"state": {"note": 6}}, {"more": 1}, {"sha256": 3}, {"sha256": "0" * 64}):
        path.write_text(json.dumps(content | change, indent=1) + "\n")
        with refused(ValueError, "manifest.json "):
            checkpoints.load_state(10)
    path.write_text(json.dumps(content))  # as another program would write it
    with refused(ValueError, "manifest.json is damaged"):
        checkpoints.load_state(10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 1}, "is no manifest of step 10 in schema 2 of this library"),
        ({"step": 11}, "is no manifest of step 10 in schema 2 of this library"),
        ({"run": "another"}, "is of another run"),
        ({"files": []}, "lists no files"),
        ({"files": {}}, "does not list the three files of a checkpoint"),
        ({"files": {"../weights.safetensors": listed(b"")}}, "lists '../weights.safetensors', which is no file beside"),
        ({"files": {"ema.safetensors": {"bytes": 3}}}, "lists 'ema.safetensors' without its size and SHA-256"),
        ({"state": [1]}, "has no state"),
    ],
)
def test_a_valid_manifest_with_other_content_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    checkpoints = Checkpoints(tmp_path, "ours")
    save(checkpoints, 10)
    path = tmp_path / "step-00000010" / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_bytes(seal(content | change))
    with refused(ValueError, message):
        checkpoints.load_state(10)


@pytest.mark.parametrize("text", ["[" * 10**5, "1" * 5000, '{"sha256": "\\ud800"}', "\x00", '{"a": 1}', "{}", "3"])
def test_json_of_other_types_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    (tmp_path / "step-00000010" / "manifest.json").write_text(text)
    with refused(ValueError, "manifest.json "):
        checkpoints.load_state(10)


def test_a_manifest_too_large_is_not_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    os.truncate(tmp_path / "step-00000010" / "manifest.json", 2**40)
    with refused(ValueError, "manifest.json has 1099511627776 bytes; expected at most 268435456"):
        checkpoints.load_state(10)


def test_the_error_says_which_other_checkpoint_is_intact(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, 10)
    save(checkpoints, 20, 10)
    for damaged, message in (
        (20, "the checkpoint of step 10 is whole: remove step-00000020 to go on from it"),
        (10, "no earlier one is whole, but that of step 20 is (--checkpoint last): remove the folder "),
    ):
        path = tmp_path / f"step-{damaged:08d}" / "ema.safetensors"
        before = path.read_bytes()
        flip(path)
        with refused(ValueError, f"{path} is damaged", message):
            checkpoints.load_weights(damaged, model())
        path.write_bytes(before)
    for step in (10, 20):
        flip(tmp_path / f"step-{step:08d}" / "weights.safetensors")
    with refused(ValueError, "; no earlier one is whole: remove the folder "):
        checkpoints.check(20)


def test_unreadable_files_are_not_reported_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)

    def unreadable(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for method in ("stat", "open", "iterdir"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, unreadable)
            with pytest.raises(PermissionError):
                checkpoints.check(max(checkpoints.steps()))


def of_another_program(path: Path) -> None:
    save_file(load_file(path), path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "is not a readable checkpoint; it is damaged or of another kind"),
        (scribble, "is not a readable checkpoint; it is damaged or of another kind"),
        (empty, "is not a readable checkpoint; it is damaged or of another kind"),
        (of_another_program, "is a safetensors file of another program, not a checkpoint of this library"),
        (Path.unlink, "is missing"),
        (a_pipe, "is no file"),
    ],
)
def test_weights_without_a_manifest_are_checked_as_far_as_possible(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    save(Checkpoints(tmp_path), 10)
    path = tmp_path / "step-00000010" / "weights.safetensors"
    load_weights(path, model())
    damage(path)
    with refused(ValueError, f"{path} {message}"):
        load_weights(path, model())


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
    for load in (
        lambda: load_weights(tmp_path / "step-00000010" / "weights.safetensors", other),
        lambda: checkpoints.load_weights(10, other),
    ):
        with pytest.raises(ValueError, match=message):
            load()
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in before.items())


def test_a_save_in_the_background_stores_the_tensors_of_the_moment_of_the_call(tmp_path: Path) -> None:
    waiting, beside = Checkpoints(tmp_path / "a", "ours"), Checkpoints(tmp_path / "b", "ours")
    saved = save(waiting, 10)
    may_begin = threading.Event()
    with pytest.MonkeyPatch.context() as patch, beside.in_background():
        begin = Draft.begin
        patch.setattr(Draft, "begin", lambda draft: (may_begin.wait(60), begin(draft))[1])
        save(beside, 10, saved=saved)
        assert not (tmp_path / "b").exists()
        for tensor in saved.state_dict().values():
            tensor.zero_()  # as the next step would change them
        may_begin.set()
        assert beside.last_step() == 10  # this call waits
    assert content(tmp_path / "b") == content(tmp_path / "a")


def test_a_full_disk_in_the_background_is_reported_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    reason = "cannot save the checkpoint of step 20 (No space left on device); the one of step 10 is intact"

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    for call in (checkpoints.wait, checkpoints.steps, lambda: save(checkpoints, 30)):
        with checkpoints.in_background():
            save(checkpoints, 20)
            with pytest.raises(OSError, match=re.escape(reason)):
                call()
            assert not checkpoints.has_failed
    with pytest.raises(OSError, match=re.escape(reason)), checkpoints.in_background():
        save(checkpoints, 20)
    with pytest.raises(ArithmeticError):
        fail_after_saving(checkpoints, 20)
    monkeypatch.undo()
    assert list(content(tmp_path)) == [f"step-00000010/{name}" for name in FILES]


def fail_after_saving(checkpoints: Checkpoints, step: int) -> None:
    with checkpoints.in_background():
        save(checkpoints, step)
        raise ArithmeticError("what ended the run is told, and not what else went wrong")


def test_an_error_that_ends_a_run_waits_for_the_checkpoint_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Draft.begin
    monkeypatch.setattr(Draft, "begin", lambda draft: (time.sleep(0.1), begin(draft))[1])
    with pytest.raises(ArithmeticError):
        fail_after_saving(Checkpoints(tmp_path), 10)
    assert sorted(content(tmp_path)) == [f"step-00000010/{name}" for name in FILES]


def test_outside_the_background_a_save_returns_when_it_is_complete(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with checkpoints.in_background():
        save(checkpoints, 10)
    save(checkpoints, 20, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000020"]


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_job_runs_beside_the_process_and_can_be_awaited() -> None:
    may_begin, done, background = threading.Event(), list[str](), Background()
    background.start(lambda: (may_begin.wait(60), done.append("job"))[1])
    assert not done
    assert not background.has_failed
    may_begin.set()
    background.wait()
    assert done == ["job"]
    background.wait()


def test_the_next_job_waits_for_the_previous_one() -> None:
    order, background = list[int](), Background()
    background.start(lambda: (time.sleep(0.05), order.append(1))[1])
    background.start(lambda: order.append(2))
    background.wait()
    assert order == [1, 2]


def test_an_error_is_raised_once() -> None:
    def fails() -> None:
        raise OSError("no room")

    background = Background()
    background.start(fails)
    until(lambda: background.has_failed)
    with pytest.raises(OSError, match="no room"):
        background.start(lambda: None)
    assert not background.has_failed
    background.wait()


def test_no_thread_is_left_behind() -> None:
    seen, background = list[threading.Thread](), Background()
    background.start(lambda: seen.append(threading.current_thread()))
    background.wait()
    seen[0].join(60)
    assert not seen[0].is_alive()
