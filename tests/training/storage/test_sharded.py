"""Checkpoints saved by several processes together can be read by any number of processes, with equal tensors."""

import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from fredholm.storage.atomic import Draft
from fredholm.storage.integrity import seal
from fredholm.storage.tensors import model_tensors
from fredholm.training import Checkpoints
from fredholm.training.storage.checkpoint import AVERAGE, MANIFEST, NAMES, OPTIMIZER, WEIGHTS
from fredholm.training.storage.parts import part_names
from tests.processes import on_processes
from tests.refusals import refused

STEP = 10
Files = dict[str, dict[str, Tensor]]


def whole(step: int = STEP) -> Files:
    """Tensors of several dtypes and odd shapes: some are shorter than the number of processes, one is empty."""
    generator = torch.Generator().manual_seed(step)

    def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return (100 * torch.randn(*shape, generator=generator)).to(dtype)

    model = {
        "a.weight": drawn(7, 5),
        "a.bias": drawn(2),
        "b": drawn(3, 2, 2, dtype=torch.bfloat16),
        "none": drawn(0, 3),
    }
    average = {name: tensor + 1 for name, tensor in model.items()}
    counts = {"count": torch.tensor(3 + step), "seen": drawn(5, dtype=torch.int64)}
    moments = {f"{name}.exp_avg": drawn(*tensor.shape) for name, tensor in model.items() if name != "b"}
    steps = {f"{name}.step": torch.tensor(float(step)) for name in model}
    return {WEIGHTS: model | counts, AVERAGE: average | counts, OPTIMIZER: moments | steps}


def laid_out(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Shards each floating-point tensor over the processes; scalars and integer tensors stay whole."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {
        name: distribute_tensor(tensor, mesh, [Shard(0)]) if tensor.ndim and tensor.is_floating_point() else tensor
        for name, tensor in named.items()
    }


def save(folder: Path, step: int = STEP, best_step: int = 5, note: str = "") -> None:
    files = {file: laid_out(named) for file, named in whole(step).items()}
    Checkpoints(folder, "ours").save(step, files, {"note": note or dist.get_rank()}, best_step)


def save_all(folder: Path) -> None:
    """Saves on several processes: some steps, and one in the background while the tensors change."""
    save(folder / "last", 5, 5)
    save(folder / "last")
    save(folder / "best", best_step=STEP)
    checkpoints, files = Checkpoints(folder / "beside", "ours"), {f: laid_out(named) for f, named in whole(5).items()}
    with checkpoints.in_background():
        checkpoints.save(5, files, {"note": dist.get_rank()}, 5)
        for named in files.values():
            for tensor in named.values():
                tensor.zero_()
        files = {file: laid_out(named) for file, named in whole().items()}
        checkpoints.save(STEP, files, {"note": dist.get_rank()}, 5)


def read(folder: Path, step: int = STEP) -> Files:
    """Reads the tensors on all processes and gathers them."""
    checkpoints, found = Checkpoints(folder, "ours"), Files()
    for file, named in whole(step).items():
        like = laid_out(named)
        tensors = checkpoints.load_tensors(step, file, like)
        assert {name: type(tensor) for name, tensor in tensors.items()} == {name: type(like[name]) for name in like}
        found[file] = {
            name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()
        }
    return found


def assert_same(found: Files, expected: Files) -> None:
    assert found.keys() == expected.keys()
    for file, named in found.items():
        assert named.keys() == expected[file].keys()
        for name, tensor in named.items():
            assert (tensor.dtype, tensor.shape) == (expected[file][name].dtype, expected[file][name].shape)
            assert torch.equal(tensor, expected[file][name]), name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of `save_all` on four processes."""
    folder = tmp_path_factory.mktemp("four")
    on_processes(4, save_all, folder)
    return folder


@pytest.fixture
def last(made: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoints of four processes at step 5, the best, and at step 10."""
    return Path(shutil.copytree(made / "last", tmp_path / "checkpoints"))


def names(folder: Path, step: int = STEP) -> list[str]:
    return sorted(path.name for path in (folder / f"step-{step:08d}").iterdir())


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_each_process_writes_one_file_and_the_best_average_is_a_single_file(made: Path, tmp_path: Path) -> None:
    parts = [name for file in (WEIGHTS, OPTIMIZER) for name in part_names(file, 4)]
    assert names(made / "last") == sorted([*parts, *part_names(AVERAGE, 4), MANIFEST])
    assert names(made / "last", 5) == names(made / "best") == sorted([*parts, AVERAGE, MANIFEST])
    alone = Checkpoints(tmp_path, "ours")
    alone.save(STEP, whole(), {}, STEP)
    average = f"step-{STEP:08d}/{AVERAGE}"
    assert (made / "best" / average).read_bytes() == (tmp_path / average).read_bytes()
    assert Checkpoints(made / "best").average_files(STEP) == [made / "best" / average]
    assert [path.name for path in Checkpoints(made / "last").average_files(STEP)] == part_names(AVERAGE, 4)
    assert Checkpoints(made / "last", "ours").load_state(STEP) == {"note": 0}


