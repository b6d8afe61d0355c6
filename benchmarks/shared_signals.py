"""Traffic and time of one signal over several processes: ``python -m benchmarks.shared_signals``.

Processes of one machine communicate through gloo. Every kernel must first give the numbers of one process, forward and
in the gradient of the signal. Times are ratios to one process that has this machine to itself. Processes share its
cores, so that the ratios show the cost of sharing on one machine and not the gain on as many machines. Bytes are
counted, and are the same on any machine.
"""

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
import tyro
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import start_processes

from fredholm import IntegralOperator, domains, kernels
from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.residual import ResidualBlock
from fredholm.distributed import Shard, Traffic, counted_traffic, gather_points, shard_points
from fredholm.domains import Domain, Grid
from fredholm.kernels import Kernel
from fredholm.operators.cost import PeakMemory
from fredholm.training.storage.machine import describe_numerics

CHANNELS, HEADS = 32, 4
ROWS = 1 << 14
"""Rows of the large signal that are drawn at a time, so that every process can draw its own rows."""

KERNELS: dict[str, tuple[Callable[[], Kernel], Callable[[int], Domain]]] = {
    "exact MLP": (lambda: kernels.MLP(CHANNELS, HEADS, 2, width=16), lambda side: Grid(side, side)),
    "attention": (lambda: kernels.Attention(CHANNELS, HEADS), lambda side: Grid(side, side)),
    "Yat attention": (lambda: kernels.YatAttention(CHANNELS, HEADS), lambda side: Grid(side, side)),
    "one hop": (lambda: kernels.InfiniteAttention(CHANNELS, HEADS, form="hop"), lambda side: Grid(side, side)),
    "low rank": (lambda: kernels.LowRankMLP(CHANNELS, HEADS, 2, rank=8), lambda side: Grid(side, side)),
    "separable": (lambda: kernels.SeparableMLP(CHANNELS, HEADS, 2), lambda side: Grid(side, side)),
    "linear attention": (lambda: kernels.LinearAttention(CHANNELS, HEADS), lambda side: Grid(side, side)),
    "linear infinite": (lambda: kernels.LinearInfiniteAttention(CHANNELS, HEADS), lambda side: Grid(side, side)),
    "factorised infinite": (
        lambda: kernels.FactorisedInfiniteAttention(CHANNELS, HEADS),
        lambda side: Grid(side, side),
    ),
    "LSTM": (lambda: kernels.LSTM(CHANNELS, CHANNELS), lambda side: domains.Sequence(side * side)),
    "state space": (lambda: kernels.SelectiveStateSpace(CHANNELS), lambda side: domains.Sequence(side * side)),
    "convolution": (
        lambda: kernels.ContinuousConvolution(CHANNELS, CHANNELS, 2, groups=CHANNELS),
        lambda side: Grid(side, side),
    ),
}


@final
@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of this benchmark."""

    json: Path | None = None
    """File for the numbers, besides the printed table."""
    processes: tuple[int, ...] = (1, 2, 4)
    side: int = 40
    """Points along a side of the signal's grid; the signal has its square many points."""
    rounds: int = 5
    kernels: tuple[str, ...] = tuple(KERNELS)
    large: int = 0
    """Points along a side of the large signal, 576 for an image of 9216 x 9216 in patches of 16; 0: no large signal."""
    embed_dim: int = 384
    """Channels of the large signal."""
    seed: int = 0


@final
@dataclass(frozen=True)
class Cost:
    """Costs of a kernel on some processes."""

    seconds: float
    """Seconds of a step, forward and backward: the median of the slowest process."""
    error: float
    """Largest difference from the result of one process, relative to its largest number."""
    forward: Traffic
    """Traffic of the process that sends most."""
    backward: Traffic


def on_processes(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The results of `work` on each of ``count`` new processes, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        context = start_processes(_process, args=(count, folder, work, arguments), nprocs=count, start_method="spawn")
        assert context is None
        # the files were written by the processes above, so that unpickling them is safe
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(count)]


def _process(rank: int, count: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(f"{folder}/store", count), rank=rank, world_size=count)
    torch.save(work(*arguments), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def kernel_costs(config: Config, name: str, alone: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Cost]:
    """Result and gradient at all points, and their cost, on the processes of the current group.

    ``alone`` is the result and gradient of one process, or None for the process that computes them.
    """
    build, build_domain = KERNELS[name]
    torch.manual_seed(config.seed)
    operator, whole = IntegralOperator(build(), residual=False), build_domain(config.side)
    signal = torch.randn(1, whole.num_points, CHANNELS)
    u, domain = shard_points(signal, whole)
    u.requires_grad_()

    def forward() -> Tensor:
        return operator(u, domain)

    def backward(y: Tensor) -> None:
        y.square().mean().backward()

    with counted_traffic() as forward_traffic:
        y = forward()
    with counted_traffic() as backward_traffic:
        backward(y)
    assert u.grad is not None
    found = gather_points(y.detach(), domain), gather_points(u.grad, domain)
    # the mean of the loss is over the points of one process, not over all points
    found = found[0], found[1] * domain.num_points / whole.num_points
    error = 0.0
    if alone is not None:
        error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, alone, strict=True))
    times = []
    for _ in range(config.rounds):
        dist.barrier()
        start = time.perf_counter()
        backward(forward())
        dist.barrier()
        times.append(time.perf_counter() - start)
    return *found, Cost(statistics.median(times), error, forward_traffic, backward_traffic)


