import dataclasses
import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from fredholm.estimators import SeriesClassifier
from fredholm.models import ITNet
from fredholm.storage.atomic import Draft
from fredholm.tasks import Batch
from fredholm.tasks.splits.splits import HeldOut
from fredholm.training import (
    Checkpoints,
    DivergedError,
    InterruptedRunError,
    Result,
    Run,
    RunFolder,
    TrainingConfig,
    kept_result,
    seed_everything,
    train,
)
from fredholm.training.config import OF_STEPS
from fredholm.training.progress import muted
from fredholm.training.recipes import Listing, Recipe
from fredholm.training.run import read_trained, refuse_occupied
from fredholm.training.storage.checkpoint import Which
from tests.refusals import refused
from tests.training.storage.test_checkpoint import until
from tests.training.toy_task import ToyTask, toy_run

STEPS_PER_EPOCH = 7


def run(path: Path, config: Run.Config | None = None, *, resume: bool = False) -> Result:
    return train(config or toy_run(), path, resume=resume, tasks=[ToyTask])


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of the log without times."""
    parsed = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    of_time = ("examples_per_second", "unix_time")
    return [{name: value for name, value in line.items() if name not in of_time} for line in parsed]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def assert_same_run(one: Path, other: Path) -> None:
    """Checks that weights, average, optimiser, random states, progress, checkpoints and metrics agree bit for bit."""
    first, second = Checkpoints(one / "checkpoints"), Checkpoints(other / "checkpoints")
    assert first.steps() == second.steps() != []
    for step in first.steps():
        for name in ("weights.safetensors", "ema.safetensors", "optimizer.safetensors"):
            files = [checkpoints.folder / f"step-{step:08d}" / name for checkpoints in (first, second)]
            assert files[0].read_bytes() == files[1].read_bytes()
        states = [checkpoints.load_state(step) for checkpoints in (first, second)]
        # the size of the log depends on the number of digits of times
        assert states[0].pop("log")["lines"] == states[1].pop("log")["lines"]
        assert states[0] == states[1]
    assert lines(one) == lines(other)


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sends this process a signal, or raises, while batch `number` (counted over all epochs) is made."""

    def plan(number: int, event: signal.Signals | Exception) -> None:
        made = [0]
        original = ToyTask.train_batch

        def train_batch(self: ToyTask, indices: Tensor, generator: torch.Generator) -> Batch:
            made[0] += 1
            if made[0] == number:
                if isinstance(event, Exception):
                    raise event
                os.kill(os.getpid(), event)
            return original(self, indices, generator)

        monkeypatch.setattr(ToyTask, "train_batch", train_batch)

    # A test process in the background may ignore the signal from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield plan
    given_back = signal.signal(signal.SIGINT, before)
    assert given_back is signal.default_int_handler


def test_two_runs_with_one_seed_are_identical_and_another_seed_differs(tmp_path: Path) -> None:
    results = [run(tmp_path / name) for name in "ab"]
    assert results[0] == results[1]
    assert_same_run(tmp_path / "a", tmp_path / "b")
    run(tmp_path / "c", dataclasses.replace(toy_run(), seed=8))
    assert lines(tmp_path / "a") != lines(tmp_path / "c")


def test_training_learns_and_its_log_is_complete(tmp_path: Path) -> None:
    result = run(tmp_path / "a", toy_run(epochs=15))
    assert result.metrics["accuracy"] > 0.8
    records = lines(tmp_path / "a")
    trained = [line for line in records if line["kind"] == "train"]
    validated = [line for line in records if line["kind"] == "valid"]
    tested = [line for line in records if line["kind"] == "test"]
    assert [line["step"] for line in trained] == list(range(3, 15 * STEPS_PER_EPOCH + 1, 3))
    assert [line["step"] for line in validated] == [STEPS_PER_EPOCH * epoch for epoch in range(1, 16)]
    assert trained[0].keys() == {"kind", "step", "epoch", "loss", "learning_rate", "gradient_norm"}
    assert validated[-1].keys() == {"kind", "step", "epoch", "accuracy", "loss"}
    assert [line["accuracy"] for line in tested] == [result.metrics["accuracy"]]
    assert trained[-1]["loss"] < trained[0]["loss"]