def test_a_save_in_the_background_writes_the_same_files(made: Path) -> None:
    assert content(made / "beside") == content(made / "last") != {}


def test_one_process_reads_files_of_four(made: Path) -> None:
    for folder, step in (("last", STEP), ("last", 5), ("best", STEP)):
        checkpoints = Checkpoints(made / folder, "ours")
        assert_same({file: checkpoints.load_tensors(step, file) for file in NAMES}, whole(step))
        checkpoints.check(step)


@pytest.mark.parametrize("size", [2, 3])
def test_other_numbers_of_processes_read_files_of_four_or_one(made: Path, tmp_path: Path, size: int) -> None:
    Checkpoints(tmp_path, "ours").save(STEP, whole(), {}, STEP)
    for found in on_processes(size, read_several, made / "last", made / "best", tmp_path):
        for each in found:
            assert_same(each, whole())


def read_several(*folders: Path) -> list[Files]:
    return [read(folder) for folder in folders]


def test_a_second_save_by_other_processes_replaces_files_and_state(last: Path) -> None:
    on_processes(2, save, last, STEP, STEP, "two")
    expected = [*part_names(WEIGHTS, 2), AVERAGE, *part_names(OPTIMIZER, 2), MANIFEST]
    assert names(last) == sorted(expected)
    assert [path.name for path in last.iterdir()] == [f"step-{STEP:08d}"]
    checkpoints = Checkpoints(last, "ours")
    assert checkpoints.load_state(STEP) == {"note": "two"}
    assert_same({file: checkpoints.load_tensors(STEP, file) for file in NAMES}, whole())
    checkpoints.save(STEP, whole(), {"note": "one"}, STEP)
    assert names(last) == sorted([*NAMES, MANIFEST])
    assert_same({file: checkpoints.load_tensors(STEP, file) for file in NAMES}, whole())


def test_a_second_save_of_the_new_best_step_only_adds_its_average(last: Path) -> None:
    before = {name: (last / f"step-{STEP:08d}" / name).stat().st_ino for name in names(last)}
    on_processes(4, save, last, STEP, STEP, "best")
    after = {name: (last / f"step-{STEP:08d}" / name).stat().st_ino for name in names(last)}
    assert after.keys() - before.keys() == {AVERAGE}
    assert before.keys() - after.keys() == set(part_names(AVERAGE, 4))
    assert all(after[name] == before[name] for name in after if name not in (AVERAGE, MANIFEST))
    Checkpoints(last, "ours").check(STEP)


class Model(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(5, width), nn.Linear(width, 5)])
        self.norm = nn.BatchNorm1d(5)


def fill_sharded(folder: Path) -> list[str]:
    model = Model()
    for block in (*model.blocks, model):
        fully_shard(block)
    checkpoints = Checkpoints(folder)
    files = {WEIGHTS: model_tensors(model), AVERAGE: model_tensors(model), OPTIMIZER: {}}
    checkpoints.save(1, files, {}, -1)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    checkpoints.load_weights(1, model)
    loaded = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in model.state_dict().items()}
    expected = Model().state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    messages: list[str] = []
    for other in (Model(4), Model().double()):
        fully_shard(other)
        try:
            checkpoints.load_weights(1, other)
        except ValueError as error:
            messages.append(str(error))
    return messages


def test_a_sharded_model_is_saved_and_filled(tmp_path: Path) -> None:
    for width, double in on_processes(2, fill_sharded, tmp_path):
        assert re.search(
            r"is of another model: blocks\.\S+ is torch.float32 \(3,( 5)?\), expected torch.float32", width
        )
        assert re.search(r"is of another model: blocks\.\S+ is torch.float32 .*, expected torch.float64", double)
    model = Model(3)
    nn.init.zeros_(model.blocks[0].weight)  # pyright: ignore[reportArgumentType]
    Checkpoints(tmp_path).load_weights(1, model)
    assert all(torch.equal(tensor, Model().state_dict()[name]) for name, tensor in model.state_dict().items())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def of_another_step(path: Path) -> None:
    path.write_bytes((path.parent.parent / "step-00000005" / path.name).read_bytes())