def large_block(config: Config, reference: str) -> tuple[float, float]:
    """Peak memory of an InfViT block on a large signal in MB, and its relative error against one process."""
    torch.manual_seed(config.seed)
    c = config.embed_dim
    kernel = kernels.FactorisedInfiniteAttention(c, c // 64)
    block = ResidualBlock(IntegralOperator(kernel, residual=False), FeedForward(c, 4)).eval()
    whole = Grid(config.large, config.large)
    count = dist.get_world_size()
    domain = Shard(whole)

    @torch.no_grad()
    def output() -> Tensor:
        return block(rows(config, domain.start, domain.start + domain.num_points), domain)

    with PeakMemory(torch.device("cpu")) as peak:
        y = output()
    if count == 1:
        torch.save(y, reference)
        return peak.megabytes, 0.0
    expected = torch.load(reference, mmap=True, weights_only=True)
    expected = expected[:, domain.start : domain.start + domain.num_points]
    largest = float(expected.abs().max())
    pieces = zip(y.split(ROWS, dim=1), expected.split(ROWS, dim=1), strict=True)
    return peak.megabytes, max(float((a - b).abs().max()) for a, b in pieces) / largest


def rows(config: Config, first: int, stop: int) -> Tensor:
    """Rows of the large signal, `(1, n, C)`: the same numbers in every process."""
    signal = torch.empty(1, stop - first, config.embed_dim)
    for block in range(first // ROWS, -(-stop // ROWS)):
        generator = torch.Generator().manual_seed(config.seed * 100_003 + block)
        drawn = torch.randn(ROWS, config.embed_dim, generator=generator)
        begin, end = max(first, block * ROWS), min(stop, (block + 1) * ROWS)
        signal[0, begin - first : end - first] = drawn[begin - block * ROWS : end - block * ROWS]
    return signal


def total(traffic: Traffic) -> int:
    """Bytes of all kinds of traffic together."""
    return sum(dataclasses.astuple(traffic))


def most(costs: Sequence[Cost]) -> Cost:
    """The largest seconds, error and traffic over all processes."""
    return Cost(
        max(cost.seconds for cost in costs),
        max(cost.error for cost in costs),
        max((cost.forward for cost in costs), key=total),
        max((cost.backward for cost in costs), key=total),
    )


def main(config: Config) -> None:
    """Measures, checks and prints the tables."""
    report: dict[str, Any] = {"machine": describe_numerics(torch.device("cpu")), "config": {}, "kernels": {}}
    report["config"] = {name: value for name, value in vars(config).items() if not isinstance(value, Path)}
    points = config.side**2
    print(f"{points} points of {CHANNELS} channels in float32; bytes of the process that sends most")
    print(f"{'kernel':<22}{'processes':>10}{'forward':>12}{'backward':>12}{'time':>8}{'error':>10}")
    for name in config.kernels:
        alone, first = None, 0.0
        for count in config.processes:
            found = on_processes(count, kernel_costs, config, name, alone)
            cost = most([each[2] for each in found])
            if alone is None:
                alone, first = found[0][:2], cost.seconds
            if not cost.error <= 1e-4:
                raise SystemExit(f"{name} on {count} processes is {cost.error:.1e} off one process")
            ratio = cost.seconds / first
            forward, backward = total(cost.forward), total(cost.backward)
            print(f"{name:<22}{count:>10}{forward:>12,}{backward:>12,}{ratio:>8.2f}{cost.error:>10.1e}", flush=True)
            report["kernels"].setdefault(name, {})[count] = {
                "forward": dataclasses.asdict(cost.forward),
                "backward": dataclasses.asdict(cost.backward),
                "time": ratio,
                "error": cost.error,
            }
    if config.large:
        with tempfile.TemporaryDirectory() as folder:
            reference = f"{folder}/reference.pt"
            memory = 0.0
            for count in config.processes:
                found = on_processes(count, large_block, config, reference)
                peak, error = max(each[0] for each in found), max(each[1] for each in found)
                memory = memory or peak
                print(
                    f"InfViT block, {config.large**2:,} points of {config.embed_dim} channels, {count} processes: "
                    f"{peak:,.0f} MB a process, {peak / memory:.2f} of one; error {error:.1e}",
                    flush=True,
                )
                report.setdefault("large", {})[count] = {"megabytes": peak, "share": peak / memory, "error": error}
    if config.json is not None:
        config.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Config, description=(__doc__ or "").partition("\n")[0]))
