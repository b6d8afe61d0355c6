"""Runs a function on several gloo processes, each forked from one that has imported torch."""

import datetime
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.command_line import FORKS

TIMEOUT = 120.0
"""Seconds after which processes count as hung and are killed."""


def on_processes(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Runs a function on `size` processes and returns its results by rank: tensors, and plain containers of them.

    Args:
        size: number of processes, each with one thread.
        function: function at the top level of a module, so that processes can import it; the default process group
            is initialised when it runs.
        arguments: arguments of the function, which can be pickled.

    Raises:
        AssertionError: if a process fails, with the tracebacks of all that failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            FORKS.Process(target=_run, args=(Path(folder), rank, size, function, arguments)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(TIMEOUT)
        for process in processes:
            process.kill()
            process.join()
        errors = [path.read_text() for path in sorted(Path(folder).glob("*.error"))]
        codes = [process.exitcode for process in processes]
        assert not any(codes), "\n".join(errors) or f"exit codes {codes}"
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(size)]


def _run(folder: Path, rank: int, size: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    wait = datetime.timedelta(seconds=TIMEOUT)
    store = dist.FileStore(str(folder / "store"), size)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
    try:
        dist.barrier()  # otherwise a process that needs no other could exit before all have connected to it
        torch.save(function(*arguments), folder / f"{rank}.pt")
    except BaseException:
        (folder / f"{rank}.error").write_text(f"process {rank}:\n{traceback.format_exc()}")
        raise
    finally:
        dist.destroy_process_group()
