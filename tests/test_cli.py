"""The command line: in this process for its texts, in a subprocess for signals, limits and exit codes."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from fredholm import cli
from fredholm._version import __version__
from fredholm.cli.kinds import with_kinds
from fredholm.tasks import TASKS, Task
from fredholm.tasks.images import open_images
from fredholm.training.recipes import open_recipe
from tests.command_line import TINY, Started, call, check_refused, finish, start

NO_PAIR = "--task image-size: expected INT,INT; got "


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run folder, trained by the command, and the command's output."""
    folder = tmp_path_factory.mktemp("cli")
    code, out, err = Started("train", "digits", "--run-dir", "run", *TINY, folder=folder).finish()
    assert (code, err) == (0, "")
    return folder / "run", out


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Test digits as PNG files."""
    folder = tmp_path_factory.mktemp("scans")
    images = open_images("digits").held_out("test").images(torch.arange(5))
    for i, image in enumerate(images):
        Picture.fromarray(image[0].numpy()).save(folder / f"{i}.png")
    return [folder / f"{i}.png" for i in range(5)]


def test_train_prints_its_evaluations_and_result_and_fills_the_folder(trained: tuple[Path, str]) -> None:
    run, out = trained
    printed = out.splitlines()
    assert [line.partition(":")[0] for line in printed[:3]] == ["data", "model", "training"]
    assert printed[3] == "training digits, seed 0, in run"
    assert [line.split("  ")[0] for line in printed[4:6]] == ["epoch 1/2", "epoch 2/2"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert printed[-1] == f"test accuracy: {100 * records[-1]['accuracy']:.2f} %"
    records_of_run = {"config.json", "data.json", "machine.json", "commands.txt", "manifest.json"}
    assert {path.name for path in run.iterdir()} == {*records_of_run, "metrics.jsonl", "checkpoints"}
    config = json.loads((run / "config.json").read_text())
    assert (config["schema"], config["version"]) == (2, __version__)
    assert config["run"]["training"]["epochs"] == 2
    assert config["facts"]["target"]["names"] == list("0123456789")


def test_evaluate_gives_the_same_metrics(trained: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    run, out = trained
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    code, text, _ = call(capsys, "evaluate", run, "--json")
    found = json.loads(text)
    assert code == 0
    assert found["accuracy"] == records[-1]["accuracy"]
    assert found["loss"] == pytest.approx(records[-1]["loss"], rel=1e-5)
    assert f"averaged weights of step {found['step']}\n" in out
    assert found["examples"] == len(open_images("digits").held_out("test"))
    code, text, _ = call(capsys, "evaluate", run)
    assert code == 0
    assert text.splitlines()[0] == out.splitlines()[-1]
    code, text, _ = call(capsys, "evaluate", run, "--checkpoint", "best", "--json")
    assert json.loads(text)["accuracy"] == found["accuracy"]


def test_evaluate_takes_settings_of_several_values(
    trained: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {}
    for settings in (("image-size=8,8",), ("image_size=16,16", "data=digits")):
        code, text, err = call(capsys, "evaluate", trained[0], "--json", "--task", *settings)
        assert (code, err) == (0, "")
        losses[settings] = json.loads(text)["loss"]
    default = json.loads(call(capsys, "evaluate", trained[0], "--json")[1])["loss"]
    same, changed = losses.values()
    assert same == default != changed


def test_predict_prints_a_line_per_file(
    trained: tuple[Path, str], scans: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, "predict", trained[0], *scans, "--batch-size", "2", "--format", "json")
    rows = json.loads(out)
    assert code == 0
    assert [row["file"] for row in rows] == [str(scan) for scan in scans]
    assert all(row["class"] in "0123456789" and 0.1 <= row["probability"] <= 1 for row in rows)
    code, out, _ = call(capsys, "predict", trained[0], *scans)
    assert code == 0
    predicted = [f"{row['file']}\t{row['class']}\t{row['probability']:.4f}" for row in rows]
    assert out.splitlines() == ["file\tclass\tprobability", *predicted]


def test_info_names_versions_devices_routes_and_extras(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "info", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts.keys() == {"versions", "devices", "routes", "extras"}
    assert facts["versions"]["fredholm"] == __version__
    assert facts["versions"]["torch"] == torch.__version__
    assert "cpu" in facts["devices"]
    assert {"Dense", "Tiled", "Toeplitz"} <= facts["routes"].keys()
    code, out, _ = call(capsys, "info")
    assert code == 0
    width = max(map(len, facts["versions"]))
    assert f"\n  {'torch':<{width}}  {torch.__version__}\n" in out


def test_several_seeds_end_in_mean_and_deviation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "train",
        "digits",
        "--seeds",
        "0",
        "4",
        "--run-dir",
        tmp_path / "runs",
        *TINY,
        "--training.epochs",
        "1",
    ]
    code, out, _ = call(capsys, *arguments)
    scores = []
    for seed in (0, 4):
        records = (tmp_path / "runs" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        scores.append(100 * json.loads(records[-1])["accuracy"])
    deviation = abs(scores[0] - scores[1]) / 2**0.5
    assert code == 0
    assert out.splitlines()[-1] == f"test accuracy: {sum(scores) / 2:.2f} % +- {deviation:.2f} (2 seeds)"
    assert call(capsys, *arguments, "--resume")[1].splitlines()[-1] == out.splitlines()[-1]
    # A single run has no standard deviation.
    alone = call(capsys, *arguments[:4], *arguments[5:], "--resume")[1]
    assert alone.splitlines()[-1] == f"test accuracy: {scores[0]:.2f} %"
    # Refused before anything is trained, although the first folder is free.
    code, out, err = call(capsys, *arguments[:2], "--seeds", "9", "4", *arguments[5:])
    assert (code, out) == (2, "")
    assert "seed-4 is not empty" in err
    assert not (tmp_path / "runs" / "seed-9").exists()


def test_a_task_trains_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("dark", 20), ("light", 220)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(6):
            Picture.new("L", (8, 8), value + i).save(tmp_path / "data" / name / f"{i}.png")
    arguments = ["train", "images", tmp_path / "data", "--run-dir", tmp_path / "run", *TINY]
    code, out, _ = call(capsys, *arguments)
    assert code == 0
    assert out.splitlines()[-1].startswith("test accuracy: ")
    code, out, _ = call(capsys, "predict", tmp_path / "run", tmp_path / "data" / "dark" / "0.png")
    assert code == 0
    assert out.splitlines()[1].split("\t")[1] in ("dark", "light")


def test_a_plain_resume_keeps_the_number_of_epochs_that_was_set_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x_train=pixels, y_train=np.arange(20) % 2)
    at = TINY.index("--training.epochs")
    sizes = [*TINY[:at], *TINY[at + 2 :]]
    for words in (["train", "digits"], ["train", "images", tmp_path / "data.npz", "--task.valid-fraction", "0.2"]):
        arguments = [*words, "--run-dir", tmp_path / str(words[1]), *sizes]
        for more, epochs in (
            (["--training.epochs", "1", "--training.patience", "7"], 1),
            (["--resume", "--training.epochs", "2"], 2),
            (["--resume"], 2),
        ):
            code, _, err = call(capsys, *arguments, *more)
            assert code == 0, err
            training = json.loads((tmp_path / str(words[1]) / "config.json").read_text())["run"]["training"]
            assert (training["epochs"], training["patience"]) == (epochs, 7)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["train", "digits", "--help"], ["evaluate", "-h"]]
)
def test_help_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, err) == (0, "")
    assert out.startswith("usage: fredholm")


def test_help_leaves_out_empty_defaults_and_those_that_the_description_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(call(capsys, "predict", "--help")[1].replace("│", " ").split())
    assert "FILES... Files and folders. (required)" in text
    assert "else a table. --output" in text
    assert "(default: )" not in text
    assert "an .npz file for values of functions. (default: None)" in text, "nothing else says so"


def test_the_overview_has_a_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys)
    assert code == 2
    assert out.split("\n\n")[1].splitlines() == [
        "  train RECIPE_OR_TASK   train a model in a run folder",
        "  compare TASK [DATA]    train one network with several kernels, and say which is best",
        "  evaluate RUN           measure a trained model on held-out data",
        "  predict RUN FILES...   apply a trained model to files and folders",
        "  generate RUN           let a trained language model go on with a text",
        "  push RUN TO            give a trained model away, to a folder or the Hugging Face hub",
        "  export RUN             write a trained model as a file that runs without this library",
        "  report RUN ...         show runs on a page that opens without a network",
        "  tune RUN               which tiles of the fused kernels are fastest on this GPU",
        "  verify                 check that every classical layer is an exact instance",
        "  info                   versions, devices, evaluation routes, extras",
    ]


def test_help_of_a_recipe_shows_its_values(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = call(capsys, "train", "digits", "--help")
    for flag in ("--task.data", "--task.model.embed-dim", "--task.augmentation.shift", "--training.epochs", "--seeds"):
        assert flag in out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version") == (0, f"fredholm {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "no command 'trian'; did you mean train?"),
        (["train", "digist"], "no recipe or task called 'digist'; did you mean digits"),
        (["train", "file.py:run"], "file.py is no Python file; expected path/to/file.py:function"),
        (
            ["train", "digits", "--training.epochs", "-1"],
            "--training.epochs is -1; expected at least 0; see",
        ),
        (
            ["train", "digits", "--training.epochs", "many"],
            "--training.epochs is 'many'; expected a whole number; see fredholm train digits --help",
        ),
        (
            ["train", "digits", "--training.learning-rate", "fast"],
            "--training.learning-rate is 'fast'; expected a number; see fredholm train digits --help",
        ),
        (
            ["train", "digits", "--training.precision", "half"],
            "--training.precision is 'half'; expected one of float32, bfloat16; see fredholm train digits --help",
        ),
        (["train", "digits", "--task.quantiles", "a"], "--task.quantiles cannot be 'a'; see"),
        (["train", "digits", "--task.patch-size", "a"], "--task.patch-size is 'a'; expected INT|{INT INT}; see"),
        (["train", "digits", "--run-dir"], "--run-dir lacks a value; expected 1; see"),
        (
            ["train", "digits", "--trainign.epochs", "3"],
            "unknown option --trainign.epochs (perhaps --training.ep",
        ),
        (
            ["train", "digits", "--no-training.tensorboard"],
            "unknown option --no-training.tensorboard (perhaps --training.no-tensorboard); see",
        ),
        (
            ["predict", "run", "x.csv", "--task.horizon", "3"],
            "unknown option --task.horizon (perhaps --task horizon=VALUE); see",
        ),
        (
            ["predict", "run", "x.png", "--task", "tile=8,8", "--task", "stride=2"],
            "--task is given twice; give it once, with all values behind it: --task ONE TWO",
        ),
        (["compare", "images", "digits", "--kernels", "mlp", "--kernels", "yat"], "--kernels is given twice; give it"),
        (
            ["train", "images", "digits", "--task.image_size", "8", "8", "--task.image-size", "9", "9"],
            "--task.image-size is given twice; give it once, with all values behind it: --task.image-size ONE TWO",
        ),
        (
            ["train", "images", "digits", "--task.model", "vit", "--task.model", "itnet"],
            "--task.model is given twice; give it once, with one kind",
        ),
        (["train", "digits", "stray"], "unexpected argument stray; see fredholm train digits --help"),
        (["train", "digits", "--seed", "-1", *TINY], "seed is -1; expected an integer from 0 to 4294967295"),
        (
            ["train", "digits", *TINY[2:], "--task.patch-size", "3"],
            "encoders.Image: patches of 3 x 3 do not divide images",
        ),
        (["train", "digits", *TINY, "--task.model.num-heads", "3"], ""),
        (["train", "digits", *TINY, "--training.device", "cuda:77"], "device 'cuda:77' is not available here"),
        (["train", "images", "nowhere", *TINY], "no data called 'nowhere'"),
        (["train", "images", "empty", *TINY], "empty"),
        (["evaluate"], "RUN is missing: The run folder, or hf://OWNER/NAME, a model on the Hugging Face hub; see"),
        (["evaluate", "nowhere"], "nowhere is no folder; expected a run folder"),
        (["evaluate", "empty"], "empty is no run folder: it has no config.json"),
        (["evaluate", "."], ". is no run folder: it has no config.json; it holds the run RUN"),
        (["evaluate", "empty", "--split", "all"], "--split is 'all'; expected one of valid, test; see"),
        (["evaluate", "empty", "--checkpoint", "first"], "--checkpoint is 'first'; expected one of best, last"),
        (
            ["evaluate", "RUN", "--task", "image-size=16"],
            f"{NO_PAIR}16; see",
        ),
        (
            ["evaluate", "RUN", "--task", "image-size=16,x"],
            f"{NO_PAIR}16,x; see",
        ),
        (
            ["evaluate", "RUN", "--task", "image-size=16 16"],
            f"{NO_PAIR}16,16; see",
        ),
        (
            ["evaluate", "RUN", "--task", "augmentation.scale=1"],
            "--task augmentation.scale lacks a value; expected 2; see",
        ),
        (
            ["evaluate", "RUN", "--task", "patch-size=2"],
            "--task patch-size=2 makes another model than the one that was trained; leave it out",
        ),
        (
            ["evaluate", "RUN", "--task", "image-size=16,16", "model.dropout=0.1"],  # weights of the same shapes
            "--task model.dropout=0.1 makes another model than the one that was trained; leave it out",
        ),
        (
            ["evaluate", "RUN", "--task", "augmentation.shift=1", "image_size=8,8"],
            "--task augmentation.shift=1 has no effect on a measurement; leave it out",
        ),
        (
            ["predict", "RUN", "x.png", "--task", "split_seed=1"],
            "--task split_seed=1 has no effect on predictions; leave it out",
        ),
        (
            ["tune", "RUN", "--device", "cpu"],
            "tiles are those of kernels on an NVIDIA GPU, and this would compute on cpu; run it on a machine with one",
        ),
        (["evaluate", "RUN", "--task", "image-size=9,9"], "encoders.Image: expected float images of shape"),
        (["train", "digits", "--seeds", "1", "2", "1", *TINY], "--seeds names a seed twice: 1 2 1"),
        (["train", "images", "nowhere", "--seeds", "-1"], "--seeds: seed is -1; expected an integer from 0"),
        (["train", "images", "nowhere", "--seeds"], "--seeds is empty; name one or more"),
        (["train", "images", "nowhere", "--seed", "-1"], "seed is -1; expected an integer from 0"),
        (["train", "digits", "--seed", "9", "--seeds", "1", "2", *TINY], "--seed 9 has no effect with --seeds"),
        (["train", "digits", "--seed", "0", "--seeds", "1", "2", *TINY], "--seed 0 has no effect with --seeds"),
        (["train", "digits", "--seed=0", "--seeds", "1", "2", *TINY], "--seed 0 has no effect with --seeds"),
        (
            ["train", "digits", "--task.position-frequencies", "0", "--task.position-sigma", "2"],
            "--task.position-sigma 2.0 has no effect with --task.position-frequencies 0; leave it at",
        ),
        (
            ["train", "digits_infvit", "--task.model.attention", "softmax", "--task.model.gamma", "0.5"],
            "--task.model.gamma 0.5 has no effect with --task.model.attention softmax; leave",
        ),
        (
            ["train", "images", "digits", "--task.test-fraction", "0.3"],
            "--task.test-fraction 0.3 has no effect with digits",
        ),
        (["train", "--seed", "1"], "fredholm train needs a recipe or a task first, not --seed"),
        (["predict", "empty"], "fredholm predict needs at least one file after the run folder; see"),
        (["predict", "nowhere", "a.png"], "nowhere is no folder; expected a run folder"),
        (["predict", "RUN", "absent.png"], "absent.png: there is no such file"),
        (["predict", "RUN", "text.png"], "text.png: not a PNG, JPEG, BMP, WebP or TIFF image"),
        (["predict", "RUN", "text.png", "--batch-size", "0"], "--batch-size is 0; expected at least 1"),
        (["train", "digits", "--run-dir", "RUN", *TINY], "RUN is not empty; choose another --run-dir"),
        (["train", "digits", "--run-dir", "RUN", "--resume"], "RUN is a run of another config: --task."),
        (
            ["train", "series", "long.csv", "--run-dir", "RUN", "--resume"],
            "RUN is a run of the task images, not series; choose another",
        ),
        (["train", "digits", "--run-dir", "text.png", *TINY], "text.png is a file; expected a run folder"),
        (
            ["train", "digits", "--run-dir", "text.png/x/y", *TINY],
            "text.png is a file; expected a folder, for the run folder text.png/x/y in it",
        ),
        (["report", "RUN", "--output", "text.png/page.html"], "--output: there is no folder 'text.png'; make it"),
        (["push"], "RUN and TO are missing; see fredholm push --help"),
        (["export"], "RUN and --format {onnx,pt2} are missing; see fredholm export --help"),
        (["verify", "--seed", "-1"], "--seed is -1; expected an integer from 0"),
        (["info", "--jsno"], "unknown option --jsno"),
        (
            ["train", "digits", "--preset", "base"],
            "--preset has no effect with the recipe digits, which says everything",
        ),
        (
            ["train", "digits", "--minutes", "3"],
            "--minutes has no effect with the recipe digits, which says everything",
        ),
        (["train", "images", "--minutes", "0"], "--minutes is 0.0; expected a finite number above 0"),
        (["train", "images", "--minutes", "nan"], "--minutes is nan; expected a finite number above 0"),
        (
            ["train", "images", "--minutes", "3", "--training.epochs", "2"],
            "--training.epochs 2 and --minutes both say when to end; pass one of them",
        ),
        (
            ["train", "images", "--minutes", "3", "--training.epochs=300"],
            "--training.epochs 300 and --minutes both say when to end; pass one of them",
        ),
        (["train", "images", "--minutes", "0.00001"], "1e-05 minutes a run are too few: one epoch takes about"),
        (
            ["train", "series", "long.csv", "--minutes", "3"],
            "--minutes has no effect with a model that is fitted in closed form; leave it out",
        ),
        (
            ["train", "images", "--minutes", "3", "--resume", "--accept-new-data"],
            "--minutes 3.0 has no effect with --accept-new-data: the run keeps its settings",
        ),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    message: str,
    trained: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.png").write_text("not an image")
    samples = (f"{i},{t},{'ab'[i % 2]},{i + t}" for i in range(20) for t in range(3))
    (tmp_path / "long.csv").write_text("\n".join(["series,time,label,v", *samples]))
    (tmp_path / "RUN").symlink_to(trained[0])
    check_refused(capsys, tmp_path, message, *arguments)


def test_a_corrupt_checkpoint_is_one_line(
    trained: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    for source in trained[0].rglob("*"):
        if source.is_file():
            target = run / source.relative_to(trained[0])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    for average in run.rglob("ema.safetensors"):
        average.write_bytes(average.read_bytes()[:200])
    code, out, err = call(capsys, "evaluate", run)
    assert (code, out) == (2, "")
    assert "ema.safetensors is damaged: it has 200 bytes, and " in err
    assert err.count("\n") == 1


def test_an_environment_variable_turns_on_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FREDHOLM_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no command 'trian'"):
        cli.main(["trian"])


@pytest.mark.slow
def test_errors_of_a_process_are_one_line_and_its_exit_code(tmp_path: Path) -> None:
    code, out, err = finish(start("train", "digist", folder=tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith("error: no recipe or task called 'digist'; did you mean digits")
    assert err.count("\n") == 1


def test_ctrl_c_saves_and_resume_continues(tmp_path: Path) -> None:
    arguments = [
        "train",
        "digits",
        "--run-dir",
        "run",
        *TINY,
        "--training.epochs",
        "400",
        "--training.evaluate-every",
        "400",
    ]
    process = Started(*arguments, folder=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, _, err = process.finish()
    assert code == 130
    first, last = err.splitlines()
    assert first == "stopping after this step ... (Ctrl-C again stops at once, without saving)"
    assert last.startswith("interrupted; step ")
    assert last.endswith(" of 2400 is saved in run, --resume goes on")
    step = int(last.split()[2])
    assert (tmp_path / "run" / "checkpoints" / f"step-{step:08d}" / "manifest.json").is_file()
    process = Started(*arguments, "--resume", folder=tmp_path)
    assert process.stdout.readline() == "training digits, seed 0, in run\n"
    assert process.stdout.readline() == f"run: going on at step {step} of 2400\n"
    process.kill()
    process.finish()


SLOW = """
import time
from pathlib import Path
from fredholm.tasks import ImageLearning
from fredholm.training import Run, TrainingConfig

