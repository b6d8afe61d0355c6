"""The data that a run has read: which changes are refused when it is resumed, and which are allowed."""

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.tasks import ImageLearning, LanguageModelling, SentenceLearning
from fredholm.tasks.files.read_record import recorded, recording_reads
from fredholm.tasks.text import Tokens
from fredholm.training import Run, TrainingConfig, train
from fredholm.training.batches import Share
from fredholm.training.learner import Learner, StepReport
from fredholm.training.storage import fingerprint, machine
from fredholm.training.storage.fingerprint import Difference, Fingerprint
from tests.command_line import call
from tests.refusals import refused

TEXT = "the cat sat on the mat and the dog sat on the log. " * 30
TRAINING = TrainingConfig(epochs=1, batch_size=64, tensorboard=False, device="cpu")


def pictures(folder: Path, count: int = 30) -> Path:
    """Writes `count` images for each of two classes."""
    draw = np.random.default_rng(0)
    for name in ("dark", "light"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(0, 100, (8, 8), dtype=np.uint8) + (100 if name == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i:02}.png")
    return folder


def of_pictures(data: Path | str, **training: Any) -> Run.Config:
    task = ImageLearning.Config(data=str(data), patch_size=4, position_frequencies=4)
    return Run.Config(task=task, training=dataclasses.replace(TRAINING, **training))


def of_text(data: Path | str, **training: Any) -> Run.Config:
    task = LanguageModelling.Config(data=str(data), context=16)
    return Run.Config(task=task, training=dataclasses.replace(TRAINING, **training))


def read_of(*paths: Path, data: Path, before: Fingerprint | None = None) -> Fingerprint:
    with recording_reads() as found:
        for path in paths:
            recorded(path)
    return Fingerprint.of(found, str(data), before)


def test_changed_files_are_reported_with_counts_and_names(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    run, config = tmp_path / "run", of_pictures(data)
    train(config, run)
    for file in sorted(data.rglob("*.png"))[6:-6]:
        file.unlink()
    with refused(ValueError, "48 files removed (dark/06.png, dark/07.png, dark/08.png, ...)", "--accept-new-data"):
        train(config, run, resume=True)
    shutil.rmtree(data)
    pictures(data)
    train(config, run, resume=True)  # other files with the same content
    (data / "dark" / "00.png").rename(data / "light" / "dark.png")
    (data / "dark" / "01.png").write_bytes((data / "light" / "01.png").read_bytes())
    (data / "light" / "more.png").write_bytes((data / "light" / "03.png").read_bytes())
    message = "1 file changed (dark/01.png), 1 added (light/more.png), 1 renamed (dark/00.png to light/dark.png)"
    with refused(ValueError, message):
        train(config, run, resume=True)


def test_long_and_strange_names_give_a_short_line(tmp_path: Path) -> None:
    files = [tmp_path / (f"{letter}" * 200 + end) for letter in "abcd" for end in ("", "\x1b[31m")]
    for file in files:
        file.write_text(file.name)
    before = read_of(*files, data=tmp_path)
    for file in files[:3]:
        file.write_text("other")
    difference = Difference.between(before, read_of(*files[:-2], data=tmp_path))
    assert str(difference).startswith("3 files changed (...aaa")
    assert len(str(difference)) < 400
    assert str(difference).isprintable()


def test_digests_are_reused_where_path_size_and_time_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, digested = tmp_path / "data" / "a.txt", []
    file.parent.mkdir()
    file.write_text("one")
    read = fingerprint._read
    monkeypatch.setattr(fingerprint, "_read", lambda path, state: digested.append(path) or read(path, state))
    first = read_of(file, data=file)
    assert read_of(file, data=file, before=first) == first == Fingerprint.of_text(first.text)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert read_of(tmp_path / "link" / "a.txt", data=tmp_path / "link", before=first) == first
    assert len(digested) == 1
    os.utime(file, ns=(0, 0))
    touched = read_of(file, data=file, before=first)
    assert (len(digested), touched == first, bool(Difference.between(first, touched))) == (2, False, False)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")  # with the same times, but at another path
    moved = read_of(tmp_path / "copy" / "a.txt", data=tmp_path / "copy", before=touched)
    assert (len(digested), bool(Difference.between(first, moved))) == (3, False)


def test_names_and_digests_of_many_files(tmp_path: Path) -> None:
    (tmp_path / "data" / "b").mkdir(parents=True)
    files = [tmp_path / "data" / "b" / f"{i}.bin" for i in range(20)] + [tmp_path / "database", tmp_path / "data" / "a"]
    for i, file in enumerate(files):
        file.write_bytes(bytes([i]) * (2**20 + 1 if i == 3 else i))
    found = read_of(*files, data=tmp_path / "data" / "b" / "..")
    names = ["a", *(f"b/{i}.bin" for i in range(20)), str(tmp_path / "database")]
    assert list(found.files) == sorted(names)
    for file, name in zip([files[-1], *files[:-1]], names, strict=True):
        content = file.read_bytes()
        assert found.files[name].size == len(content)
        assert found.files[name].digest == hashlib.blake2b(content, digest_size=16).hexdigest()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    with recording_reads() as found:
        recorded(file)
        file.write_text("longer")
    with refused(ValueError, "a.txt: changed while it was read"):
        Fingerprint.of(found, str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is no list of the files of a run"),
        ("[]", "it is no list of the files of a run"),
        ('{"schema": 2}', "it has schema 2"),
        ('{"schema": 1, "place": "", "files": {"a": [1, 2]}, "contents": {}, "start": {}}', "it is no list"),
        ('{"schema": 1, "place": "", "files": {"a": ["1", 2, ""]}, "contents": {}, "start": {}}', "it is no list"),
    ],
)
def test_an_invalid_fingerprint_is_refused(text: str, message: str) -> None:
    with refused(ValueError, message):
        Fingerprint.of_text(text)


def test_changes_that_cannot_alter_results_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = tmp_path / "cats.txt", tmp_path / "run"
    data.write_text(TEXT)
    first = train(of_text(data), run)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name} moved"), ignore=shutil.ignore_patterns("link"))
    moved = tmp_path.with_name(f"{tmp_path.name} moved") / "cats.txt"
    for spelt in ("cats.txt", "./cats.txt", "link/cats.txt", "~/cats.txt", moved):
        assert train(of_text(spelt), run, resume=True) == first
        assert json.loads((run / "config.json").read_text())["run"]["task"]["data"] == str(spelt)
    for training in ({"num_workers": 1}, {"device": "auto"}, {"device": "cpu:0"}, {"tensorboard": True}):
        assert train(of_text(data, **training), run, resume=True) == first
    assert "digits may differ" not in capsys.readouterr().out
    with refused(ValueError, "is a run of another config: training.log_every was 10, is 2"):
        train(of_text(data, log_every=2), run, resume=True)