@pytest.mark.parametrize(
    "number",
    [
        3,  # before the first checkpoint
        STEPS_PER_EPOCH + 3,  # in mid-epoch, between two lines of the log
        2 * STEPS_PER_EPOCH,  # the last batch of an epoch: saved before its evaluation
        2 * STEPS_PER_EPOCH + 1,
    ],
)
def test_an_interrupted_run_is_resumed_bit_for_bit(tmp_path: Path, stop_at: Any, number: int) -> None:
    run(tmp_path / "whole")
    stop_at(number, signal.SIGINT)
    with pytest.raises(InterruptedRunError, match=rf"^interrupted; step {number} of 21 is saved in ") as caught:
        run(tmp_path / "parts")
    assert caught.value.signal_number == signal.SIGINT
    seed_everything(999)  # random numbers drawn since must not matter
    run(tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_folder_that_goes_during_training_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ToyTask.train_batch

    def train_batch(self: ToyTask, indices: Tensor, generator: torch.Generator) -> Batch:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return original(self, indices, generator)

    monkeypatch.setattr(ToyTask, "train_batch", train_batch)
    with pytest.raises(FileNotFoundError, match="is gone: the folder was removed or emptied during training"):
        run(tmp_path / "run")


def test_an_ignored_signal_stays_ignored(tmp_path: Path, stop_at: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop_at(2, signal.SIGINT)
    assert run(tmp_path / "a", toy_run(epochs=1)).metrics.keys() == {"accuracy", "loss"}
    assert signal.signal(signal.SIGINT, signal.default_int_handler) == signal.SIG_IGN


def test_several_interruptions_and_a_termination_leave_no_trace(tmp_path: Path, stop_at: Any) -> None:
    run(tmp_path / "whole")
    for number, event in ((2, signal.SIGINT), (6, signal.SIGTERM), (5, signal.SIGINT)):
        stop_at(number, event)
        with pytest.raises(InterruptedRunError):
            run(tmp_path / "parts", resume=True)
    run(tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("number", [2, 11, 16])
def test_a_crashed_run_is_resumed_from_its_last_checkpoint(tmp_path: Path, stop_at: Any, number: int) -> None:
    run(tmp_path / "whole")
    stop_at(number, RuntimeError("power cut"))
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path / "parts")
    # The crash truncated the last line, and the log has lines beyond the checkpoint.
    with (tmp_path / "parts" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    stop_at(-1, signal.SIGINT)
    run(tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_resuming_a_finished_run_repeats_its_result_and_changes_nothing(tmp_path: Path) -> None:
    first = run(tmp_path / "a")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run(tmp_path / "a", resume=True) == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    config = toy_run(epochs=1)
    run(tmp_path / "a", config)
    workers = dataclasses.replace(config, training=dataclasses.replace(config.training, num_workers=2))
    run(tmp_path / "b", workers)
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


def test_a_run_works_outside_the_main_thread(tmp_path: Path) -> None:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path / "a", toy_run(epochs=1))))
    thread.start()
    thread.join()
    assert results[0].metrics.keys() == {"accuracy", "loss"}


def test_a_finished_run_can_be_opened_and_evaluates_to_the_same_metrics(tmp_path: Path) -> None:
    result = run(tmp_path / "a")
    opened = Run(tmp_path / "a", tasks=[ToyTask], device="cpu")
    assert opened.config == toy_run()
    assert opened.step("last") == 3 * STEPS_PER_EPOCH
    assert opened.evaluate() == result.metrics
    validated = [line for line in lines(tmp_path / "a") if line["kind"] == "valid"]
    best = max(validated, key=lambda line: (line["accuracy"], -line["loss"]))
    assert opened.step() == best["step"]
    assert opened.evaluate("valid")["accuracy"] == best["accuracy"]
    for split in ("train", "Test", ""):  # otherwise the test split would be evaluated
        with refused(ValueError, f"split is {split!r}; expected one of valid, test"):
            opened.evaluate(cast(Any, split))
    for read in (opened.step, opened.model, lambda which: opened.evaluate("valid", which)):
        with refused(ValueError, "which is 'first'; expected one of best, last"):
            read(cast(Any, "first"))


def altered(config: Run.Config, *, training: dict[str, Any] | None = None, **task: Any) -> Run.Config:
    return dataclasses.replace(
        config,
        task=dataclasses.replace(config.task, **task),
        training=dataclasses.replace(config.training, **(training or {})),
    )


def computed(**task: Any) -> Run.Config:
    """A run of a model that is fitted in closed form."""
    config = altered(toy_run(), learns_by_steps=False, **task)
    return dataclasses.replace(config, training=config.training.without_steps())


def test_the_test_split_is_read_once_with_the_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = ToyTask.held_out_batch

    def held_out_batch(self: ToyTask, split: HeldOut, indices: Tensor) -> Batch:
        read.append(split)
        return original(self, split, indices)

    monkeypatch.setattr(ToyTask, "held_out_batch", held_out_batch)
    # far too large a learning rate: later evaluations are worse than the first ones
    config = altered(toy_run(epochs=8), training={"learning_rate": 3.0, "decay": "linear", "warmup_fraction": 0.9})
    result = run(tmp_path / "a", config)
    assert read == ["valid"] * 8 + ["test"]
    opened = Run(tmp_path / "a", tasks=[ToyTask], device="cpu")
    assert opened.step() < opened.step("last")
    assert opened.evaluate() == result.metrics != opened.evaluate("test", "last")


def test_without_a_validation_split_the_last_checkpoint_is_evaluated(tmp_path: Path) -> None:
    result = run(tmp_path / "a", altered(toy_run(), held_out=("test",)))
    assert [line["kind"] for line in lines(tmp_path / "a")].count("valid") == 0
    opened = Run(tmp_path / "a", tasks=[ToyTask], device="cpu")
    assert opened.step() == opened.step("last") == 3 * STEPS_PER_EPOCH
    assert (result.split, opened.evaluate()) == ("test", result.metrics)
    with refused(ValueError, "toy has no valid split; measure on the other one"):
        opened.evaluate("valid")


def test_without_a_test_split_the_best_validation_result_is_reported(tmp_path: Path) -> None:
    result = run(tmp_path / "a", altered(toy_run(), held_out=("valid",)))
    validated = [line["accuracy"] for line in lines(tmp_path / "a") if line["kind"] == "valid"]
    assert (result.split, result.metrics["accuracy"]) == ("valid", max(validated))


def test_a_run_out_of_patience_ends_and_is_resumed_as_if_uninterrupted(tmp_path: Path, stop_at: Any) -> None:
    config = altered(toy_run(epochs=30), training={"patience": 2, "learning_rate": 0.3})
    run(tmp_path / "whole", config)
    validated = [line for line in lines(tmp_path / "whole") if line["kind"] == "valid"]
    values = [line["accuracy"] for line in validated]
    assert 3 <= len(values) < 30
    assert max(values[-2:]) <= max(values[:-2])
    assert min(line["loss"] for line in validated[-2:]) >= min(line["loss"] for line in validated[:-2])
    stop_at(STEPS_PER_EPOCH + 3, signal.SIGINT)
    with pytest.raises(InterruptedRunError):
        run(tmp_path / "parts", config)
    run(tmp_path / "parts", config, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_runs_without_held_out_data_are_refused(tmp_path: Path) -> None:
    for held_out, patience, message in (
        ((), None, "nothing is held out to measure on"),
        (("test",), 2, "patience=2 has no effect without a validation split"),
    ):
        with refused(ValueError, message):
            run(tmp_path / "a", altered(toy_run(), held_out=held_out, training={"patience": patience}))
        assert not (tmp_path / "a").exists()


def test_runs_without_held_out_data_are_trained_if_no_metric_is_needed(tmp_path: Path) -> None:
    config = altered(toy_run(epochs=1), held_out=())
    result = train(config, tmp_path, tasks=[ToyTask], needs_measure=False)
    assert (result.metrics, result.split) == ({}, None)
    assert {line["kind"] for line in lines(tmp_path)} <= {"train"}
    assert Run(tmp_path, tasks=[ToyTask], device="cpu").step() == STEPS_PER_EPOCH
    with refused(ValueError, "has no test split; nothing is held out"):
        Run(tmp_path, tasks=[ToyTask], device="cpu").evaluate()


def test_a_run_folder_may_lie_beside_its_data_but_not_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "what_it_learns.npz").touch()
    run(tmp_path, toy_run(epochs=1))
    assert (tmp_path / "data" / "what_it_learns.npz").exists()
    with refused(ValueError, "is not empty"):
        run(tmp_path, toy_run(epochs=1))


def test_a_muted_run_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with muted():
        run(tmp_path / "a", toy_run(epochs=1))
    assert capsys.readouterr() == ("", "")
    run(tmp_path / "b", toy_run(epochs=1))
    assert "epoch 1/1" in capsys.readouterr().out


def test_initialise_sets_the_starting_point_and_is_the_whole_fit_with_0_epochs(tmp_path: Path) -> None:
    run(tmp_path / "computed", computed(starts_at=2.5))
    run(tmp_path / "trained", altered(toy_run(epochs=1), starts_at=2.5))
    model = Run(tmp_path / "computed", tasks=[ToyTask], device="cpu").model()
    assert torch.equal(model.get_parameter("0.bias"), torch.full((8,), 2.5))
    assert [line["kind"] for line in lines(tmp_path / "computed")] == ["valid", "test"]
    assert run(tmp_path / "computed", computed(starts_at=2.5), resume=True).split == "test"
    trained = Run(tmp_path / "trained", tasks=[ToyTask], device="cpu").model().get_parameter("0.bias")
    assert 0 < float((trained - 2.5).abs().max()) < 0.5


@pytest.mark.parametrize(
    "setting", [{"epochs": 2}, {"learning_rate": 0.1}, {"batch_size": 8}, {"patience": 3}, {"log_every": 2}]
)
def test_settings_of_steps_are_refused_for_models_fitted_in_closed_form(
    tmp_path: Path, setting: dict[str, Any]
) -> None:
    ((name, value),) = setting.items()
    with refused(ValueError, f"{name}={value} has no effect with a model that is fitted in closed form"):
        run(tmp_path / "a", altered(computed(), training=setting))
    with refused(ValueError, "epochs is 0, and nothing would be learnt"):
        run(tmp_path / "a", toy_run(epochs=0))
    assert not (tmp_path / "a").exists()


def test_an_unusable_setting_for_several_processes_leaves_no_folder(tmp_path: Path) -> None:
    with refused(ValueError, "training.shard has no effect on one process"):
        run(tmp_path / "a", altered(toy_run(epochs=1), training={"shard": True}))
    assert not (tmp_path / "a").exists()


def test_settings_are_divided_into_those_of_steps_and_others() -> None:
    others = {"epochs", "precision", "device", "evaluation_batch_size", "tensorboard", "shard"}
    assert {field.name for field in dataclasses.fields(TrainingConfig)} == {*OF_STEPS, *others}
    given = TrainingConfig(epochs=7, batch_size=4, patience=2, evaluation_batch_size=9, device="cpu")
    assert given.without_steps() == TrainingConfig(epochs=0, evaluation_batch_size=9, device="cpu")


def test_the_printed_training_loss_is_that_of_its_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", altered(toy_run(epochs=2), training={"log_every": 1}))
    printed = [line.split("train loss ")[1].split()[0] for line in capsys.readouterr().out.splitlines()[:2]]
    losses = [line["loss"] for line in lines(tmp_path / "a") if line["kind"] == "train"]
    halves = (losses[:STEPS_PER_EPOCH], losses[STEPS_PER_EPOCH:])
    assert printed == [f"{sum(half) / STEPS_PER_EPOCH:.4f}" for half in halves]


def test_overfitting_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", altered(toy_run(epochs=2)))
    assert "overfits" not in capsys.readouterr().out
    worse = iter(range(1, 100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fredholm.training.trainer.score_split", lambda *_, **__: {"accuracy": 0.5, "loss": float(next(worse))}
        )
        run(tmp_path / "b", altered(toy_run(epochs=4)))
    out = capsys.readouterr().out
    assert "the validation loss was lowest after epoch 1 (1.0000) and rose to 4.0000" in out
    assert "the model overfits; try more data" in out


def test_a_non_finite_loss_stops_the_run_and_saves_the_batch(tmp_path: Path) -> None:
    config = toy_run(poisoned=17)
    message = r"^the loss is nan at step \d+ \(epoch 0\); the batch is saved in "
    with pytest.raises(DivergedError, match=message) as caught:
        run(tmp_path / "a", config)
    assert "\n" not in str(caught.value)
    with safe_open(tmp_path / "a" / "non_finite_batch.safetensors", framework="pt") as file:
        notes = json.loads(file.metadata()["fredholm"])
        indices, x = file.get_tensor("indices"), file.get_tensor("x")
    assert 17 in indices.tolist()
    assert not x[indices.tolist().index(17)].isfinite().any()
    assert x.isfinite().all(1).sum() == len(indices) - 1
    assert notes == {"step": notes["step"], "epoch": 0, "batch": notes["step"], "seed": 7}
    steps = Checkpoints(tmp_path / "a" / "checkpoints").steps()
    assert all(step <= notes["step"] for step in steps)


def test_a_non_empty_folder_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a", toy_run(epochs=1))
    with pytest.raises(ValueError, match=r"a is not empty; choose another --run-dir, or pass --resume"):
        run(tmp_path / "a", toy_run(epochs=1))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("years of work")
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"is not empty|is no run folder"):
            run(tmp_path / "b", resume=resume)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.tex"]
    (tmp_path / "c").write_text("a file")
    with pytest.raises(ValueError, match="c is a file; expected a run folder"):
        run(tmp_path / "c")


def test_an_empty_or_missing_folder_starts_a_run_even_with_resume(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        run(tmp_path / name, toy_run(epochs=1), resume=True)
    assert_same_run(tmp_path / "empty", tmp_path / "absent")


def test_resuming_with_another_config_is_refused_by_field(tmp_path: Path) -> None:
    run(tmp_path / "a", toy_run(epochs=1))
    for other, message in (
        (altered(toy_run(epochs=2), training={"log_every": 2}), "training.log_every was 3, is 2"),
        (dataclasses.replace(toy_run(epochs=1), seed=1), "seed was 7, is 1"),
        (dataclasses.replace(toy_run(epochs=1), task=ToyTask.Config(width=9)), "task.width was 8, is 9"),
    ):
        with pytest.raises(ValueError, match=f"is a run of another config: {message}; resume it unchanged$"):
            run(tmp_path / "a", other, resume=True)


EVEN = {"learning_rate": 1e-2, "final_learning_rate": 1e-2, "warmup_fraction": 0.0}


def test_extending_a_run_with_a_constant_rate_equals_the_longer_run(tmp_path: Path) -> None:
    short, long = (altered(toy_run(epochs=epochs), training=EVEN) for epochs in (3, 6))
    run(tmp_path / "whole", long)
    run(tmp_path / "parts", short)
    seed_everything(999)
    run(tmp_path / "parts", long, resume=True)
    states = [last_state(tmp_path / name) for name in ("whole", "parts")]
    assert states[1].pop("log")["lines"] == states[0].pop("log")["lines"] + 2
    assert states[0] == states[1]
    for name in ("weights.safetensors", "ema.safetensors"):
        files = [tmp_path / run / "checkpoints" / "step-00000042" / name for run in ("whole", "parts")]
        assert files[0].read_bytes() == files[1].read_bytes()
    written = lines(tmp_path / "parts")
    added = [line for line in written if line not in lines(tmp_path / "whole")]
    assert [(line["kind"], line["step"]) for line in added] == [("test", 21), ("schedule", 21)]
    assert [line["step"] for line in written if line["kind"] == "test"] == [21, 42]
    assert Run(tmp_path / "parts", tasks=[ToyTask]).config == long


def last_state(path: Path) -> dict[str, Any]:
    checkpoints = Checkpoints(path / "checkpoints")
    return checkpoints.load_state(checkpoints.last_step() or 0)


@pytest.mark.parametrize("number", [1, STEPS_PER_EPOCH + 3])
def test_an_extended_run_is_resumed_like_any_other(tmp_path: Path, stop_at: Any, number: int) -> None:
    for name in ("whole", "parts"):
        run(tmp_path / name)
    run(tmp_path / "whole", toy_run(epochs=5), resume=True)
    stop_at(number, signal.SIGINT)
    with pytest.raises(InterruptedRunError):
        run(tmp_path / "parts", toy_run(epochs=5), resume=True)
    run(tmp_path / "parts", toy_run(epochs=5), resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_the_number_of_epochs_may_be_changed_in_mid_run_even_after_a_crash(tmp_path: Path, stop_at: Any) -> None:
    for name, epochs in (("a", 5), ("b", 2)):
        stop_at(STEPS_PER_EPOCH + 3, signal.SIGINT)
        with pytest.raises(InterruptedRunError):
            run(tmp_path / name)
        stop_at(2, RuntimeError("power cut"))
        with pytest.raises(RuntimeError, match="power cut"):
            run(tmp_path / name, toy_run(epochs=epochs), resume=True)
        stop_at(-1, signal.SIGINT)
        run(tmp_path / name, toy_run(epochs=epochs), resume=True)
        kinds = [
            (line["kind"], line["step"]) for line in lines(tmp_path / name) if line["kind"] in ("test", "schedule")
        ]
        assert kinds == [("schedule", 10), ("test", epochs * STEPS_PER_EPOCH)]


def test_changes_of_the_schedule_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = {"final_learning_rate": 0.0, "warmup_fraction": 0.0, "decay": "linear", "learning_rate": 0.3}
    run(tmp_path / "a", altered(toy_run(epochs=3), training=rates))
    capsys.readouterr()
    run(tmp_path / "a", altered(toy_run(epochs=6), training=rates), resume=True)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("going on at step 21 of 42")
    assert printed[1] == (
        "6 epochs in place of 3: from here on the schedule is that of 6 epochs; the learning rate rises from 0.0143 to "
        "0.15"
    )
    assert printed[2] == "the test split was read when the run ended before; it is read again at the new end"
    assert printed[3].startswith("epoch 4/6  step 28")
    noted = next(line for line in lines(tmp_path / "a") if line["kind"] == "schedule")
    assert noted == {"kind": "schedule", "step": 21, "epoch": 3, "epochs": 6, "learning_rate": pytest.approx(0.15)}
    trained = [line for line in lines(tmp_path / "a") if line["kind"] == "train"]
    assert trained[7]["learning_rate"] == pytest.approx(0.3 * (1 - 23 / 42))


def test_a_run_extended_with_more_patience_equals_one_that_had_it_from_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = (altered(toy_run(epochs=12), training={"patience": n, "learning_rate": 0.3}) for n in (2, 3))
    run(tmp_path / "whole", large)
    run(tmp_path / "parts", small)
    ended = last_state(tmp_path / "parts")["progress"]
    assert ended["epoch"] < 12
    with pytest.raises(ValueError, match=r"had 2 evaluations in a row .* training.patience is 2; pass more"):
        run(tmp_path / "parts", altered(small, training={"epochs": 20}), resume=True)
    capsys.readouterr()
    run(tmp_path / "parts", large, resume=True)
    assert "schedule" not in capsys.readouterr().out
    states = [last_state(tmp_path / name) for name in ("whole", "parts")]
    assert states[0]["progress"]["epoch"] > ended["epoch"]
    assert states[1].pop("log")["lines"] == states[0].pop("log")["lines"] + 1
    assert states[0] == states[1]


def test_an_end_in_the_past_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "a")
    fitted = computed()
    run(tmp_path / "fitted", fitted)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, other, message in (
        ("a", toy_run(epochs=2), "a has learnt for 3 epochs, and training.epochs is 2; pass more"),
        ("a", altered(toy_run(), training={"patience": 9}), "a has learnt for 3 epochs, and training.epochs is 3"),
        ("fitted", altered(fitted, training={"epochs": 3}), "epochs=3 has no effect with a model that is fitted"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tmp_path / name, other, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_examples": 50.0}, "run.task.num_examples is 50.0; expected int"),
        ({"dropout": True}, "run.task.dropout is True; expected float"),
        ({"held_out": "test"}, "run.task.held_out is 'test'; expected a list"),
    ],
)
def test_settings_of_wrong_types_are_refused_before_they_are_written(
    tmp_path: Path, setting: dict[str, Any], message: str
) -> None:
    with refused(ValueError, message):
        run(tmp_path / "a", altered(toy_run(epochs=1), **setting))
    assert list(tmp_path.iterdir()) == []


def test_a_config_whose_model_cannot_be_built_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model(self: ToyTask) -> None:
        raise ValueError("no such model")

    monkeypatch.setattr(ToyTask, "model", model)
    with pytest.raises(ValueError, match="no such model"):
        run(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config.json is not valid JSON"),
        ("[]", "config.json holds a list; expected an object"),
        ('{"schema": 99}', "config.json has schema 99; this version reads 2"),
        ('{"schema": 2, "run": {"type": "Run.Config"}}', "config.json: run is incomplete"),
    ],
)
def test_a_damaged_config_is_refused(tmp_path: Path, content: str, message: str) -> None:
    RunFolder(tmp_path).put({"config.json": content})
    with pytest.raises(ValueError, match=message):
        Run(tmp_path, tasks=[ToyTask])


def test_a_folder_without_a_run_or_checkpoint_is_refused(tmp_path: Path, stop_at: Any) -> None:
    with pytest.raises(ValueError, match=r"is no folder; expected a run folder$"):
        Run(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"is no run folder: it has no config\.json$"):
        Run(tmp_path)
    stop_at(1, RuntimeError("power cut"))
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path / "a")
    with pytest.raises(ValueError, match=r"a has no checkpoint yet$"):
        Run(tmp_path / "a", tasks=[ToyTask]).evaluate()


