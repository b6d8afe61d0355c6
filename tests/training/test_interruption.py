"""Signals, lost workers and closed streams: a run stops between two steps with its state saved, or continues."""

import contextlib
import errno
import io
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fredholm.storage.atomic import Draft
from fredholm.tasks import Batch
from fredholm.tasks.splits.splits import HeldOut
from fredholm.training import Checkpoints, InterruptedRunError, LostWorkerError, Run, TrainingConfig, train
from fredholm.training.interruption import STOPPING, Interruption
from fredholm.training.progress import print_line, progress_bar
from tests.refusals import refused
from tests.training.toy_task import ToyTask, toy_run

STEP = 5


def run(path: Path, *, resume: bool = False, **training: object) -> Run.Config:
    config = toy_run()
    numbers = {**vars(config.training), **training}
    config = Run.Config(task=config.task, training=TrainingConfig(**numbers), seed=config.seed)
    train(config, path, resume=resume, tasks=[ToyTask])
    return config


def weights(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(path.rglob("*.safetensors"))]


@pytest.fixture
def in_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Runs a callback once in the training process in the middle of a step."""

    def plan(happens: Callable[[], object]) -> None:
        losses = [0]
        original = ToyTask.loss

        def loss(self: ToyTask, model: nn.Module, batch: Batch) -> Tensor:
            losses[0] += 1
            if losses[0] == 2 * STEP:  # two accumulation parts per step
                happens()
            return original(self, model, batch)

        monkeypatch.setattr(ToyTask, "loss", loss)

    return plan


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restores the default handlers of a separate process, and checks that the run restores them too."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPPING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_and_its_group_may_both_be_signalled_to_stop(
    tmp_path: Path, in_step: Callable, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    run(tmp_path / "whole")

    def raise_signals() -> None:
        for _ in range(3):
            signal.raise_signal(number)

    in_step(raise_signals)
    with pytest.raises(InterruptedRunError, match=rf"^interrupted; step {STEP} of 21 is saved in ") as caught:
        run(tmp_path / "parts")
    assert caught.value.signal_number == number
    assert capfd.readouterr().err == "stopping after this step ...\n"
    run(tmp_path / "parts", resume=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole") != []


def test_a_failed_save_after_a_signal_is_not_reported_as_saved(
    tmp_path: Path, in_step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Draft.add

    def no_room(draft: Draft, name: str, content: bytes) -> None:
        if draft.path.name == f"step-{STEP:08d}":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        add(draft, name, content)

    monkeypatch.setattr(Draft, "add", no_room)
    in_step(lambda: signal.raise_signal(signal.SIGTERM))
    with refused(OSError, f"cannot save the checkpoint of step {STEP} (No space left on device); the one of step 4 is"):
        run(tmp_path / "parts")


def test_a_signal_during_the_last_save_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last save replaces the state of the last step alone."""
    begin, begun = Draft.begin, [0]

    def begin_and_signal(draft: Draft) -> None:
        begun[0] += draft.path.name == "step-00000021"
        if begun[0] == 2:
            time.sleep(0.1)  # the main thread waits for this one
            os.kill(os.getpid(), signal.SIGTERM)
        begin(draft)

    monkeypatch.setattr(Draft, "begin", begin_and_signal)
    with pytest.raises(InterruptedRunError, match=r"^interrupted; the run in .* is done$"):
        run(tmp_path / "run")


def test_ctrl_c_after_another_signal_stops_at_once() -> None:
    for first in STOPPING:
        with Interruption() as interruption:
            signal.raise_signal(first)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert interruption.signal_number == first


def test_ctrl_c_while_another_signal_is_handled_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for first in STOPPING:
        with Interruption() as interruption, monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(first)
        assert interruption.signal_number == first


@pytest.mark.slow
def test_workers_leave_signals_to_the_main_process(tmp_path: Path, in_step: Callable) -> None:
    run(tmp_path / "alone", batch_size=2)

    def raise_signals() -> None:
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        for worker in workers:
            assert worker.pid is not None
            for number in STOPPING:
                os.kill(worker.pid, number)

    in_step(raise_signals)
    run(tmp_path / "made by workers", batch_size=2, num_workers=2)  # most batches are not made yet
    assert weights(tmp_path / "made by workers") == weights(tmp_path / "alone") != []
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_lost_worker_is_reported_in_one_line_and_the_run_is_saved(tmp_path: Path, in_step: Callable) -> None:
    run(tmp_path / "whole", num_workers=2)

    def lose() -> None:
        worker, _ = multiprocessing.active_children()
        assert worker.pid is not None
        worker.kill()
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # dead, but not noticed yet
        lost.append(worker.pid)

    lost: list[int | None] = []
    in_step(lose)
    with pytest.raises(LostWorkerError) as caught:
        run(tmp_path / "parts", num_workers=2)
    line = f"a process that makes batches was lost (process {lost[0]}: Killed); step "
    assert str(caught.value).startswith(line)
    assert str(caught.value).endswith("--resume goes on; where memory is short, lower num_workers")
    assert Checkpoints(tmp_path / "parts" / "checkpoints").last_step() in (STEP, STEP + 1, STEP + 2)
    assert multiprocessing.active_children() == []
    run(tmp_path / "parts", num_workers=2, resume=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole") != []


def test_an_error_in_a_worker_is_raised_like_one_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train_batch(self: ToyTask, indices: Tensor, generator: torch.Generator) -> Batch:
        raise ValueError("scan.png: no image")

    monkeypatch.setattr(ToyTask, "train_batch", train_batch)
    for workers in (0, 1):
        with refused(ValueError, "scan.png: no image"):
            run(tmp_path / str(workers), num_workers=workers)


def test_a_signal_during_the_last_evaluation_skips_the_remaining_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ToyTask.held_out_batch

    def held_out_batch(self: ToyTask, split: HeldOut, indices: Tensor) -> Batch:
        if split == "test":
            signal.raise_signal(signal.SIGINT)
        return original(self, split, indices)

    monkeypatch.setattr(ToyTask, "held_out_batch", held_out_batch)
    with pytest.raises(InterruptedRunError, match=r"^interrupted; the run in .* is done$"):
        run(tmp_path / "run")
    assert Run(tmp_path / "run", tasks=[ToyTask]).step("last") == 21


class _Unwritable(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stream", [None, _Unwritable()])
def test_a_run_continues_without_output_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_step: Callable, stream: io.StringIO | None
) -> None:
    run(tmp_path / "whole")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    in_step(lambda: signal.raise_signal(signal.SIGHUP))
    with contextlib.suppress(InterruptedRunError):
        run(tmp_path / "parts")
    run(tmp_path / "parts", resume=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole") != []


def test_nothing_is_shown_without_output_streams(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    steps = []
    with progress_bar("train", 3, unit="step") as bar:
        for step in range(3):
            steps.append(step)
            bar.update()
            print_line("lost")
    assert steps == [0, 1, 2]
    assert capfd.readouterr() == ("", "")