def test_another_machine_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = tmp_path / "cats.txt", tmp_path / "run"
    data.write_text(TEXT)
    train(of_text(data), run)
    now = json.loads((run / "machine.json").read_text())
    assert now == machine.describe_numerics(torch.device("cpu"))
    monkeypatch.setattr(machine, "__version__", "9.9")
    monkeypatch.setattr(machine.torch, "get_num_threads", lambda: 7)
    capsys.readouterr()
    train(of_text(data), run, resume=True)
    line = f"digits may differ: {now['fredholm']} before, fredholm 9.9 now; {now['threads']} before, 7 threads now\n"
    assert capsys.readouterr().out.startswith(line)
    train(of_text(data), run, resume=True)
    assert "digits may differ" not in capsys.readouterr().out


def test_a_finished_run_refuses_new_data(tmp_path: Path) -> None:
    data, run = tmp_path / "cats.txt", tmp_path / "run"
    data.write_text(TEXT)
    train(of_text(data), run)
    data.write_text(TEXT.replace("cat", "hen"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with refused(ValueError, "has ended, and would learn nothing from other data; pass more epochs"):
        train(of_text(data), run, resume=True, accept_new_data=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_initial_weights_are_checked_until_the_run_has_a_checkpoint(tmp_path: Path) -> None:
    data, other, run = tmp_path / "cats.txt", tmp_path / "other", tmp_path / "run"
    data.write_text(TEXT)
    train(of_text(data), other)
    config = dataclasses.replace(of_text(data), init=str(other), seed=1)
    result = train(config, run)
    assert [Path(name).name for name in Fingerprint.of_text((run / "data.json").read_text()).start] == [
        *("ema.safetensors", "config.json")
    ]
    begun = tmp_path / "begun"  # killed before the first checkpoint
    shutil.copytree(run, begun)
    shutil.rmtree(begun / "checkpoints")
    for file in (begun / "metrics.jsonl", begun / "tensorboard"):
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    assert train(config, begun, resume=True) == result
    shutil.rmtree(begun / "checkpoints")
    (begun / "metrics.jsonl").unlink()
    shutil.rmtree(other)
    train(dataclasses.replace(of_text(data), seed=5), other)
    with refused(ValueError, "is a run on other data: ", "ema.safetensors"):
        train(config, begun, resume=True)
    shutil.rmtree(other)
    assert train(config, run, resume=True) == result


def test_a_tokenizer_file_is_read_only_by_a_new_run(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    rows = [f"the {'good' if i % 2 else 'bad'} cat {i},{'yes' if i % 2 else 'no'}" for i in range(30)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "tokenizer.json").write_text(Tokens(kind="bytes").learn(["a"]).state)
    task = SentenceLearning.Config(data=str(tmp_path / "a.csv"), tokens=Tokens(file=str(tmp_path / "tokenizer.json")))
    task = dataclasses.replace(task, context=32)
    config = Run.Config(task=task, training=TRAINING.without_steps())
    result = train(config, tmp_path / "run")
    known = Fingerprint.of_text((tmp_path / "run" / "data.json").read_text())
    assert (list(known.files), list(known.start)) == (["a.csv"], [os.path.realpath(tmp_path / "tokenizer.json")])
    (tmp_path / "tokenizer.json").unlink()
    assert train(config, tmp_path / "run", resume=True) == result
    assert Fingerprint.of_text((tmp_path / "run" / "data.json").read_text()) == known


def test_a_run_with_a_damaged_or_missing_fingerprint(tmp_path: Path) -> None:
    data, run = tmp_path / "cats.txt", tmp_path / "run"
    data.write_text(TEXT)
    train(of_text(data), run)
    text = (run / "data.json").read_text()
    (run / "data.json").write_text(text[:40])
    with pytest.raises(ValueError, match=r"data\.json"):
        train(of_text(data), run, resume=True)


@pytest.mark.parametrize("is_killed", [False, True])
def test_with_new_data_the_schedule_ends_at_the_new_end_and_the_best_step_is_chosen_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_killed: bool
) -> None:
    data, run = pictures(tmp_path / "data", count=20), tmp_path / "run"
    first, longer = (of_pictures(data, epochs=epochs, batch_size=8, log_every=1) for epochs in (3, 6))
    train(first, run)
    shutil.rmtree(data)
    pictures(tmp_path / "other", count=40)
    data.mkdir()
    for name, other in (("dark", "light"), ("light", "dark")):  # labels that contradict those learnt
        (tmp_path / "other" / other).rename(data / name)
    if is_killed:
        with pytest.raises(RuntimeError, match="killed"):
            train(longer, run, resume=True, accept_new_data=True, on_start=_killed)
    train(longer, run, resume=True, accept_new_data=not is_killed)
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in log if line["kind"] == "train"][-1]
    assert last["learning_rate"] < 0.02 * longer.training.learning_rate
    trained = Run(run)
    step = trained.step("last")
    assert (last["step"], f"going on at step 12 of {step}" in capsys.readouterr().out) == (step, True)
    assert trained.step() > 12
    before = max(line["accuracy"] for line in log if line["kind"] == "valid" and line["step"] <= 12)
    assert before > trained.evaluate("valid")["accuracy"]  # otherwise nothing would have been chosen again


def test_an_epoch_in_progress_starts_again_with_fewer_data(tmp_path: Path) -> None:
    data, run = pictures(tmp_path / "data", count=40), tmp_path / "run"
    config = of_pictures(data, epochs=2, batch_size=4, checkpoint_every=1)
    with pytest.raises(RuntimeError, match="killed"):
        _train_until(config, run, step=11)
    for file in sorted(data.rglob("*.png")):
        if file.stem >= "12":
            file.unlink()
    train(config, run, resume=True, accept_new_data=True)
    per_epoch = -(-Run(run).task.num_train // 4)
    assert per_epoch < 10
    assert Run(run).step("last") == 11 + 2 * per_epoch


def test_refused_data_do_not_change_the_best_step(tmp_path: Path) -> None:
    data, run = pictures(tmp_path / "data", count=20), tmp_path / "run"
    config = of_pictures(data, epochs=4, batch_size=8, learning_rate=1.0)
    train(config, run)
    assert Run(run).step() < Run(run).step("last")
    files = sorted(str(file) for file in run.rglob("*.safetensors"))
    shutil.copy(data / "dark" / "00.png", data / "dark" / "more.png")
    with pytest.raises(ValueError, match="has ended, and would learn nothing from other data"):
        train(config, run, resume=True, accept_new_data=True)
    assert sorted(str(file) for file in run.rglob("*.safetensors")) == files


def _killed() -> None:
    raise RuntimeError("killed")


def _train_until(config: Run.Config, run: Path, step: int) -> None:
    """Trains a run up to a step in which it is killed."""
    update = Learner.update

    def until(learner: Learner, share: Share, number: int) -> StepReport:
        if number == step:
            _killed()
        return update(learner, share, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", until)
        train(config, run)


@pytest.mark.slow
@pytest.mark.filterwarnings("always")
def test_the_command_line_refuses_accepts_and_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = pictures(tmp_path / "data"), tmp_path / "run"
    train_it = ["train", "images", data, "--run-dir", run, "--training.device", "cpu"]
    train_it += ["--task.model.embed-dim", 8, "--task.model.num-heads", 2, "--training.no-tensorboard"]
    train_it = [str(word) for word in train_it]
    short, long = (["--training.epochs", str(epochs)] for epochs in (1, 2))
    code, _, err = call(capsys, *train_it, *short)
    assert (code, err) == (0, "")
    assert call(capsys, "evaluate", run)[2] == ""
    for file in sorted(data.rglob("*.png"))[6:-6]:
        file.unlink()
    code, _, err = call(capsys, *train_it, *short, "--resume")
    assert (code, err.count("\n")) == (2, 1)
    assert "48 files removed (dark/06.png, " in err
    code, _, err = call(capsys, "evaluate", run)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith(f"warning: {data} is not as the run read it: 48 files removed (")
    assert call(capsys, "evaluate", run, "--task", f"data={data}")[2] == ""
    code, out, _ = call(capsys, *train_it, *long, "--resume", "--accept-new-data")
    assert (code, "goes on with other data: 48 files removed" in out) == (0, True)
    assert "a split that these data lack is drawn again: it may now measure examples that were trained on" in out
    assert call(capsys, "evaluate", run)[2] == ""


def test_the_command_line_refuses_options_without_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = pictures(tmp_path / "data", count=6)
    for words, message in (
        (["--accept-new-data"], "--accept-new-data has no effect without --resume"),
        (["--resume", "--accept-new-data", "--preset", "base"], "--preset base has no effect with --accept-new-data"),
    ):
        code, _, err = call(capsys, "train", "images", data, "--run-dir", tmp_path / "run", *words)
        assert (code, message in err) == (2, True)
