"""InfViT with one attention or another, softmax twice, and one batch of images for all of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from benchmarks.harness import Direction, Instance, Options, Step, directed, require_agreement
from benchmarks.itnet_problem import TOLERANCE, Precision
from benchmarks.written_weights import WrittenWeights
from fredholm import encoders
from fredholm.blocks.discounted import DiscountedBlock
from fredholm.blocks.pre_norm import PreNormBlock
from fredholm.evaluation import Evaluation, Integral, Queries, Route
from fredholm.kernels import Attention, LinearInfiniteAttention
from fredholm.models.infvit import AttentionKind, InfViT

LINEAR, FACTORISED, PURE, RESOLVENT = "linear", "factorised", "pure", "resolvent"
SDPA, PLAIN = "softmax, SDPA", "softmax, written out"
OUTPUTS = 1000
GATE_SIDE = 13
"""Patches a side of the image on which every model must agree with its oracle."""


@final
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of all models; the defaults are 4L-64H at 768 channels, one image at a time."""

    embed_dim: int = 768
    """Channels: 768 make the paper's heads of 12, 1024 about its parameters."""
    depth: int = 4
    num_heads: int = 64
    patch_size: int = 16
    batch: int = 1
    """Images at a time."""
    precision: Precision | None = None
    """bfloat16 is autocast; default: bfloat16 on a GPU, float32 on a CPU."""

    def model(self, attention: AttentionKind) -> InfViT.Config:
        """The stack of one of them."""
        return InfViT.Config(embed_dim=self.embed_dim, depth=self.depth, num_heads=self.num_heads, attention=attention)

    def precision_on(self, device: torch.device) -> Precision:
        """What is computed in there."""
        return self.precision or ("bfloat16" if device.type == "cuda" else "float32")