@pytest.mark.parametrize(
    ("reading", "which"), [("load_state", "best"), ("load_tensors", "best"), ("load_tensors", "last")]
)
def test_a_checkpoint_replaced_during_an_evaluation_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: str, which: Which
) -> None:
    path, short = tmp_path / "run", toy_run(epochs=1)
    run(path, short)
    reader, read, turns = Run(path, tasks=[ToyTask]), getattr(Checkpoints, reading), []

    def while_another_trains(self: Checkpoints, step: int, *rest: str) -> Any:
        if not turns:
            turns.append(step)
            longer = dataclasses.replace(short.training, epochs=3)
            run(path, dataclasses.replace(short, training=longer), resume=True)
            monkeypatch.setattr(Checkpoints, reading, read)
        return read(self, step, *rest)

    earlier = reader.evaluate("valid", which)
    monkeypatch.setattr(Checkpoints, reading, while_another_trains)
    found = reader.evaluate("valid", which)
    newest = Run(path, tasks=[ToyTask])
    assert newest.step("last") == 3 * STEPS_PER_EPOCH
    assert found == newest.evaluate("valid", which) != earlier
    assert STEPS_PER_EPOCH not in RunFolder(path).checkpoints.steps()


def test_a_damaged_checkpoint_is_not_read_again(tmp_path: Path) -> None:
    run(tmp_path, toy_run(epochs=1))
    reader = Run(tmp_path, tasks=[ToyTask])
    RunFolder(tmp_path).checkpoints.average_files(STEPS_PER_EPOCH)[0].write_bytes(b"")
    with refused(ValueError, "ema.safetensors is damaged: it has 0 bytes"):
        reader.evaluate()


