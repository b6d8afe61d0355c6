"""The processes that train one model, as torchrun starts them, and their communication.

Values are sent by collectives of ``torch.distributed`` on the CPU, through gloo; gradients on the model's device,
through NCCL on CUDA. An error that ends a run is reported by one process (`must_report`): the one where it arose.
"""

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from torch.distributed.rendezvous import rendezvous

Value = TypeVar("Value")

RESTARTS, RESULTS = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE"
_JOINING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets for a process."""
_LOST = re.compile(r"gloo|nccl|process ?group|connection (closed|reset)|broken pipe|socket|\bstore\b", re.IGNORECASE)
_WAIT_FOR_FIRST = 2.0
"""Seconds within which the first process meets an error that all processes have, and reports it."""
_WAIT_FOR_END = 10.0
"""Seconds within which torchrun ends the processes after one of them was lost."""

_store: Store | None = None


@final
class OtherProcessError(Exception):
    """Another process has failed, and reports the error itself."""


@final
class LostProcessError(Exception):
    """A process of a run was killed."""


@final
@dataclass(frozen=True)
class Processes:
    """The processes of one run, as seen by one of them; by default a single process, which sends nothing.

    Args:
        rank: of this process, from 0.
        size: number of processes.
        local_rank: rank on this machine, which is the index of its GPU.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """Name of this process, for messages."""
        return f"rank {self.rank} of {self.size} on {socket.gethostname()}"

    def gather(self, value: Value) -> list[Value]:
        """The plain Python values of all processes, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, value: Value) -> Value:
        """The plain Python value of the first process."""
        if self.size == 1:
            return value
        values: list[Any] = [value if self.is_first else None]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def on_first(self, function: Callable[[], Value]) -> Value | None:
        """Calls a function on the first process alone while the others wait, which return None.

        Raises:
            OtherProcessError: on the others, where it raised an error on the first.
        """
        with self.first_ahead():
            return function() if self.is_first else None

    @contextlib.contextmanager
    def first_ahead(self) -> Iterator[None]:
        """Context whose body the first process runs before all others, which then find its files on the disk.

        Raises:
            OtherProcessError: on the others, where the first raised an error.
        """
        if not self.is_first and not self.from_first(False):
            raise OtherProcessError("the first process has failed")
        try:
            yield
        except BaseException:
            if self.is_first:
                self.from_first(False)
            raise
        if self.is_first:
            self.from_first(True)

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers."""
        if self.size == 1:
            return number
        found = torch.tensor(number)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Adds up the processes' tensors in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def equalise(self, model: nn.Module) -> None:
        """Copies the first process's parameters and buffers to the others."""
        if self.size > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), 0)

    def rows(self, count: int) -> slice:
        """The slice of `count` rows that belongs to this process; numbers of rows differ by at most one."""
        each, more = divmod(count, self.size)
        start = self.rank * each + min(self.rank, more)
        return slice(start, start + each + (self.rank < more))


ALONE = Processes()
"""A single process."""


def joined() -> Processes:
    """Initialises the process group of the processes that torchrun started; without torchrun this process alone.

    Raises:
        ValueError: the environment is not as torchrun sets it, or the processes cannot connect.
    """
    global _store
    if dist.is_initialized() or num_started() == 1:
        return current()
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        store, rank, size = next(rendezvous("env://"))
        # torchrun keeps one store for all restarts, with stale addresses of processes that have ended
        _store = PrefixStore(f"start {os.environ.get(RESTARTS, '0')}", store)
        backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
        dist.init_process_group(backend, store=_store, rank=rank, world_size=size)
    except (ValueError, RuntimeError) as error:
        message = " ".join(str(error).split())
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        if "EADDRINUSE" in message:
            raise ValueError(f"no free port: {place} is taken; pass another --master-port to torchrun") from error
        raise ValueError(
            f"the processes cannot connect at {place} ({message:.160}); check RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT in the environment, which torchrun sets"
        ) from error
    return current()


def current() -> Processes:
    """The processes of the initialised process group (`joined`)."""
    if not (dist.is_available() and dist.is_initialized()):
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))


def num_started() -> int:
    """Number of processes that torchrun, or a compatible launcher, started, this one included; 1 without one.

    Raises:
        ValueError: WORLD_SIZE is not a number.
    """
    if not all(name in os.environ for name in _JOINING):
        return 1
    size = os.environ["WORLD_SIZE"]
    if not size.isdecimal() or size == "0":
        raise ValueError(f"WORLD_SIZE in the environment is {size!r}; expected the number of processes")
    return int(size)


def is_restarted() -> bool:
    """Whether torchrun restarted this process after a failure."""
    return os.environ.get(RESTARTS, "0") != "0"


def leave() -> None:
    """Destroys the process group once all processes are done: pending sends of a process that has gone are lost."""
    global _store
    if not dist.is_initialized():
        return
    if _store is not None:
        patience = time.monotonic() + _WAIT_FOR_END
        with contextlib.suppress(RuntimeError):  # the process that hosts the store has gone
            left = _store.add("left", 1)
            while left < dist.get_world_size() and time.monotonic() < patience:
                time.sleep(0.01)
                left = _store.add("left", 0)
    _store = None
    dist.destroy_process_group()


def must_report(error: BaseException) -> bool:
    """Whether this process must report the error that ends it: exactly one does, the first if it meets the error too.

    The others wait for torchrun, which ends them once the reporting process, or a process that was killed and reports
    nothing, has ended.
    """
    if _store is None:
        return True
    is_awaited = RESULTS in os.environ
    if is_of_loss(error) and is_awaited:
        time.sleep(_WAIT_FOR_END)
    is_reporting = not isinstance(error, OtherProcessError) and _is_first_to_report(error, _store)
    if is_awaited and not is_reporting:
        time.sleep(_WAIT_FOR_END)
    return is_reporting


def _is_first_to_report(error: BaseException, store: Store) -> bool:
    try:
        if os.environ["RANK"] == "0" and not is_of_loss(error):
            store.set("first reports", "")
        elif _first_reports(store):
            return False
        return store.add("reported", 1) == 1
    except RuntimeError:  # the process that hosts the store has gone
        return False


def _first_reports(store: Store) -> bool:
    patience = time.monotonic() + _WAIT_FOR_FIRST
    while time.monotonic() < patience:
        if store.check(["first reports"]):
            return True
        time.sleep(0.02)
    return False


def is_of_loss(error: BaseException) -> bool:
    """Whether an error means that another process has gone."""
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and bool(_LOST.search(str(error))))


def record(error: BaseException) -> None:
    """Makes torchrun report an error, with its traceback, as the cause of the end of the run."""
    if RESULTS in os.environ:
        get_error_handler().record_exception(error)
