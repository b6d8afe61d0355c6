"""Settings that a task's bare command chooses, and settings of the user that stay."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fredholm import cli
from fredholm.cli import train
from fredholm.models import ITNet, ViT
from fredholm.tasks import TASKS, ImageLearning, LanguageModelling
from fredholm.tasks.images.patches import divided_into_patches
from fredholm.training import Run
from fredholm.training.config import TrainingConfig
from fredholm.training.step_cost import StepCost
from tests.command_line import call, check_refused


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of 20 x 12 pixels, bright on the left or on the right."""
    folder, draw = tmp_path_factory.mktemp("shapes"), np.random.default_rng(0)
    for name in ("left", "right"):
        (folder / name).mkdir()
        for i in range(15):
            pixels = draw.integers(0, 60, (12, 20, 3), dtype=np.uint8)
            pixels[:, : 10 if name == "left" else None][:, -10:] += 150
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, command = {}, ("train", "images", shapes, "--task.stem-depth", "1", "--dry-run")
    for preset in ("small", "base"):
        code, out, err = call(capsys, *command, "--preset", preset, "--run-dir", tmp_path / "run")
        assert (code, err) == (0, "")
        note, *lines = out.splitlines()
        assert note.startswith("--task.stem-depth 1 takes a network; without it there is a bank of patches, ")
        assert lines[0] == "data: 21 examples to learn from, 3 for validation and 6 for testing"
        assert [line.partition(":")[0] for line in lines[:3]] == ["data", "model", "training"]
        found[preset] = lines
    assert "ITNet with" in found["small"][1] != found["base"][1]
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()  # a real run is refused in a folder that is not empty
    assert cli.main(["train", "images", str(shapes), "--dry-run", "--run-dir", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    file = tmp_path / "run" / "notes.txt"  # never a possible run folder
    for folder, reason in ((file, "expected a run folder"), (file / "a", "expected a folder, for the run folder")):
        message = f"{file} is a file; {reason}"
        check_refused(capsys, tmp_path, message, "train", "images", f"{shapes}", "--dry-run", "--run-dir", f"{folder}")


def test_built_in_data_used_by_default_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = "no DATA is given: these are digits, built in, to try; pass your own"
    for data, is_shown in (((), True), (("digits",), False), (("--task.data", "digits"), False)):
        code, out, err = call(capsys, "train", "images", *data, "--dry-run", "--run-dir", tmp_path / "run")
        assert (code, err) == (0, "")
        assert (out.splitlines()[0] == note) == is_shown
        assert (note in out) == is_shown


def test_a_run_limited_in_minutes_has_a_schedule_that_fits(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_steps(*_: object) -> StepCost:
        return StepCost("ITNet", 1, 4, 0, steps_per_epoch=3, seconds=1.0, evaluation_seconds=0.5, memory_bytes=None)

    monkeypatch.setattr(train, "first_steps", first_steps)
    run, command = tmp_path / "run", ("train", "images", shapes, "--task.stem-depth", "1")
    code, out, err = call(capsys, *command, "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "--minutes 30, or another number, trains by fewer epochs in about so long"
    # each of the two seeds gets 12 of the 24 seconds: 3 epochs and 3 evaluations take 10.5
    limited = ("--minutes", "0.4", "--seeds", "5", "6", "--training.ema-decay", "0.7")
    code, out, err = call(capsys, *command, *limited, "--run-dir", run)
    assert (code, err) == (0, "")
    _, first, *rest = out.splitlines()
    assert re.fullmatch(r"3 of the \d{4} epochs that suit the data, for 0\.2 minutes", first)
    assert rest[2].startswith("training: 3 epochs of 3 steps on batches of 8; at most 10 s;")
    kept = json.loads((run / "seed-5" / "config.json").read_text())["run"]
    assert (kept["task"]["model"]["dropout"], kept["task"]["model"]["drop_path"]) == (
        0,
        0,
    )  # the rule for so few epochs
    training = kept["training"]
    assert (training["epochs"], training["evaluate_every"], training["patience"]) == (3, 1, 5)
    assert training["ema_decay"] == 0.7  # set by the user
    code, out, err = call(capsys, *command, *limited, "--run-dir", run, "--resume")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "the run keeps its length: --minutes is for a new one"


def test_a_resumed_run_keeps_its_settings(shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, options = tmp_path / "run", ("--preset", "base", "--task.model", "vit", "--training.epochs", "2")
    command = ("train", "images", shapes, "--run-dir", run, "--no-report")
    code, begun, err = call(capsys, *command, *options, "--task.model.depth", "1")
    assert (code, err) == (0, "")
    kept = json.loads((run / "config.json").read_text())["run"]
    assert kept["task"]["model"]["depth"] == 1 != ViT.Config().depth
    for again in ((), ("--task.model", "vit"), options):
        code, out, err = call(capsys, *command, *again, "--resume")
        assert (code, err) == (0, "")
        assert out.splitlines()[-1] == begun.splitlines()[-1]
        assert ("the run keeps its sizes: --preset is for a new one" in out) == ("--preset" in again)
    assert json.loads((run / "config.json").read_text())["run"] == kept
    for other in (("--task.model", "itnet"), ("--task.model.depth", "2"), ("--training.batch-size", "4")):
        code, _, err = call(capsys, *command, *other, "--resume")
        assert code == 2
        assert "is a run of another config" in err
        assert "{" not in err  # the message names the other model and does not print its whole config


def test_a_run_of_few_minutes_on_many_examples_has_a_narrower_model_and_smaller_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, count = np.random.default_rng(0), 5500
    pixels, classes = draw.integers(0, 255, (count + 500, 4, 4), dtype=np.uint8), np.arange(count + 500) % 2
    np.savez(
        tmp_path / "images.npz", x=pixels, y=classes, split=np.where(np.arange(count + 500) < count, "train", "valid")
    )

    def first_steps(task: ImageLearning, config: TrainingConfig, *_: object) -> StepCost:
        steps = math.ceil(count / config.batch_size)
        assert isinstance(task.config.model, ITNet.Config)
        width = task.config.model.embed_dim
        return StepCost("ITNet", width, 4, 0, steps, 0.02 * config.batch_size, evaluation_seconds=0, memory_bytes=None)

    monkeypatch.setattr(train, "first_steps", first_steps)

    def plan_of(minutes: int, *options: str) -> list[str]:
        command = ("train", "images", tmp_path / "images.npz", "--dry-run", "--minutes", minutes)
        code, out, err = call(capsys, *command, *options)
        assert (code, err) == (0, "")
        return out.splitlines()

    data, model, training = plan_of(240)  # all epochs that suit the data fit
    assert data.startswith("data: 5,500 examples")
    assert model.endswith("with 80 parameters")
    assert training.startswith("training: 116 epochs of 43 steps on batches of 128;")
    first, _, model, training = plan_of(118)
    fewer = ", by a model and batches as for 1,375 examples"
    assert first == f"64 of the 116 epochs that suit the data, for 118 minutes{fewer}"
    assert model.endswith("with 64 parameters")
    assert training.startswith("training: 64 epochs of 86 steps on batches of 64; at most 2.0 h;")
    first, *_, training = plan_of(10)  # its steps were measured with these batches
    assert first == f"5 of the 116 epochs that suit the data, for 10 minutes{fewer}"
    assert training.startswith("training: 5 epochs of 86 steps on batches of 64;")
    heads = ("--task.model.num-heads", "2")
    first, _, model, training = plan_of(118, "--training.batch-size", "32", "--task.model.embed-dim", "48", *heads)
    assert first.endswith("for 118 minutes")
    assert model.endswith("with 48 parameters")  # set by the user
    assert "on batches of 32;" in training


def test_settings_that_depend_on_the_epochs_follow_the_number_that_is_set(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, command = tmp_path / "run", ("train", "images", shapes, "--no-report")
    small = ("--task.model", "itnet", "--task.model.embed-dim", "8", "--task.model.depth", "1")
    small += ("--task.model.num-heads", "2", "--task.model.kernel", "attention", "--task.bank", "0")

    def training() -> tuple[float, ...]:
        kept = json.loads((run / "config.json").read_text())["run"]["training"]
        return kept["epochs"], kept["evaluate_every"], kept["patience"], kept["ema_decay"]

    code, _, err = call(capsys, *command, *small, "--training.epochs", "5", "--run-dir", run)
    assert (code, err) == (0, "")
    assert training() == (5, 1, 5, 0.5)
    # a resumed run keeps its own, whatever its new number of epochs
    code, _, err = call(capsys, *command, *small, "--training.epochs", "41", "--run-dir", run, "--resume")
    assert (code, err) == (0, "")
    assert training() == (41, 1, 5, 0.5)


@pytest.mark.parametrize("epochs", ["299", "300"])  # 300 is the default of TrainingConfig
def test_typed_epochs_count_even_at_the_default_number(
    shapes: Path, epochs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = list[TrainingConfig]()

    def record(run: Run.Config, *_: object, **__: object) -> None:
        found.append(run.training)
        raise ValueError("noted")

    monkeypatch.setattr(train, "train", record)
    assert call(capsys, "train", "images", shapes, "--training.epochs", epochs)[2] == "error: noted\n"
    (training,) = found
    assert (training.epochs, training.evaluate_every) == (int(epochs), 8)
    assert training.ema_decay == pytest.approx(1 - 50 / (3 * int(epochs)), abs=1e-4)
    found.clear()
    size = str(TrainingConfig().batch_size)  # typed, though it is the default of TrainingConfig
    command = ("train", "images", shapes, "--training.epochs", epochs, "--training.batch-size", size)
    assert call(capsys, *command)[2] == "error: noted\n"
    assert found[0].batch_size == int(size)
    assert found[0].ema_decay == pytest.approx(1 - 50 / int(epochs), abs=1e-4)  # one step per epoch


def test_images_of_several_sizes_are_scaled_to_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, size in enumerate([(37, 41), (74, 82), (150, 160), (37, 41), (20, 22), (74, 82)] * 2):
        folder = tmp_path / "pictures" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((*size, 3), 20 * number, np.uint8)).save(folder / f"{number}.png")
    code, out, err = call(capsys, "train", "images", tmp_path / "pictures", "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == (
        "images of 20 x 22 to 150 x 160 pixels are scaled and cut to 37 x 41; --task.image-size chooses another size"
    )


def test_set_options_stay_and_the_rest_is_chosen_to_fit(shapes: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--task.model", "itnet", "--task.model.embed-dim", "18", "--task.model.kernel", "attention"]
    options += [
        "--task.patch-size",
        "2",
        "--training.epochs",
        "1",
        "--training.learning-rate",
        "0.001",
        "--task.model.pool",
        "mean",
    ]
    assert cli.main(["train", "images", str(shapes), "--run-dir", str(run), *options, "--training.no-tensorboard"]) == 0
    saved = json.loads((run / "config.json").read_text())["run"]
    model, training = saved["task"]["model"], saved["training"]
    assert (model["embed_dim"], model["depth"], model["kernel"]["type"]) == (18, 1, "AttentionConfig")
    assert 18 % model["num_heads"] == 0
    assert saved["task"]["patch_size"] == 2
    assert (training["epochs"], training["learning_rate"], training["batch_size"]) == (1, 0.001, 8)
    assert training["patience"] >= 5


@pytest.mark.parametrize(
    ("size", "small", "base"),
    [
        ((8, 8), ((8, 8), 2), ((8, 8), 1)),
        ((28, 28), ((28, 28), 4), ((28, 28), 2)),
        ((32, 32), ((32, 32), 8), ((32, 32), 4)),
        ((64, 64), ((64, 64), 16), ((64, 64), 8)),
        ((12, 20), ((12, 20), 4), ((12, 20), 2)),
        ((37, 41), ((36, 42), 6), ((36, 42), 3)),
        ((480, 640), ((48, 64), 16), ((160, 224), 16)),
        ((1, 300), ((16, 64), 16), ((16, 224), 16)),
    ],
)
def test_patches_divide_images_into_few(
    size: tuple[int, int], small: tuple[tuple[int, int], int], base: tuple[tuple[int, int], int]
) -> None:
    assert divided_into_patches(size, 64, 7) == small
    assert divided_into_patches(size, 224, 14) == base
    for (height, width), side in (small, base):
        assert height % side == width % side == 0


def test_settings_in_python_get_the_same_rules(tmp_path: Path) -> None:
    config, schedule, _ = ImageLearning.Config(data="digits", position_frequencies=0).recommended("small")
    steps = math.ceil(ImageLearning.Config(data="digits").build().num_train / schedule.batch_size) * schedule.epochs
    assert steps == pytest.approx(5000, rel=0.02)  # the rule shared by all tasks gives 2,600
    assert (config.patch_size, config.position_frequencies, config.position_sigma) == (2, 0, 10.0)  # pyright: ignore[reportAttributeAccessIssue]
    assert schedule.epochs > 1
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 200)
    text = LanguageModelling.Config(data=str(tmp_path / "a.txt"), context=16).recommended("small").config
    assert (text.context, text.stride) == (16, 8)  # pyright: ignore[reportAttributeAccessIssue]


def test_rare_classes_are_reported_before_a_run_and_balanced_accuracy_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, y = tmp_path / "rare.npz", np.arange(60) % 6 // 5
    np.savez(path, x=np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8), y=y)
    small = ["--task.model.embed-dim", "8", "--task.model.depth", "1", "--training.epochs", "1"]
    arguments = ["train", "images", path, *small, "--training.no-tensorboard", "--run-dir"]
    code, out, err = call(capsys, *arguments, tmp_path / "plain")
    assert code == 0
    advice = "'0' has 35 training examples, '1' 7: watch the balanced accuracy, and try --task.class-weights balanced"
    assert (out + err).count(advice) == 1
    (line,) = [line for line in (out + err).splitlines() if line.startswith("test accuracy") and "averaged" in line]
    assert re.fullmatch(
        r"test accuracy [\d.]+ %, balanced accuracy [\d.]+ %, auroc [\d.]+, averaged weights of step \d+", line
    )
    code, out, err = call(capsys, *arguments, tmp_path / "balanced", "--task.class-weights", "balanced")
    assert advice not in out + err
    assert "test balanced accuracy " in out + err


def test_quantiles_are_a_setting_of_tasks_that_may_predict_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = {task.command for task in TASKS if "quantiles" in (field.name for field in dataclasses.fields(task.Config))}
    assert tasks == {"images", "sentences", "table", "series", "graphs", "nodes", "points", "forecast"}
    code, _, err = call(capsys, "train", "links", "papers", "--task.quantiles", "0.5")
    assert code == 2
    assert err.startswith("error: unknown option --task.quantiles")
