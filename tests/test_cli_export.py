"""`fredholm export`: a finished run becomes a file with the same predictions, or a one-line error."""

import copy
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
import torch._inductor.config as inductor
from PIL import Image
from torch import Tensor, nn

import fredholm
from fredholm import kernels
from fredholm.cli import export
from fredholm.export import Format, OnnxFile, exported
from fredholm.export.format import Graph, Runs
from fredholm.tasks import ImageLearning, Task
from fredholm.tasks.tensor_form import BATCH, Axis, OpenAxis, Slot, TensorForm
from tests.command_line import call, check_refused
from tests.trained_pictures import train_on_pictures

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
from torch.onnx._internal.exporter._registration import ONNXRegistry  # noqa: E402 - needs onnxscript


@pytest.fixture(scope="module", autouse=True)
def _one_registry() -> Iterator[None]:
    """Builds the registry of ONNX operators once; each export would rebuild it, which takes half of its time."""
    read = functools.cache(ONNXRegistry.from_torchlib)

    def copied(opset_version: int) -> ONNXRegistry:
        found = copy.copy(read(opset_version))
        found.functions = {target: list(each) for target, each in found.functions.items()}
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(copied))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on pictures, bright ones and dark ones."""
    folder = tmp_path_factory.mktemp("export")
    train_on_pictures(folder)
    return folder


def predicted(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of all pictures, and the run's class probabilities."""
    _, out, _ = call(capsys, "predict", run / "run", run / "shapes", "--probabilities", "--format", "json")
    rows = json.loads(out)
    pixels = np.stack([np.asarray(Image.open(row["file"]))[None] for row in rows])
    return pixels, np.array([[row["probability of a"], row["probability of b"]] for row in rows])


@pytest.mark.slow
def test_an_onnx_file_runs_without_this_library(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, file = tmp_path / "saved", tmp_path / "shapes.onnx"
    assert call(capsys, "push", run / "run", saved)[0] == 0
    shutil.move(saved, moved := tmp_path / "moved")
    code, out, err = call(capsys, "export", moved, "--format", "onnx", "--output", tmp_path / "shapes")
    assert (code, err) == (0, "")
    assert out.startswith(f"{file}: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "shapes.onnx", "shapes.onnx.json"]
    pixels, expected = predicted(run, capsys)
    np.savez(tmp_path / "inputs.npz", pixels=pixels)
    found = json.loads((tmp_path / "shapes.onnx.json").read_text())
    program = ["import sys, numpy as np", "pixels = np.load('inputs.npz')['pixels']", *found["usage"]]
    program += ["np.save('found.npy', answers)", "assert 'fredholm' not in sys.modules and 'torch' not in sys.modules"]
    subprocess.run([sys.executable, "-c", "\n".join(program)], check=True, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, rtol=1e-4, atol=1e-6)
    assert found["names"] == {"classes": ["a", "b"]}
    assert found["task"] == "images"
    assert found["inputs"][0]["axes"][0] == {"name": "batch", "size": None, "least": 1, "most": None}
    assert found["checked"]["largest_difference"] < 1e-5
    before = file.read_bytes()
    assert call(capsys, "export", moved, "--format", "onnx", "--output", file)[0] == 2
    assert file.read_bytes() == before


@pytest.mark.long
def test_a_package_of_compiled_code(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "export", run / "run", "--format", "pt2", "--output", tmp_path / "shapes.pt2")
    assert (code, err) == (0, "")
    pixels, expected = predicted(run, capsys)
    got = json.loads((tmp_path / "shapes.pt2.json").read_text())
    assert got["device"] == "cpu"
    # in another order of memory, which a package does not notice
    names = {"pixels": torch.from_numpy(np.asfortranarray(pixels))}
    exec("\n".join(got["usage"]).replace("shapes.pt2", str(tmp_path / "shapes.pt2")), names)
    np.testing.assert_allclose(names["answers"].numpy(), expected, rtol=1e-4, atol=1e-6)


class Uncompiled(Format):
    """A format that runs the model itself, in place of code compiled from it."""

    name, suffix, device = "pt2", ".pt2", torch.device("cpu")

    def check(self) -> None: ...

    def write(self, graph: Graph, path: Path, about: str) -> None:
        path.write_bytes(b"kept")

    def load(self, path: Path, form: TensorForm) -> Runs:
        return form.module().eval()

    def usage(self, name: str, form: TensorForm) -> tuple[str, ...]:
        return (name,)

    @property
    def facts(self) -> Mapping[str, Any]:
        return {}


def test_bad_options_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = str(run / "run")
    (tmp_path / "full.onnx").write_text("mine")
    (tmp_path / "named.onnx.json").write_text("mine")

    def refused(message: str, *arguments: object, folder: str = run_folder) -> None:
        check_refused(capsys, tmp_path, message, "export", folder, *map(str, arguments))

    onnx = ("--format", "onnx", "--output")
    refused(f"{tmp_path / 'full.onnx'} exists; name another file, or pass --overwrite", *onnx, tmp_path / "full")
    refused(f"{tmp_path / 'named.onnx.json'} exists; name another", *onnx, tmp_path / "named.onnx")
    refused(f"--output: {tmp_path / 'a.pt2'} ends in .pt2; expected .onnx", *onnx, tmp_path / "a.pt2")
    refused("--output: there is no folder", *onnx, tmp_path / "no" / "a.onnx")
    refused(f"{tmp_path} is no run folder", *onnx, tmp_path / "a", folder=str(tmp_path))
    refused("--device has no effect with --format onnx", *onnx, tmp_path / "a", "--device", "cpu")
    refused("device 'ufo' is", "--format", "pt2", "--device", "ufo")
    refused("--format {onnx,pt2} is missing: onnx, for onnxruntime", "--output", tmp_path / "a")
    refused("--format is 'gguf'; expected one of onnx, pt2", "--format", "gguf")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    refused('ONNX needs onnxscript; get it with: pip install "fredholm[export]"', *onnx, tmp_path / "a")
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}):
        refused("a .pt2 package is compiled, and there is no C++ compiler", "--format", "pt2")
    assert (tmp_path / "full.onnx").read_text() == "mine"


