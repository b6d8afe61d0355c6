"""One exact MLP kernel integral of a given size: weights, signal, domains, and steps in both directions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness import Direction, Instance, Options, Step, directed, require_agreement
from benchmarks.peers import Algorithm1, KernelWeights, Peer
from fredholm import IntegralOperator, domains, kernels

Case = Literal["grid", "points", "grid bf16"]
CASES: tuple[Case, ...] = get_args(Case)
TOLERANCE: dict[str, float] = {"grid": 1e-5, "points": 1e-5, "grid bf16": 2e-2}
ORACLE_ROWS = 4


@final
@dataclass(frozen=True, kw_only=True)
class ProblemConfig:
    """Sizes of the kernel and its signal; `exact_mlp` varies the number of points."""

    embed_dim: int = 384
    num_heads: int = 6
    width: int = 128
    num_frequencies: int = 64
    sigma: float = 10.0
    """Standard deviation of the kernel's frequencies, in cycles per side."""
    batch: int = 1


@final
class Problem(Instance):
    """A square grid of ``n`` points with a random kernel, signal and cotangent, the same in every process.

    Only ``rows`` queries have a nonzero cotangent, so that an oracle on them gives the whole gradient; None: all
    queries. Parameters are drawn at unit scale: at their initial values the kernel is nearly a constant matrix, which
    would hide an error in its pairwise part.
    """

    def __init__(self, config: ProblemConfig, options: Options, n: int, *, rows: int | None = None) -> None:
        side = math.isqrt(n)
        if side * side != n:
            raise ValueError(f"the grid is square, so the number of points must be a square number, got {n}")
        self.n, self.device = n, options.torch_device
        generator = torch.Generator().manual_seed(options.seed)
        self.kernel = kernels.MLP(
            embed_dim=config.embed_dim,
            num_heads=config.num_heads,
            pos_dim=2,
            width=config.width,
            num_frequencies=config.num_frequencies,
        )
        self.operator = IntegralOperator(self.kernel)
        with torch.no_grad():
            for tensor in [*self.operator.parameters(), self.kernel.frequencies]:
                fan_in = tensor.shape[-1] if tensor.ndim > 1 else 1
                tensor.normal_(generator=generator).div_(math.sqrt(max(1, fan_in)))
            self.kernel.frequencies.mul_(config.sigma * math.sqrt(2))
        self.operator.to(self.device)
        grid = domains.Grid(side, side)
        scattered = domains.Points(grid.pos)
        structure: dict[str, domains.Domain] = {"grid": grid, "points": scattered, "grid bf16": grid}
        self.domains = {case: domain.to(self.device) for case, domain in structure.items()}
        shape = (config.batch, n, config.embed_dim)
        self.u = torch.randn(shape, generator=generator).to(self.device).requires_grad_()
        self.rows = None if rows is None else torch.randperm(n, generator=generator)[:rows].to(self.device)
        cotangent = torch.randn(shape, generator=generator).to(self.device)
        if self.rows is not None:
            chosen = torch.zeros(n, 1, device=self.device).index_fill(0, self.rows, 1.0)
            cotangent = cotangent * chosen
        self.cotangent = cotangent
        self.pos = grid.pos.float().to(self.device)
        self.measure = torch.full((n,), 1 / n, device=self.device)
        self.leaves = (self.u, *self.operator.parameters())

    def step(self, name: str, direction: Direction) -> Step:
        """The library's operator as a user calls it, with an automatic route, in one of the `CASES`."""

        def apply() -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=name == "grid bf16"):
                return self.operator(self.u, self.domains[name])

        return directed(apply, direction, self.leaves, self.cotangent)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """Error against the formula on ``rows``; None without rows."""
        if self.rows is None:
            return None
        label = f"{name} against the formula on {len(self.rows)} rows, n={self.n}"
        return require_agreement(label, self.at_rows(result), self.oracle(direction), TOLERANCE[name])

    def theirs(self, peer: Peer, direction: Direction) -> Step:
        """The same operator with the integral computed by a peer."""

        def apply() -> Tensor:
            integral = peer.integrate(self.weights(), self.u, self.pos, self.measure)
            return self._project(integral, self.u)

        return directed(apply, direction, self.leaves, self.cotangent)

    def oracle(self, direction: Direction) -> Sequence[Tensor]:
        """The formula at ``rows`` only: the output at these rows, and the whole gradients."""
        rows = self.rows
        if rows is None:
            raise ValueError("the oracle needs a problem with rows, got none")

        def apply() -> Tensor:
            peer = Algorithm1((16, 64))
            integral = peer.integrate_rows(self.weights(), self.u, self.pos, self.measure, rows)
            return self._project(integral, self.u[:, rows])

        return directed(apply, direction, self.leaves, self.cotangent[:, rows])()

    def at_rows(self, result: Sequence[Tensor]) -> Sequence[Tensor]:
        """A result with its output restricted to ``rows``, to compare with `oracle`."""
        return (result[0][:, self.rows], *result[1:])

    def weights(self) -> KernelWeights:
        """The kernel's parameters in the peers' layout, differentiable with respect to them."""
        kernel = self.kernel
        assert kernel.input_weight is not None
        return KernelWeights(
            hidden=kernel.get_parameter("input_weight"),
            hidden_bias=kernel.input_bias,
            output=kernel.output_weight.mT.flatten(2).mT,
            output_bias=kernel.output_bias.flatten(1),
            frequencies=kernel.frequencies,
            activation=kernel.activation,
        )

    def _project(self, integral: Tensor, u: Tensor) -> Tensor:
        """W^O, the residual and the bias: the operator's channel maps around the integral, Algorithm 1's line 26."""
        assert self.operator.output_weight is not None
        projected = F.linear(integral, self.operator.output_weight, self.operator.bias)
        assert self.operator.residual_weight is not None
        return projected + F.linear(u, self.operator.residual_weight)
