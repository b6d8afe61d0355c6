"""A run folder holds everything that was written to it, or reports what is wrong."""

import contextlib
import dataclasses
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.storage.integrity import listed, seal
from fredholm.training import Checkpoints, DivergedError, Learner, Run, RunFolder, StepReport, train
from fredholm.training.batches import Share
from fredholm.training.run import read_trained
from fredholm.training.storage.checkpoint import AVERAGE, OPTIMIZER, WEIGHTS
from tests.refusals import refused
from tests.training.toy_task import ToyTask, toy_run


class Killed(BaseException):
    """Ends a process as a kill does, without clean-up."""


@contextlib.contextmanager
def killed_at(number: int) -> Iterator[list[int]]:
    """Kills at file operation `number`, counted from 0: half-way through a write, before a rename or after it."""
    count, fsync, replace = [0], os.fsync, Path.replace

    def passes() -> None:
        count[0] += 1
        if count[0] > number:
            raise Killed

    def syncing(descriptor: int) -> None:
        if count[0] == number and stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        passes()
        fsync(descriptor)

    def replacing(one: Path, other: Path) -> Path:
        passes()
        found = replace(one, other)
        passes()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", syncing)
        patch.setattr(Path, "replace", replacing)
        with contextlib.suppress(Killed):
            yield count


def run(path: Path, config: Run.Config | None = None, *, resume: bool = False) -> None:
    train(config or toy_run(), path, resume=resume, tasks=[ToyTask])


@pytest.fixture(scope="module")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    config = toy_run(epochs=8)
    # far too large a learning rate: later evaluations are worse than the first ones
    training = dataclasses.replace(config.training, learning_rate=3.0, decay="linear", warmup_fraction=0.9)
    run(path, dataclasses.replace(config, training=training))
    return path


@pytest.fixture
def trained(_trained: Path, tmp_path: Path) -> Path:
    """A finished run whose best checkpoint is not the last one."""
    shutil.copytree(_trained, tmp_path / "run")
    return tmp_path / "run"


def resumed(path: Path) -> None:
    run(path, Run(path, tasks=[ToyTask]).config, resume=True)