def test_a_run_of_an_unknown_task_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a", toy_run(epochs=1))
    with refused(ValueError, "run.task is of type 'ToyTask.Config'; expected one of", "--recipe", "Run(path, tasks=["):
        Run(tmp_path / "a")


def test_a_full_disk_stops_the_run_and_its_last_checkpoint_stays_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left on device"):
        run(tmp_path / "a")
    monkeypatch.undo()
    assert not list(tmp_path.rglob(".partial-*"))
    run(tmp_path / "a", resume=True)
    run(tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "a")


def test_training_continues_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "whole")
    losses, is_later, begin, loss = [0], threading.Event(), Draft.begin, ToyTask.loss

    def begin_later(draft: Draft) -> None:
        if draft.path.name == "step-00000004":
            assert is_later.wait(60)
        begin(draft)

    def counted(self: ToyTask, model: nn.Module, batch: Batch) -> Tensor:
        losses[0] += 1
        if losses[0] == 2 * 6:  # two accumulation parts per step
            is_later.set()
        return loss(self, model, batch)

    monkeypatch.setattr(Draft, "begin", begin_later)
    monkeypatch.setattr(ToyTask, "loss", counted)
    run(tmp_path / "a")
    assert_same_run(tmp_path / "whole", tmp_path / "a")