@final
@dataclass(frozen=True)
class WrittenSoftmax(Route[Attention]):
    """Plain attention: scores, softmax and weighted sum, as many heads at a time as `max_bytes` hold scores of."""

    marker = Attention
    queries = Queries.OWN
    max_bytes: int = 1 << 30

    def refusals(self, integral: Integral[Attention]) -> list[str]:
        """Refuses what plain attention has not; see `Route.refusals`."""
        return [] if integral.domain.is_plain else ["plain attention knows neither masks nor weights"]

    def compute(self, integral: Integral[Attention]) -> Tensor:
        """See `Route.compute`."""
        kernel, u = integral.kernel, integral.u
        q, k, v, scale = kernel.dot_product_form(u, u)
        together = max(1, self.max_bytes // max(1, 4 * len(u) * u.shape[1] ** 2))
        groups = zip(*(part.split(together, dim=1) for part in (q, k, v)), strict=True)
        out = [torch.softmax(scale * q @ k.mT, dim=-1) @ v for q, k, v in groups]
        return torch.cat(out, dim=1).transpose(1, 2).flatten(2)


@final
@dataclass(frozen=True)
class WrittenLinear(Route[LinearInfiniteAttention]):
    """Eq. 16-21 of the paper, line by line, without the discount, which a block of InfViT applies."""

    marker = LinearInfiniteAttention
    queries = Queries.OWN

    def refusals(self, integral: Integral[LinearInfiniteAttention]) -> list[str]:
        """Refuses what the paper's equations have not; see `Route.refusals`."""
        return [] if integral.domain.is_plain else ["eq. 16-21 know neither masks nor weights"]

    def compute(self, integral: Integral[LinearInfiniteAttention]) -> Tensor:
        """See `Route.compute`."""
        kernel, u = integral.kernel, integral.u
        q, v = (
            linear(u, weight, bias).unflatten(-1, (kernel.num_heads, -1)).transpose(1, 2)
            for weight, bias in ((kernel.query_weight, kernel.query_bias), (kernel.value_weight, kernel.value_bias))
        )
        energy = q.norm(dim=-1, keepdim=True)
        alpha = energy / energy.sum(2, keepdim=True)
        score = (q @ (alpha * q).sum(2)[..., None]).relu()
        context = (score / score.sum(2, keepdim=True) * v).sum(2, keepdim=True)
        return context.expand_as(v).transpose(1, 2).flatten(2)


@final
@dataclass(frozen=True)
class Side:
    """One of the models that are measured.

    Args:
        attention: which InfViT.
        power: its time and memory grow at most as this power of the patches.
        route: how its attention is computed; None: as the library would.
        oracle: how the gate computes the same.
    """

    attention: AttentionKind
    power: int
    route: Evaluation | None = None
    oracle: Evaluation = field(default_factory=WrittenWeights)


SIDES: dict[str, Side] = {
    LINEAR: Side("linear", 1, oracle=WrittenLinear()),
    FACTORISED: Side("factorised", 1),
    PURE: Side("pure", 2),
    RESOLVENT: Side("resolvent", 2),
    SDPA: Side("softmax", 2, oracle=WrittenSoftmax()),
    PLAIN: Side("softmax", 2, route=WrittenSoftmax()),
}
"""All models by their names; the two softmax ones last."""


@final
class ModelProblem(Instance):
    """Random images of ``n`` patches, a square number, and on demand the models that take them."""

    def __init__(self, config: ModelConfig, options: Options, n: int) -> None:
        self.config, self._seed, self.device = config, options.seed, options.torch_device
        self.pixels = math.isqrt(n) * config.patch_size
        torch.manual_seed(options.seed)
        self.images = torch.randn(config.batch, 3, self.pixels, self.pixels).to(self.device)
        self._models: dict[str, nn.Module] = {}

    def model(self, name: str) -> nn.Module:
        """A side's model, built once; weights that models share are the same in all."""
        if name not in self._models:
            side = SIDES[name]
            self._models[name] = self.routed(name, side.route) if side.route else self._build(side.attention)
        return self._models[name]

    def routed(self, name: str, route: Evaluation) -> nn.Module:
        """A side's model with its attention computed by ``route``."""
        model = self._build(SIDES[name].attention)
        for block in model.blocks:
            assert isinstance(block, DiscountedBlock | PreNormBlock)
            block.operator.evaluation = route
        return model

    def step(self, name: str, direction: Direction) -> Step:
        """Inference."""
        assert direction == "forward"
        model, precision = self.model(name), self.config.precision_on(self.device)

        def infer() -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                return model(self.images)

        return directed(infer, direction, (), None)

    def error(self, name: str, direction: Direction, result: Sequence[Tensor]) -> float | None:
        """None: `agreement` checks models."""
        return None

    @property
    def tolerance(self) -> float:
        """Relative difference of logits above which nothing is timed."""
        return TOLERANCE[self.config.precision_on(self.device)]

    def agreement(self, name: str, logits: Sequence[Tensor]) -> float:
        """How far a side's logits are from those of its oracle in float32, relative; raises `GateError`."""
        oracle = SIDES[name].oracle
        with torch.no_grad():
            expected = self.routed(name, oracle)(self.images)
        label = f"{name} against {oracle.name}, {self.pixels} x {self.pixels}"
        return require_agreement(label, logits, [expected], self.tolerance)

    def _build(self, attention: AttentionKind) -> InfViT:
        c = self.config
        image = encoders.Image.Config(image_size=(self.pixels, self.pixels), patch_size=c.patch_size)
        torch.manual_seed(self._seed)
        with self.device:
            return InfViT(encoders.Image(image, c.embed_dim), OUTPUTS, c.model(attention)).eval()


def compare(config: ModelConfig, options: Options, name: str) -> float:
    """The gate: a side's logits, as it is timed, against its attention written out, in float32."""
    problem = ModelProblem(config, options, GATE_SIDE**2)
    return problem.agreement(name, problem.step(name, "forward")())