def waits(original):
    def loss(self, model, batch):
        if Path("run/config.json").exists():  # training has begun: the steps that measure its cost are over
            Path("started").touch()
            while not Path("go").exists():
                time.sleep(0.05)
        return original(self, model, batch)
    return loss

ImageLearning.loss = waits(ImageLearning.loss)

def slow():
    return Run.Config(task=ImageLearning.Config(), training=TrainingConfig(epochs=2))
"""


@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_is_answered_within_a_step_and_a_second_one_ends_it(tmp_path: Path, twice: bool) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    process = Started("train", "slow.py:slow", "--run-dir", "run", *TINY, folder=tmp_path)
    while not (tmp_path / "started").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("stopping after this step ...")  # the step is still running
    if twice:
        process.send_signal(signal.SIGINT)
    else:
        (tmp_path / "go").touch()
    code, _, err = process.finish()
    assert code == 130
    assert err.startswith("interrupted\n" if twice else "interrupted; step 1 of 12 is saved in run")
    assert (tmp_path / "run" / "checkpoints").is_dir() == (not twice)


def test_a_full_disk_is_one_line_and_leaves_nothing_partial(tmp_path: Path) -> None:
    """Files are limited to 6 kB: the config and the metrics fit, the weights do not."""
    code, _, err = Started("train", "digits", "--run-dir", "run", *TINY, folder=tmp_path, limit=6000).finish()
    assert code == 1
    assert (
        err
        == "error: run/checkpoints: cannot save the checkpoint of step 6 (File too large); there is no earlier one\n"
    )
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.json",
        "manifest.json",
        "data.json",
        "machine.json",
        "commands.txt",
        "metrics.jsonl",
        "checkpoints",
    }
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


ONE_MODEL = ("table", "words")
"""Tasks with a single model, so that there is no model to choose."""


def test_a_task_with_one_model_has_no_option_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ONE_MODEL:
        code, _, err = call(capsys, "train", command, "nowhere", "--task.model", "none")
        assert code == 2
        assert "--task.model" in err


@pytest.mark.parametrize(
    "task", [each for each in TASKS if each.command not in ONE_MODEL], ids=lambda task: task.command
)
def test_a_model_of_every_task_is_chosen_by_name(task: type[Task], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "train", task.command, "nowhere", "--task.model", "none")
    assert code == 2
    listed, _, hint = err.removeprefix("error: --task.model is 'none'; expected one of ").strip().partition(";")
    names = listed.split(", ")
    stacks = [name for name in names if name.endswith("-stack")]
    assert [f" a network is --task.model {name} --task.model.stack NAME" for name in stacks] == [hint] * bool(hint)
    assert all(name == name.lower() and " " not in name for name in names), err
    run, found = open_recipe(task.command).config, set[type]()
    for name in names:
        chosen, rest = with_kinds(run, ["--task.model", name], list(task.parts))
        assert rest == []
        model, default = (getattr(each.task, "model") for each in (chosen, run))  # noqa: B009 - not every task has one
        assert model == (default if type(model) is type(default) else type(model)())
        found.add(type(model))
    assert len(found) == len(names)


def test_help_lists_the_kinds_and_the_options_of_the_chosen_ones(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "train", "series", "--task.model", "itnet-series", "--help")
    assert code == 0
    assert "--task.model.stack.depth" in out
    kinds = "filter-bank, summary-bank, series-machine, sample-machine, sample-pyramid, ckcnn, itnet-series (now)"
    assert out.splitlines()[-2] == f"  --task.model {kinds}"
    assert out.splitlines()[-1].startswith("  --task.model.stack.kernel mlp (now), low-rank, ")


def test_an_option_of_another_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "train", "images", "digits", "--task.model", "infvit", "--task.model.drop-pth", "0.1")
    assert (code, err.partition(" --")[0]) == (2, "error: unknown option")
    code, _, err = call(capsys, "train", "series", "nowhere", "--task.model", "ckcnn", "--task.model.num-groups", "3")
    unknown = "error: unknown option --task.model.num-groups (it needs --task.model filter-bank)"
    assert (code, err.partition(";")[0]) == (2, unknown)