def test_a_full_disk_is_reported_after_the_step_in_which_it_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, losses, save, loss = list[Checkpoints](), [0], Checkpoints.save, ToyTask.loss

    def no_room(draft: Draft, name: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def noticed(self: ToyTask, model: nn.Module, batch: Batch) -> Tensor:
        losses[0] += 1
        if saving:
            until(lambda: saving[0].has_failed)
        return loss(self, model, batch)

    monkeypatch.setattr(Checkpoints, "save", lambda self, *parts: (save(self, *parts), saving.append(self))[0])
    monkeypatch.setattr(Draft, "add", no_room)
    monkeypatch.setattr(ToyTask, "loss", noticed)
    with refused(OSError, "cannot save the checkpoint of step 4 (No space left on device); there is no earlier one"):
        run(tmp_path / "a")
    assert losses[0] == 2 * 5  # two accumulation parts per step


def test_tensorboard_events_are_written(tmp_path: Path) -> None:
    config = toy_run(epochs=1)
    training: TrainingConfig = dataclasses.replace(config.training, tensorboard=True)
    run(tmp_path / "a", dataclasses.replace(config, training=training))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "a" / "tensorboard")).Reload()
    tags = {"train/loss", "train/learning_rate", "train/examples_per_second", "test/accuracy", "test/loss"}
    assert tags <= set(events.Tags()["scalars"])
    (accuracy,) = events.Scalars("test/accuracy")
    assert accuracy.step == STEPS_PER_EPOCH
    assert accuracy.value == pytest.approx(lines(tmp_path / "a")[-1]["accuracy"])


