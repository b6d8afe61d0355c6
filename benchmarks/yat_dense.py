"""A layer of Yat units against a linear layer with GELU and the paper's package: ``python -m benchmarks yat_dense``.

Time is compared with a linear layer and its GELU; time and memory with the layer of the paper's package, from the same
weights; the memory held between forward and backward with LayerNorm, linear layer and GELU. Output and every gradient
are first compared with the formula and the package, and every timed result with the package's.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.harness import (
    Benchmark,
    Direction,
    Instance,
    Options,
    Row,
    Settings,
    Step,
    both_ways,
    directed,
    in_turn,
    measure_alone,
    require_same,
)
from benchmarks.peers.nmn_dense import nmn_dense
from fredholm.kernels import yat
from fredholm.layers import YatDense

Case = Literal["YatDense", "YatDense with bias"]
LINEAR, NORMED, PACKAGE, FORMULA = PEERS = ("Linear+GELU", "LayerNorm+Linear+GELU", "nmn", "formula")


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take a minute or two on two cores."""

    options: Options = field(default_factory=lambda: Options(rounds=9, budget_s=8.0))
    cases: tuple[Case, ...] = get_args(Case)
    """Layers of the library to measure."""
    batch: int = 4096
    """Points at a time."""
    in_features: int = 768
    """Coordinates of a point."""
    out_features: int = 3072
    """Number of units."""
    tolerance: float = 2e-5
    """Largest relative difference, of output and every gradient, that is timed; sums run over all points."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return replace(self, batch=32, in_features=12, out_features=20)


@final
class Problem(Instance):
    """A layer of the library, its peers, and ``n`` points for all of them.

    Args:
        case: name of the layer, with or without a bias.
        config: sizes, device and seed.
        n: number of points.
    """

    def __init__(self, case: Case, config: Config, n: int) -> None:
        torch.manual_seed(config.options.seed)
        self.case: Case = case
        self.device = config.options.torch_device
        self.layer = YatDense(config.in_features, config.out_features, bias=case == "YatDense with bias")
        if self.layer.bias is not None:
            nn.init.normal_(self.layer.bias)
        self.layer.to(self.device)
        linear = nn.Sequential(nn.Linear(config.in_features, config.out_features), nn.GELU()).to(self.device)
        self._modules: dict[str, nn.Module] = {
            case: self.layer,
            LINEAR: linear,
            NORMED: nn.Sequential(nn.LayerNorm(config.in_features), *linear).to(self.device),
            PACKAGE: nmn_dense(self.layer),
        }
        self.signal = torch.randn(n, config.in_features).to(self.device).requires_grad_()
        self._cotangent = torch.randn(n, config.out_features).to(self.device)

    def step(self, name: str, direction: Direction) -> Step:
        """The output, and for forward+backward the gradients of signal and parameters in the order of YatDense."""
        module = self.layer if name == FORMULA else self._modules[name]
        parameters = dict(module.named_parameters())
        if name == PACKAGE:
            ours = {"weight": "weight", "bias": "bias", "scale.alpha": "alpha"}
            parameters = {own: parameters[ours[own]] for own, _ in self.layer.named_parameters()}
        step = directed(self._forward(name), direction, [self.signal, *parameters.values()], self._cotangent)
        if name != PACKAGE or direction == "forward":
            return step
        return lambda: self._with_our_alpha(step(), list(parameters).index("scale.alpha"))

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """None: results are compared with each other when they are timed."""
        return None

    def stored_mb(self, name: str) -> float:
        """MB held between forward and backward besides parameters: all saved storages and the output, once each."""
        found: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            note(self._forward(name)())
        for parameter in self._modules[name].parameters():
            found.pop(parameter.untyped_storage().data_ptr(), None)
        return sum(found.values()) / 1e6

    def _forward(self, name: str) -> Callable[[], Tensor]:
        if name == FORMULA:
            return self._formula
        module = self._modules[name]
        return lambda: module(self.signal)

    def _formula(self) -> Tensor:
        assert self.layer.scale is not None
        return self.layer.scale() * yat(self.signal, self.layer.weight, self.layer.bias, self.layer.softening())

    def _with_our_alpha(self, result: Sequence[Tensor], place: int) -> Sequence[Tensor]:
        """The package's result with the gradient of the exponent α in place of that of its factor s."""
        assert self.layer.scale is not None
        n, s = self.layer.scale.num_units, self.layer.scale().detach()
        converted = list(result)
        converted[2 + place] = (result[2 + place] * s * math.log(n / math.log1p(n))).view(1)
        return converted


def measure(config: Config) -> Iterator[Row]:
    """Compares, then measures time and memory, case by case."""
    for case in tqdm(config.cases, desc="layers", disable=None):
        compare(config, case, min(config.batch, 64))
        yield from against_peers(config, case)


def compare(config: Config, case: Case, n: int) -> float:
    """The gate before any timing: output and all gradients against the formula and the package."""
    return require_same(functools.partial(Problem, case, config), n, case, (FORMULA, PACKAGE), config.tolerance)


def against_peers(config: Config, case: Case) -> Iterator[Row]:
    """One case: times interleaved with its peers', isolated memory, and separate rows for the peers."""
    build, peers = functools.partial(Problem, case, config), (LINEAR, NORMED, PACKAGE)
    n, names = config.batch, both_ways((case, *peers))
    alone = measure_alone(build, n, names, config.options, rounds=1)
    problem = build(n)
    stored = {side: problem.stored_mb(side) for side in names}
    for sides in in_turn(problem, n, names, config.options, alone):
        error = sides.require_agreement(case, PACKAGE, config.tolerance)
        for peer in peers:
            yield _with_stored_mb(sides.against(case, peer, error=error if peer == PACKAGE else None), stored[case])
        for peer in peers:
            yield _with_stored_mb(sides.own(peer, case=f"{peer} beside {case}"), stored[peer])


def _with_stored_mb(row: Row, stored_mb: float) -> Row:
    return replace(row, stored_mb=stored_mb) if row.direction == "forward+backward" else row


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Time and memory of the layer over those of each peer."""
    by_case = {row.case: row for row in rows if row.direction == "forward+backward" and row.peer is None}
    for row in rows:
        theirs = by_case.get(f"{row.peer} beside {row.case}")
        if row.direction == "forward" or row.peer_s is None or theirs is None:
            continue
        assert row.peak_mb is not None
        assert theirs.peak_mb is not None
        assert row.stored_mb is not None
        assert theirs.stored_mb is not None
        yield (
            f"{row.case} beside {row.peer}, forward+backward: {row.ours_s / row.peer_s:.2f} of its time, "
            f"{_part(row.peak_mb, theirs.peak_mb)} of its peak memory, "
            f"{_part(row.stored_mb, theirs.stored_mb)} of its memory held between forward and backward"
        )


def _part(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs > 0 else "-"


BENCHMARK = Benchmark(
    name="yat_dense",
    purpose="a layer of Yat units against a linear layer with GELU, and the paper's package",
    config=Config,
    measure=measure,
    notes=notes,
)
