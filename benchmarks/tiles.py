"""Fused kernels with default tiles and with tuned ones: ``python -m benchmarks tiles --device cuda``.

Finds the fastest tile of every launch of an exact, a separable, a low-rank and a Yat operator, forward and backward,
and saves them in the file of `fredholm tune` (or in FREDHOLM_TILES), so that later runs use them. Tiles with different
results are discarded.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Row, Settings, require_known
from fredholm import evaluation
from fredholm.domains import Domain, Grid, Points, Union
from fredholm.evaluation.triton.machine import INTERPRETING
from fredholm.evaluation.triton.tuning import tile_path
from fredholm.kernels import MLP, Kernel, LowRankMLP, SeparableMLP, YatAttention

CASES = ("exact bf16", "yat bf16", "low rank bf16", "separable bf16", "exact", "yat")
_DIRECTION = "forward+backward"


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults are the sizes of ITNet-B."""

    cases: tuple[str, ...] = CASES
    channels: int = 768
    heads: int = 12
    side: int = 14
    """Patches along a side of an image, which also has a class token."""
    yat_points: int = 4096
    """Points of the sequence on which Yat attention is measured."""
    width: int = 128
    num_frequencies: int = 64
    rank: int = 32
    batch: int = 8
    case_budget_s: float = 15.0
    """Seconds for each case, compilation included."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        small = {"channels": 4, "heads": 2, "side": 2, "width": 3, "num_frequencies": 2, "rank": 2, "batch": 1}
        return dataclasses.replace(self, **small, yat_points=7, case_budget_s=2.0)

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on an unknown case, and on devices without fused kernels."""
        require_known(self.cases, CASES)
        if self.options.torch_device.type != "cuda" and not INTERPRETING:
            raise ValueError(
                "tiles belong to kernels on a GPU; use --device cuda, or TRITON_INTERPRET=1 to check the benchmark "
                "itself"
            )
        return self


def kernel_of(case: str, config: Config) -> Kernel:
    """The kernel of a case, with seeded weights."""
    sizes: dict[str, Any] = {"width": config.width, "num_frequencies": config.num_frequencies}
    channels, heads = config.channels, config.heads
    builders: dict[str, Callable[[], Kernel]] = {
        "exact": lambda: MLP(channels, heads, 2, **sizes),
        "separable": lambda: SeparableMLP(channels, heads, 2, **sizes),
        "low rank": lambda: LowRankMLP(channels, heads, 2, rank=config.rank, **sizes),
        "yat": lambda: YatAttention(channels, heads),
    }
    torch.manual_seed(config.options.seed)
    return builders[case.removesuffix(" bf16")]().to(config.options.torch_device)


def domain_of(case: str, config: Config) -> Domain:
    """The domain of a case's signal."""
    if case.startswith("yat"):
        return Grid(config.yat_points)
    return Union(Points(torch.full((1, 2), 0.5)), Grid(config.side, config.side))


def step_of(case: str, config: Config) -> Callable[[], list[Tensor]]:
    """A step that computes the integral of a case with all gradients."""
    kernel, device = kernel_of(case, config), config.options.torch_device
    domain = domain_of(case, config).to(device)
    u = torch.randn(config.batch, domain.num_points, config.channels, device=device, requires_grad=True)
    leaves = [u, *kernel.parameters()]
    # the interpreter has no bfloat16
    is_short = case.endswith("bf16") and device.type == "cuda"

    def step() -> list[Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=is_short):
            out = evaluation.AUTO.integrate(evaluation.Integral(kernel, u, domain))
        grads = torch.autograd.grad(out.float().square().mean(), leaves, allow_unused=True)
        return [out, *(grad for grad in grads if grad is not None)]

    return step


def measure(config: Config) -> Iterator[Row]:
    """A row for each kind of launch."""
    for case in config.cases:
        dtype = torch.bfloat16 if case.endswith("bf16") else torch.float32
        for found in evaluation.tune(step_of(case, config), dtype=dtype, budget_s=config.case_budget_s):
            yield Row(
                case=f"{case}: {found}",
                n=domain_of(case, config).num_points,
                direction=_DIRECTION,
                ours_s=found.seconds,
                peer="the tile before",
                peer_s=found.seconds_before,
                ratio=found.seconds_before / found.seconds,
            )


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """The speed-up of all launches together, and the file of the tiles."""
    before, now = sum(row.peer_s or 0.0 for row in rows), sum(row.ours_s for row in rows)
    yield f"all launches: {before / now:.2f} times as fast"
    yield f"kept in {tile_path()}"


BENCHMARK = Benchmark(
    name="tiles",
    purpose="default tiles of the fused kernels against tiles tuned on this GPU",
    config=Config,
    measure=measure,
    notes=notes,
)
