"""One MLP kernel on a large grid: its exact integral, approximations, linear-time kernels, and attention."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.harness import Direction, Instance, Options, Step, directed, require_agreement
from benchmarks.problem import ORACLE_ROWS, TOLERANCE, Problem, ProblemConfig
from fredholm import IntegralOperator, domains, evaluation, kernels, quadrature
from fredholm.evaluation import AUTO

GRID, POINTS = EXACT = ("grid", "points")
SHARED, LEARNED, PER_QUERY, ANCHORS, NEIGHBOURHOOD = APPROXIMATE = (
    "shared samples",
    "learned samples",
    "samples per query",
    "anchors",
    "neighbourhood",
)
LOW_RANK, SEPARABLE = LINEAR_TIME = ("low rank", "separable")
ATTENTION = "attention"
CASES = (*EXACT, *APPROXIMATE, *LINEAR_TIME)
COMPARED_ROWS = 16
DRAWS = 64


@final
@dataclass(frozen=True, kw_only=True)
class LargeConfig:
    """The kernel of `exact_mlp`, smooth enough to be sampled, and the sizes of its approximations."""

    kernel: ProblemConfig = field(default_factory=lambda: ProblemConfig(sigma=1.0))
    nodes: int = 128
    """Samples, anchors or neighbours that are summed instead of all points."""
    rank: int = 32
    """Rank per head of the low-rank kernel."""


@final
class LargeProblem(Instance):
    """`Problem` on a square grid of ``n`` points with a smooth signal, and the other operators on the same signal.

    The signal is a sum of waves of at most three cycles per side. White noise would have an integral that vanishes with
    n, and every sampling of it an error of at least 1.
    """

    def __init__(self, config: LargeConfig, options: Options, n: int) -> None:
        self.n, c = n, config.kernel
        self.exact = Problem(c, options, n, rows=ORACLE_ROWS)
        self.device, self.grid = self.exact.device, self.exact.domains[GRID]
        generator = torch.Generator().manual_seed(options.seed)
        waves = torch.randint(-3, 4, (2, 12), generator=generator).float()
        waves[:, 0] = 0  # so that the mean of the signal is not 0
        amplitude = torch.randn(c.batch, 12, c.embed_dim, generator=generator) / math.sqrt(6)
        phase = 2 * math.pi * torch.rand(12, generator=generator)
        carried = (2 * math.pi * self.exact.pos.cpu() @ waves + phase).cos()
        with torch.no_grad():
            self.exact.u.copy_(carried @ amplitude)
        self.compared = torch.randperm(n, generator=generator)[:COMPARED_ROWS].to(self.device)
        torch.manual_seed(options.seed)
        heads = (c.embed_dim, c.num_heads)
        sizes = {"width": c.width, "num_frequencies": c.num_frequencies, "sigma": c.sigma}
        low_rank = kernels.LowRankMLP(*heads, 2, rank=config.rank, epsilon=1.0, **sizes)
        separable = kernels.SeparableMLP(*heads, 2, epsilon=1.0, **sizes)
        self._operators = {
            LOW_RANK: IntegralOperator(low_rank).to(self.device),
            SEPARABLE: IntegralOperator(separable).to(self.device),
        }
        self._attention = nn.MultiheadAttention(*heads, batch_first=True).to(self.device)
        nodes, draws = config.nodes, "draws"
        proposal = quadrature.KeyProposal(c.embed_dim, 2, c.num_heads)
        quadratures = {
            SHARED: quadrature.MonteCarlo(nodes, at_evaluation=draws),
            LEARNED: quadrature.MonteCarlo(nodes, proposal, at_evaluation=draws),
            PER_QUERY: quadrature.MonteCarlo(nodes, per_query=True, at_evaluation=draws),
            ANCHORS: quadrature.Anchors(nodes),
            NEIGHBOURHOOD: quadrature.Neighbourhood(num_neighbours=nodes),
        }
        self._operators |= {
            name: self.exact.operator.with_quadrature(chosen.to(self.device)) for name, chosen in quadratures.items()
        }

    def step(self, name: str, direction: Direction) -> Step:
        """The operator of one of the `CASES`, or attention, without the auxiliary loss of a proposal."""
        if name in EXACT:
            return self.exact.step(name, direction)
        u, cotangent = self.exact.u, self.exact.cotangent
        if name == ATTENTION:
            attention = self._attention
            leaves = [u, *attention.parameters()]
            return directed(lambda: attention(u, u, u, need_weights=False)[0], direction, leaves, cotangent)
        operator = self._operators[name]
        leaves = [u, *operator.kernel.parameters(), *operator.parameters(recurse=False)]
        return directed(lambda: operator(u, self.grid), direction, leaves, cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """Relative distance from the exact integral on a few rows; None for other kernels than the exact one.

        For exact routes the output and all gradients must agree with the formula.
        """
        if name in EXACT:
            return self.exact.error(name, direction, result)
        return self._distance(result[0]) if name in APPROXIMATE else None

    def averaged_error(self, name: str) -> tuple[float, float]:
        """The root mean square error of `DRAWS` single draws, and the error of their mean."""
        step = self.step(name, "forward")
        draws = [step()[0] for _ in range(DRAWS)]
        single = torch.tensor([self._distance(draw) for draw in draws]).square().mean().sqrt().item()
        return single, self._distance(torch.stack(draws).mean(0))

    def against_dense(self, name: str) -> float:
        """The gate of a linear-time kernel: output and every gradient against its κ in full."""
        operator = self._operators[name]
        fast = self.step(name, "forward+backward")()
        operator.evaluation = evaluation.Dense()
        expected = self.step(name, "forward+backward")()
        operator.evaluation = AUTO
        return require_agreement(f"{name} against its κ in full, n={self.n}", fast, expected, TOLERANCE[GRID])

    @torch.no_grad()
    def _distance(self, output: Tensor) -> float:
        """Root mean square difference from the exact integral on `COMPARED_ROWS` rows, relative to the integral's."""
        rows, operator, u = self.compared, self.exact.operator, self.exact.u
        at = domains.Points(self.exact.pos[rows])
        expected = operator(u, self.exact.domains[POINTS], query=u[:, rows], query_domain=at)
        integral = expected - operator.around(torch.zeros_like(expected), u[:, rows])
        difference = (output[:, rows] - expected).square().mean().sqrt()
        return (difference / integral.square().mean().sqrt()).item()
