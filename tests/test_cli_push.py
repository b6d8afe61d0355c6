"""`fredholm push`: a finished run becomes a folder with the same predictions."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fredholm
from fredholm import cli
from fredholm.storage.integrity import listed, seal
from fredholm.storage.tensors import model_tensors, read_noted, tensor_bytes
from fredholm.training import Run, TaskModel
from tests.command_line import TINY, call, check_refused
from tests.refusals import refused
from tests.trained_pictures import train_on_pictures


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pictures in a temporary folder."""
    folder = tmp_path_factory.mktemp("push")
    train_on_pictures(folder)
    assert cli.main(["push", str(folder / "run"), str(folder / "saved")]) == 0
    return folder


def test_a_saved_run_predicts_as_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = run / "shapes" / "a"
    code, rows, _ = call(capsys, "predict", run / "run", pictures, "--probabilities")
    assert code == 0
    assert call(capsys, "predict", run / "saved", pictures, "--probabilities") == (0, rows, "")
    measured = call(capsys, "evaluate", run / "run")
    assert call(capsys, "evaluate", run / "saved", "--task", f"data={run / 'shapes'}") == measured
    assert measured[0] == 0
    files = sorted(pictures.iterdir())
    model = fredholm.from_pretrained(run / "saved")
    assert isinstance(model, TaskModel)
    assert model.predict(files) == Run(run / "run", device="cpu").predict(files)
    again = fredholm.from_pretrained(run / "run")
    batch = torch.rand(2, 1, 8, 8)
    assert torch.equal(model(batch), again(batch))