def test_the_last_step_is_logged_even_in_short_runs(tmp_path: Path) -> None:
    config = toy_run(epochs=1)
    run(tmp_path / "a", dataclasses.replace(config, training=dataclasses.replace(config.training, log_every=100)))
    (line,) = [line for line in lines(tmp_path / "a") if line["kind"] == "train"]
    assert (line["step"], 0 < line["loss"] < 10) == (STEPS_PER_EPOCH, True)


def test_missing_tensorboard_is_reported_in_one_line_and_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    config = toy_run(epochs=1)
    run(tmp_path / "a", dataclasses.replace(config, training=dataclasses.replace(config.training, tensorboard=True)))
    assert capsys.readouterr().err == ("tensorboard is not installed: no event files (pip install 'fredholm[train]')\n")
    assert [line["kind"] for line in lines(tmp_path / "a")] == ["train", "train", "train", "valid", "test"]


def test_missing_packages_are_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(task: ToyTask) -> dict[str, Any]:
        raise ImportError('metrics need torchmetrics; get it with: pip install "fredholm[train]"')

    run(tmp_path / "a")
    monkeypatch.setattr(ToyTask, "metrics", missing)
    with refused(ImportError, 'metrics need torchmetrics; get it with: pip install "fredholm[train]"'):
        run(tmp_path / "b")
    assert not (tmp_path / "b").exists()
    (tmp_path / "x.txt").touch()
    (found,) = Run(tmp_path / "a", tasks=[ToyTask]).predict([tmp_path / "x.txt"])  # needs no package
    assert found["size"] == 0
    nothing = dataclasses.replace(toy_run(), task=dataclasses.replace(toy_run().task, held_out=()))
    train(nothing, tmp_path / "c", tasks=[ToyTask], needs_measure=False)