def refusal_of(folder: Path) -> str:
    try:
        read(folder)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "weights-00003-of-00004.safetensors is missing"),
        (flip, "weights-00003-of-00004.safetensors is damaged: its SHA-256 is not the one that manifest.json lists"),
        (of_another_step, "weights-00003-of-00004.safetensors is damaged: "),
    ],
)
def test_missing_or_exchanged_parts_are_refused(last: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(last / f"step-{STEP:08d}" / part_names(WEIGHTS, 4)[2])
    rest = "; the checkpoint of step 5 is whole: remove step-00000010 to go on from it"
    for call in (lambda: Checkpoints(last).load_tensors(STEP, WEIGHTS), lambda: Checkpoints(last).check(STEP)):
        with refused(ValueError, message, rest):
            call()


def test_every_process_reports_a_damaged_part(last: Path) -> None:
    flip(last / f"step-{STEP:08d}" / part_names(WEIGHTS, 4)[2])
    messages = on_processes(2, refusal_of, last)
    assert messages[0] == messages[1]
    assert "weights-00003-of-00004.safetensors is damaged: " in messages[0]
    assert messages[0].endswith("; the checkpoint of step 5 is whole: remove step-00000010 to go on from it")


def without(*files: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda listing: {name: entry for name, entry in listing.items() if name not in files}


def renamed(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda listing: {name.replace(old, new): entry for name, entry in listing.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("weights-00004-of-00004.safetensors"), "but 3 of the 4 parts of weights.safetensors"),
        (renamed("weights-00001-of-00004", "weights-00001-of-00003"), "but parts of weights.safetensors of 3 and of 4"),
        (renamed("of-00004", "of-00005"), "but 4 of the 5 parts of weights.safetensors"),
        (without(*part_names(OPTIMIZER, 4)), "but neither optimizer.safetensors nor parts of it"),
        (
            lambda listing: listing | {"more.txt": listing[part_names(WEIGHTS, 4)[0]]},
            "lists more.txt, which is no file",
        ),
        (lambda listing: listing | {WEIGHTS: listing[part_names(WEIGHTS, 4)[0]]}, "lists weights-00001-of-00004"),
    ],
)
def test_a_manifest_with_parts_of_other_processes_is_refused(
    last: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    path = last / f"step-{STEP:08d}" / MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    path.write_bytes(seal(manifest | {"files": change(manifest["files"])}))
    with refused(ValueError, message):
        Checkpoints(last).load_state(STEP)


@pytest.mark.parametrize("source", ["weights-00002-of-00004.safetensors", None])
def test_inconsistent_parts_are_refused_even_if_they_are_listed(last: Path, source: str | None) -> None:
    """A folder assembled by hand, with matching checksums."""
    folder, name = last / f"step-{STEP:08d}", "weights-00001-of-00004.safetensors"
    manifest = json.loads((folder / MANIFEST).read_text())
    other = folder / source if source else last / "step-00000005" / name
    (folder / name).write_bytes(other.read_bytes())
    entries = manifest["files"] if source else json.loads((last / "step-00000005" / MANIFEST).read_text())["files"]
    del manifest["sha256"]
    (folder / MANIFEST).write_bytes(seal(manifest | {"files": manifest["files"] | {name: entries[source or name]}}))
    with refused(ValueError, "do not make up the tensor a." if source else "is of another step than 10"):
        Checkpoints(last).load_tensors(STEP, WEIGHTS)


def save_with_little_room(folder: Path) -> str:
    add = Draft.add

    def add_with_little_room(draft: Draft, name: str, data: bytes) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300 if dist.get_rank() == 1 else before[0], before[1]))
        try:
            add(draft, name, data)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)  # processes may communicate through a file

    pytest.MonkeyPatch().setattr(Draft, "add", add_with_little_room)
    checkpoints = Checkpoints(folder, "ours")
    try:
        with checkpoints.in_background():
            checkpoints.save(20, {file: laid_out(named) for file, named in whole(20).items()}, {}, 5)
    except OSError as error:
        return str(error)
    return ""


def test_a_full_disk_on_one_process_is_reported_on_all_and_leaves_no_files(last: Path) -> None:
    before = content(last)
    reason = "cannot save the checkpoint of step 20 (File too large, process 1); the one of step 10 is intact"
    for message in on_processes(3, save_with_little_room, last):
        assert reason in message
    assert content(last) == before
    assert sorted(path.name for path in last.iterdir()) == ["step-00000005", "step-00000010"]


def save_and_be_killed(folder: Path, at: int) -> None:
    add, added = Draft.add, [0]

    def add_or_die(draft: Draft, name: str, data: bytes) -> None:
        added[0] += dist.get_rank() == 1
        if added[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        add(draft, name, data)

    pytest.MonkeyPatch().setattr(Draft, "add", add_or_die)
    checkpoints = Checkpoints(folder, "ours")
    with checkpoints.in_background():
        checkpoints.save(20, {file: laid_out(named) for file, named in whole(20).items()}, {}, 5)


@pytest.mark.parametrize("at", [1, 3])
def test_a_process_killed_while_writing_leaves_the_earlier_checkpoints(last: Path, at: int) -> None:
    before = content(last)
    with pytest.raises(AssertionError, match=r"RuntimeError: .*(?i:connection (closed|reset))"):
        on_processes(3, save_and_be_killed, last, at)
    checkpoints = Checkpoints(last, "ours")
    checkpoints.clear_partial()
    assert content(last) == before
    assert checkpoints.steps() == [5, STEP]
    on_processes(3, save, last, 20)
    assert checkpoints.steps() == [5, 20]
