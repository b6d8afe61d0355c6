"""ITNet-B on images, exact and approximate, against a vision transformer: ``python -m benchmarks itnet``.

Inference and a training step of the whole model, and the share of a large matrix product's rate that the exact integral
reaches. Every variant is first compared with its kernel in full. Both sides run in eager mode, on a GPU also as CUDA
graphs, which remove the cost of kernel launches, and on demand under `torch.compile`.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import torch
from tqdm import tqdm

from benchmarks.captured import captured
from benchmarks.harness import (
    DIRECTIONS,
    Alone,
    Benchmark,
    Direction,
    Instance,
    Options,
    Row,
    Settings,
    Sides,
    Step,
    directed,
    in_turn,
    measure_alone,
    relative_error,
    require_agreement,
    require_known,
)
from benchmarks.itnet_problem import PEER, TOLERANCE, ModelConfig, ModelProblem, Variant, compare, variants
from fredholm import domains, kernels
from fredholm.evaluation import AUTO, Integral

EXACT, INTEGRAL, MATRIX_PRODUCT = "exact", "exact integral", "the same flops in torch.mm"
Way = Literal["as it is", "graph", "compiled"]


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take some minutes on a GPU, and as many a variant on two cores."""

    options: Options = field(default_factory=lambda: Options(rounds=5, budget_s=20.0))
    model: ModelConfig = field(default_factory=ModelConfig)
    cases: tuple[str, ...] = ()
    """Variants to measure, such as exact, "low rank 8", "Monte Carlo 128", "anchors 128"; default: all."""
    directions: tuple[Direction, ...] = DIRECTIONS
    """Inference, a training step, or both."""
    ways: tuple[Way, ...] = ()
    """Models in eager mode, as CUDA graphs, or compiled; default: the first, and on a GPU the second too."""
    integral_sizes: tuple[int, ...] = (14, 32)
    """Sides of the grids on which the exact integral alone is compared with a matrix product."""
    matrix_size: int | None = None
    """Rows and columns of the matrix product; default: 8192 on a GPU, 1024 on a CPU."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        tiny = dataclasses.replace(
            self.model,
            image_size=32,
            patch_size=8,
            embed_dim=24,
            depth=2,
            num_heads=3,
            kernel_width=8,
            num_frequencies=4,
            num_outputs=5,
            ranks=(2,),
            samples=5,
        )
        return dataclasses.replace(self, model=tiny, integral_sizes=(4,), matrix_size=64)

    def checked(self) -> "Config":
        """These settings with all defaults set; raises `ValueError` on an unknown case, or a graph without a GPU."""
        known = [variant.name for variant in variants(self.model)]
        require_known(self.cases, known)
        on_gpu = self.options.torch_device.type == "cuda"
        ways: tuple[Way, ...] = self.ways or (("as it is", "graph") if on_gpu else ("as it is",))
        if "graph" in ways and not on_gpu:
            raise ValueError("CUDA graphs need a GPU; leave graph out of --ways, or add --device cuda")
        return dataclasses.replace(self, cases=self.cases or tuple(known), ways=ways)


@final
class IntegralProblem(Instance):
    """The exact integral of one layer on a square grid, without channel maps, and a large matrix product."""

    def __init__(self, config: Config, side: int) -> None:
        c, device = config.model, config.options.torch_device
        torch.manual_seed(config.options.seed)
        self.config, self.device, self.batch = c, device, c.images_on(device)
        self.kernel = kernels.MLP(
            c.embed_dim, c.num_heads, 2, width=c.kernel_width, num_frequencies=c.num_frequencies, epsilon=1.0
        ).to(device)
        self.grid = domains.Grid(side, side).to(device)
        dtype = getattr(torch, c.precision_on(device))
        self.u = torch.randn(self.batch, side * side, c.embed_dim).to(device, dtype).requires_grad_()
        self.size = config.matrix_size or (8192 if device.type == "cuda" else 1024)
        self.matrix = torch.randn(self.size, self.size).to(device, dtype)

    @property
    def flops_of_matrix_products(self) -> float:
        """Flops of the integral over those of the product.

        Each pair and head needs 4 w d on a grid: one product with the keys for pre-activations, another for sums. Each
        query and head needs 2 w d² for the kernel's last layer.
        """
        c, n = self.config, self.grid.num_points
        w, d = c.kernel_width, c.embed_dim // c.num_heads
        return self.batch * c.num_heads * (4 * w * d * n**2 + 2 * w * d**2 * n) / (2 * self.size**3)

    def step(self, name: str, direction: Direction) -> Step:
        """The integral by the route that an operator would take, or the product."""
        if name == MATRIX_PRODUCT:
            return lambda: (self.matrix @ self.matrix,)

        def apply() -> torch.Tensor:
            with self.config.autocast(self.device):
                return AUTO.integrate(Integral(self.kernel, self.u, self.grid))

        return directed(apply, direction, [self.u, *self.kernel.parameters()], None)

    def error(self, name: str, direction: Direction, result: Sequence[torch.Tensor]) -> float | None:
        """None: `exact_mlp` checks the same integral."""
        return None


@final
class OtherWay(Instance):
    """The steps of a problem, as CUDA graphs or with compiled models."""

    def __init__(self, problem: ModelProblem, way: Way) -> None:
        self.problem, self.way = problem, way

    def step(self, name: str, direction: Direction) -> Step:
        """See `Instance.step`."""
        if self.way == "graph":
            return captured(self.problem.step(name, direction))
        torch.compiler.reset()
        self.problem.model(name).compile(fullgraph=True)
        return self.problem.step(name, direction)

    def error(self, name: str, direction: Direction, result: Sequence[torch.Tensor]) -> float | None:
        """None: see `in_another_way`."""
        return None


def measure(config: Config) -> Iterator[Row]:
    """Compares every case, then times the eager models, the integral, and the models in the other ways."""
    chosen = [index for index, variant in enumerate(variants(config.model)) if variant.name in config.cases]
    errors = {
        index: compare(config.model, config.options, index)
        for index in tqdm(chosen, desc="comparing", leave=False, disable=None)
    }
    if "as it is" in config.ways:
        for index in tqdm(chosen, desc="models", disable=None):
            variant = variants(config.model)[index]
            yield from against_transformer(config, variant, errors[index], with_peer=index == chosen[0])
    for side in tqdm(config.integral_sizes, desc="grids", disable=None):
        yield from against_matrix_product(config, side)
    others: list[Way] = [way for way in config.ways if way != "as it is"]
    for way in others:
        for index in tqdm(chosen, desc=way, disable=None):
            for direction in config.directions:  # apart, so that one graph of a model at a time is in memory
                sides = in_another_way(config, variants(config.model)[index], way, direction)
                yield from sides if index == chosen[0] else sides[:1]


def against_transformer(config: Config, variant: Variant, error: float, *, with_peer: bool) -> Iterator[Row]:
    """One variant interleaved with the transformer, which gets separate rows if ``with_peer``.

    The error of an approximation is the distance of its logits from the exact model's; otherwise it is the gate's.
    """
    case, options, directions = variant.name, config.options, config.directions
    build = functools.partial(ModelProblem, config.model, options)
    images, n = config.model.images_on(options.torch_device), config.model.num_points
    alone: dict[str, dict[Direction, Alone]] = {}
    for side in (case, PEER) if with_peer else (case,):  # apart, so that one model at a time is in memory
        alone |= measure_alone(build, images, {side: directions}, options, rounds=1, tiny=1)
    problem = build(images)
    if variant.sampled is not None:
        error = relative_error(problem.step(case, "forward")(), problem.step(EXACT, "forward")())
    names: dict[str, Sequence[Direction]] = dict.fromkeys((case, PEER), directions)
    for sides in in_turn(problem, n, names, options, alone):
        rows = [sides.against(case, PEER, error=error), *([sides.own(PEER)] if with_peer else [])]
        for row in rows:
            yield dataclasses.replace(row, per_second=images / row.ours_s)


def in_another_way(config: Config, variant: Variant, way: Way, direction: Direction) -> list[Row]:
    """The rows of a variant and of the transformer, interleaved, both as CUDA graphs or both compiled.

    Results are first compared with those of the same model in eager mode, except where nodes are drawn in every pass.
    """
    options, images = config.options, config.model.images_on(config.options.torch_device)
    ours, peer = (f"{name}, {'as a CUDA graph' if way == 'graph' else way}" for name in (variant.name, PEER))
    problem = ModelProblem(config.model, options, images)
    expected = problem.step(variant.name, direction)()
    steps = {name: OtherWay(problem, way).step(name, direction) for name in (variant.name, PEER)}
    error = None
    if variant.sampled != "draws":
        tolerance = TOLERANCE[config.model.precision_on(options.torch_device)]
        error = require_agreement(f"{ours} against the eager model", steps[variant.name](), expected, tolerance)
    del expected
    sides = Sides.of(steps, config.model.num_points, direction, options)
    against = dataclasses.replace(sides.against(variant.name, PEER, case=ours, error=error), peer=peer)
    alone = Row(case=peer, n=against.n, direction=direction, ours_s=sides.timed[PEER].median)
    return [dataclasses.replace(row, per_second=images / row.ours_s) for row in (against, alone)]


def against_matrix_product(config: Config, side: int) -> Iterator[Row]:
    """The exact integral of one layer, forward against the time of a large product for as many flops."""
    problem = IntegralProblem(config, side)
    names: dict[str, Sequence[Direction]] = dict.fromkeys((INTEGRAL, MATRIX_PRODUCT), config.directions)
    for sides in in_turn(problem, side * side, names, config.options):
        seconds = sides.timed[INTEGRAL].median
        row = Row(case=INTEGRAL, n=side * side, direction=sides.direction, ours_s=seconds)
        if sides.direction == "forward":
            product_s = problem.flops_of_matrix_products * sides.timed[MATRIX_PRODUCT].median
            row = dataclasses.replace(row, peer=MATRIX_PRODUCT, peer_s=product_s, ratio=product_s / seconds)
        yield row


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Backward over forward time of every case, and the integral's share of a matrix product's rate."""
    forward = {(row.case, row.n): row for row in rows if row.direction == "forward"}
    for row in rows:
        first = forward.get((row.case, row.n))
        if row.direction == "forward+backward" and first is not None:
            yield f"{row.case}, n = {row.n}: backward/forward {row.ours_s / first.ours_s - 1:.2f}"
        elif row.peer == MATRIX_PRODUCT and row.ratio is not None:
            yield f"{row.case}, n = {row.n}, forward: {100 * row.ratio:.0f} % of the rate of torch.mm"


BENCHMARK = Benchmark(
    name="itnet",
    purpose="ITNet-B on images, exact, low rank and Monte Carlo, against a vision transformer",
    config=Config,
    measure=measure,
    notes=notes,
)
