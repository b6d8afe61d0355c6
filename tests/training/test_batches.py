import itertools
import multiprocessing
import multiprocessing.resource_sharer
import os
import select
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import FrameType

import pytest
import torch
from torch import Tensor

from fredholm.tasks.task import Batch
from fredholm.training import batches as batches_module
from fredholm.training.batches import (
    OPEN,
    EpochBatches,
    OrderedBatches,
    Share,
    bucketed_batches,
    epoch_batches,
    iterate,
    shuffled,
)
from fredholm.training.interruption import STOPPING
from tests.refusals import refused
from tests.training.toy_task import ToyTask


def test_batches_cover_the_epoch_once() -> None:
    batches = EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=0)
    assert [len(indices) for indices in batches.indices] == [8] * 6 + [2]
    assert sorted(torch.cat(list(batches.indices)).tolist()) == list(range(50))


def test_workers_and_a_late_start_give_the_same_batches_without_global_random_numbers() -> None:
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
    assert signal.getsignal(signal.SIGCHLD) != signal.SIG_DFL  # torch's handler is installed again


def test_workers_serve_other_threads() -> None:
    batches = EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=0)
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(list[Share], iterate(batches, 0, num_workers=1, pin_memory=False)).result()
    assert len(made) == 7


def test_an_error_in_a_worker_has_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ToyTask, indices: Tensor, generator: torch.Generator) -> Batch:
        raise ValueError("a broken file")

    monkeypatch.setattr(ToyTask, "train_batch", fail)
    batches = EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=0)
    for num_workers in (0, 1):
        with pytest.raises(ValueError, match="a broken file") as caught:
            list(iterate(batches, 0, num_workers=num_workers, pin_memory=False))
        notes = getattr(caught.value, "__notes__", [])
        assert [", in fail" in note for note in notes] == [True] * num_workers


def test_every_batch_of_every_epoch_has_its_own_random_draws() -> None:
    task = ToyTask.Config().build()
    noise = list[Tensor]()
    for seed, epoch in ((0, 4), (0, 5), (1, 4)):
        batches = EpochBatches(task, 8, seed, epoch)
        noise += [batches.whole(number)["x"] - task.inputs[batches.indices[number]] for number in (0, 1)]
    apart = torch.stack([(one - other).abs().max() for one, other in itertools.combinations(noise, 2)])
    assert float(apart.min()) > 0.01  # far beyond rounding


def test_an_interruption_while_waiting_for_a_batch_is_the_only_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_batch(self: ToyTask, indices: Tensor, generator: torch.Generator) -> Batch:
        time.sleep(60)
        raise AssertionError

    def interrupt(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name == "select":
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 0.1)  # not waiting yet; in a destructor it would be lost

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
    del caught  # its traceback holds reports about killed processes, which pytest would raise in a destructor


def test_workers_start_with_signals_blocked_and_other_errors_are_not_lost_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def report_mask(worker: int) -> None:
        os.write(write, bytes(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))))

    def fail(share: object) -> None:
        raise RuntimeError("out of memory")

    read, write = os.pipe()
    monkeypatch.setattr(batches_module, "_prepare_worker", report_mask)
    monkeypatch.setattr(batches_module, "_made", fail)
    with refused(RuntimeError, "out of memory"):
        list(iterate(EpochBatches(ToyTask.Config().build(), 8, seed=0, epoch=0), 0, num_workers=1, pin_memory=False))
    assert multiprocessing.active_children() == []
    assert {*os.read(read, 100)} >= {*STOPPING}
    os.close(read)
    os.close(write)


def test_a_worker_stays_silent_if_the_run_closes_the_connection_during_a_transfer(
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


def joined(batches: OrderedBatches) -> Tensor:
    return torch.cat(list(batches))


def test_the_order_is_a_permutation_fixed_by_seed_and_epoch() -> None:
    order = joined(epoch_batches(50, 8, seed=3, epoch=2))
    assert sorted(order.tolist()) == list(range(50))
    assert torch.equal(order, joined(epoch_batches(50, 8, seed=3, epoch=2)))
    others = [joined(epoch_batches(50, 8, seed, epoch)) for seed, epoch in ((3, 1), (2, 3))]
    assert not any(torch.equal(order, other) for other in others)


def test_buckets_hold_examples_of_similar_length() -> None:
    lengths = torch.randint(1, 100, (2003,), generator=torch.Generator().manual_seed(0))
    batches, again, other = (bucketed_batches(lengths, 8, seed=3, epoch=epoch) for epoch in (2, 2, 1))
    assert sorted(joined(batches).tolist()) == list(range(2003))
    assert sorted(map(len, batches)) == [3] + [8] * 250
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))
    assert {frozenset(a.tolist()) for a in batches}.isdisjoint(frozenset(a.tolist()) for a in other)
    places = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    assert places < 1.15 * int(lengths.sum())
    longest = torch.tensor([int(lengths[batch].max()) for batch in batches])
    assert 0.4 < (longest.diff() > 0).double().mean() < 0.6  # neither a pool nor the epoch is sorted by length