def test_a_saved_run_asks_for_the_path_of_its_data(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, data = str(run / "saved"), f"data={run / 'shapes'}"

    def refused(message: str, *arguments: str) -> None:
        check_refused(capsys, tmp_path, message, "evaluate", saved, *arguments)

    refused("there is no 'shapes', the data of this model; say where they lie: --task data=PATH")
    refused("no data called 'nowhere': pass", "--task", "data=nowhere")
    refused("--task split-seed=3 chooses other training data", "--task", data, "split-seed=3")
    refused(f"{saved} has the weights of one step; leave --checkpoint out", "--checkpoint", "last", "--task", data)


def test_an_edited_card_is_copied_with_the_model(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = shutil.copytree(run / "saved", tmp_path / "saved")
    card = (saved / "README.md").read_text() + "\nA picture is fair game.\n"
    (saved / "README.md").write_text(card)
    to = tmp_path / "again"
    assert call(capsys, "push", saved, to)[0] == 0
    assert (to / "README.md").read_text() == card.replace(str(run / "saved"), str(to))
    (saved / "README.md").write_bytes(b"\xff")
    words = f"{saved / 'README.md'} is not UTF-8 text; save it as UTF-8, or remove it"
    check_refused(capsys, tmp_path, words, "push", str(saved), str(tmp_path / "third"))


def test_the_card_describes_the_model(run: Path) -> None:
    card = (run / "saved" / "README.md").read_text()
    front, body = card.removeprefix("---\n").split("\n---\n")
    assert "library_name: fredholm" in front
    assert "- images" in front
    assert "metrics:\n- accuracy" in front
    command = "fredholm train images shapes --run-dir run --task.patch-size 4"
    for expected in ("`shapes`", "| validation | accuracy ", "95 % interval (Wilson)", command):
        assert expected in body
    assert "| machine | " in body
    assert 'fredholm.from_pretrained("' in body


def test_a_saved_run_holds_no_path_of_this_machine(run: Path) -> None:
    for file in (run / "saved").iterdir():
        found = file.read_bytes().replace(
            str(run / "saved").encode(), b""
        )  # the card names its own folder, as requested
        assert str(run).encode() not in found, file
    assert json.loads((run / "saved" / "config.json").read_text())["run"]["task"]["data"] == "shapes"


def test_a_run_starts_from_a_saved_run_and_cannot_resume_in_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "images", str(run / "shapes"), *TINY, "--no-report", "--run-dir"]
    code, out, _ = call(capsys, *command, tmp_path / "next", "--init", run / "saved")
    assert code == 0
    assert f"from {run / 'saved'}: " in out
    code, _, err = call(capsys, *command, run / "saved", "--resume")
    assert code == 2
    assert "holds a finished model" in err
    assert "--init" in err


def test_bad_sources_and_targets_of_a_push_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(run / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    full = str(tmp_path / "full")
    check_refused(capsys, tmp_path, f"{full} is not empty; choose another folder", "push", source, full)
    check_refused(capsys, tmp_path, "TO is empty; expected a folder, or hf://OWNER/NAME", "push", source, "")
    words = "there is no folder 'owner' to make owner/name in; make it first (a repository of the hub is written "
    check_refused(capsys, tmp_path, f"{words}hf://owner/name)", "push", source, "owner/name")
    check_refused(capsys, tmp_path, "'hf://name' names no repository of the hub", "push", source, "hf://name")
    new = str(tmp_path / "new")
    check_refused(capsys, tmp_path, "--private has no effect on the folder", "push", source, new, "--private")
    check_refused(capsys, tmp_path, "--token has no effect on the folder", "push", source, new, "--token", "x")
    check_refused(capsys, tmp_path, f"{full} is no run folder", "push", full, new)
    run_itself = f"{Path(source, 'config.json')} is of no saved model, but of a run or another program"
    check_refused(capsys, tmp_path, run_itself, "push", source, source, "--overwrite")
    assert call(capsys, "evaluate", source)[0] == 0
    assert call(capsys, "push", source, full, "--overwrite")[0] == 0
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [["evaluate"], ["predict", "a.png"], ["generate"], ["export", "--format", "onnx"], ["push", "./new"]],
    ids=lambda words: words[0],
)
def test_a_mistyped_path_does_not_query_the_hub(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # importing it would raise an error
    command, *rest = words
    if command == "export":
        pytest.importorskip("onnxscript")
    message = "runs/x is no folder; expected a run folder (a repository of the hub is written hf://runs/x)"
    check_refused(capsys, tmp_path, message, command, "runs/x", *rest)
    check_refused(capsys, tmp_path, "runs/x/y is no folder; expected a run folder", command, "runs/x/y", *rest)
    message = "gpt2 is no folder; expected a run folder (a repository of the hub is written hf://openai-community/gpt2)"
    check_refused(capsys, tmp_path, message, command, "gpt2", *rest)


def test_a_run_pushed_to_the_hub_predicts_from_there(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pushed(folder: Path, repo: str, **_: object) -> str:
        return str(shutil.copytree(folder, tmp_path / repo))

    monkeypatch.setattr("fredholm.cli.push.push_folder", pushed)
    client = SimpleNamespace(snapshot_download=lambda name, **_: str(tmp_path / name))
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    assert call(capsys, "push", run / "run", "hf://owner/shapes") == (0, f"{tmp_path / 'owner' / 'shapes'}\n", "")
    assert 'fredholm.from_pretrained("hf://owner/shapes")' in (tmp_path / "owner" / "shapes" / "README.md").read_text()
    pictures = run / "shapes" / "a"
    printed = call(capsys, "predict", run / "run", pictures)
    assert printed[0] == 0
    assert call(capsys, "predict", "hf://owner/shapes", pictures) == printed
    check_refused(capsys, tmp_path, "--report has no folder to write into", "evaluate", "hf://owner/shapes", "--report")


def test_a_run_that_has_not_finished_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fredholm.training.trained_folder import OwnRun

    progress = OwnRun(run / "run").progress
    progress.is_done, progress.epoch = False, 1
    monkeypatch.setattr(OwnRun, "progress", progress)
    words = f"{run / 'run'} has not finished: it is at epoch 1 of 2; go on with fredholm train ... --resume"
    check_refused(capsys, tmp_path, words, "push", str(run / "run"), str(tmp_path / "new"))


def test_a_saved_run_with_weights_of_another_precision_is_read(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = shutil.copytree(run / "saved", tmp_path / "half")
    half = {name: each.bfloat16() for name, each in model_tensors(Run(saved, device="cpu").model()).items()}
    data, content = tensor_bytes(half, {}), json.loads((saved / "config.json").read_text())
    (saved / "model.safetensors").write_bytes(data)
    del content["sha256"]
    (saved / "config.json").write_bytes(seal(content | {"files": {"model.safetensors": listed(data)}}))
    code, out, _ = call(capsys, "predict", saved, run / "shapes" / "a" / "0.png", "--probabilities")
    assert (code, out.count("\n")) == (0, 2)
    assert fredholm.from_pretrained(saved).get_parameter("network.head.weight").dtype == torch.float32


def test_a_damaged_saved_run_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def copied(name: str) -> Path:
        return shutil.copytree(run / "saved", tmp_path / name)

    weights = copied("weights") / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with refused(ValueError, "model.safetensors", "damaged", "fetch it again"):
        fredholm.from_pretrained(weights.parent)
    config = copied("config") / "config.json"
    config.write_text("{")
    check_refused(
        capsys, tmp_path, f"{config.parent} is no run folder: it has weights beside", "evaluate", str(config.parent)
    )
    changes: dict[str, Any] = {
        "wings": (lambda content: content["run"]["task"].update(wings=1), ["'wings'"]),
        "kind": (lambda content: content["run"]["task"].update(type="Popen"), ["'Popen'", "expected one of"]),
        "newer": (lambda content: content.update(format=7), ["format 7", "update fredholm"]),
    }
    for name, (change, words) in changes.items():
        path = copied(name) / "config.json"
        content = json.loads(path.read_text())
        del content["sha256"]
        change(content)
        path.write_bytes(seal(content))
        with refused(ValueError, str(path), *words):
            fredholm.from_pretrained(path.parent)


@pytest.mark.parametrize("name", ["run", "saved"])
def test_weights_that_are_not_finite_are_refused(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run / name, tmp_path / name)
    for file in [*folder.rglob("ema.safetensors"), *folder.rglob("model.safetensors")]:
        tensors, notes = read_noted(file)
        data = tensor_bytes(tensors | {"head.bias": torch.full_like(tensors["head.bias"], torch.nan)}, notes)
        file.unlink()
        file.write_bytes(data)
        listing = next(file.parent.glob("*.json"))
        content = json.loads(listing.read_text())
        del content["sha256"]
        content["files"][file.name] = listed(data)
        listing.write_bytes(seal(content))
    message = f"{folder}: head.bias holds NaN or infinite numbers; expected finite weights"
    check_refused(capsys, tmp_path, message, "predict", str(folder), str(run / "shapes" / "a"))
    check_refused(capsys, tmp_path, message, "evaluate", str(folder), "--task", f"data={run / 'shapes'}")
    check_refused(capsys, tmp_path, message, "push", str(folder), str(tmp_path / "to"))
    with refused(ValueError, message):
        fredholm.from_pretrained(folder)
