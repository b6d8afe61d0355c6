"""The neighbour search against a k-d tree and all pairs: ``python -m benchmarks neighbours``.

The tree is scipy's `KDTree`, rebuilt in every step as the library's cells are, with its periodic box on a torus. All
pairs are `torch.cdist` and `topk`, except on a torus. Distances are compared at a small size before anything is timed,
and every timed result is compared too.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.harness import (
    Benchmark,
    Direction,
    Instance,
    Options,
    Row,
    Settings,
    Step,
    growth,
    require_agreement,
    require_known,
    side_by_side,
)
from fredholm.domains import nearest

PLANE, VOLUME, TORUS, CLUSTERS, RADIUS = CASES = ("plane", "volume", "torus", "clusters", "radius")
OURS, TREE, ALL_PAIRS = SIDES = ("cells", "k-d tree", "all pairs")


@final
@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Settings of this benchmark. The defaults take a few minutes on two cores."""

    options: Options = field(default_factory=lambda: Options(rounds=3, budget_s=10.0))
    cases: tuple[str, ...] = CASES
    """Searches: k nearest in a plane, a volume, a three-dimensional torus and among clusters, and all in a radius."""
    k: int = 16
    """Neighbours of each point; the radius contains about as many."""
    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Numbers of points. All sides are compared beforehand at the first."""
    all_pairs_up_to: int = 20_000
    """The largest number of points at which all pairs are measured, too."""
    tolerance: float = 1e-5
    """Largest relative difference of distances that is timed."""

    def small(self) -> "Config":
        """See `Settings.small`."""
        return dataclasses.replace(self, k=4, sizes=(2000, 3000), all_pairs_up_to=2000)

    def checked(self) -> "Config":
        """These settings; raises `ValueError` on an unknown case, and `ImportError` if scipy is missing."""
        require_known(self.cases, CASES)
        try:
            import scipy  # noqa: F401
        except ImportError as error:
            raise ImportError('the k-d tree needs scipy: pip install "fredholm[graph]"') from error
        return self


@final
class Problem(Instance):
    """`n` points of one case, the same in every process and on every machine."""

    def __init__(self, config: Config, case: str, n: int) -> None:
        self.n, self.k, self.case = n, config.k, case
        dims = 2 if case in (PLANE, RADIUS) else 3
        generator = torch.Generator().manual_seed(config.options.seed)
        # float64, so that all sides agree on points at the edge of the radius
        dtype = torch.float64 if case == RADIUS else torch.float32
        pos = torch.rand(n, dims, generator=generator, dtype=dtype)
        if case == CLUSTERS:
            # every second point lies in a cluster a thousand times as dense along each axis
            pos = torch.where(torch.rand(n, 1, generator=generator) < 0.5, pos, 0.3 + 1e-3 * pos)
        self.pos, self.periodic = pos.to(config.options.torch_device), case == TORUS
        self.radius = (config.k / (n * torch.pi)) ** 0.5 if case == RADIUS else None

    def sides(self, all_pairs_up_to: int) -> list[str]:
        """Names of the sides that are timed at this size."""
        has_pairs = self.n <= all_pairs_up_to and not self.periodic
        return [OURS, TREE, *([ALL_PAIRS] if has_pairs else [])]

    def step(self, name: str, direction: Direction) -> Step:
        """Distances of neighbours, `(n, k)`, or numbers of points within the radius, `(n,)`; on the CPU."""
        search = {OURS: self._cells, TREE: self._tree, ALL_PAIRS: self._pairs}[name]
        return lambda: (search().double().cpu(),)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """None: sides are compared with each other."""
        return None

    def _cells(self) -> Tensor:
        k = None if self.radius else self.k
        squared = nearest(self.pos, k=k, radius=self.radius, periodic=self.periodic).squared
        return (squared < torch.inf).sum(-1) if self.radius else squared.sqrt()

    def _tree(self) -> Tensor:
        from scipy.spatial import KDTree

        pos = self.pos.cpu().numpy()
        tree = KDTree(pos, boxsize=1.0 if self.periodic else None)
        if self.radius:
            return torch.tensor([len(near) for near in tree.query_ball_point(pos, self.radius)])
        return torch.as_tensor(tree.query(pos, self.k)[0])

    def _pairs(self) -> Tensor:
        parts = []
        for some in self.pos.split(max(1, (1 << 22) // self.n)):
            distance = torch.cdist(some, self.pos, compute_mode="donot_use_mm_for_euclid_dist")
            if self.radius:
                parts.append((distance <= self.radius).sum(-1))
            else:
                parts.append(distance.topk(self.k, largest=False).values)
        return torch.cat(parts)


def measure(config: Config) -> Iterator[Row]:
    """Compares, then times, size by size."""
    compare(config)
    for n in tqdm(config.sizes, desc="sizes", disable=None):
        for case in config.cases:
            yield from at_size(config, case, n)


def compare(config: Config) -> None:
    """The gate before any timing: all sides at the first size."""
    for case in config.cases:
        problem = Problem(config, case, config.sizes[0])
        first, *others = (problem.step(side, "forward")() for side in problem.sides(config.all_pairs_up_to))
        for other in others:
            require_agreement(f"{case}, n={problem.n}", first, other, config.tolerance)


def at_size(config: Config, case: str, n: int) -> Iterator[Row]:
    """The library's cells against each of the other sides."""
    build = functools.partial(Problem, config, case)
    sides = build(n).sides(config.all_pairs_up_to)
    for found in side_by_side(build, n, dict.fromkeys(sides, ("forward",)), config.options, tiny=64):
        for peer in sides[1:]:
            ours, theirs = found.timed[OURS].result, found.timed[peer].result
            error = require_agreement(f"{case} against {peer}, n={n}", ours, theirs, config.tolerance)
            yield found.against(OURS, peer, case=case, error=error)


BENCHMARK = Benchmark(
    name="neighbours",
    purpose="the search for neighbours of up to a million points, against a k-d tree and all pairs",
    config=Config,
    measure=measure,
    notes=growth,
)
