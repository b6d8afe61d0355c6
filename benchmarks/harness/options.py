"""Options that every benchmark has."""

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
    """Options of a run that do not depend on the benchmark."""

    json: Path | None = None
    """File of the report, rewritten after every row."""
    quick: Flag = False
    """Small sizes that take seconds: checks the benchmark itself, its numbers mean nothing."""
    device: str = "cpu"
    """Device of all computations: cpu, cuda, cuda:1."""
    seed: int = 0
    """Seed of weights, signals and cotangents."""
    rounds: int = 7
    """Counted rounds of each interleaved measurement."""
    budget_s: float = 12.0
    """Seconds after which a step is skipped in further rounds."""
    threads: int | None = None
    """CPU threads of every computation; default: PyTorch's choice."""

    def sized(self) -> Self:
        """The options of the run: ``quick`` reduces it to two short rounds."""
        return dataclasses.replace(self, rounds=2, budget_s=1.0, quick=False) if self.quick else self

    @property
    def torch_device(self) -> torch.device:
        """The device, checked to be available.

        Raises:
            ValueError: on a name that PyTorch does not know, and on a GPU that does not exist.
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