def test_a_run_that_has_not_finished_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fredholm.training.trained_folder import OwnRun

    progress = OwnRun(run / "run").progress
    progress.is_done, progress.epoch = False, 1
    monkeypatch.setattr(OwnRun, "progress", progress)
    words = f"{run / 'run'} has not finished: it is at epoch 1 of 2; go on with fredholm train ... --resume"
    command = ["export", str(run / "run"), "--format", "onnx", "--output", str(tmp_path / "a")]
    check_refused(capsys, tmp_path, words, *command)


class Scaled(nn.Module):
    """Multiplies its input by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.5, -2.0]))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.weight


def form_of(call: Callable[..., Tensor], files: Mapping[str, str] | None = None) -> TensorForm:
    values = Slot("values", (BATCH, Axis("points"), Axis("channels", 2)), "numbers")
    return TensorForm(
        model=Scaled().eval().requires_grad_(False),
        call=call,
        inputs=(values,),
        output=values._replace(name="answers"),
        draw=lambda sizes, generator: (torch.randn(sizes["batch"], sizes["points"], 2, generator=generator),),
        open_axes={"points": OpenAxis(5, 7, 6)},
        files=files or {},
    )


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """A function that runs the command on a run whose tensor form has a chosen call."""

    def run(
        call_of_form: Callable[..., Tensor], files: Mapping[str, str] | None = None, *options: str, kind: str = "onnx"
    ) -> tuple[int, str, str]:
        task: Any = SimpleNamespace(tensor_form=lambda model: form_of(call_of_form, files), command="own")
        made: Any = SimpleNamespace(
            task=task, model=lambda which: None, step=lambda which: 1, check_finished=lambda: None
        )
        monkeypatch.setattr(export, "open_run", lambda *_: made)
        return call(capsys, "export", "run", "--format", kind, "--output", tmp_path / "a", *options)

    return run


def test_both_formats_lie_in_one_folder(exports: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(export.FORMATS, "pt2", lambda device: Uncompiled())  # pyright: ignore[reportArgumentType]
    for name in ("onnx", "pt2"):
        assert exports(lambda model, values: model(values), kind=name) == (0, ANY, "")
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert {name: (expected["format"], expected["file"]) for name, expected in found.items()} == {
        "a.onnx.json": ("onnx", "a.onnx"),
        "a.pt2.json": ("pt2", "a.pt2"),
    }


def test_an_axis_is_fixed_where_a_model_requires_it(exports: Any, tmp_path: Path) -> None:
    def only_six(model: nn.Module, values: Tensor) -> Tensor:
        if not isinstance(values.shape[1], int):
            raise ValueError("the number of points must be known")
        return model(values)

    code, out, err = exports(only_six)
    assert (code, err) == (0, "")
    assert "  points: 6, and no other number (the number of points must be known)\n" in out
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    assert session.get_inputs()[0].shape == ["batch", 6, 2]


def test_an_axis_is_fixed_where_the_graph_holds_for_one_size_only(exports: Any, tmp_path: Path) -> None:
    def least_of_nine(model: nn.Module, values: Tensor) -> Tensor:
        return model(values) - values.topk(int(min(9, values.shape[1])), dim=1).values[:, -1:]

    code, out, err = exports(least_of_nine)
    assert (code, err) == (0, "")
    assert "  points: 6, and no other number (its graph holds for 5 points alone, by the example that it was" in out
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    assert session.get_inputs()[0].shape == ["batch", 6, 2]


def test_numbers_of_points_for_which_a_graph_holds_are_reported(exports: Any, tmp_path: Path) -> None:
    def from_four_on(model: nn.Module, values: Tensor) -> Tensor:
        return model(values) if values.shape[1] > 3 else values

    assert exports(from_four_on)[0] == 0
    axes = json.loads((tmp_path / "a.onnx.json").read_text())["inputs"][0]["axes"]
    assert axes[1] == {"name": "points", "size": None, "least": 4, "most": None}

    def up_to_eleven(model: nn.Module, values: Tensor) -> Tensor:
        return model(values) if values.shape[1] < 12 else values

    for path in tmp_path.iterdir():
        path.unlink()
    assert exports(up_to_eleven)[0] == 0
    axes = json.loads((tmp_path / "a.onnx.json").read_text())["inputs"][0]["axes"]
    assert (axes[1]["least"] <= 5, axes[1]["most"]) == (True, 11)


def test_a_file_whose_outputs_differ_is_removed(exports: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = OnnxFile.load

    def wrong(self: OnnxFile, path: Path, form: TensorForm) -> Callable[..., Tensor]:
        run = load(self, path, form)
        return lambda *inputs: run(*inputs) + 1e-3

    monkeypatch.setattr(OnnxFile, "load", wrong)
    code, _, err = exports(lambda model, values: model(values))
    assert code == 2
    assert err.startswith("error: the file gives other numbers than the model: they differ by up to 1.0e-03")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "left",
    [
        ("query_content",),
        *(
            pytest.param(left, marks=pytest.mark.long)
            for left in (("key_content",), ("query_position", "key_position"))
        ),
    ],
)
def test_perceptrons_that_read_only_some_inputs_are_exported(exports: Any, left: tuple[str, ...]) -> None:
    inputs = kernels.PointInputs(**dict.fromkeys(left, False))
    operator = fredholm.IntegralOperator(kernels.LowRankMLP(2, width=3, rank=2, inputs=inputs)).eval()
    assert exports(lambda model, values: operator(values))[::2] == (0, "")


def test_a_model_that_cannot_be_exported_is_one_line(exports: Any, tmp_path: Path) -> None:
    def solved(model: nn.Module, values: Tensor) -> Tensor:
        return torch.linalg.solve(torch.eye(2) + values.mT @ values, values.mT).mT

    code, _, err = exports(solved)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: the model cannot be written as onnx, which has no operator for aten._linalg_solve")
    code, _, err = exports(lambda model, values: values * float(values.sum()))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: the model cannot be written as onnx: ")
    code, _, err = exports(lambda model, values: values / 0)
    assert (code, err) == (2, "error: the model gives numbers that are NaN or infinite; nothing is written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_kernel_that_cannot_be_exported_is_one_line(exports: Any) -> None:
    infinite = fredholm.IntegralOperator(kernels.InfiniteAttention(2, 1)).eval()
    code, _, err = exports(lambda model, values: infinite(values))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: the model cannot be written as onnx, which has no operator for prims.frexp")


def test_weights_too_large_for_one_file_lie_beside_it(
    exports: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fredholm.export import onnx_file

    monkeypatch.setattr(onnx_file, "LARGEST", 0)
    for options in ((), ("--overwrite",)):
        code, _, err = exports(lambda model, values: model(values) + torch.arange(100_000.0).sum() * 0, None, *options)
        assert (code, err) == (0, "")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "a.onnx.data", "a.onnx.json"]
        onnxruntime.InferenceSession(tmp_path / "a.onnx")
    monkeypatch.setattr(onnx_file, "LARGEST", 1 << 30)
    assert exports(lambda model, values: model(values), None, "--overwrite")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "a.onnx.json"]
    (tmp_path / "a.onnx").rename(tmp_path / "a.onnx.data")  # belongs to no model that is replaced
    assert exports(lambda model, values: model(values), None, "--overwrite")[0] == 0
    assert (tmp_path / "a.onnx.data").exists()


def test_further_files_lie_beside_the_model_which_holds_its_description(exports: Any, tmp_path: Path) -> None:
    assert exports(lambda model, values: model(values), {"words.txt": "ä b\n"})[0] == 0
    assert (tmp_path / "a.onnx.words.txt").read_text(encoding="utf-8") == "ä b\n"
    found = json.loads((tmp_path / "a.onnx.json").read_text())
    assert found["files"] == ["a.onnx.words.txt"]
    metadata = onnxruntime.InferenceSession(tmp_path / "a.onnx").get_modelmeta().custom_metadata_map
    within = json.loads(metadata["description"])
    assert within == {name: value for name, value in found.items() if name != "checked"}
    # replacing a model removes its own files, and no others that its description may list
    (tmp_path / "mine.txt").write_text("kept")
    described = json.dumps(found | {"files": [*found["files"], "mine.txt", "a.onnx./../mine.txt", 7]})
    (tmp_path / "a.onnx.json").write_text(described)
    assert exports(lambda model, values: model(values), None, "--overwrite")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "a.onnx.json", "mine.txt"]


@pytest.mark.parametrize("nth", [1, 2])  # which of the written files fails
def test_a_full_disk_leaves_nothing(exports: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    calls = iter(range(1, 9))

    def full(*_: object) -> None:
        if next(calls) == nth:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(exported.os, "fsync", full)
    code, _, err = exports(lambda model, values: model(values))
    assert (code, err) == (1, f"error: {tmp_path / 'a.onnx'}: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


def test_a_task_without_a_tensor_form_is_refused() -> None:
    task = object.__new__(ImageLearning)
    with pytest.raises(ValueError, match=r"the task 'images' does not say which tensors its model takes"):
        Task.tensor_form(task, nn.Identity())
