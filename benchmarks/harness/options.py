"""What every benchmark lets its user choose."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

import torch
import tyro

Flag = tyro.conf.FlagCreatePairsOff[bool]


@final
@dataclass(frozen=True, kw_only=True)
class Options:
    """How a benchmark runs, whatever it measures."""

    json: Path | None = None
    """Where to write the report; it is kept there row by row."""
    quick: Flag = False
    """Small sizes, in seconds: checks the benchmark itself, its numbers mean nothing."""
    device: str = "cpu"
    """Where everything runs: cpu, cuda, cuda:1."""
    seed: int = 0
    """Of weights, signals and cotangents."""
    rounds: int = 7
    """Counted rounds of each interleaved measurement."""
    budget_s: float = 12.0
    """Seconds after which a step sits out further rounds."""
    threads: int | None = None
    """Threads of every computation; default: as PyTorch chooses."""

    def sized(self) -> Self:
        """The options that apply: ``quick`` leaves two short rounds."""
        return dataclasses.replace(self, rounds=2, budget_s=1.0, quick=False) if self.quick else self

    @property
    def torch_device(self) -> torch.device:
        """The device, checked to be there.

        Raises:
            ValueError: on a name that PyTorch does not know, and on a GPU that is not there.
        """
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise ValueError(f"device must be cpu, cuda or cuda:N; got {self.device!r}") from None
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device must be cpu, cuda or cuda:N; got {self.device!r}")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(
                f"device is {self.device!r} but PyTorch sees {torch.cuda.device_count()} GPUs; "
                "use --device cpu, or a build of PyTorch for this GPU"
            )
        return device