def changed_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a manifest and its checksum."""
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_bytes(seal(content))


OLD, NEW = ({"config.json": f"{n}", "tokenizer.json": f"{n}{n}"} for n in (1, 2))


def test_the_files_of_a_run_change_together_despite_a_kill_at_any_point(tmp_path: Path) -> None:
    ended = set()
    for number in range(100):
        path = tmp_path / str(number)
        RunFolder(path).put(OLD)
        with killed_at(number) as count:
            RunFolder(path).put(NEW)
        found = {name: RunFolder(path).text(name) for name in OLD}
        assert found in (OLD, NEW)
        ended.add(found == NEW)
        RunFolder(path).recover()
        assert {name: (path / name).read_text() for name in OLD} == found
        assert sorted(each.name for each in path.iterdir()) == ["config.json", "manifest.json", "tokenizer.json"]
        if count[0] <= number:
            assert number > 10
            break
    assert ended == {False, True}


def test_a_folder_is_new_or_complete_despite_a_kill_at_any_point(tmp_path: Path) -> None:
    ended = set()
    for number in range(100):
        path = tmp_path / str(number)
        with killed_at(number) as count:
            RunFolder(path).put(OLD)
        ended.add(RunFolder(path).is_new())
        if RunFolder(path).is_new():
            RunFolder(path).put(OLD)
        assert {name: RunFolder(path).text(name) for name in OLD} == OLD
        if count[0] <= number:
            break
    assert ended == {False, True}


def test_a_step_is_saved_or_not_despite_a_kill_at_any_point(tmp_path: Path) -> None:
    files = {name: {"a": torch.arange(3.0)} for name in (WEIGHTS, AVERAGE, OPTIMIZER)}
    ended = set()
    for number in range(100):
        checkpoints = Checkpoints(tmp_path / str(number))
        checkpoints.save(1, files, {"note": 1}, -1)
        with killed_at(number) as count:
            checkpoints.save(1, files, {"note": 2}, -1)
            checkpoints.save(2, files, {"note": 3}, -1)
        step = checkpoints.last_step() or 0
        checkpoints.check(step)
        ended.add((step, checkpoints.load_state(step)["note"]))
        if count[0] <= number:
            break
    assert ended == {(1, 1), (1, 2), (2, 3)}


def test_a_folder_with_only_partial_files_counts_as_new(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in (".partial-config.json", ".partial-manifest.json"):
        (tmp_path / name).write_text('{"schema": 1, "ru')
    assert RunFolder(tmp_path).is_new()
    run(tmp_path, toy_run(epochs=1))
    assert not list(tmp_path.glob(".partial*"))


def test_a_run_is_resumed_from_files_stored_in_its_manifest_alone(tmp_path: Path) -> None:
    run(tmp_path / "a", toy_run(epochs=1))
    text = (tmp_path / "a" / "config.json").read_text()
    changed_manifest(tmp_path / "a" / "manifest.json", lambda content: content["pending"].update({"config.json": text}))
    (tmp_path / "a" / "config.json").unlink()
    run(tmp_path / "a", toy_run(epochs=1), resume=True)
    assert (tmp_path / "a" / "config.json").read_text() == text
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["pending"] == {}


@pytest.mark.parametrize("name", ["../planted", "/planted", "a/b", ".hidden", "", "..", "planted\n"])
def test_a_manifest_cannot_write_outside_the_folder(tmp_path: Path, name: str) -> None:
    run(tmp_path / "a", toy_run(epochs=1))

    def plant(content: dict[str, Any]) -> None:
        content["files"][name], content["pending"][name] = listed(b"precious"), "precious"

    changed_manifest(tmp_path / "a" / "manifest.json", plant)
    before = sorted(tmp_path.rglob("*"))
    with refused(ValueError, "manifest.json lists ", "which is no file beside it"):
        run(tmp_path / "a", toy_run(epochs=1), resume=True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "pending", [None, [], {"config.json": 3}, {"config.json": "another"}, {"other": ""}, {"config.json": "\ud800"}]
)
def test_a_manifest_holds_only_texts_of_files_that_it_lists(tmp_path: Path, pending: object) -> None:
    RunFolder(tmp_path).put(OLD)
    changed_manifest(tmp_path / "manifest.json", lambda content: content.update({"pending": pending}))
    with refused(ValueError, "manifest.json describes no run, or holds texts of files that it does not list"):
        RunFolder(tmp_path).text("config.json")


def test_additional_files_belong_to_the_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write(toy_run(), ToyTask.Facts(num_features=6), {"more.json": "[1]"})
    assert (folder.text("more.json"), folder.text("none.json")) == ("[1]", None)
    before = folder.run
    folder.put({"more.json": "[2]", "config.json": "{}"})
    assert (folder.text("more.json"), folder.run) == ("[2]", before)
    (tmp_path / "more.json").write_text("[3]")
    for read in (lambda: folder.text("config.json"), lambda: read_trained(tmp_path, [ToyTask])):
        with refused(ValueError, "more.json is damaged: ", "put the file back as it was, or train again"):
            read()


def test_a_folder_of_an_older_layout_is_refused_in_one_line(tmp_path: Path) -> None:
    run(tmp_path / "a", toy_run(epochs=1))
    (tmp_path / "a" / "manifest.json").unlink()
    for read in (lambda: Run(tmp_path / "a", tasks=[ToyTask]), lambda: run(tmp_path / "a", toy_run(), resume=True)):
        with refused(
            ValueError, "a has no manifest.json: it is a run of an older version, which this one does not read"
        ):
            read()


def test_stale_checkpoints_are_removed_on_resuming(trained: Path) -> None:
    checkpoints = RunFolder(trained).checkpoints
    kept = checkpoints.steps()
    assert len(kept) == 2
    content = {name: checkpoints.load_tensors(kept[1], name) for name in (WEIGHTS, AVERAGE, OPTIMIZER)}
    stale = Checkpoints(trained.parent / "stale", RunFolder(trained).run)
    stale.save(kept[1] - 1, content, checkpoints.load_state(kept[1]), -1)
    shutil.move(stale.folder / f"step-{kept[1] - 1:08d}", checkpoints.folder)
    assert len(checkpoints.steps()) == 3
    resumed(trained)
    assert checkpoints.steps() == kept


def test_a_run_without_its_best_checkpoint_is_not_resumed(trained: Path) -> None:
    best, last = RunFolder(trained).checkpoints.steps()
    path = trained / "checkpoints" / f"step-{best:08d}" / "ema.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with refused(ValueError, f"{path} is damaged", f"but that of step {last} is (--checkpoint last)"):
        resumed(trained)
    with refused(ValueError, f"{path} is damaged"):
        Run(trained, tasks=[ToyTask]).evaluate()
    assert Run(trained, tasks=[ToyTask]).evaluate(which="last")


def test_after_removing_a_damaged_last_checkpoint_a_run_ends_with_the_same_result(trained: Path) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in trained.rglob("*.safetensors")}

    _, last = RunFolder(trained).checkpoints.steps()
    before, folder = content(), trained / "checkpoints" / f"step-{last:08d}"
    (folder / "optimizer.safetensors").unlink()
    with refused(ValueError, f"remove step-{last:08d} to go on from it"):
        resumed(trained)
    shutil.rmtree(folder)
    resumed(trained)
    assert content() == before


def test_checkpoints_and_files_of_another_seed_are_refused(trained: Path, tmp_path: Path) -> None:
    run(tmp_path / "other", dataclasses.replace(Run(trained, tasks=[ToyTask]).config, seed=8))
    shutil.rmtree(trained / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", trained / "checkpoints")
    with refused(ValueError, "manifest.json is of another run"):
        Run(trained, tasks=[ToyTask]).evaluate()
    shutil.copy(tmp_path / "other" / "config.json", trained / "config.json")
    with refused(ValueError, "config.json is damaged"):
        Run(trained, tasks=[ToyTask])


@pytest.mark.parametrize("which", ["model", "average"])
def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    update = Learner.update

    def diverging(self: Learner, share: Share, step: int) -> StepReport:
        report = update(self, share, step)
        if step == 7:  # step 8 is saved next
            model = self.model if which == "model" else self.average.model
            model.get_parameter("0.bias").data[3] = torch.inf
        return report

    monkeypatch.setattr(Learner, "update", diverging)
    file = "weights" if which == "model" else "ema"
    message = (
        f"0.bias of {file}.safetensors is not finite after step 8, which is not saved; the checkpoint of step 7 stays"
    )
    with refused(DivergedError, message, "try a lower learning_rate"):
        run(tmp_path / "a")
    assert RunFolder(tmp_path / "a").checkpoints.last_step() == 7
    RunFolder(tmp_path / "a").checkpoints.check(7)
    monkeypatch.undo()
    run(tmp_path / "a", resume=True)


def of_another_shape(tensors: dict[str, Tensor]) -> None:
    tensors["0.weight.exp_avg"] = torch.zeros(3, 2)


def of_another_dtype(tensors: dict[str, Tensor]) -> None:
    tensors["0.weight.step"] = torch.zeros((), dtype=torch.float64)


def half_there(tensors: dict[str, Tensor]) -> None:
    del tensors["0.bias.exp_avg_sq"]


def of_another_name(tensors: dict[str, Tensor]) -> None:
    tensors["elsewhere.exp_avg"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_another_shape, "0.weight.exp_avg is torch.float32 (3, 2), expected torch.float32 (8, 6)"),
        (of_another_dtype, "0.weight.step is torch.float64 (), expected torch.float32 ()"),
        (half_there, "lacks 1 of them, as 0.bias.exp_avg_sq"),
        (of_another_name, "has 1 others, as elsewhere.exp_avg"),
    ],
)
def test_an_optimiser_that_does_not_fit_is_one_clear_error(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    run(tmp_path / "a", toy_run(epochs=1))
    checkpoints = RunFolder(tmp_path / "a").checkpoints
    files = {name: checkpoints.load_tensors(7, name) for name in (WEIGHTS, AVERAGE, OPTIMIZER)}
    change(files[OPTIMIZER])
    checkpoints.save(7, files, checkpoints.load_state(7), -1)
    with refused(ValueError, "the state of step 7 in ", message):
        run(tmp_path / "a", toy_run(epochs=1), resume=True)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("progress", "step"), 8, "is of step 8"),
        (("progress", "best_step"), 9, "the best of which is 9"),
        (("progress", "batch"), 8, "is at batch 8 of an epoch of 7"),
        (("progress", "batch"), "1", "progress.batch is '1'; expected int"),
        (("progress", "metrics"), [1], "progress.metrics is [1]; expected an object"),
        (("progress",), None, "progress is None"),
        (("log", "bytes"), 1.5, "log.bytes is 1.5; expected int"),
        (("random", 0, "torch"), "00", "no state of the random generators here"),
        (("random", 0, "numpy", "position"), 10**6, "no state of the random generators here"),
        (("random", 0, "python", "words"), "zz", "no state of the random generators here"),
        (("random",), [], "no state of the random generators here"),
    ],
)
def test_a_state_that_does_not_fit_is_one_clear_error(
    tmp_path: Path, place: tuple[Any, ...], value: object, message: str
) -> None:
    run(tmp_path / "a", toy_run(epochs=1))
    checkpoints = RunFolder(tmp_path / "a").checkpoints
    files = {name: checkpoints.load_tensors(7, name) for name in (WEIGHTS, AVERAGE, OPTIMIZER)}
    state = checkpoints.load_state(7)
    at = state
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    checkpoints.save(7, files, state, -1)
    torch.manual_seed(3)
    with refused(ValueError, "the state of step 7 in ", message):
        run(tmp_path / "a", toy_run(epochs=1), resume=True)