def averages(path: Path) -> dict[str, Tensor]:
    model = Run(path, tasks=[ToyTask]).model()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_a_run_starts_from_the_weights_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "one")
    still = dataclasses.replace(toy_run().training, learning_rate=1e-30, final_learning_rate=0.0, weight_decay=0.0)
    start = dataclasses.replace(toy_run(), training=still, seed=7, init=str(tmp_path / "one"))
    run(tmp_path / "two", start)
    assert equal(averages(tmp_path / "one"), averages(tmp_path / "two"))
    printed = capsys.readouterr().out.splitlines()
    names = averages(tmp_path / "one").keys()
    after = next(n for n, line in enumerate(printed) if line == f"from {tmp_path / 'one'}: {len(names)} tensors")
    assert printed[after + 1].startswith("epoch 1/3")  # no tensor is new or left over


def test_weights_that_do_not_fit_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "one")
    wider = dataclasses.replace(toy_run().task, width=9)
    start = dataclasses.replace(toy_run(), task=wider, init=str(tmp_path / "one"))
    run(tmp_path / "two", start)
    printed = capsys.readouterr().out.splitlines()
    at = printed.index(f"from {tmp_path / 'one'}: 1 tensors")
    assert printed[at + 1] == (
        "  of other shapes, so new: 0.weight (9, 6), there (8, 6), 0.bias (9,), there (8,), 1.weight (9,), there (8,), "
        "1.bias (9,), there (8,), 4.weight (3, 9), there (3, 8)"
    )
    assert printed[at + 2].startswith("epoch 1/3")


