"""Starting the processes of a run on this machine by torchrun's launcher."""

import logging
import os
import signal
import tempfile

import torch

from fredholm.distributed.processes import LostProcessError
from fredholm.training.config import TrainingConfig
from fredholm.training.device import choose_device


def refuse_devices(devices: int, training: TrainingConfig) -> None:
    """Raises a ValueError where the machine has too few devices for a run, or the run cannot use several."""
    if devices < 1:
        raise ValueError(f"--devices is {devices}; expected at least 1")
    if devices == 1:
        return
    device = choose_device(training.device)
    if device.type == "cuda" and training.device not in ("auto", "cuda"):
        raise ValueError(f"--devices {devices} has no effect on {training.device} alone; pass --training.device cuda")
    if device.type == "cuda" and devices > torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"--devices is {devices}, and this machine has {count} GPU{'s' if count > 1 else ''}")
    if devices > training.batch_size:
        raise ValueError(
            f"--devices is {devices}, and training.batch_size {training.batch_size}, of which each computes a part; "
            f"pass {devices} or more"
        )


def train_on(devices: int, argv: list[str]) -> None:
    """Runs `fredholm train` on several processes, and ends with the code of the first that failed.

    Args:
        devices: number of processes, more than 1.
        argv: words after `train`; `--devices` is dropped.

    Raises:
        SystemExit: a process failed and has reported it, or a signal stopped all.
        LostProcessError: a process was killed.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # else torchrun gives each process one thread, and says so in a box of stars
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // devices)))
    logging.disable(logging.ERROR)  # a process that fails reports its error itself
    try:
        with tempfile.TemporaryDirectory(prefix="fredholm-") as logs:
            options = ["--standalone", "--local-addr", "localhost", "--nproc-per-node", str(devices), "--log-dir", logs]
            torchrun.run(torchrun.parse_args([*options, "-m", "fredholm", "train", *without_devices(argv)]))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            raise SystemExit(failure.exitcode) from None
        ended = signal.strsignal(-failure.exitcode)
        raise LostProcessError(
            f"rank {rank} of {devices} was lost (process {failure.pid}: {ended}); --resume goes on from the last "
            "checkpoint"
        ) from error
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from None
    finally:
        logging.disable(logging.NOTSET)


def without_devices(argv: list[str]) -> list[str]:
    """Returns the words of a command without `--devices N`."""
    words = [word for word in argv if not word.startswith("--devices=")]
    while "--devices" in words:
        at = words.index("--devices")
        del words[at : at + 2]
    return words