def test_buckets_of_a_long_epoch_are_shuffled() -> None:
    lengths = torch.ones(900, dtype=torch.int64)
    moved = joined(bucketed_batches(lengths, 1, 0, 0)).argsort() - joined(epoch_batches(900, 1, 0, 0)).argsort()
    assert int(moved.abs().max()) > 600


def test_batches_of_a_slice_are_indexed_by_number() -> None:
    cut = OrderedBatches(torch.arange(10, 20), 4, torch.tensor([2, 0, 1]))
    assert len(cut) == 3
    assert [batch.tolist() for batch in cut] == [[18, 19], [10, 11, 12, 13], [14, 15, 16, 17]]
    for number in (-1, 3):
        with pytest.raises(IndexError):
            cut[number]


SHARDS = torch.tensor([30, 1, 17, 30, 30, 9] * 10)
STARTS = SHARDS.cumsum(0) - SHARDS


def order_of(seed: int, epoch: int, **settings: Tensor) -> Tensor:
    return joined(epoch_batches(int(SHARDS.sum()), 8, seed, epoch, SHARDS))


def test_with_shards_every_example_occurs_once_in_an_order_of_its_epoch() -> None:
    one = order_of(3, 2)
    assert one.dtype == torch.int64
    assert sorted(one.tolist()) == list(range(int(SHARDS.sum())))
    assert torch.equal(one, order_of(3, 2))
    assert not torch.equal(one, order_of(3, 1))
    assert not torch.equal(one, order_of(2, 2))


def test_few_shards_are_read_at_a_time_and_their_examples_are_mixed() -> None:
    one, other = order_of(0, 0), order_of(0, 1)
    shard = torch.searchsorted(STARTS, one, right=True) - 1
    first, last = (torch.tensor([int((shard == k).nonzero()[at]) for k in range(len(SHARDS))]) for at in (0, -1))
    at_a_time = [int(((first <= place) & (last >= place)).sum()) for place in range(len(one))]
    assert max(at_a_time) <= OPEN
    assert sum(at_a_time) / len(one) > OPEN / 2
    apart = (one.diff() != 1).double().mean()
    assert apart > 0.98  # neighbours on disk seldom follow each other
    assert (shard.diff() != 0).double().mean() > 0.85

    def together(found: Tensor) -> set[frozenset[int]]:
        pools = (torch.searchsorted(STARTS, found, right=True) - 1).split(300)
        return {frozenset(pool.tolist()) for pool in pools}

    assert together(one).isdisjoint(together(other))  # another epoch combines other shards


def test_rows_of_several_processes_never_overlap() -> None:
    batches = epoch_batches(int(SHARDS.sum()), 8, 0, 0, SHARDS)
    rows = [row for rank in range(3) for batch in batches for row in batch[rank::3].tolist()]
    assert sorted(rows) == list(range(int(SHARDS.sum())))


def test_buckets_with_shards_read_few_shards_at_a_time() -> None:
    lengths = torch.randint(1, 100, (int(SHARDS.sum()),), generator=torch.Generator().manual_seed(0))
    whole = epoch_batches(len(lengths), 8, 3, 2, SHARDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "POOL", 2)
        patch.setattr(batches_module, "OPEN", 5)
        batches = bucketed_batches(lengths, 8, seed=3, epoch=2, shards=SHARDS)
        place = torch.empty(len(lengths), dtype=torch.int64)
        place[joined(epoch_batches(len(lengths), 8, 3, 2, SHARDS))] = torch.arange(len(lengths))
    assert len(batches) == len(whole)
    assert sorted(joined(batches).tolist()) == list(range(len(lengths)))
    moved = place[joined(batches)] - torch.arange(len(lengths))
    assert 40 < moved.abs().max() <= 2 * 5 * 8  # within the batches of five pools
    spread = [int(lengths[batch].max() - lengths[batch].min()) for batch in batches]
    assert sum(spread) / len(spread) < 50


def test_a_single_shard_is_shuffled_as_a_whole() -> None:
    found = shuffled(50, torch.Generator().manual_seed(0), torch.tensor([50]))
    assert sorted(found.tolist()) == list(range(50))
    assert (found.diff() != 1).double().mean() > 0.8


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_worker_waiting_for_a_lock_ends_with_its_run() -> None:
    forks = multiprocessing.get_context("fork")
    read, write = os.pipe()

    def wait_for_ever() -> None:
        batches_module._prepare_worker(0)
        os.write(write, b".")
        held = threading.Lock()
        held.acquire()
        held.acquire()

    def run() -> None:
        forks.Process(target=wait_for_ever).start()
        time.sleep(60)

    process = forks.Process(target=run)
    process.start()
    os.close(write)
    assert os.read(read, 1) == b"."
    process.kill()
    process.join()
    assert select.select([read], [], [], 20)[0]  # the worker held its other end
    assert os.read(read, 1) == b""
    os.close(read)