def test_a_run_resumed_before_its_first_checkpoint_starts_from_the_same_weights(tmp_path: Path, stop_at: Any) -> None:
    run(tmp_path / "one")
    start = dataclasses.replace(
        toy_run(), task=dataclasses.replace(toy_run().task, width=9), init=str(tmp_path / "one")
    )
    run(tmp_path / "whole", start)
    stop_at(2, RuntimeError("power cut"))
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path / "parts", start)
    stop_at(-1, signal.SIGINT)
    seed_everything(999)
    run(tmp_path / "parts", start, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_init_is_refused_for_models_fitted_in_closed_form(tmp_path: Path) -> None:
    run(tmp_path / "one")
    fitted = dataclasses.replace(computed(), init=str(tmp_path / "one"))
    with pytest.raises(ValueError, match=r"init=.* has no effect: this model is fitted in closed form"):
        run(tmp_path / "two", fitted)


def test_a_bad_init_leaves_no_folder(tmp_path: Path) -> None:
    with refused(ValueError, "init is empty; name the folder of a run, or leave it out"):
        dataclasses.replace(toy_run(), init=" ")
    start = dataclasses.replace(toy_run(), init=str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="absent is no folder"):
        run(tmp_path / "two", start)
    assert not (tmp_path / "two").exists()


def test_query_points_are_refused_by_tasks_without_functions(tmp_path: Path) -> None:
    task = toy_run().task.build()
    with refused(ValueError, "--at has no effect: the task 'toy' predicts no functions; leave it out"):
        task.predict(task.model(), [], torch.device("cpu"), at=tmp_path / "places.csv")


NOBODY = "~nobody-at-all/a"


@pytest.mark.parametrize(
    "opens",
    [
        lambda path: run(path, dataclasses.replace(toy_run(), init=NOBODY)),
        lambda path: run(path, dataclasses.replace(toy_run(), task=ToyTask.Config(data=NOBODY))),
        lambda path: read_trained(Path(NOBODY)),
        lambda path: Recipe(
            name="digits",
            config=dataclasses.replace(toy_run(), task=ToyTask.Config(data=NOBODY)),
            listing=Listing(path, "", source="the archive"),
        ).refuse_absent_data(dataclasses.replace(toy_run(), task=ToyTask.Config(data=NOBODY))),
        lambda path: SeriesClassifier(run_dir=NOBODY).fit([[[0.0], [1.0]], [[1.0], [0.0]]] * 9, [0, 1] * 9),
    ],
    ids=["init", "data", "read_trained", "recipe", "estimator"],
)
def test_an_unknown_home_folder_gives_a_one_line_error(tmp_path: Path, opens: Callable[[Path], object]) -> None:
    with refused(ValueError, f"{NOBODY}: there is no home folder of that user; write the path in full"):
        opens(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_folders_and_files_may_be_given_as_strings(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    result = train(toy_run(epochs=1), place, tasks=[ToyTask])
    assert Run(place, tasks=[ToyTask]).evaluate()["loss"] == result.metrics["loss"]
    kept = kept_result(toy_run(epochs=1), place, lambda done: {"step": done.step()}, tasks=[ToyTask])
    assert kept == {"step": STEPS_PER_EPOCH}
    assert RunFolder(place).checkpoints.steps() == Checkpoints(f"{place}/checkpoints").steps()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"task": ITNet.Config()},
            "task must be settings of a task, such as tasks.ImageLearning.Config(...); got",
        ),
        ({"task": ToyTask}, "task must be settings of a task"),
        ({"training": {"epochs": 1}}, "training must be a TrainingConfig; got dict"),
        ({"task": ToyTask.Config(data=cast(str, [1.0]))}, "data of a task must be a path or a built-in name; got list"),
    ],
)
def test_parts_of_a_config_of_the_wrong_type_are_refused(changes: dict[str, Any], message: str) -> None:
    with refused(TypeError, f"training.Run.Config: {message}"):
        dataclasses.replace(toy_run(epochs=1), **changes)


@pytest.mark.parametrize("seed", ["1", None, 1.5, True])
def test_seeds_must_be_whole_numbers(seed: Any) -> None:
    with refused(TypeError, f"seed is {seed!r}; expected an integer from 0 to 4294967295"):
        dataclasses.replace(toy_run(epochs=1), seed=seed)


def test_seeds_of_numpy_are_accepted(tmp_path: Path) -> None:
    configs = [dataclasses.replace(toy_run(epochs=1), seed=seed) for seed in (np.int64(3), 3)]
    results = [train(config, tmp_path / str(i), tasks=(ToyTask,)) for i, config in enumerate(configs)]
    assert results[0] == results[1]


def test_a_folder_that_cannot_be_created_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_occupied(tmp_path / "runs" / "a")
    assert list(tmp_path.iterdir()) == []

    def refuse(path: str, mode: int) -> None:  # file modes would not matter: root may write anywhere but in /proc
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(PermissionError, match=r"no folder can be made here \(No such file or directory\)") as caught:
        refuse_occupied(tmp_path / "runs" / "a")
    assert caught.value.filename == str(tmp_path)
