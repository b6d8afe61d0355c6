import multiprocessing
import multiprocessing.resource_sharer
import signal
import socket
import time
from multiprocessing.connection import Connection
from types import FrameType

import pytest
import torch
from torch import Tensor

from fredholm.tasks.task import Batch
from fredholm.training.batches import EpochBatches, iterate
from tests.training.toy_task import ToyTask


def test_batches_cover_the_epoch_once() -> None:
    batches = EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=0)
    assert [len(indices) for indices in batches.indices] == [8] * 6 + [2]
    assert sorted(torch.cat(list(batches.indices)).tolist()) == list(range(50))


def test_workers_and_a_late_start_give_the_same_batches_and_draw_nothing_global() -> None:
    batches = EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=4)
    state = torch.get_rng_state()
    plain = list(iterate(batches, 0, num_workers=0, pin_memory=False))
    for start, num_workers in ((0, 2), (3, 0), (3, 1)):
        batch_list = list(iterate(batches, start, num_workers=num_workers, pin_memory=False))
        assert len(batch_list) == 7 - start
        for one, other in zip(plain[start:], batch_list, strict=True):
            assert all(torch.equal(one.rows[name], other.rows[name]) for name in one.rows)
            assert one[1:] == other[1:]
    assert torch.equal(state, torch.get_rng_state())
    noise = [batch.rows["x"] - batches._task.inputs[i] for batch, i in zip(plain, batches.indices, strict=True)]  # pyright: ignore[reportAttributeAccessIssue]
    assert not torch.allclose(noise[0], noise[1])  # every batch has its own stream


def test_an_error_that_comes_while_a_batch_is_awaited_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_batch(self: ToyTask, indices: Tensor, generator: torch.Generator) -> Batch:
        time.sleep(60)
        raise AssertionError

    def interrupt(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name == "select":
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0.1)  # nothing is awaited yet; in a destructor it would be lost

    monkeypatch.setattr(ToyTask, "train_batch", slow_batch)
    batches = EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=0)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt) as caught:
            list(iterate(batches, 0, num_workers=2, pin_memory=False))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert multiprocessing.active_children() == []
    del caught  # whose trace holds what is told of killed processes; pytest makes an error of one in a destructor


def test_a_worker_says_nothing_of_a_run_that_hangs_up_while_it_takes_a_tensor_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sharer, hung_up = multiprocessing.resource_sharer._ResourceSharer, []  # pyright: ignore[reportAttributeAccessIssue]
    get_connection = sharer.get_connection

    def hang_up_first(handle: tuple[str, int]) -> Connection:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(handle[0])
        hung_up.append(handle)
        return get_connection(handle)

    monkeypatch.setattr(sharer, "get_connection", staticmethod(hang_up_first))
    batches = EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=0)
    assert len(list(iterate(batches, 0, num_workers=2, pin_memory=False))) == 7
    assert len(hung_up) >= 7
    assert capfd.readouterr().err == ""
